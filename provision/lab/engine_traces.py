"""Network changes of a Docker engine: the state before its start, and the removal of its additions after its stop."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.documents import decode
from provision.documents.lab import NetworkState
from provision.errors import InvalidDocument

_PROGRAMS = ("iptables", "ip6tables")
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_INTERFACES = Path("/sys/class/net")
_OURS = re.compile(r"DOCKER|\bbr-[0-9a-f]{12}\b|\bdocker0\b")


def remember_network(file: Path) -> None:
    """Record the current firewall, forwarding and interfaces, unless already recorded."""
    if file.exists():
        return
    state = {
        "firewall": {program: _save(program) for program in _PROGRAMS},
        "ip_forward": _FORWARD.read_text(encoding="ascii").strip(),
        "interfaces": _interfaces(),
    }
    file.write_text(json.dumps(state), encoding="utf-8")


def restore_network(file: Path) -> None:
    """Remove what an engine added since `remember_network`, but no other rules; then delete the file."""
    if not file.exists():
        return
    with contextlib.suppress(InvalidDocument):
        state = decode(file.read_bytes(), NetworkState, node="", what=str(file))
        for program in _PROGRAMS:
            for arguments in undo_commands(state.firewall.get(program, ""), _save(program)):
                _run(program, arguments)
        for name in set(_interfaces()) - set(state.interfaces):
            if re.fullmatch(r"br-[0-9a-f]{12}|docker0", name):
                _run("ip", ["link", "delete", name])
        if state.ip_forward != _FORWARD.read_text(encoding="ascii").strip():
            _FORWARD.write_text(state.ip_forward + "\n", encoding="ascii")
    file.unlink(missing_ok=True)


def undo_commands(before: str, now: str) -> list[list[str]]:
    """Return the arguments for iptables that remove the additions of a Docker engine.

    `before` and `now` are outputs of ``iptables-save``. Rules are deleted first, then chains are flushed and deleted,
    then the policies of built-in chains are restored.
    """
    chains_before, rules_before = chains_and_rules(before)
    chains_now, rules_now = chains_and_rules(now)
    old_rules = {(table, rule) for table, rules in rules_before.items() for rule in rules}
    commands: list[list[str]] = []
    for table, rules in rules_now.items():
        commands += [
            ["-t", table, "-D", *shlex.split(rule)[1:]]
            for rule in rules
            if (table, rule) not in old_rules and _OURS.search(rule)
        ]
    new_chains = [
        (table, chain)
        for table, chains in chains_now.items()
        for chain in chains
        if chain.startswith("DOCKER") and chain not in chains_before.get(table, {})
    ]
    commands += [["-t", table, "-F", chain] for table, chain in new_chains]
    commands += [["-t", table, "-X", chain] for table, chain in new_chains]
    commands += [
        ["-t", "filter", "-P", chain, policy]
        for chain, policy in _policies_before(chains_before, chains_now).items()
        if chains_now.get("filter", {}).get(chain, policy) != policy
    ]
    return commands


def chains_and_rules(saved: str) -> tuple[dict[str, dict[str, str]], dict[str, list[str]]]:
    """Parse ``iptables-save``: table -> chain -> policy, and table -> rules (``-A CHAIN ...``)."""
    chains: dict[str, dict[str, str]] = {}
    rules: dict[str, list[str]] = {}
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
            chains[table], rules[table] = {}, []
        elif line.startswith(":"):
            name, policy = line[1:].split()[:2]
            chains[table][name] = policy
        elif line.startswith("-A "):
            rules[table].append(line)
    return chains, rules


def _policies_before(before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the policies of the filter table's built-in chains; a table that did not exist accepted everything."""
    old = before.get("filter", {})
    return {
        chain: old.get(chain, "ACCEPT")
        for chain, policy in now.get("filter", {}).items()
        if policy in {"DROP", "ACCEPT"}
    }


def _save(program: str) -> str:
    if shutil.which(f"{program}-save", path=_PATH) is None:
        return ""
    return _run(f"{program}-save", [])


def _interfaces() -> list[str]:
    return sorted(path.name for path in _INTERFACES.iterdir())


_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


def _run(program: str, arguments: Sequence[str]) -> str:
    path = shutil.which(program, path=_PATH)
    if path is None:
        return ""
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=False).stdout
