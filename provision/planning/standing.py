"""What others set up on a node before a role of ours ran there: it is kept, unless the inventory asks for another.

What is found is told in the roles' own variables, so that it can be wanted like anything else: a plan takes them in
place of the roles' defaults, an apply hands them to the roles, which note them in their receipts, and ``adopt`` writes
them into the inventory. They come from nodes, and so only what has the form of such a value is taken.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from provision.facts import NodeFacts, Unknown, is_container
from provision.model import Node

__all__ = ["kept", "standing", "unseen"]

_ENGINES = ("docker.io", "docker-ce", "docker-engine", "moby-engine")
_USERLAND = ("rdma-core", "libibverbs1", "libibverbs")


def kept(node: Node, facts: NodeFacts) -> dict[str, dict[str, Any]]:
    """Return by role the variables that keep what others set up on the node.

    Args:
        node: with the inventory's variables alone: what it says is asked for, and nothing else is kept in its place.
        facts: of the node.
    """
    found: dict[str, dict[str, Any]] = {}
    for role, look in _STANDING.items():
        seen = _recorded(role, facts)
        variables = look(node, facts) if seen is None else seen
        taken = {
            name: value for name, value in variables.items() if name not in node.variables and _fits(role, name, value)
        }
        if taken:
            found[role] = taken
    return found


def unseen(node: Node, facts: NodeFacts) -> str | None:
    """Return why nobody can tell what others set up on the node; None where it can be told, or a receipt tells it.

    What could not be looked at is not taken for what is not there: the roles' defaults would take its place.
    """
    wanted = {role: names for role, names in _LOOKED_AT.items() if node.variables.get(f"{role}_enabled") is not False}
    for role, names in wanted.items():
        values = {name: getattr(facts, name) for name in names}
        reasons = [f"{name}: {value.reason}" for name, value in values.items() if isinstance(value, Unknown)]
        if reasons and _recorded(role, facts) is None:
            return "; ".join(reasons)
    return None


def standing(facts: NodeFacts, roles: Iterable[str]) -> tuple[str, ...]:
    """Return what stands on the node of what the `roles` are for, a sentence for each."""
    return tuple(_SENTENCES[role](facts) for role in roles)


def _recorded(role: str, facts: NodeFacts) -> Mapping[str, Any] | None:
    """Return what a role that ran here kept then; None where it left no receipt that can be gone by."""
    if isinstance(facts.receipts, Unknown) or isinstance(facts.managed, Unknown):
        return {}
    receipt = facts.receipts.get(role)
    if receipt is None or receipt.error or not facts.managed.sealed.get(role):
        return None
    inputs = receipt.content.get("inputs")
    noted = inputs.get("kept") if isinstance(inputs, Mapping) else None
    return noted if isinstance(noted, Mapping) else {}


def _docker(_: Node, facts: NodeFacts) -> dict[str, Any]:
    service, config = facts.docker_service, facts.docker_config
    if isinstance(service, Unknown) or not service.loaded or _brought(facts, _ENGINES):
        return {}
    found: dict[str, Any] = {"docker_engine_source": "present"}
    if isinstance(config, Unknown) or config.options is None:
        return found
    options = config.options
    logs = options.get("log-opts")
    logs = logs if isinstance(logs, Mapping) else {}
    found |= {
        "docker_engine_live_restore_enabled": options.get("live-restore") is True,
        "docker_engine_address_pools": _form("docker_engine_address_pools", options.get("default-address-pools"), []),
        "docker_engine_default_ulimits": {} if is_container(facts) else _limits(options.get("default-ulimits")),
        "docker_engine_log_driver": _form("docker_engine_log_driver", options.get("log-driver"), ""),
        "docker_engine_log_max_size": _form("docker_engine_log_max_size", logs.get("max-size"), ""),
        "docker_engine_log_max_files": _count(logs.get("max-file")),
    }
    if "data-root" in options:
        found["docker_engine_data_root"] = options["data-root"]
    if options.get("registry-mirrors"):
        found["docker_engine_registry_mirrors"] = options["registry-mirrors"]
    return found


def _brought(facts: NodeFacts, packages: tuple[str, ...]) -> bool:
    """Return whether a transaction of ours was to bring one of the packages, even if it was cut short."""
    return isinstance(facts.managed, Unknown) or not facts.managed.brought.isdisjoint(packages)


def _form(name: str, value: Any, otherwise: Any) -> Any:
    return value if _fits("docker_engine", name, value) else otherwise


def _limits(value: Any) -> dict[str, int]:
    """Return limits that are the same, soft and hard; any others stay in the file, where nobody touches them."""
    entries = value if isinstance(value, Mapping) else {}
    found: dict[str, Any] = {
        str(name): entry.get("Hard")
        for name, entry in entries.items()
        if isinstance(entry, Mapping) and entry.get("Name") == name and entry.get("Soft") == entry.get("Hard")
    }
    return (
        found if len(found) == len(entries) and _fits("docker_engine", "docker_engine_default_ulimits", found) else {}
    )


def _count(value: Any) -> int:
    return int(value) if re.fullmatch(r"[0-9]{1,4}", str(value)) else 0


def _nvidia(_: Node, facts: NodeFacts) -> dict[str, Any]:
    packages = facts.packages
    if isinstance(packages, Unknown) or "nvidia-docker2" not in packages or "nvidia-container-toolkit" in packages:
        return {}
    return {} if _brought(facts, ("nvidia-docker2",)) else {"nvidia_container_flavor": "nvidia-docker2"}


def _rdma(_: Node, facts: NodeFacts) -> dict[str, Any]:
    """A vendor's stack has packages of the same names, newer and built for each other."""
    if isinstance(facts.rdma, Unknown) or isinstance(facts.packages, Unknown) or not facts.rdma.ofed:
        return {}
    return {"rdma_stack_source": "present"} if facts.packages.keys() & set(_USERLAND) else {}


def _peer_memory(node: Node, facts: NodeFacts) -> dict[str, Any]:
    """A module that others load is theirs to load again; of the driver's own the role sees to that.

    The role would put its own build in the place of an nv_peer_mem.
    """
    record, modules = facts.peer_status, facts.modules
    if isinstance(record, Unknown) or isinstance(modules, Unknown) or record.wanted or record.unit is not None:
        return {}
    if "nv_peer_mem" in modules and "peer_memory_provider" not in node.variables:
        return {"peer_memory_enabled": False}
    return {"peer_memory_provider": "nvidia_peermem"} if "nvidia_peermem" in modules else {}


_LOOKED_AT: Mapping[str, tuple[str, ...]] = {
    "rdma_stack": ("rdma", "packages"),
    "peer_memory": ("peer_status", "modules"),
    "nvidia_container": ("packages",),
    "docker_engine": ("docker_service", "docker_config"),
}
"""Role -> the facts without which nobody can tell what others set up of what it is for."""

_STANDING: Mapping[str, Callable[[Node, NodeFacts], dict[str, Any]]] = {
    "rdma_stack": _rdma,
    "peer_memory": _peer_memory,
    "nvidia_container": _nvidia,
    "docker_engine": _docker,
}


def _tell_docker(facts: NodeFacts) -> str:
    info, config = facts.docker_info, facts.docker_config
    version = "docker" if isinstance(info, Unknown) else f"docker {info.version}"
    options = {} if isinstance(config, Unknown) else config.options or {}
    said = (
        f", with these settings: {', '.join(sorted(map(str, options)))}" if options else ", without settings of its own"
    )
    return f"{version} ({_versions(facts, _ENGINES) or 'of no package'}){said}"


def _tell_rdma(facts: NodeFacts) -> str:
    return "an RDMA stack" if isinstance(facts.rdma, Unknown) else facts.rdma.ofed


def _tell_nvidia(facts: NodeFacts) -> str:
    return f"the NVIDIA runtime of {_versions(facts, ('nvidia-docker2',))}"


def _tell_peer_memory(facts: NodeFacts) -> str:
    modules = frozenset() if isinstance(facts.modules, Unknown) else facts.modules
    return f"the module {'nv_peer_mem' if 'nv_peer_mem' in modules else 'nvidia_peermem'}, which others load"


def _versions(facts: NodeFacts, names: Iterable[str]) -> str:
    packages = {} if isinstance(facts.packages, Unknown) else facts.packages
    return ", ".join(f"{name} {packages[name]}" for name in names if name in packages)


_SENTENCES: Mapping[str, Callable[[NodeFacts], str]] = {
    "rdma_stack": _tell_rdma,
    "peer_memory": _tell_peer_memory,
    "nvidia_container": _tell_nvidia,
    "docker_engine": _tell_docker,
}


def _text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _pools(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pool, Mapping)
        and pool.keys() == {"base", "size"}
        and _network(pool["base"])
        and type(pool["size"]) is int
        and 0 < pool["size"] <= 128  # noqa: PLR2004 - bits of an address
        for pool in value
    )


def _network(value: Any) -> bool:
    try:  # what stands behind a % in an IPv6 address may be anything
        return _text(r"[0-9A-Fa-f:.]{2,45}/[0-9]{1,3}")(value) and bool(ipaddress.ip_network(value, strict=False))
    except ValueError:
        return False


def _numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        re.fullmatch("[a-z]{1,20}", str(name)) and type(most) is int for name, most in value.items()
    )


def _mirrors(value: Any) -> bool:
    address = _text(r"https?://[A-Za-z0-9._:/-]{1,200}")
    return isinstance(value, list) and all(map(address, value))


def _fits(role: str, name: str, value: Any) -> bool:
    """Return whether it is a variable of the role that is kept, and a value that it can have.

    Ansible takes these values for what we say ourselves, templates included: so none may hold one, whatever its form.
    """
    form = _FORMS.get(name)
    return form is not None and name.startswith(f"{role}_") and form(value) and _plain(value)


def _plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_plain(part) for pair in value.items() for part in pair)
    if isinstance(value, list):
        return all(map(_plain, value))
    return not isinstance(value, str) or re.fullmatch(r"[A-Za-z0-9._:/+@-]*", value) is not None


_FORMS: Mapping[str, Callable[[Any], bool]] = {
    "docker_engine_source": _text("present"),
    "docker_engine_live_restore_enabled": lambda value: isinstance(value, bool),
    "docker_engine_address_pools": _pools,
    "docker_engine_default_ulimits": _numbers,
    "docker_engine_log_driver": _text(r"[A-Za-z0-9._:/-]{0,100}"),
    "docker_engine_log_max_size": _text(r"([0-9]{1,12}[a-zA-Z]{0,2})?"),
    "docker_engine_log_max_files": lambda value: type(value) is int and value >= 0,
    "docker_engine_data_root": _text(r"/[A-Za-z0-9._/+@-]{1,200}"),
    "docker_engine_registry_mirrors": _mirrors,
    "nvidia_container_flavor": _text("nvidia-docker2"),
    "rdma_stack_source": _text("present"),
    "peer_memory_enabled": lambda value: value is False,
    "peer_memory_provider": _text("nvidia_peermem"),
}
