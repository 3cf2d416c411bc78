"""Error messages for failed connections, the same for every transport."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from provision.commands.ssh import SshProblem, SshSettings, SudoProblem, explain_sudo
from provision.connectors.known_hosts import KnownKey, fingerprint
from provision.errors import ConnectionFailed, HostNotTrusted
from provision.model import Connection

_INVENTORY_KEYS = "known_hosts.txt"
"""File of an inventory folder in which ``init`` stores host keys."""


def check_strict(node: str, connection: Connection, settings: SshSettings) -> None:
    """Reject ssh arguments of the inventory with which Ansible's ssh would accept any host key.

    `settings` is the result of these arguments and of every ssh_config in ssh itself. Without ansible_ssh_args those of
    playbooks/ansible.cfg apply, which enable strict checking.
    """
    if connection.own_ssh_args and settings.trusting:
        raise ConnectionFailed(
            f"ssh would accept any host key of {settings.host}: with ansible_ssh_args of the inventory,"
            f" StrictHostKeyChecking is {settings.other['stricthostkeychecking']!r}",
            node=node,
            remedy="put -o StrictHostKeyChecking=yes first in ansible_ssh_args, or use ansible_ssh_common_args instead",
        )


def unresolvable(node: str, host: str) -> ConnectionFailed:
    """Return the error for a host name that cannot be resolved."""
    return ConnectionFailed(
        f"the name {host} cannot be resolved to an address",
        node=node,
        remedy=f"set ansible_host of {node} to its address, or add {host} to DNS or /etc/hosts",
    )


def from_oserror(node: str, host: str, port: int, error: OSError) -> ConnectionFailed:
    """Return the error for a failed TCP connection."""
    if isinstance(error, ConnectionRefusedError):
        return ConnectionFailed(
            f"{host} refuses connections on port {port}",
            node=node,
            remedy=f"is sshd running there, and is {port} its port? (ansible_port, or Port in ssh_config)",
        )
    if isinstance(error, TimeoutError):
        return no_answer(node, host, port)
    return ConnectionFailed(
        f"{host} port {port} cannot be reached: {error.strerror or error}",
        node=node,
        remedy="check that the node is powered on, its address, and the route to it",
    )


def no_answer(node: str, host: str, port: int, seconds: float = 10) -> ConnectionFailed:
    """Return the error for a host that does not answer."""
    return ConnectionFailed(
        f"{host} port {port} did not answer within {seconds:g} seconds",
        node=node,
        remedy="check that the node is powered on, its address, and that no firewall drops the connection",
    )


def outdated_algorithms(node: str, host: str, port: int, reason: str) -> ConnectionFailed:
    """Return the error for a host without a supported algorithm."""
    return ConnectionFailed(
        f"{host} port {port} offers only outdated SSH algorithms: {reason}",
        node=node,
        remedy=f"update OpenSSH on {host}, or remove KexAlgorithms, Ciphers, MACs and HostKeyAlgorithms from its"
        " sshd_config; SHA-1, MD5, CBC, DSA and 1024-bit groups are refused",
    )


def unknown_key(node: str, name: str, files: Sequence[str], *, key_type: str = "", shown: str = "") -> HostNotTrusted:
    """Return the error for a host whose key is in no known_hosts file."""
    what = f" ({key_type} {shown})".replace("( ", "(").replace(" )", ")") if key_type or shown else ""
    return HostNotTrusted(
        f"the host key of {name} is not known{what}: none of {_listed(files)} has an entry for it",
        node=node,
        remedy=f"compare the fingerprint with the one on the node's console, then add the key to {_first(files)}"
        " (provision init does so after asking)",
    )


def changed_key(
    node: str, name: str, *, shown: str, known: Sequence[KnownKey], others: Sequence[str] = ()
) -> HostNotTrusted:
    """Return the error for a changed host key: another machine, a new installation, or an attack.

    `others` are the hosts with this key in known_hosts.
    """
    if others:
        return HostNotTrusted(
            f"{name} sends the host key of {', '.join(others)} ({shown}): that machine answers at its address",
            node=node,
            remedy="Check whether the addresses of two nodes were swapped, and correct the inventory or the nodes.",
        )
    recorded = ", ".join(f"{key.type} {fingerprint(key.blob)} ({key.where})" for key in known)
    file = Path(known[0].where.rpartition(":")[0]) if known else None
    if file is not None and file.name == _INVENTORY_KEYS:
        replace = f"provision init {node} --replace-key -i {shlex.quote(str(file.parent))}"
    else:
        replace = f"ssh-keygen -R '{name}'{f' -f {shlex.quote(str(file))}' if file else ''}, and add the new key"
    return HostNotTrusted(
        f"the host key of {name} has CHANGED: it sends {shown}, but the known key is {recorded}",
        node=node,
        remedy="Either the node was reinstalled, or another machine answers at its address. If it was"
        f" reinstalled, replace its key: {replace}",
    )


def invalid_certificate(node: str, name: str, reason: str) -> HostNotTrusted:
    """Return the error for an invalid host certificate of a trusted authority."""
    return HostNotTrusted(
        f"the host certificate of {name} is invalid: {reason}",
        node=node,
        remedy=f"sign the node's host key again with -n {name} and a later -V, and copy the certificate to the node",
    )


def login_refused(
    node: str, user: str, host: str, tried: Sequence[str], note: str = "", exposed: Sequence[Path] = ()
) -> ConnectionFailed:
    """Return the error for a refused login. `exposed` keys were not tried because other users may read them."""
    what = ", ".join(tried) if tried else "nothing: no key was found in the agent, in ssh_config or in ~/.ssh"
    if exposed:
        files = shlex.join(map(str, exposed))
        modes = ", ".join(f"{path} (mode {path.stat().st_mode & 0o7777:04o}; needs chmod 600)" for path in exposed)
        problem = f"SSH ignores private keys that other users may read: {modes}"
        return ConnectionFailed(
            f"login as {user} at {host} was refused: {problem}; tried {what}" if tried else problem,
            node=node,
            remedy=f"Restrict the private key to its owner: chmod 600 {files}",
        )
    return ConnectionFailed(
        f"login as {user} at {host} was refused; tried {what}{note}",
        node=node,
        remedy=f"check that {user} is the right user (ansible_user), and that its ~/.ssh/authorized_keys has your key."
        " Specify the key in ansible_ssh_private_key_file, or load it with ssh-add. A node that cannot start processes"
        " refuses logins too: check its console",
    )


def sudo_refused(node: str, user: str, stderr: str) -> ConnectionFailed:
    """Return the error for a user that cannot become root."""
    problem = explain_sudo(stderr)
    sentences = {
        SudoProblem.PASSWORD_WANTED: (
            f"sudo requires a password of {user}",
            "use --ask-become-pass, or ansible_become_password in a vault, or allow NOPASSWD in sudoers",
        ),
        SudoProblem.PASSWORD_WRONG: (
            f"sudo does not accept the password given for {user}",
            "check the password of --ask-become-pass or ansible_become_password",
        ),
        SudoProblem.NOT_ALLOWED: (
            f"{user} is not allowed to become root by sudo",
            f"add {user} to sudoers on the node, or log in as root (ansible_user=root)",
        ),
        SudoProblem.TTY_WANTED: (
            f"sudo requires a terminal for {user}",
            f"remove 'Defaults requiretty' for {user} from sudoers on the node",
        ),
        SudoProblem.MISSING: (
            f"{user} is not root and the node has no sudo",
            "install sudo on the node, or log in as root (ansible_user=root)",
        ),
    }
    text, remedy = sentences.get(
        problem, (f"{user} cannot become root by sudo", "run `sudo -n true` on the node to see the error")
    )
    return ConnectionFailed(text, node=node, remedy=remedy, output=stderr.strip()[-500:])


def no_session(node: str, host: str) -> ConnectionFailed:
    """Return the error for a server that refuses sessions on a connection."""
    return ConnectionFailed(
        f"{host} refuses sessions",
        node=node,
        remedy="increase MaxSessions in its sshd_config, the number of sessions per connection (sshd's default is 10)",
    )


def broke(node: str, host: str, doing: str) -> ConnectionFailed:
    """Return the error for a lost connection."""
    return ConnectionFailed(
        f"the connection to {host} was lost while {doing}",
        node=node,
        remedy="the node may be powered off, restarting or disconnected; try again when it answers",
    )


def from_openssh(
    node: str,
    settings: SshSettings,
    problem: SshProblem,
    *,
    known: Sequence[KnownKey],
    note: str = "",
    exposed: Sequence[Path] = (),
) -> ConnectionFailed:
    """Return the error for a message of the ``ssh`` program."""
    host, port, user, files = settings.host, settings.port, settings.user, settings.known_hosts
    name = host if port == 22 else f"[{host}]:{port}"  # noqa: PLR2004 - SSH's port
    plain: dict[str, Callable[[], ConnectionFailed]] = {
        "resolve": lambda: unresolvable(node, host),
        "refused": lambda: from_oserror(node, host, port, ConnectionRefusedError()),
        "timeout": lambda: no_answer(node, host, port),
        "certificate": lambda: invalid_certificate(node, name, problem.certificate),
        "unknown-key": lambda: unknown_key(node, name, files, key_type=problem.key_type, shown=problem.fingerprint),
        "changed-key": lambda: changed_key(node, name, shown=problem.fingerprint or "another key", known=known),
        "algorithms": lambda: outdated_algorithms(node, host, port, problem.last_line),
        "login": lambda: login_refused(node, user, host, ["the keys of ssh_config and the agent"], note, exposed),
    }
    if problem.kind in plain:
        return plain[problem.kind]()
    return ConnectionFailed(
        f"ssh could not connect to {host}: {problem.last_line or 'unknown reason'}",
        node=node,
        remedy=f"run `ssh -v {user}@{host} -p {port}` to see the details",
    )


def _listed(files: Sequence[str]) -> str:
    return ", ".join(files) if files else "no known_hosts file"


def _first(files: Sequence[str]) -> str:
    return files[0] if files else "~/.ssh/known_hosts"
