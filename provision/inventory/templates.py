"""Render connection variables: simple Jinja is rendered here, the rest and vault values by Ansible."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.documents import decode
from provision.documents.ansible import DebugAnswer, TaskAnswer
from provision.errors import InvalidDocument, InventoryError, VaultPasswordMissing
from provision.inventory.listing import VAULT_REMEDY, Listing, ansible_environment, ansible_program

_CLUSTER_KEYS = (
    "cluster_agent",
    "cluster_agent_account",
    "cluster_collective_fraction",
    "cluster_data_address",
    "cluster_data_interface",
    "cluster_data_networks",
    "cluster_drain",
    "cluster_drain_command",
    "cluster_drain_name",
    "cluster_drain_seconds",
    "cluster_engine",
    "cluster_fabric",
    "cluster_firewall",
    "cluster_gid_index",
    "cluster_gpus",
    "cluster_head",
    "cluster_hcas",
    "cluster_management_interface",
    "cluster_mpi",
    "cluster_mpirun",
    "cluster_nccl",
    "cluster_operators",
    "cluster_resume_command",
    "cluster_slots",
    "cluster_slurm_account",
    "cluster_slurm_containers",
    "cluster_slurm_login",
    "cluster_slurm_partition",
    "cluster_slurm_qos",
    "cluster_submitters",
    "cluster_takes_jobs",
)
"""Role variables that checks and jobs use. None of them is a secret."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FINALIZATION = re.compile(
    r"\A(Task failed: )?Finalization of task args for .*?Error while resolving value for 'msg': "
)
_SIMPLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_DEPTH = 8


def read_keys(listing: Listing) -> tuple[str, ...]:
    """Return the variables whose rendered values checks and jobs use, including those of the roles' components.

    The components are loaded only if a role variable of the inventory contains Jinja, which saves time.
    """
    own = (value for name in listing.nodes for key, value in listing.hosts[name].items() if not _is_general(key))
    if not any(map(has_template, own)):
        return _CLUSTER_KEYS
    from provision.components import COMPONENTS

    switches = (f"{role}_enabled" for role in COMPONENTS)
    read = (name for component in COMPONENTS.values() for name in component.read_variables)
    return (*_CLUSTER_KEYS, *switches, *read)


def _is_general(key: str) -> bool:
    return key.startswith(("ansible_", "cluster_"))


def has_template(value: Any) -> bool:
    """Return whether a value or a part of it is Jinja or encrypted, so that its type is unknown."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if is_vault(value):
        return True
    if isinstance(value, Mapping):
        return any(has_template(part) for part in value.values())
    return isinstance(value, list) and any(has_template(part) for part in value)


def is_vault(value: Any) -> bool:
    """Return whether a value is ansible-inventory's output for ``!vault``."""
    return isinstance(value, Mapping) and "__ansible_vault" in value


def rendered(
    path: Path, listing: Listing, keys: Sequence[str], *, all_needed: bool = True
) -> dict[str, dict[str, Any]]:
    """Return node -> rendered values of those of `keys` that it has.

    ``{{ name }}`` of a plain variable, of inventory_dir or inventory_hostname is rendered here. All other values are
    rendered by one run of Ansible's debug module, which does not connect to nodes. If a value cannot be rendered, for
    example because it uses facts of a node, that is an error; without `all_needed` the value then remains unrendered.
    """
    values: dict[str, dict[str, Any]] = {}
    folder = _inventory_folder(path)
    for name in listing.nodes:
        variables = dict(listing.hosts[name])
        magic = {"inventory_hostname": name, "inventory_hostname_short": name.split(".")[0]}
        if folder is not None:
            magic["inventory_dir"] = str(folder)
        names = variables | magic
        values[name] = {key: _fill(variables[key], names) for key in keys if key in variables}
    left = sorted({key for rendered in values.values() for key, value in rendered.items() if has_template(value)})
    if left:
        hosts = [name for name, rendered in values.items() if any(has_template(v) for v in rendered.values())]
        try:
            answers = _ask_ansible(path, hosts, left)
        except InventoryError:
            if all_needed:
                raise
            answers = {}
        for name, exact in answers.items():
            values[name].update({key: value for key, value in exact.items() if key in values[name]})
    return values


def rendered_where_possible(path: Path, wanted: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Return the values of the variables in `wanted` for each host, rendered by Ansible; failed ones are omitted.

    Raises:
        InventoryError: A vault password is missing.
    """
    hosts = [host for host, keys in wanted.items() if keys]
    every = sorted({key for keys in wanted.values() for key in keys})
    if not hosts:
        return {}
    try:
        return _ask_ansible(path, hosts, every)
    except VaultPasswordMissing:
        raise
    except InventoryError:
        pass
    rendered: dict[str, dict[str, Any]] = {host: {} for host in hosts}
    for host in hosts:
        for key in wanted[host]:
            try:
                rendered[host].update(_ask_ansible(path, [host], [key])[host])
            except VaultPasswordMissing:
                raise
            except InventoryError:
                continue
    return rendered


_AT_RUN_TIME = re.compile(r"\b(ansible_\w+|platform_\w+|hostvars|groups|lookup|query|q|now|vars)\b")
"""Names in Jinja whose values exist only in a play, or that have side effects."""


def rendering_problems(
    path: Path, variables: Mapping[str, Mapping[str, Any]], known: Collection[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, str]]]:
    """Render role variables that contain Jinja, and return values and problems, each by host and variable.

    No node is connected to. Values that use facts of a node, other nodes or a lookup can only be rendered in a play and
    are in neither result.
    """
    asked: dict[tuple[str, ...], list[str]] = {}
    for host, own in variables.items():
        keys = tuple(sorted(key for key in own if key in known and has_template(own[key]) and _renders(key, own)))
        if keys:
            asked.setdefault(keys, []).append(host)
    values: dict[str, dict[str, Any]] = {}
    problems: dict[str, dict[str, str]] = {}
    for keys, hosts in asked.items():
        failed = []
        for host, answer in _debug(path, hosts, {key: "{{ " + key + " }}" for key in keys}).items():
            if isinstance(answer, str):
                failed.append(host)
            else:
                values[host] = answer
        for host, key, reason in _failures(path, failed, keys) if failed else ():
            problems.setdefault(host, {})[key] = _FINALIZATION.sub("", reason)
    return values, problems


def _failures(path: Path, hosts: Sequence[str], keys: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield host, variable and reason for each value that Ansible cannot render, from one run with a task for each."""
    tasks = [{"ansible.builtin.debug": {"msg": "{{ " + key + " }}"}, "ignore_errors": True} for key in keys]
    play = [{"hosts": list(hosts), "gather_facts": False, "tasks": tasks}]
    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        playbook = Path(folder) / "play.json"
        playbook.write_text(json.dumps(play), encoding="utf-8")
        done = _run([ansible_program("ansible-playbook"), "-i", str(path), str(playbook)])
    for key, task in zip(keys, _tasks(done, hosts, keys), strict=False):
        for host, answer in task.hosts.items():
            if answer.get("failed"):
                yield host, key, str(answer.get("msg", ""))


def _renders(key: str, own: Mapping[str, Any]) -> bool:
    """Return whether a value, and the inventory variables in its Jinja, can be rendered before a play."""
    seen, left = {key}, [key]
    while left:
        text = json.dumps(own[left.pop()], default=str)
        words = set(_NAME.findall(text)) if "{{" in text or "{%" in text else set()
        if any(word not in own and _AT_RUN_TIME.fullmatch(word) for word in words):
            return False
        more = {word for word in words if word in own and word not in seen}
        seen |= more
        left.extend(more)
    return True


def _inventory_folder(path: Path) -> Path | None:
    """Return Ansible's inventory_dir; None if the sources are in subfolders, where it differs between hosts."""
    if not path.is_dir():
        return path.absolute().parent
    below = [p for p in path.iterdir() if p.is_dir() and p.name[0] != "." and p.name not in ("group_vars", "host_vars")]
    return None if below else path.absolute()


def _fill(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_fill(part, names) for part in value]
    for _ in range(_DEPTH):
        if not isinstance(value, str) or "{{" not in value:
            return value
        whole = _SIMPLE.fullmatch(value.strip())
        if whole and whole.group(1) in names:
            value = names[whole.group(1)]
            continue
        text = _SIMPLE.sub(lambda m: _plain(names.get(m.group(1)), m.group(0)), value)
        if text == value:
            break
        value = text
    return value


def _plain(value: Any, otherwise: str) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else otherwise


def _ask_ansible(path: Path, hosts: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    answers = _debug(path, hosts, {key: "{{ " + key + " | default(omit) }}" for key in keys})
    rendered: dict[str, dict[str, Any]] = {}
    for host, answer in answers.items():
        if isinstance(answer, str):
            raise _cannot_render(host, keys, answer)
        rendered[host] = answer
    return rendered


def _debug(path: Path, hosts: Sequence[str], message: Mapping[str, str]) -> dict[str, dict[str, Any] | str]:
    """Return the output of Ansible's debug module for `message` for each host, or the error."""
    argv = [ansible_program("ansible"), "-i", str(path), ",".join(hosts), "-m", "ansible.builtin.debug"]
    done = _run([*argv, "-a", json.dumps({"msg": message})])
    results = _tasks(done, hosts, list(message))[0].hosts
    answers = {host: results.get(host, {}).get("msg") for host in hosts}
    return {
        host: answer if isinstance(answer, dict) else str(answer or done.stderr) for host, answer in answers.items()
    }


def _tasks(done: subprocess.CompletedProcess[str], hosts: Sequence[str], keys: Sequence[str]) -> list[TaskAnswer]:
    """Return the results of the tasks of a run with at least one task.

    Raises:
        InventoryError: Ansible printed no results.
    """
    try:
        text = done.stdout[done.stdout.index("{") :]
        tasks = decode(text, DebugAnswer, node="", what="answer of ansible").plays[0].tasks
        return [tasks[0], *tasks[1:]]
    except (ValueError, LookupError, InvalidDocument):
        raise _cannot_render(hosts[0], keys, done.stderr) from None


def _run(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run an Ansible program that prints its results as JSON."""
    environment = ansible_environment() | {
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.json",
        "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
        "ANSIBLE_LOG_PATH": "/dev/null",
        "ANSIBLE_NO_LOG": "0",
    }
    return subprocess.run(
        argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )


def _cannot_render(host: str, keys: Sequence[str], reason: str) -> InventoryError:
    line = next((text.strip() for text in reason.splitlines() if text.strip()), "Ansible returns no value")
    line = re.sub(r"^\[?(ERROR|WARNING|fatal)\]?:? *", "", line)
    message = f"{host}: {', '.join(keys)}: the value cannot be made: {line}"
    if "vault" in reason.lower():  # Ansible has no code for it
        return VaultPasswordMissing(message, remedy=VAULT_REMEDY)
    return InventoryError(
        message,
        remedy="Connection variables are used before a node is connected to, so they cannot use its facts.",
    )
