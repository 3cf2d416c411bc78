"""Command lines of ``ssh`` and ``sudo``, and parsers of their error output. Nothing is executed here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from provision.errors import UsageError
from provision.model import Connection

JOB_AGENT = "provision-job-agent"
"""Command requested from sshd for the account of the node agent, where sshd always runs the agent."""

TRUSTING = frozenset({"no", "off", "false", "accept-new"})
"""Values of StrictHostKeyChecking with which ssh accepts unknown host keys; ``ssh -G`` prints false for no."""

END_OF_PASSWORD = b"provision-end-of-password\n"
"""Separates the sudo password from the script. With NOPASSWD sudo does not read the password, and it is skipped."""

END_OF_SCRIPT = "# end of provision script"
"""Last line of a script. Without it the script was cut off in transit, and nothing of it is run."""

_KNOWN_OPTIONS = """
addkeystoagent batchmode checkhostip compression connectionattempts connecttimeout controlmaster controlpath
controlpersist forwardagent forwardx11 globalknownhostsfile hashknownhosts hostkeyalias hostname
identitiesonly identityfile loglevel numberofpasswordprompts passwordauthentication port
preferredauthentications proxyjump pubkeyauthentication sendenv serveralivecountmax serveraliveinterval
setenv stricthostkeychecking tcpkeepalive updatehostkeys user userknownhostsfile visualhostkey
kbdinteractiveauthentication gssapiauthentication
"""
_FLAGS_WITH_VALUE = frozenset("FilopJ")
_PLAIN_FLAGS = frozenset("qvTxaC")


@dataclass(frozen=True)
class SshSettings:
    """Connection settings of OpenSSH for a host, from ssh_config, the command line and defaults."""

    host: str
    port: int = 22
    user: str = ""
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    known_hosts: tuple[str, ...] = ()
    host_key_alias: str | None = None
    jumps: tuple[str, ...] = ()
    other: Mapping[str, str] = field(default_factory=dict)
    """All other keywords of ``ssh -G`` in lower case, except LogLevel, which depends on the command line of ssh."""

    @property
    def trusting(self) -> bool:
        """Whether ssh would accept an unknown host key."""
        return self.other.get("stricthostkeychecking", "ask").lower() in TRUSTING


def settings_argv(connection: Connection) -> list[str]:
    """Return the ``ssh -G`` command, which prints OpenSSH's settings for this host, including Include and Match."""
    return ["ssh", "-G", *_options(connection), "--", connection.host]


def ssh_argv(connection: Connection, command: str, *, control_path: str | None = None) -> list[str]:
    """Return the ``ssh`` command that runs `command` without prompts, unknown host keys or hanging connections.

    The operator's SSH agent is never forwarded, whatever ssh_config says: root on the node could use it to log in to
    other machines. Our options come first because OpenSSH uses the first value.
    """
    ours = {
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "10",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "2",
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "RequestTTY": "no",
    }
    if control_path:
        ours |= {"ControlMaster": "auto", "ControlPath": control_path, "ControlPersist": "60"}
    options = [word for key, value in ours.items() for word in ("-o", f"{key}={value}")]
    return ["ssh", *options, *_options(connection), "--", connection.host, command]


def _options(connection: Connection) -> list[str]:
    options: list[str] = []
    if connection.known_hosts is not None:
        options += ["-o", f'UserKnownHostsFile="{connection.known_hosts}"']
    if connection.jump:
        options += ["-o", f"ProxyJump={connection.jump}"]
    if connection.port is not None:
        options += ["-o", f"Port={connection.port}"]
    if connection.user:
        options += ["-o", f"User={connection.user}"]
    if connection.key_file is not None:
        options += ["-o", f'IdentityFile="{connection.key_file}"']
    return [*options, *connection.ssh_args]


def parse_settings(text: str) -> SshSettings:
    """Parse the output of ``ssh -G``."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        values.setdefault(key.lower(), []).append(value.strip())

    def first(key: str) -> str:
        value = values.get(key, [""])[0]
        return "" if value == "none" else value

    files = [name for key in ("userknownhostsfile", "globalknownhostsfile") for name in shlex.split(first(key))]
    return SshSettings(
        host=first("hostname"),
        port=int(first("port") or 22),
        user=first("user"),
        identity_files=tuple(name for name in values.get("identityfile", []) if name != "none"),
        identities_only=first("identitiesonly") == "yes",
        known_hosts=tuple(files),
        host_key_alias=first("hostkeyalias") or None,
        jumps=tuple(jump for jump in first("proxyjump").split(",") if jump),
        other={key: first(key) for key in values if key != "loglevel"},
    )


def openssh_reason(connection: Connection, settings: SshSettings, *, has_ticket: bool = False) -> str | None:
    """Return why only the ``ssh`` program can make this connection; None if paramiko can."""
    other = settings.other
    wants = {
        "proxycommand": "ssh_config sets ProxyCommand",
        "pkcs11provider": "ssh_config sets PKCS11Provider",
        "certificatefile": "ssh_config sets CertificateFile",
        "identityagent": "ssh_config sets IdentityAgent",
        "knownhostscommand": "ssh_config sets KnownHostsCommand",
        "revokedhostkeys": "ssh_config sets RevokedHostKeys",
        "bindaddress": "ssh_config sets BindAddress",
        "bindinterface": "ssh_config sets BindInterface",
    }
    for key, reason in wants.items():
        if other.get(key, "") not in ("", "SSH_AUTH_SOCK"):
            return reason
    if other.get("addressfamily", "any") not in ("", "any"):
        return "ssh_config sets AddressFamily"
    if other.get("hostbasedauthentication") == "yes":
        return "ssh_config sets HostbasedAuthentication"
    if has_ticket and other.get("gssapiauthentication") == "yes":
        return "ssh_config sets GSSAPIAuthentication and there is a Kerberos ticket"
    return _unknown_argument(connection.ssh_args)


def _unknown_argument(words: Sequence[str]) -> str | None:
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if len(word) < 2 or word[0] != "-":  # noqa: PLR2004 - a dash and a letter
            return f"the inventory passes the argument {word!r} to ssh"
        if word[1] in _FLAGS_WITH_VALUE:
            value = word[2:] or (rest.pop(0) if rest else "")
            key = re.split(r"[=\s]", value.strip(), maxsplit=1)[0].lower()
            if word[1] == "o" and key not in _KNOWN_OPTIONS.split():
                return f"the inventory passes the option {value.split('=')[0]!r} to ssh"
        elif not set(word[1:]) <= _PLAIN_FLAGS:
            return f"the inventory passes the argument {word!r} to ssh"
    return None


def agent_command(node: str, script: str) -> str:
    """Return the command to request from sshd if the SSH user is the account of the node agent.

    Raises:
        UsageError: The script is not a request to the agent.
    """
    if script == JOB_AGENT:
        return script
    raise UsageError(
        "this requires an operator: the inventory connects to the node through the node agent, which accepts only "
        "requests about jobs",
        node=node,
        remedy="Use an inventory with a root login. This inventory can submit, list, follow, stop and delete jobs.",
    )


def is_exposed(mode: int, *, owner: int, user: int) -> bool:
    """Return whether OpenSSH ignores a private key with these permissions: `user` owns it and others may read it."""
    return owner == user and bool(mode & 0o077)


def script_command(script: str, *, sudo: bool, password: bool = False) -> str:
    """Return the remote command that reads `script` from stdin and runs it, as root if `sudo`.

    Command lines are limited in length, visible to all users of the node, and parsed by different login shells.
    """
    inner = (
        f's="$(head -c {len(_whole(script))})"; case "$s" in *"{END_OF_SCRIPT}") eval "unset s; $s";; '
        '*) echo "the script arrived incomplete" >&2; exit 1;; esac'
    )
    if not sudo:
        return f"exec sh -c '{inner}'"
    if not password:
        return f"exec sudo -n sh -c '{inner}'"
    skip = f'until [ "$l" = {END_OF_PASSWORD.decode().strip()} ]; do IFS= read -r l || exit 1; done; '
    return f"exec sudo -k -S -p '' sh -c '{skip}unset l; {inner}'"


def script_stdin(script: str, *, password: str | None = None) -> bytes:
    """Return the input for `script_command`; the script's own input follows it."""
    head = b"" if password is None else password.encode() + b"\n" + END_OF_PASSWORD
    return head + _whole(script)


def _whole(script: str) -> bytes:
    return f"{script}\n{END_OF_SCRIPT}".encode()


def sudo_check(*, password: bool) -> str:
    """Return a command that succeeds if the user is root or may become root; prints ``root`` if it needs no sudo."""
    become = 'sudo -k -S -p ""' if password else "sudo -n"
    root = 'if [ "$(id -u)" = 0 ]; then echo root; exit 0; fi'
    return f"exec sh -c '{root}; LC_ALL=C LANGUAGE=C; export LC_ALL LANGUAGE; exec {become} true'"


class SudoProblem(StrEnum):
    """Why sudo failed."""

    PASSWORD_WANTED = "password wanted"  # noqa: S105 # nosec B105 # a kind of failure
    PASSWORD_WRONG = "password wrong"  # noqa: S105 # nosec B105 # a kind of failure
    NOT_ALLOWED = "not allowed"
    TTY_WANTED = "tty wanted"
    MISSING = "missing"
    OTHER = "other"


_SUDO = {
    SudoProblem.TTY_WANTED: "must have a tty",
    SudoProblem.PASSWORD_WRONG: "incorrect password|Sorry, try again|no password was provided",
    SudoProblem.PASSWORD_WANTED: "password is required|a terminal is required|no tty present",
    SudoProblem.NOT_ALLOWED: "not in the sudoers|not allowed|may not run",
    SudoProblem.MISSING: "sudo: not found|sudo: No such file|sudo: command not found",
}


def explain_sudo(stderr: str) -> SudoProblem:
    """Classify the error output of sudo in the C locale."""
    return next((kind for kind, text in _SUDO.items() if re.search(text, stderr)), SudoProblem.OTHER)


@dataclass(frozen=True)
class SshProblem:
    """A classified error of the ``ssh`` program."""

    kind: str
    """resolve, refused, timeout, unreachable, certificate, unknown-key, changed-key, algorithms, login or other."""
    key_type: str = ""
    fingerprint: str = ""
    """Fingerprint of the key that the host sent, if ssh printed it."""
    where: str = ""
    """``FILE:LINE`` of the known_hosts entry that does not match."""
    last_line: str = ""
    certificate: str = ""
    """What is wrong with the certificate of the host."""


_KINDS = (
    ("certificate", r"Certificate invalid: "),
    ("changed-key", r"IDENTIFICATION HAS CHANGED|marked as revoked|REVOKED HOST KEY"),
    ("unknown-key", r"host key is known for|Host key verification failed"),
    ("resolve", r"Could not resolve hostname|Name or service not known"),
    ("refused", r"Connection refused"),
    ("timeout", r"timed out|Timeout, server"),
    ("unreachable", r"No route to host|Network is unreachable"),
    ("algorithms", r"Unable to negotiate with"),
    ("login", r"Permission denied|Too many authentication failures"),
)


def explain_ssh(stderr: str) -> SshProblem:
    """Classify the error output of the ``ssh`` program."""
    kind = next((name for name, pattern in _KINDS if re.search(pattern, stderr)), "other")
    key = re.search(r"No (\S+) host key is known|Offending (\S+) key", stderr)
    shown = re.search(r"SHA256:[A-Za-z0-9+/]+", stderr)
    certificate = re.search(r"Certificate invalid: ([^\r\n]+)", stderr)
    where = re.search(r"Offending \S+ key in (\S+:\d+)", stderr)
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return SshProblem(
        kind=kind,
        key_type=next((group for group in key.groups() if group), "") if key else "",
        fingerprint=shown.group() if shown else "",
        where=where.group(1) if where else "",
        last_line=lines[-1] if lines else "",
        certificate=certificate.group(1) if certificate else "",
    )
