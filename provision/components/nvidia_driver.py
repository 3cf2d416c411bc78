"""The role nvidia_driver: the NVIDIA driver of a node, where the inventory requests one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.commands.nvidia_driver import PRESENT, Choice, chip_of, choose, entry_of, needs_imex, system_refusal
from provision.commands.package_repositories import repository_paths
from provision.components.base import Component, NodeState, Repository, RoleNeed, Setting, Variables
from provision.components.common import is_whole_run, key_problems, package_manager, text
from provision.facts import NodeFacts, Unknown, is_container, plain, simulated
from provision.model import CheckResult, Cluster, Node, PreflightCode
from provision.model.cause import NODES, Cause, CauseKind
from provision.model.reason import Wording, reason

_SOURCE, _WITHOUT_GPU = "nvidia_driver_source", "nvidia_driver_without_gpu_enabled"
_KERNELS, _BUILD_NODE = "nvidia_driver_kernels", "nvidia_driver_build_node"
_MIG, _PERSISTENCE_MODE = "nvidia_driver_mig_mode", "nvidia_driver_persistence_mode"
_URI, _KEY = "nvidia_driver_repository_uri", "nvidia_driver_repository_key"
_MODES_FILES = ("/usr/local/lib/provision/nvidia-modes", "/etc/systemd/system/provision-nvidia-modes.service")
_DOMAIN = "cluster_nvlink_domain"
_IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"
_HARMLESS_CHECKS = frozenset(
    {f"nvidia_driver.{name}" for name in ("nouveau", "persistence", "persistence_mode", "mig")}
)
"""Checks whose repair replaces no kernel module; a change of MIG mode is judged by the GPUs."""
_REPOSITORY_SOURCES = ("cuda", "file")
"""The sources that need a repository of the driver."""


def is_requested(variables: Variables) -> bool:
    """Return whether the role installs a driver; a value with Jinja counts as a request."""
    return bool(variables.get(_SOURCE, PRESENT) != PRESENT)


def _is_any_requested(variables: Variables) -> bool:
    """Return whether the role installs a driver or sets modes of GPUs."""
    return is_requested(variables) or bool(variables.get(_MIG) or variables.get(_PERSISTENCE_MODE))


def _changes_mig(variables: Variables, facts: NodeFacts) -> bool:
    """Return whether a run of the role changes the MIG mode of a GPU, which ends what uses it; True if unknown."""
    mode = variables.get(_MIG)
    if not mode or (is_container(facts) and not simulated(facts, "nvidia-smi")):
        return False
    if not plain(mode) or isinstance(facts.gpus, Unknown):
        return True
    modes = {now for gpu in facts.gpus if gpu.health.has_mig for now in (gpu.health.mig, gpu.health.mig_pending)}
    return bool(modes - {mode == "enabled", None})


def _gets_driver(variables: Variables, facts: NodeFacts) -> bool:
    """Return whether the role changes the node: there is a request, and a GPU or the request to do without.

    A container gets the driver for listed kernels only.
    """
    if not is_requested(variables) or (is_container(facts) and not variables.get(_KERNELS)):
        return False
    driver = facts.nvidia_driver
    return isinstance(driver, Unknown) or bool(driver.gpus) or variables.get(_WITHOUT_GPU) is True


def _settings_of(variables: Variables) -> dict[str, Any]:
    return {
        "source": text(variables, _SOURCE),
        "flavor": text(variables, "nvidia_driver_flavor") or "auto",
        "branch": str(variables.get("nvidia_driver_branch") or ""),
        "version": str(variables.get("nvidia_driver_version") or ""),
        "kernels": variables.get(_KERNELS) or [],
        # Headers are checked only where every node builds: the name of the node is not known here.
        "carried": bool(variables.get(_BUILD_NODE)),
        "dcgm": variables.get("nvidia_driver_dcgm_enabled") is True,
        "in_domain": bool(text(variables, _DOMAIN)),
    }


def _devices(facts: NodeFacts) -> tuple[str, ...]:
    return () if isinstance(facts.nvidia_driver, Unknown) else tuple(one.device for one in facts.nvidia_driver.gpus)


def _has_switches(facts: NodeFacts) -> bool:
    return not isinstance(facts.nvidia_driver, Unknown) and bool(facts.nvidia_driver.switches)


def _choice(variables: Variables, system: Variables, facts: NodeFacts) -> Choice | None:
    """Return the driver of the node; None where the role installs none, or only Ansible can say which."""
    names = (_SOURCE, "nvidia_driver_flavor", "nvidia_driver_branch", "nvidia_driver_version", _KERNELS)
    known = all(plain(variables.get(name)) for name in names)
    if not known or not system or not _gets_driver(variables, facts) or isinstance(facts.system, Unknown):
        return None
    installed = {} if isinstance(facts.packages, Unknown) else facts.packages
    return choose(
        _settings_of(variables),
        system,
        _devices(facts),
        facts.system.kernel,
        installed,
        has_switches=_has_switches(facts),
    )


def _is_loaded(facts: NodeFacts) -> bool:
    return isinstance(facts.nvidia_modules, Unknown) or bool(facts.nvidia_modules.loaded)


def _is_disruptive(causes: Sequence[Cause], state: NodeState) -> bool:
    """A driver that is loaded may be replaced under a job. Without one, no job uses a GPU. MIG mode ends jobs, too."""
    if _changes_mig(state.node.variables, state.facts):
        return True
    if not _gets_driver(state.node.variables, state.facts) or not _is_loaded(state.facts):
        return False
    has_imex = _needs_imex(state.node.variables, state.facts)
    return any(_replaces(cause) for cause in causes if has_imex or cause.name != NODES)


def _needs_imex(variables: Variables, facts: NodeFacts) -> bool:
    """Return whether the node gets IMEX; a domain with Jinja counts as one."""
    return needs_imex(_devices(facts), in_domain=bool(text(variables, _DOMAIN)))


def _replaces(cause: Cause) -> bool:
    """Return whether a cause can replace or reload modules; files and the daemon do not."""
    if cause.kind is CauseKind.VARIABLE:
        return not COMPONENT.is_harmless(cause)
    if cause.kind is CauseKind.FILE and cause.name == _IMEX_NODES:
        return True  # the service is restarted
    harmless = {CauseKind.FILE, CauseKind.UNIT, CauseKind.NEED, CauseKind.PARTNER}
    return cause.kind not in harmless and cause.name not in _HARMLESS_CHECKS


def _replaces_packages(cause: Cause) -> bool:
    is_other_version = cause.kind is CauseKind.CHECK and cause.reason.code == "nvidia_driver.modules.other_version"
    return (cause.kind in {CauseKind.PACKAGE, CauseKind.VARIABLE} and _replaces(cause)) or is_other_version


def _needs(causes: Sequence[Cause], state: NodeState) -> Iterator[RoleNeed]:
    if _changes_mig(state.node.variables, state.facts):
        yield RoleNeed("nvidia_container", reason("nvidia_driver.mig_changes"))
    if not _devices(state.facts) or not _gets_driver(state.node.variables, state.facts):
        return
    if is_whole_run(causes) or any(map(_replaces_packages, causes)):
        yield RoleNeed("peer_memory", reason("nvidia_driver.modules_change"))
        yield RoleNeed("nvidia_container", reason("nvidia_driver.libraries_change"))


def _is_missing(_: NodeState, result: CheckResult) -> bool:
    """The role installs the requested version; another branch has other packages, which can be there in addition."""
    return result.reason.code in {"nvidia_driver.modules.missing", "nvidia_driver.modules.other_version"}


def _is_startable(_: NodeState, result: CheckResult) -> bool:
    """The role installs and starts IMEX; it replaces no package of another version."""
    return result.reason.code != "nvidia_driver.imex.other_version"


def _is_settable(_: NodeState, result: CheckResult) -> bool:
    """The role sets the mode; a GPU that waits for a reset is reset by a person."""
    return result.reason.code == "nvidia_driver.mig.differs"


def _is_unblocked(_: NodeState, result: CheckResult) -> bool:
    """The role blocks nouveau; a loaded one is gone after a reboot."""
    return result.reason.code == "nvidia_driver.nouveau.not_blocked"


def _settings(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    """Yield what is wrong with the repository of the driver, and that a GPU has no MIG."""
    yield from _mig_problems(variables, facts)
    if variables.get(_SOURCE) not in _REPOSITORY_SOURCES:
        return
    if variables.get(_SOURCE) == "file" and not variables.get(_URI):
        remedy = "Set it to the address of the site's mirror of NVIDIA's repository."
        yield PreflightCode.VARIABLE_MISSING, _URI, "is not set, which `file` requires", remedy
    yield from key_problems(_KEY, text(variables, _KEY), "the repository of the NVIDIA driver")


def _mig_problems(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    """Yield that a GPU cannot have the requested MIG mode, by its driver, or by its chip if no driver answers."""
    if variables.get(_MIG) != "enabled":
        return
    gpus = () if isinstance(facts.gpus, Unknown) else facts.gpus
    names = sorted({gpu.name for gpu in gpus if not gpu.health.has_mig})
    if not gpus:
        names = sorted({f"10de:{one}" for one in _devices(facts) if (chip := chip_of(one)) and not chip.mig})
    if names:
        problem = f"{', '.join(names)} has no MIG mode"
        yield PreflightCode.VARIABLE_INVALID, _MIG, problem, "Set it to an empty value for this node."


def _system_settings(variables: Variables, system: Variables, facts: NodeFacts) -> Iterator[Setting]:
    """Yield why the node's system has no such driver, or no driver drives the node's GPUs."""
    settings = _settings_of(variables)
    if not system or not is_requested(variables) or not all(map(plain, settings.values())):
        return
    choice = _choice(variables, system, facts)
    table, title = system.get("__platform_nvidia_driver", {}), str(system.get("__platform_title"))
    refusal = choice.refusal if choice else system_refusal(settings, table, title)
    if refusal:
        yield PreflightCode.VARIABLE_INVALID, refusal.variable, refusal.problem, refusal.remedy


def _cluster_settings(node: Node, cluster: Cluster, _: Mapping[str, NodeFacts]) -> Iterator[Setting]:
    """Yield that the inventory has no such build node."""
    name = node.variables.get(_BUILD_NODE)
    if name and plain(name) and name not in {one.name for one in cluster.nodes} and is_requested(node.variables):
        problem = f"the inventory has no node {name!r}"
        yield PreflightCode.VARIABLE_INVALID, _BUILD_NODE, problem, "Set it to a node of the inventory, or remove it."


def _build_nodes(cluster: Cluster) -> frozenset[str]:
    """Return the nodes that build the modules for others."""
    names = (node.variables.get(_BUILD_NODE) for node in cluster.nodes if is_requested(node.variables))
    return frozenset(name for name in names if isinstance(name, str))


def _repositories(variables: Variables, system: Variables) -> Iterator[Repository]:
    source = text(variables, _SOURCE)
    if source not in _REPOSITORY_SOURCES:
        return
    url = text(variables, _URI) or str(
        entry_of(source, system.get("__platform_nvidia_driver", {})).get("repository", "")
    )
    if url:
        yield Repository(
            "nvidia-driver", (url,), ("/",), (), text(variables, _KEY), _URI, "nvidia_driver", optional=True
        )


def _packages(variables: Variables, system: Variables, facts: NodeFacts) -> Iterator[str]:
    """Yield the packages, unless a version is pinned: apt cannot simulate the pin before the role has written it."""
    choice = _choice(variables, system, facts)
    if choice and not variables.get("nvidia_driver_version"):
        yield from choice.packages


def _files(variables: Variables, facts: NodeFacts) -> Iterator[str]:
    if variables.get(_MIG) == "enabled" or variables.get(_PERSISTENCE_MODE):
        yield from _MODES_FILES
    if _gets_driver(variables, facts):
        if variables.get(_SOURCE) in _REPOSITORY_SOURCES:
            yield from repository_paths("nvidia-driver", package_manager(facts))
        if variables.get("nvidia_driver_version"):
            yield "/etc/apt/preferences.d/provision-nvidia-driver.pref"
        if is_container(facts):
            return
        yield "/etc/modprobe.d/provision-nvidia-driver.conf"
        if _devices(facts):
            yield "/etc/modules-load.d/provision-nvidia-driver.conf"
        if _needs_imex(variables, facts):
            yield _IMEX_NODES


COMPONENT = Component(
    role="nvidia_driver",
    stack_components=("driver", "fabric_manager"),
    after=("rdma_stack",),  # the driver's peer memory module is built against the stack
    waits_with=("rdma_stack",),
    is_requested=_is_any_requested,
    reasons={
        "nvidia_driver.mig_changes": Wording(
            "MIG mode changes, and with it the devices that the CDI description lists"
        ),
        "nvidia_driver.modules_change": Wording("the NVIDIA driver's kernel modules change, peer memory among them"),
        "nvidia_driver.libraries_change": Wording(
            "the NVIDIA driver's libraries change, which the CDI description lists"
        ),
    },
    read_variables=(
        *(_SOURCE, _WITHOUT_GPU, _KERNELS, "nvidia_driver_persistence_enabled"),
        *(_MIG, _PERSISTENCE_MODE, _DOMAIN),
    ),
    harmless_variables=frozenset(
        {
            "nvidia_driver_dcgm_enabled",
            "nvidia_driver_persistence_enabled",
            "nvidia_driver_signing_certificate",
            _MIG,  # a change of the mode itself is judged by the GPUs
            _PERSISTENCE_MODE,
            _WITHOUT_GPU,
            _KERNELS,
            _BUILD_NODE,
            _URI,
            _KEY,
        }
    ),
    is_disruptive=_is_disruptive,
    needs=_needs,
    never_fixes=frozenset(
        {
            "nvidia_driver.build",  # headers, compiler or sources: another apply would fail in the same way
            "nvidia_driver.firmware",  # only reported
            "nvidia_driver.signature",  # the certificate is enrolled at the console
        }
    ),
    fixes_if={
        "nvidia_driver.imex": _is_startable,
        "nvidia_driver.mig": _is_settable,
        "nvidia_driver.modules": _is_missing,
        "nvidia_driver.nouveau": _is_unblocked,
    },
    settings=_settings,
    system_settings=_system_settings,
    cluster_settings=_cluster_settings,
    first_nodes=_build_nodes,
    files=_files,
    packages=_packages,
    repositories=_repositories,
    missing_package_remedy=(
        "Add the sections that contain the driver to the node's package sources (Debian: contrib, non-free and "
        "non-free-firmware; Ubuntu: restricted), or a mirror with them to platform_extra_repositories."
    ),
)
