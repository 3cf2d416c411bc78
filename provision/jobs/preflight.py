"""Checks on the nodes before a job starts, so that a missing program is reported by name."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.commands.docker import exec_argv
from provision.commands.shell import join, script_argument
from provision.commands.ssh import explain_ssh
from provision.connectors import Connector, each
from provision.errors import LaunchError, ProvisionError
from provision.jobs.request import JobRequest, together
from provision.launchers import (
    DEFAULT_MPI,
    LAUNCHERS,
    Launcher,
    identified,
    launcher_of,
    mpi_labels,
    mpi_versions,
    of_version,
)
from provision.model import CommandResult

SSH_CONFIG = "/etc/provision/ssh/ssh_config"
_SECONDS = 120
_SEPARATOR = "provision-login"


@dataclass(frozen=True)
class Container:
    """One node's training container as a job finds it."""

    version: int
    """The major version of its MPI, where launchers differ by it; else 0."""
    mpirun: str
    """Where mpirun is."""
    root: bool
    library_path: bool
    """LD_LIBRARY_PATH is set in the container."""
    interface: str = ""
    """The interface of the node's data address; empty if it is unknown."""
    python: bool = True
    """Whether it has python3."""
    mpi: str = DEFAULT_MPI
    """The launcher that mpirun is, in any of its versions."""

    @property
    def launcher(self) -> Launcher:
        """Its launcher, of its version."""
        return of_version(self.mpi, self.version) or LAUNCHERS[self.mpi]

    @property
    def label(self) -> str:
        """What a person calls its MPI."""
        return f"{self.launcher.label} {self.version or ''}".rstrip()


def check_nodes(request: JobRequest, names: Sequence[str]) -> dict[str, Container]:
    """Probe the containers of all `names` in parallel; LaunchError names every node that cannot take the job."""
    results = each(
        [request.nodes[name] for name in names],
        lambda connector: _probe_container(connector, request),
    )
    problems = {name: value for name, value in results.items() if isinstance(value, ProvisionError)}
    if problems:
        raise together(problems)
    containers = {name: value for name, value in results.items() if isinstance(value, Container)}
    _same_version(containers)
    return containers


def _probe_container(connector: Connector, request: JobRequest) -> Container:
    container = request.container(connector.name)
    address = next((entry.address for entry in request.entries if entry.name == connector.name), "")
    script = node_script(container, request.program, request.directory, address, request.mpirun)
    result = connector.run(script, timeout=_SECONDS)
    return parse_node(connector.name, container, result, request)


def node_script(
    container: str, command: Sequence[str], directory: str | None, address: str = "", mpirun: str = ""
) -> str:
    """A script for the node that asks its container for everything a job needs, in one `docker exec`."""
    script = script_argument(command, {launcher.program for launcher in LAUNCHERS.values()}) or ""
    program = shlex.quote(mpirun or "mpirun")
    inner = "\n".join(
        [
            'echo "uid=$(id -u)"',
            f'echo "mpirun=$(command -v {program})"',
            f'echo "version=$({program} --version 2>&1 | head -n 1)"',
            'echo "library_path=${LD_LIBRARY_PATH:+1}"',
            'echo "python3=$(command -v python3)"',
            f"cd {shlex.quote(directory)} 2>/dev/null || {{ echo workdir=missing; exit 0; }}" if directory else "",
            f'echo "program=$(command -v -- {shlex.quote(command[0])})"',
            f"[ -z {shlex.quote(script)} ] || [ -e {shlex.quote(script)} ] || echo script=missing",
        ]
    )
    look = f"ip -o addr show to {shlex.quote(address)} 2>/dev/null | awk '{{ print $2; exit }}'" if address else ":"
    return f'echo "interface=$({look})"\n{join(exec_argv(container, ["sh", "-c", inner]))}'


def parse_node(node: str, container: str, result: CommandResult, request: JobRequest) -> Container:
    """Judge what `node_script` printed; LaunchError when the job cannot run there."""
    if not result.ok:
        raise _no_container(node, container, result)
    said = dict(line.partition("=")[::2] for line in result.stdout.splitlines() if "=" in line)
    identity = identified(said.get("version", ""))
    if not said.get("mpirun") or identity is None:
        label, *others = mpi_labels()
        raise LaunchError(
            f"there is no {label} in the container {container}, nor {' or '.join(others)}: mpirun "
            + (f"says {said.get('version', '')[:200]!r}" if said.get("mpirun") else "was not found"),
            node=node,
            remedy=f"use a training image with {label} {mpi_versions(label)} (training_image_reference)",
        )
    launcher, version = identity
    if of_version(launcher.name, version) is None:
        raise LaunchError(
            f"{launcher.label} {version} in the container {container} is not supported",
            node=node,
            remedy=f"use version {mpi_versions(launcher.label)}",
        )
    _check_command(node, container, said, request)
    return Container(
        version,
        said["mpirun"],
        root=said.get("uid") == "0",
        library_path=bool(said.get("library_path")),
        interface=said.get("interface", ""),
        python=bool(said.get("python3")),
        mpi=launcher.name,
    )


def _check_command(node: str, container: str, said: Mapping[str, str], request: JobRequest) -> None:
    if not request.is_synced:
        return
    bring = "copy it to every container with --sync DIR, mount it (training_container_mounts), or put it in the image"
    if said.get("workdir") == "missing":
        raise LaunchError(
            f"the directory {request.directory} does not exist in the container {container}", node=node, remedy=bring
        )
    if not said.get("program"):
        own = launcher_of(request.launcher).program
        raise LaunchError(
            f"the program {request.program[0]} was not found in the container {container}",
            node=node,
            remedy=f"use a training image that has {own} (training_image_reference)" if own else bring,
        )
    if said.get("script") == "missing":
        raise LaunchError(
            f"the file {request.program[1]} was not found in the container {container}", node=node, remedy=bring
        )


def _no_container(node: str, container: str, result: CommandResult) -> LaunchError:
    text = result.stderr + result.stdout
    if "No such container" in text or "is not running" in text:
        state = "is not running" if "is not running" in text else "does not exist"
        return LaunchError(f"the container {container} {state}", node=node, remedy="`provision apply` starts it")
    if "docker: not found" in text or "docker: command not found" in text:
        return LaunchError("docker is not installed", node=node, remedy="`provision apply` installs it")
    return LaunchError(
        f"the container {container} cannot be used",
        node=node,
        remedy="`provision verify` says what is wrong with it",
        output=result.last_lines(),
    )


def _same_version(containers: Mapping[str, Container]) -> None:
    if len({container.label for container in containers.values()}) > 1:
        said = ", ".join(f"{name} has {container.label}" for name, container in containers.items())
        raise LaunchError(
            f"the containers have different MPI libraries: {said}",
            remedy="give all nodes the same image: `provision apply`",
        )


def check_logins(connector: Connector, request: JobRequest, others: Sequence[str]) -> None:
    """Log in from the head's container to each other node's, as mpirun will; LaunchError names who is not reached."""
    if not others:
        return
    result = connector.run(logins_script(request.container(request.head), others), timeout=_SECONDS)
    failed = read_logins(result.stdout, others)
    addresses = {entry.name: entry.address for entry in request.entries}
    problems: dict[str, ProvisionError] = {
        name: _login_problem(request.head, name, failed[name], addresses.get(name, "")) for name in failed
    }
    if problems:
        raise together(problems)


def logins_script(container: str, others: Sequence[str]) -> str:
    """A script for the head node: all logins at once, inside its container."""
    inner = (
        f"for n in {join(others)}; do ("
        f' said=$(ssh -F {SSH_CONFIG} -o ConnectTimeout=10 "$n" true </dev/null 2>&1); code=$?;'
        f' printf \'{_SEPARATOR} %s %s\\n%s\\n\' "$n" "$code" "$(printf %s "$said" | tail -c 2000)"'
        " ) & done; wait"
    )
    return join(exec_argv(container, ["sh", "-c", inner]))


def read_logins(text: str, others: Sequence[str]) -> dict[str, str]:
    """Return the nodes that could not be reached and what ssh said about each."""
    said: dict[str, str] = {}
    reached: set[str] = set()
    name = ""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == _SEPARATOR:  # noqa: PLR2004 - the mark, the node, the exit status
            name = words[1]
            said[name] = ""
            reached |= {name} if words[2] == "0" else set()
        elif name:
            said[name] += line + "\n"
    return {other: said.get(other, "") for other in others if other not in reached}


def _login_problem(head: str, name: str, said: str, address: str = "") -> LaunchError:
    """Return why mpirun could not log in: keys are exchanged again only where keys are the cause."""
    problem = explain_ssh(said)
    place = f"{name} ({address})" if address else name
    keys = "`provision apply --only container_ssh` exchanges the keys again"
    network = (
        f"Check the data network between {head} and {place}: address, cable, VLAN and firewall, which must not block"
        f" the port of the container's sshd. From {head}: ping {address or name}"
    )
    blocked = f"the data network between {head} and {place} carries no connection"
    sentences = {
        "unknown-key": (f"the known_hosts of the container on {head} has no host key of {name}'s container", keys),
        "changed-key": (
            f"{name}'s container shows another host key than the one that the container on {head} knows",
            keys,
        ),
        "login": (f"{name}'s container refuses the key of the container on {head}", keys),
        "resolve": (
            f"the container on {head} cannot resolve the name {name}",
            f"`provision apply --only base_system --limit {head}` writes the nodes' names",
        ),
        "refused": (
            f"no sshd listens in {name}'s container: connection refused",
            f"`provision apply --only container_ssh --limit {name}` starts it",
        ),
        "timeout": (f"{blocked}: no answer in time", network),
        "unreachable": (f"{blocked}: {problem.last_line}", network),
    }
    other = f"the container on {head} cannot log in to {name}'s container: {problem.last_line or 'no reason was given'}"
    kind = "unreachable" if problem.kind == "other" and "connect to host" in said else problem.kind
    text, remedy = sentences.get(kind, (other, "`provision verify` shows what is wrong with its container's sshd"))
    return LaunchError(text, node=name, remedy=remedy, output=said.strip())
