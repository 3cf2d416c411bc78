"""Run one MPI job over the containers of many nodes, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from provision.checks.launch_lint import LaunchFinding, LaunchScene, lint
from provision.checks.launch_scene import scene_of
from provision.commands.docker import exec_argv
from provision.commands.shell import join
from provision.connectors import connect, each
from provision.documents.run import EndingRecord
from provision.errors import ConnectionFailed, Interrupted, LaunchError, ProvisionError
from provision.jobs.line import Line, launch_line
from provision.jobs.output import RankLines
from provision.jobs.preflight import Container, check_logins, check_nodes
from provision.jobs.request import JobRequest, chosen_entries, rank_count, used_entries
from provision.jobs.session import Session, reap_script
from provision.launchers import HostEntry, launcher_of
from provision.model import Setting
from provision.model.job_requests import GpuRequest
from provision.node_archive import shell_script

_SIGNALLED = 128

_LAUNCHER = """variables=$(head -c "$1") && shift || exit 125
cat >"$1" && file=$1 && shift || exit 125
(eval "$variables" && exec "$@") </dev/null
code=$?
rm -f "$file"
exit $code"""

Write = Callable[[str, bytes], None]
"""Takes ``("stdout"|"stderr", line)``."""


@dataclass(frozen=True)
class Plan:
    """A job that is ready to start."""

    request: JobRequest
    argv: tuple[str, ...]
    hostfile: str
    used: tuple[str, ...]
    """Names of the nodes that get ranks."""
    version: int
    """Open MPI's major version; 0 of another launcher."""
    settings: tuple[Setting, ...] = ()
    """What `argv` is made of, in its order."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What the launcher itself needs in its environment, and the ranks need not."""
    findings: tuple[LaunchFinding, ...] = ()
    """What is odd about it, and what surely fails."""
    assignments: tuple[HostEntry, ...] = ()
    """The nodes that get ranks, each with as many slots as it gets ranks."""

    @property
    def node_command(self) -> tuple[str, ...]:
        """What a launcher with a shell line starts on each node; empty if `argv` has the launcher's program."""
        launcher = launcher_of(self.request.launcher)
        return (*launcher.prefix(), *self.request.command) if launcher.shell_line else ()


def prepare(request: JobRequest) -> Plan:
    """Check that the job fits and that every node can take it; LaunchError when not, and nothing has been started."""
    ranks, used = _fit(request)
    containers = check_nodes(request, tuple(dict.fromkeys((request.head, *(entry.name for entry in used)))))
    known = replace(request, interfaces=_interfaces(request, containers))
    return _plan(known, containers[request.head], ranks, used, [n for n, c in containers.items() if not c.python])


def prepare_offline(request: JobRequest, container: Container) -> Plan:
    """Derive the command line with `container` for all nodes' containers; nothing is connected."""
    ranks, used = _fit(request)
    known = replace(request, interfaces=_interfaces(request, dict.fromkeys((entry.name for entry in used), container)))
    return _plan(known, container, ranks, used)


def _fit(request: JobRequest) -> tuple[int, list[HostEntry]]:
    """Return how many ranks there are, and who gets them. What a typed line gets wrong the lint says, in its terms."""
    entries = chosen_entries(request)
    if request.line is None or not entries:
        ranks = rank_count(entries or request.entries, request.ranks)
        return ranks, used_entries(request.entries, ranks)
    wanted = request.line.ranks or request.ranks
    ranks = wanted or sum(entry.slots for entry in entries)
    return ranks, used_entries(entries, ranks)


def _plan(
    request: JobRequest, head: Container, ranks: int, used: Sequence[HostEntry], no_python: Sequence[str] = ()
) -> Plan:
    line: Line = launch_line(request, head, ranks, used)
    if line.needs_python and no_python:
        raise LaunchError(
            f"the container has no python3, by which each rank gets what its node needs (on {', '.join(no_python)})",
            remedy="put python3 into the image; `run --explain` says what differs between the nodes",
        )
    return Plan(
        request,
        tuple(line.argv),
        line.launcher.host_file(request.entries) if line.launcher.host_file else "",
        tuple(entry.name for entry in used),
        head.version,
        line.settings,
        line.environment,
        lint(_scene(request, head.version, used)),
        tuple(_assignments(used, ranks)),
    )


def _assignments(used: Sequence[HostEntry], ranks: int) -> Iterator[HostEntry]:
    for entry in used:
        yield replace(entry, slots=min(entry.slots, ranks))
        ranks -= min(entry.slots, ranks)


def _scene(request: JobRequest, version: int, used: Sequence[HostEntry]) -> LaunchScene:
    scene = LaunchScene(
        version,
        request.entries,
        variables={name: value.reveal() for name, value in request.environment.items()},
        line=request.line,
        fabric=request.profile.fabric,
        networks=request.node_networks,
        facts=request.facts,
        placed=bool(request.placement),
    )
    return scene_of(scene, [entry.name for entry in used])


def dry_run(plan: Plan) -> str:
    """Return the command as one shell line, what it starts on each node if the line hides it, and the host file."""
    each = f"# starts on each node: {join(plan.node_command)}\n" if plan.node_command else ""
    return f"{join(plan.argv)}\n{each}# hostfile\n{plan.hostfile}"


Reserve = Callable[[str, Sequence[GpuRequest]], contextlib.AbstractContextManager[None]]
"""`JobEngine.reserve_gpus`: reserves GPUs for the program with this ID while the context is open."""


def run(plan: Plan, write: Write, reserve: Reserve) -> int:
    """Start the job, pass its output on line by line, and return its exit code.

    Ctrl-C ends the job gracefully. If this process dies or the network is interrupted, the supervisor on the head node
    ends the job instead.

    Raises:
        LaunchError: the job could not start.
    """
    request = plan.request
    with contextlib.ExitStack() as stack:
        with _starting():
            stack.enter_context(reserve(request.job, gpu_requests(plan)))
            head = connect(request.nodes[request.head])
            stack.callback(head.close)
            check_logins(head, request, _others(plan))
            session = Session(head, _spec(plan))
        try:
            interrupted = _follow(session, plan.version, write)
        except ProvisionError as error:
            raise _with_remains(error, _end_everywhere(plan)) from error
        finally:
            session.close()
    return _exit_code(session.ending, interrupted=interrupted)


def gpu_requests(plan: Plan) -> list[GpuRequest]:
    """Return the GPUs that the ranks use: those of the placement, otherwise the first ones of each node."""
    placed = {
        place.node: tuple(uuid for rank in place.ranks for uuid in rank.gpus if not uuid.isdecimal())
        for place in plan.request.placement
    }
    return [GpuRequest(one.name, one.slots, placed.get(one.name, ())) for one in plan.assignments if one.kind == "gpu"]


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """What fails now fails before the job has begun."""
    try:
        yield
    except LaunchError:
        raise
    except ProvisionError as error:
        raise LaunchError(error.message, node=error.node, remedy=error.remedy, output=error.output) from error


def _follow(session: Session, version: int, write: Write) -> bool:
    """Pass the output on until the job has ended; return whether its end was requested."""
    lines = {name: RankLines(name, version) for name in ("stdout", "stderr")}
    with _signals(session) as caught:
        for stream, data in session.frames():
            for name, line in lines[stream].feed(data):
                write(name, line)
        for reader in lines.values():
            for name, line in reader.end():
                write(name, line)
    return bool(caught)


@contextlib.contextmanager
def _signals(session: Session) -> Iterator[list[int]]:
    """Make the first Ctrl-C, SIGTERM or SIGHUP a request to end the job; the second leaves at once."""
    caught: list[int] = []

    def handle(number: int, _frame: object) -> None:
        caught.append(number)
        if len(caught) > 1:
            raise KeyboardInterrupt
        session.stop()

    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_code(ending: EndingRecord | None, *, interrupted: bool) -> int:
    if ending is None:
        raise LaunchError("the job ended without saying how")
    if ending.left:
        said = "\n".join(f"{name}: {text}" for name, text in ending.left.items())
        where = ", ".join(ending.left)
        kind = Interrupted if interrupted else ProvisionError
        raise kind(
            f"{'interrupted' if interrupted else 'the job has ended'}, but processes of it are left on {where}",
            remedy="Inspect these processes on the node.",
            output=said,
        )
    if interrupted:
        raise Interrupted("interrupted; the job was ended on all its nodes")
    if ending.reason is not None or ending.code is None:
        raise ConnectionFailed(f"the connection to the job was lost ({ending.reason}); the job was ended")
    return ending.code if ending.code >= 0 else _SIGNALLED - ending.code


def _interfaces(request: JobRequest, containers: Mapping[str, Container]) -> tuple[str, ...]:
    """All data interfaces, or none when one node's is not known: a list without it would cut that node off."""
    stated = {name: network.interface for name, network in request.node_networks.items()}
    names = tuple(dict.fromkeys(stated.get(name) or container.interface for name, container in containers.items()))
    return names if all(names) else ()


def _others(plan: Plan) -> list[str]:
    return [name for name in plan.used if name != plan.request.head]


def _spec(plan: Plan) -> dict[str, Any]:
    request = plan.request
    container = request.container(request.head)
    hostfile = request.hostfile
    exports = _exports(plan)
    visible = {"PROVISION_JOB": request.job, "PROVISION_NODE": request.head}
    launcher = ["sh", "-c", _LAUNCHER, "sh", str(len(os.fsencode(exports))), hostfile, *plan.argv]
    reach = ["ssh", "-F", "/etc/provision/ssh/ssh_config", "-o", "ConnectTimeout=5", "@NODE@", "sh"]
    return {
        "id": request.job,
        "head": request.head,
        "others": _others(plan),
        "argv": exec_argv(container, launcher, stdin=True, environment=visible),
        "input": exports + plan.hostfile,
        "reap": reap_script(),
        "reach": exec_argv(container, reach, stdin=True),
        "sweep": shell_script("run/sweep.sh"),
        "tidy": exec_argv(container, ["sh", "-c", f"rm -f {hostfile}\n{shell_script('run/sweep.sh')}"]),
        "grace_seconds": 3,
    }


def _exports(plan: Plan) -> str:
    """Shell lines that set the launcher's and the ranks' variables; no process list shows standard input."""
    ranks = {name: value.reveal() for name, value in plan.request.environment.items()}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in {**plan.environment, **ranks}.items())


def _end_everywhere(plan: Plan) -> dict[str, str]:
    """When the supervisor is lost: end what can be reached of the job through our own connections.

    Returns the nodes on which something of the job may be left, with what is known about it.
    """
    script = f"job={plan.request.job}; grace=3; term=1; linger=1\n{reap_script()}"
    nodes = [plan.request.nodes[name] for name in dict.fromkeys((plan.request.head, *plan.used))]
    outcomes = each(nodes, lambda connector: connector.run(script, timeout=30))
    left: dict[str, str] = {}
    for name, outcome in outcomes.items():
        if isinstance(outcome, ProvisionError):
            left[name] = outcome.message
        elif not outcome.ok:
            left[name] = outcome.last_lines() or f"exit {outcome.exit_code}"
    return left


def _with_remains(error: ProvisionError, left: Mapping[str, str]) -> ProvisionError:
    """Add to an error where the job may still run."""
    if left:
        said = (f"{name}: {text}" for name, text in left.items())
        error.output = "\n".join(filter(None, [error.output.strip(), *said]))
        again = f"something of the job may be left on {', '.join(left)}: look there for its processes"
        error.remedy = f"{again}; {error.remedy}" if error.remedy else again
    return error
