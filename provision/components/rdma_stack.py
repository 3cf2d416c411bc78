"""The role rdma_stack: the RDMA stack of distribution or vendor, its modules, and Soft-RoCE where requested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from provision.commands.package_repositories import repository_paths
from provision.commands.rdma_stack import (
    DISTRIBUTION,
    INBOX,
    Choice,
    choose,
    entry_of,
    is_vendor,
    kernel_refusal,
    system_refusal,
)
from provision.components.base import (
    Component,
    NodeState,
    PreservedSettings,
    Repository,
    RoleNeed,
    Setting,
    Variables,
)
from provision.components.common import is_whole_run, key_problems, matches, package_manager, text
from provision.components.nvidia_driver import is_requested as requests_driver
from provision.facts import NodeFacts, Unknown, data_interface, is_container, plain
from provision.gdr.observed import has_gpus
from provision.model import CheckResult, Node, PreflightCode
from provision.model.cause import Cause, CauseKind
from provision.model.reason import Wording, reason

_USERLAND = ("rdma-core", "libibverbs1", "libibverbs")
_SOURCE, _KERNELS, _VERSION = "rdma_stack_source", "rdma_stack_kernels", "rdma_stack_version"
_URI, _KEY = "rdma_stack_repository_uri", "rdma_stack_repository_key"
_KERNEL_CHECK = "rdma_stack_kernel_check_enabled"


def _gets_vendor_stack(variables: Variables, facts: NodeFacts) -> bool:
    """Return whether the role installs a vendor's stack. A container gets it for listed kernels only."""
    return is_vendor(variables.get(_SOURCE)) and not (is_container(facts) and not variables.get(_KERNELS))


def _settings_of(variables: Variables) -> dict[str, Any]:
    return {
        "source": text(variables, _SOURCE),
        "profile": text(variables, "rdma_stack_profile"),
        "version": str(variables.get(_VERSION) or ""),
        "kernels": variables.get(_KERNELS) or [],
        "checks_kernel": variables.get(_KERNEL_CHECK) is not False,
    }


def _kernels(variables: Variables, facts: NodeFacts) -> list[str]:
    """Return the kernels that the stack is built for."""
    running = [] if isinstance(facts.system, Unknown) else [facts.system.kernel]
    return list(variables.get(_KERNELS) or running)


def _is_decided(variables: Variables) -> bool:
    names = (_SOURCE, "rdma_stack_profile", _VERSION, _KERNELS, _KERNEL_CHECK)
    return all(plain(variables.get(name)) for name in names)


def _choice(variables: Variables, system: Variables, facts: NodeFacts) -> Choice | None:
    """Return the vendor's stack of the node; None where the role installs none, or only Ansible can say which."""
    if not system or not _is_decided(variables) or not _gets_vendor_stack(variables, facts):
        return None
    installed = {} if isinstance(facts.packages, Unknown) else facts.packages
    return choose(_settings_of(variables), system, _kernels(variables, facts), installed)


def _is_loaded(facts: NodeFacts) -> bool:
    return isinstance(facts.modules, Unknown) or "ib_core" in facts.modules


def _is_disruptive(causes: Sequence[Cause], state: NodeState) -> bool:
    """Modules are reloaded and links set up. A container node uses its host's, and the role changes none of them.

    A whole run loads missing modules. It removes nothing but a Soft-RoCE device on another interface; a vendor's stack
    replaces the loaded one.
    """
    if is_container(state.facts):
        return False
    if _gets_vendor_stack(state.node.variables, state.facts) and is_whole_run(causes):
        return _is_loaded(state.facts) or _moves_soft_roce(state)
    if causes and all(_is_harmless(cause) for cause in causes):
        return False
    return _moves_soft_roce(state) if is_whole_run(causes) else True


def _is_harmless(cause: Cause) -> bool:
    return cause.kind is CauseKind.VARIABLE and COMPONENT.is_harmless(cause)


def _moves_soft_roce(state: NodeState) -> bool:
    if not state.node.variables.get("rdma_stack_soft_roce_enabled"):
        return False
    if isinstance(state.facts.rdma, Unknown):
        return True
    chosen = state.node.variables.get("rdma_stack_soft_roce_interface")
    interface = chosen or data_interface(state.node.variables, state.facts)
    return any(device.soft and interface not in device.netdevs for device in state.facts.rdma.devices)


def _needs(causes: Sequence[Cause], state: NodeState) -> Iterator[RoleNeed]:
    variables = state.node.variables
    is_vendors = _gets_vendor_stack(variables, state.facts)
    if is_vendors and _changes_packages(causes, state) and requests_driver(variables):
        yield RoleNeed("nvidia_driver", reason("rdma_stack.driver_modules"))
    if is_container(state.facts):
        return
    if _changes_packages(causes, state) and has_gpus(state.facts):
        yield RoleNeed("peer_memory", reason("rdma_stack.packages_change"))
    if any(cause.kind is not CauseKind.FILE for cause in causes) and state.facts.container is not None:
        yield RoleNeed("training_container", reason("rdma_stack.devices_change"))


_STACK_VARIABLES = frozenset({_SOURCE, "rdma_stack_profile", _VERSION, _KERNELS})


def _changes_packages(causes: Sequence[Cause], state: NodeState) -> bool:
    """Return whether a step can change packages of the stack, or build its modules for other kernels."""
    if any(
        cause.kind is CauseKind.PACKAGE or cause.name in {"rdma_stack.packages", "rdma_stack.modules"}
        for cause in causes
    ):
        return True
    is_requested = _gets_vendor_stack(state.node.variables, state.facts)
    return is_requested and (is_whole_run(causes) or any(cause.name in _STACK_VARIABLES for cause in causes))


def _soft_roce_is_missing(state: NodeState, _: CheckResult) -> bool:
    """The role makes a missing Soft-RoCE device; an existing, inactive one waits for its interface's link."""
    if isinstance(state.facts.rdma, Unknown):
        return False
    chosen = state.node.variables.get("rdma_stack_soft_roce_interface")
    interface = chosen if chosen and plain(chosen) else data_interface(state.node.variables, state.facts)
    devices = (device for device in state.facts.rdma.devices if device.soft)
    return not any(not interface or interface in device.netdevs for device in devices)


def _has_release(_: NodeState, result: CheckResult) -> bool:
    """The role installs missing packages; it does not replace an installed release."""
    return result.reason.code != "rdma_stack.packages.other_version"


_FIXED_MODULES = frozenset({"rdma_stack.modules.not_built", "rdma_stack.modules.openibd"})


def _can_build(_: NodeState, result: CheckResult) -> bool:
    """The role builds missing modules and starts openibd; a build that failed and a reboot are the operator's."""
    return result.reason.code in _FIXED_MODULES


def _preserved(_: Node, facts: NodeFacts) -> dict[str, Any]:
    """A vendor's stack has packages of the same names, newer and built for each other."""
    if isinstance(facts.rdma, Unknown) or isinstance(facts.packages, Unknown) or not facts.rdma.ofed:
        return {}
    return {_SOURCE: "present"} if facts.packages.keys() & set(_USERLAND) else {}


def _installed_source(facts: NodeFacts) -> str:
    """Return the vendor's stack that the role has installed, by its receipt; empty if it has installed none."""
    receipts = facts.receipts
    receipt = None if isinstance(receipts, Unknown) else receipts.get("rdma_stack")
    inputs = receipt.content.get("inputs") if receipt and not receipt.error else None
    source = inputs.get("source") if isinstance(inputs, dict) else None
    return str(source) if is_vendor(source) else ""


def _settings(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    """Yield what is wrong with the repository, and why the installed stack cannot be replaced by the requested one."""
    source, own = text(variables, _SOURCE), _installed_source(facts)
    if own and source in {DISTRIBUTION, INBOX, "mlnx_ofed", "doca"} and source != own:
        problem = f"is {source}, and this role has installed {own}, whose packages are newer and have the same names"
        remedy = (
            f"Set rdma_stack_source: {own}, or remove it from the idle node with `provision reset`, reboot the node "
            "and apply again."
        )
        yield PreflightCode.STACK_INSTALLED, _SOURCE, problem, remedy
    if not is_vendor(source):
        return
    if source == "mlnx_ofed" and not variables.get(_URI):
        remedy = "Set it to the address of a signed repository with the packages of NVIDIA's archive (DEBS folder)."
        yield PreflightCode.VARIABLE_MISSING, _URI, "is not set, which `mlnx_ofed` requires", remedy
    if source == "doca" and variables.get(_URI) and not variables.get(_VERSION):
        remedy = "Set it to the release of DOCA in this repository, for example 3.2.2."
        yield PreflightCode.VARIABLE_MISSING, _VERSION, f"is not set, which {_URI} requires", remedy
    yield from key_problems(_KEY, text(variables, _KEY), "the repository of the RDMA stack")


def _system_settings(variables: Variables, system: Variables, facts: NodeFacts) -> Iterator[Setting]:
    """Yield why the node's system has no such stack, its kernel is not supported, or another stack is there."""
    if not system or not is_vendor(variables.get(_SOURCE)) or not _is_decided(variables):
        return
    settings = _settings_of(variables)
    refusal = system_refusal(settings, system)
    if refusal:
        yield PreflightCode.VARIABLE_INVALID, refusal.variable, refusal.problem, refusal.remedy
        return
    refusal = kernel_refusal(settings, system, _kernels(variables, facts))
    if refusal and _gets_vendor_stack(variables, facts):
        yield PreflightCode.KERNEL_UNSUPPORTED, refusal.variable, refusal.problem, refusal.remedy
    yield from _foreign_stack(variables, system, facts)


def _foreign_stack(variables: Variables, system: Variables, facts: NodeFacts) -> Iterator[Setting]:
    """Yield that a stack from elsewhere is installed, with which the requested one would be mixed."""
    if isinstance(facts.rdma, Unknown) or isinstance(facts.packages, Unknown) or not facts.rdma.ofed:
        return
    profile = text(variables, "rdma_stack_profile") or entry_of(text(variables, _SOURCE), system)["profile"]
    if profile not in facts.packages and not _installed_source(facts):
        yield (
            PreflightCode.STACK_INSTALLED,
            _SOURCE,
            f"{facts.rdma.ofed} is installed from elsewhere, and would be mixed with {profile}",
            "Remove it with its own program (ofed_uninstall.sh), or set rdma_stack_source: present.",
        )


def _repositories(variables: Variables, system: Variables) -> Iterator[Repository]:
    source = text(variables, _SOURCE)
    if not is_vendor(source):
        return
    entry = entry_of(source, system)
    version = str(variables.get(_VERSION) or entry.get("version", ""))
    url = text(variables, _URI) or str(entry.get("repository", "")).replace("{version}", version)
    if url:
        yield Repository("rdma-stack", (url,), ("/",), (), text(variables, _KEY), _URI, "rdma_stack", optional=True)


def _files(variables: Variables, facts: NodeFacts) -> Iterator[str]:
    if _gets_vendor_stack(variables, facts):
        manager = package_manager(facts)
        yield from repository_paths("rdma-stack", manager)
        if manager == "apt":
            yield "/etc/apt/preferences.d/provision-rdma-stack.pref"
    if not is_container(facts):
        yield "/etc/modules-load.d/provision-rdma.conf"
        yield "/usr/local/lib/provision/rdma-setup"
        yield "/etc/systemd/system/provision-rdma.service"


def _packages(variables: Variables, system: Variables, facts: NodeFacts) -> Iterator[str]:
    choice = _choice(variables, system, facts)
    yield from choice.packages if choice else ()


COMPONENT = Component(
    role="rdma_stack",
    stack_components=("rdma",),
    reasons={
        "rdma_stack.packages_change": Wording(
            "packages of the RDMA stack change, and the peer memory module is built against it"
        ),
        "rdma_stack.driver_modules": Wording(
            "packages of the RDMA stack change, and modules of the NVIDIA driver are built against it"
        ),
        "rdma_stack.devices_change": Wording("the RDMA devices of the container may change"),
    },
    after=("base_system",),
    for_jobs=True,
    read_variables=(_SOURCE, "rdma_stack_profile", _VERSION, _KERNELS),
    harmless_variables=frozenset({_URI, _KEY, _KERNEL_CHECK, "rdma_stack_signing_certificate"}),
    is_disruptive=_is_disruptive,
    needs=_needs,
    never_fixes=frozenset(
        {
            "rdma_stack.bandwidth",  # measured, not configured
            "rdma_stack.devices",  # cards without driver, ports without link: drivers, cables, switches, subnet manager
            "rdma_stack.firmware",  # only reported
            "rdma_stack.gids",  # the operator sets the addresses of the cards' interfaces
            "rdma_stack.pcie_width",  # slots and risers
            "rdma_stack.port_errors",  # cables
            "rdma_stack.port_rate",  # cables
        }
    ),
    fixes_if={
        "rdma_stack.modules": _can_build,
        "rdma_stack.packages": _has_release,
        "rdma_stack.soft_roce": _soft_roce_is_missing,
    },
    preserves=PreservedSettings(
        facts=("rdma", "packages"),
        variables=_preserved,
        describe=lambda facts: "an RDMA stack" if isinstance(facts.rdma, Unknown) else facts.rdma.ofed,
        forms={_SOURCE: matches("present")},
    ),
    settings=_settings,
    system_settings=_system_settings,
    files=_files,
    packages=_packages,
    repositories=_repositories,
    missing_package_remedy=(
        "Correct rdma_stack_version, rdma_stack_profile or rdma_stack_repository_uri: the repository has to contain "
        "the profile in this release. dkms comes from the distribution (Enterprise Linux: EPEL)."
    ),
)
