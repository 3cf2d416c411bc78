"""The files by which mpirun reaches the containers of a job: host files, and the files of SSH."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.batch.inference import starts_ranks, words_of
from provision.batch.ranks import slots
from provision.commands.ssh_keys import public_key_problem, shared_keys
from provision.errors import NodeError
from provision.launchers import DEFAULT_MPI, LAUNCHERS, MPIRUN, HostEntry, Launch, Reach, launcher_of
from provision.model.job import Assignment, JobSpec

MOUNT = "/provision"
"""The path of an attempt's folder ``mount`` in its containers."""
KEYS = "/provision-ssh"
"""The path of an attempt's private keys in its containers; only the job's account can read them."""
RUN_FOLDER = "/provision-run"
"""A private tmpfs of each worker's container, owned by the job's account; mounts of the job cannot replace it."""
_PORTS = 1 << 16
_ALGORITHMS = {"KexAlgorithms": "-*-sha1", "Ciphers": "-*-cbc,arcfour*", "MACs": "-*sha1*,*md5*,*ripemd*"}
"""Algorithms that sshd of the image refuses, as in the role container_ssh; requires OpenSSH 7.5."""
_OLD_ALGORITHMS = {
    "KexAlgorithms": "curve25519-sha256@libssh.org,ecdh-sha2-nistp256,ecdh-sha2-nistp384,ecdh-sha2-nistp521,"
    "diffie-hellman-group-exchange-sha256",
    "Ciphers": "aes128-gcm@openssh.com,aes256-gcm@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr",
    "MACs": "hmac-sha2-256-etm@openssh.com,hmac-sha2-512-etm@openssh.com,hmac-sha2-256,hmac-sha2-512",
}
"""Algorithms that an older sshd accepts."""
_REMEDY = "Check the node: its software may be damaged or manipulated"
_VARIABLES = f"{RUN_FOLDER}/variables"


@dataclass(frozen=True)
class Login:
    """The SSH address and keys of one node's container of a job."""

    node: str
    address: str
    port: int
    client_key: str
    """The public key of its SSH client; verified by `logins_of`, like the other fields."""
    host_key: str
    """The public host key of its sshd."""


def logins_of(
    addresses: Mapping[str, str], ports: Mapping[str, int], keys: Mapping[str, Mapping[str, object]]
) -> list[Login]:
    """Return the logins of all nodes of an attempt, after verification of the values that the nodes sent.

    Raises:
        NodeError: a key is invalid, or two nodes send the same key or the same address and port.
    """
    by_kind: dict[str, dict[str, str]] = {"client": {}, "host": {}, "address and port": {}}
    for node, address in addresses.items():
        for kind in ("client", "host"):
            problem = public_key_problem(keys[node].get(kind))
            if problem:
                raise NodeError(f"its public {kind} key of the job is invalid: {problem}", node=node, remedy=_REMEDY)
            by_kind[kind][node] = str(keys[node][kind])
        if not 0 < ports[node] < _PORTS:
            raise NodeError(f"its port for sshd is invalid: {ports[node]}", node=node, remedy=_REMEDY)
        by_kind["address and port"][node] = f"{address} {ports[node]}"
    for kind, values in by_kind.items():
        for node, names in shared_keys(values).items():
            what = kind if kind == "address and port" else f"public {kind} key of the job"
            raise NodeError(f"{' and '.join(names)} send the same {what}", node=node, remedy=_REMEDY)
    return [
        Login(node, address, ports[node], by_kind["client"][node], by_kind["host"][node])
        for node, address in addresses.items()
    ]


def ssh_config(logins: Sequence[Login], account: str) -> str:
    """Return ssh_config for the launcher: every node by its inventory name and port, with a known key."""
    hosts = "".join(f"Host {one.node}\n  HostName {one.address}\n  Port {one.port}\n\n" for one in logins)
    user = f"  User {account}\n" if account else ""
    return (
        f"{hosts}Host *\n{user}"
        f"  HostKeyAlgorithms ssh-ed25519\n  IdentityFile {KEYS}/client\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {MOUNT}/known_hosts\n"
        "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  BatchMode yes\n"
        "  ConnectionAttempts 10\n  ConnectTimeout 5\n  ServerAliveInterval 5\n  LogLevel ERROR\n"
    )


def known_hosts(logins: Sequence[Login]) -> str:
    """Return known_hosts with the host keys of all containers, by address and port."""
    return "".join(f"[{one.address}]:{one.port} {one.host_key}\n" for one in logins)


def authorized_keys(logins: Sequence[Login]) -> str:
    """Return authorized_keys with the keys of the job's own containers."""
    return "".join(f"restrict,pty {one.client_key}\n" for one in logins)


def login_files(logins: Sequence[Login], account: str = "") -> dict[str, str]:
    """Return the files in `MOUNT` for SSH between the containers of a job."""
    return {
        "ssh_config": ssh_config(logins, account),
        "known_hosts": known_hosts(logins),
        "authorized_keys": authorized_keys(logins),
    }


def sshd_command(login: Login) -> tuple[str, ...]:
    """Return the command of a worker's container: sshd in the foreground, which accepts only the keys of this job.

    Sessions of sshd do not inherit the container's variables; they read them from a file of the job's account.
    """
    options = {
        "Port": str(login.port),
        "ListenAddress": login.address,
        "HostKey": f"{KEYS}/host",
        "HostKeyAlgorithms": "ssh-ed25519",
        "PubkeyAcceptedKeyTypes": "ssh-ed25519",
        "AuthorizedKeysFile": f"{MOUNT}/authorized_keys",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "UsePAM": "no",
        "PidFile": "none",
        "StrictModes": "no",  # root owns the files on the node, and the mount is read-only
        "PermitRootLogin": "prohibit-password",
        "AllowTcpForwarding": "no",
        "X11Forwarding": "no",
        "MaxStartups": "200:30:400",
        "ForceCommand": f'. {_VARIABLES}; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"',
    }
    export = f"umask 077; export -p >{_VARIABLES}; mkdir -p /run/sshd 2>/dev/null"
    find = 'sshd="$(command -v sshd || echo /usr/sbin/sshd)"'
    new, old = _sshd_words(_ALGORITHMS), _sshd_words(_OLD_ALGORITHMS)
    choose = f'set -- {new}; "$sshd" -t -f /dev/null -h {KEYS}/host "$@" 2>/dev/null || set -- {old}'
    return ("sh", "-c", f'{export}; {find}; {choose}; exec "$sshd" -D -e -f /dev/null {_sshd_words(options)} "$@"')


def _sshd_words(options: Mapping[str, str]) -> str:
    return " ".join(f"-o {shlex.quote(f'{name}={value}')}" for name, value in options.items())


def launcher_variables(interfaces: Sequence[str], subnets: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables by which all launchers reach the nodes; it is unknown which launcher the image contains.

    Args:
        interfaces: interfaces of the nodes' data addresses; empty if one is unknown.
        subnets: networks of these addresses as CIDRs; empty if one is unknown.
    """
    reach = Reach(f"{MOUNT}/ssh_config", folder=MOUNT, interfaces=interfaces, subnets=subnets)
    variables = [launcher.environment(reach) for launcher in LAUNCHERS.values()]
    pairs = [pair for one in variables for pair in one.items()]
    return dict(sorted(pairs, key=lambda pair: pair[0].endswith("_if_include")))


def mpi_command(spec: JobSpec, variables: Sequence[str], total: int) -> tuple[str, ...]:
    """Return the launcher's command: the user's own mpirun command line, or a generated one with the command.

    A shell command line that does not start ranks runs once, on the first node, or on every slot with
    ``--launcher mpirun`` or ``--np``. An argument vector runs on every slot, or once with another launcher.

    Args:
        spec: the job; a command of one word is a command line for its shell.
        variables: names of the variables that mpirun passes to every rank.
        total: the number of ranks if the spec has none.
    """
    line = len(spec.command) == 1
    wrapped = not starts_ranks(words_of(spec.command)) and not launcher_of(spec.launcher).rendezvous
    if not wrapped or (line and spec.launcher != MPIRUN):
        return (spec.shell, "-c", spec.command[0]) if line else spec.command
    program = (spec.shell, "-c", spec.command[0]) if line else spec.command
    ranks = (spec.ranks if spec.gang else min(spec.ranks, total)) or total
    launch = Launch(version=0, ranks=ranks, command=program, root=not spec.user, environment=tuple(sorted(variables)))
    launcher = LAUNCHERS[DEFAULT_MPI]
    return tuple(launcher.argv(launch.program, launcher.command_line(launch).settings, program))


def files(spec: JobSpec, assignments: Sequence[Assignment], logins: Sequence[Login]) -> dict[str, str]:
    """Return all files in `MOUNT` of an mpi job."""
    return {**host_files(spec, assignments), **login_files(logins)}


def host_entries(spec: JobSpec, assignments: Sequence[Assignment]) -> list[HostEntry]:
    """Return the nodes of a job with their slots."""
    addresses = {assignment.node: assignment.address for assignment in assignments}
    kind = "gpu" if spec.gpus else "cpu"
    return [HostEntry(node, addresses[node], count, kind) for node, count in slots(spec, assignments).items()]


def host_files(spec: JobSpec, assignments: Sequence[Assignment]) -> dict[str, str]:
    """Return the host files of all MPI launchers by name; it is unknown which launcher the image contains."""
    entries = host_entries(spec, assignments)
    launchers = [launcher for launcher in LAUNCHERS.values() if launcher.file_name and launcher.host_file]
    return {launcher.file_name: launcher.host_file(entries) for launcher in launchers if launcher.host_file}
