"""The role peer_memory: GPUDirect RDMA by dma-buf, nvidia-peermem or nv_peer_mem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from provision.components.base import Component, NodeState, PreservedSettings, Setting, Variables
from provision.components.common import is_whole_run, matches, package_manager, text
from provision.facts import NodeFacts, Unknown, is_container, plain
from provision.gdr.observed import has_gpus, verdict_of
from provision.model import CheckResult, Node, PreflightCode
from provision.model.cause import Cause

_APPLY_CODES = frozenset(
    {
        "peer_memory.boot.never_checked_unit",
        "peer_memory.boot.not_checked_unit",
        "peer_memory.boot.other_provider",
    }
)
"""The results of peer_memory.boot that only a run of the role fixes; a reload fixes others."""
_APPLY_CAUSES = frozenset({"headers_missing", "no_source"})
"""The causes in the node's status file that a run of the role fixes."""
_BUILD_CAUSES = frozenset({"not_built", "other_kernel", "stub", "symbol_mismatch"})
"""The causes that it fixes for the driver's own module, which the node does not build at boot."""


def _applies(facts: NodeFacts) -> bool:
    return has_gpus(facts) and not is_container(facts)


def _is_disruptive(causes: Sequence[Cause], state: NodeState) -> bool:
    """A whole run loads missing modules; it unloads one only where our unit exists and no path is needed any more."""
    if not _applies(state.facts):
        return False
    if not is_whole_run(causes):
        return True
    record = state.facts.peer_status
    if isinstance(record, Unknown) or not plain(state.node.variables.get("peer_memory_provider", "auto")):
        return True
    return record.unit is not None and _provider(state.node.variables, state.facts) == "none"


def _provider(variables: Variables, facts: NodeFacts) -> str:
    chosen = variables.get("peer_memory_provider", "auto")
    return verdict_of(facts).path.value if chosen == "auto" or not plain(chosen) else str(chosen)


def _needs_apply(_: NodeState, result: CheckResult) -> bool:
    params = result.reason.params
    if result.reason.code != "peer_memory.boot.failed":
        return result.reason.code in _APPLY_CODES
    return params["cause"] in _APPLY_CAUSES or (
        params["provider"] == "nvidia_peermem" and params["cause"] in _BUILD_CAUSES
    )


def _has_untried_kernel(state: NodeState, result: CheckResult) -> bool:
    """A kernel without available headers, for which the last run could not build, is not tried at every apply."""
    receipts = state.facts.receipts
    receipt = None if isinstance(receipts, Unknown) else receipts.get("peer_memory")
    tried = receipt.names("incomplete") if receipt else ()
    if result.reason.code != "peer_memory.kernels.not_built":
        return False
    releases = result.reason.params["releases"]
    return isinstance(releases, tuple) and any(kernel not in tried for kernel in releases)


def _provider_is_free(state: NodeState, _: CheckResult) -> bool:
    """The role uses the best path only where the inventory names no other one."""
    chosen = state.node.variables.get("peer_memory_provider", "auto")
    return chosen == "auto" or not plain(chosen) or chosen == verdict_of(state.facts).path.value


def _preserved(node: Node, facts: NodeFacts) -> dict[str, Any]:
    """A module that other software loads is left to it; the role handles the driver's own module.

    The role would replace an nv_peer_mem by its own build.
    """
    record, modules = facts.peer_status, facts.modules
    if isinstance(record, Unknown) or isinstance(modules, Unknown) or record.wanted or record.unit is not None:
        return {}
    if "nv_peer_mem" in modules and "peer_memory_provider" not in node.variables:
        return {"peer_memory_enabled": False}
    return {"peer_memory_provider": "nvidia_peermem"} if "nvidia_peermem" in modules else {}


def _describe(facts: NodeFacts) -> str:
    modules = frozenset() if isinstance(facts.modules, Unknown) else facts.modules
    return f"the module {'nv_peer_mem' if 'nv_peer_mem' in modules else 'nvidia_peermem'}, which others load"


def _settings(variables: Variables, _: NodeFacts) -> Iterator[Setting]:
    key, certificate = (text(variables, f"peer_memory_signing_{name}") for name in ("key", "certificate"))
    if bool(key) != bool(certificate):
        missing = "peer_memory_signing_certificate" if key else "peer_memory_signing_key"
        remedy = "Set both peer_memory_signing_key and peer_memory_signing_certificate, or neither."
        yield PreflightCode.VARIABLE_MISSING, missing, "is not set, and its counterpart is", remedy


_HOOKS = {
    "apt": [f"/etc/kernel/{folder}/zz-provision-peer-memory" for folder in ("postinst.d", "header_postinst.d")],
    "dnf": ["/etc/kernel/install.d/zz-provision-peer-memory.install"],
    "yum": ["/etc/kernel/postinst.d/zz-provision-peer-memory"],
}
"""Package manager -> hooks for new kernels."""


def _files(variables: Variables, facts: NodeFacts) -> Iterator[str]:
    provider = _provider(variables, facts)
    if provider == "none":
        return
    for name in ("peer_memory_elf.py", "peer_memory_look.py", "peer_memory_node.py", "peer-memory"):
        yield f"/usr/local/lib/provision/{name}"
    yield "/usr/local/lib/provision/platform_kernel_module_failures.py"
    yield "/etc/provision/peer_memory.json"
    yield "/etc/systemd/system/provision-peer-memory.service"
    if provider in {"nv_peer_mem", "nvidia_peermem"}:
        yield from _HOOKS[package_manager(facts)]
        if text(variables, "peer_memory_signing_key"):
            yield "/etc/dkms/framework.conf.d/provision-peer-memory.conf"


def _packages(variables: Variables, system: Variables, facts: NodeFacts) -> Iterator[str]:
    if _provider(variables, facts) == "nv_peer_mem" and not variables.get("peer_memory_prebuilt"):
        yield from map(str, system.get("__platform_module_build_packages", ()))


COMPONENT = Component(
    role="peer_memory",
    after=("rdma_stack", "nvidia_driver"),
    waits_with=("rdma_stack", "nvidia_driver"),  # it is built against both
    loads_module=True,
    for_jobs=True,
    is_disruptive=_is_disruptive,
    never_fixes=frozenset(
        {
            "peer_memory.modules",  # two modules at once: the operator chooses which one to remove, and when
            "peer_memory.routing",  # ACS and the IOMMU are settings of firmware and kernel command line
        }
    ),
    fixes_if={
        "peer_memory.boot": _needs_apply,
        "peer_memory.kernels": _has_untried_kernel,
        "peer_memory.path": _provider_is_free,
    },
    fixes_warnings=frozenset({"peer_memory.kernels"}),
    preserves=PreservedSettings(
        facts=("peer_status", "modules"),
        variables=_preserved,
        describe=_describe,
        forms={
            "peer_memory_enabled": lambda value: value is False,
            "peer_memory_provider": matches("nvidia_peermem"),
        },
    ),
    applies=_applies,
    settings=_settings,
    files=_files,
    packages=_packages,
)
