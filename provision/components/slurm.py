"""The role slurm: controller, nodes, key and configuration of a Slurm cluster (`cluster_engine: slurm`)."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from provision.commands import slurm_config
from provision.components.base import Component, Exchange, NodeState, Setting, Variables
from provision.components.check import Check, Scene, Verdict, fail, known, passed, skip, warn
from provision.components.common import docker_is_unused, is_whole_run, matches
from provision.documents.slurm import SlurmLayout, SlurmNode, SlurmState
from provision.facts import NodeFacts, Unknown, data_address, plain
from provision.facts.derived import system_label
from provision.model import CheckResult, Cluster, Node, PreflightCode, Same
from provision.model.cause import Cause, CauseKind
from provision.model.reason import Reason, Wording, reason

ENGINE = "slurm"
_KEY, _STATE = "/etc/munge/munge.key", "/etc/provision/slurm.json"
_GRES = re.compile(r"gpu(?::[^:,()]+)?:([0-9]{1,5})(?:\([^)]*\))?")
_OUT = ("drain", "drng", "maint")
_ABSENT = ("down", "unk", "inval", "fail", "power", "not_resp")


def controllers_of(cluster: Cluster, variables: Variables) -> tuple[str, ...]:
    """Return the nodes that run slurmctld, the primary one first."""
    names = [node.name for node in cluster.nodes]
    head = str(variables.get("cluster_head") or "")
    first = str(variables.get("slurm_controller") or "") or (head if head in names else names[0])
    backup = str(variables.get("slurm_backup_controller") or "")
    return (first, backup) if backup else (first,)


def _is_managed(variables: Variables) -> bool:
    return variables.get("slurm_source") != "present"


def _state(facts: NodeFacts | None) -> SlurmState | None:
    return facts.slurm if facts is not None and isinstance(facts.slurm, SlurmState) else None


def _controller_state(scene: Scene) -> SlurmState | None:
    """Return Slurm's state on the controller, None if it was not probed."""
    return _state(scene.all_facts.get(controllers_of(scene.cluster, scene.node.variables)[0]))


# Checks


def _controller(scene: Scene) -> Verdict:
    state = known(scene.facts.slurm)
    if not state.version:
        return fail("slurm.controller.not_installed")
    if state.problem:
        return fail("slurm.controller.no_answer", cause=state.problem)
    return passed("slurm.controller.ok", version=state.version)


def _version(scene: Scene) -> Verdict:
    own, first = known(scene.facts.slurm), _controller_state(scene)
    if not own.version or first is None or not first.version:
        return skip("slurm.version.unknown")
    if _release(own.version) != _release(first.version):
        return fail("slurm.version.differs", version=own.version, controller=first.version)
    return passed("slurm.version.ok", version=own.version)


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _munge(scene: Scene) -> Verdict:
    if not _is_managed(scene.node.variables):
        return skip("slurm.present")
    own, first = known(scene.facts.slurm), _controller_state(scene)
    if not own.key:
        return fail("slurm.munge.missing")
    if first is None or not first.key:
        return skip("slurm.munge.unknown")
    return passed("slurm.munge.ok") if own.key == first.key else fail("slurm.munge.differs")


def _configuration(scene: Scene) -> Verdict:
    if not _is_managed(scene.node.variables):
        return skip("slurm.present")
    if scene.node.name not in controllers_of(scene.cluster, scene.node.variables):
        return skip("slurm.configuration.elsewhere")
    state = known(scene.facts.slurm)
    recorded = _recorded(state)
    wanted, claims = _entries(scene.cluster, scene.all_facts)
    members = {node.name for node in scene.cluster.nodes if node.takes_jobs}
    valid = {name: one for name, one in wanted.items() if name not in claims}
    missing = sorted(name for name in valid if name not in recorded)
    same = slurm_config.same_entry
    differ = sorted(name for name, one in valid.items() if name in recorded and not same(recorded[name], one))
    removed = sorted(name for name in recorded if name not in members)
    problems = [reason("slurm.configuration.missing", nodes=missing)] if missing else []
    problems += [reason("slurm.configuration.differ", nodes=differ)] if differ else []
    problems += [reason("slurm.configuration.removed", nodes=removed)] if removed else []
    if problems:
        return fail("slurm.configuration.wrong", problems=problems)
    return passed("slurm.configuration.ok", count=len(recorded))


def _recorded(state: SlurmState) -> dict[str, dict[str, Any]]:
    return {str(name): {str(key): value for key, value in one.items()} for name, one in (state.recorded or {}).items()}


def _entries(cluster: Cluster, all_facts: Mapping[str, NodeFacts]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the entries of the nodes whose report is valid, and of which other nodes they report the host name."""
    return _entries_of(Same(cluster), Same(all_facts))


@functools.lru_cache(maxsize=1)
def _entries_of(
    same_cluster: Same[Cluster], same_facts: Same[Mapping[str, NodeFacts]]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    cluster, all_facts = same_cluster.it, same_facts.it
    entries: dict[str, dict[str, Any]] = {}
    for node in cluster.nodes:
        state = _state(all_facts.get(node.name))
        if node.takes_jobs and state is not None and state.layout is not None:
            with suppress(ValueError):  # the check slurm.layout reports it
                entries[node.name] = entry_of(node, all_facts[node.name], state.layout)
    names = {node.name for node in cluster.nodes if node.takes_jobs}
    controllers = controllers_of(cluster, cluster.nodes[0].variables)
    names |= set(controllers)
    first = _state(all_facts.get(controllers[0]))
    recorded = slurm_config.own_names(_recorded(first), names) if first is not None else {}
    busy = _busy(first, recorded) if first is not None else set()
    staying = {name: one for name, one in recorded.items() if name in names or name in busy}
    return entries, slurm_config.claimed_names(entries, staying, names)


def _busy(first: SlurmState, recorded: Mapping[str, object]) -> set[str]:
    nodes = {str(name): {"state": node.state} for name, node in first.nodes.items()}
    return slurm_config.busy_nodes({"nodes": nodes, "problem": first.problem}, recorded)


def entry_of(node: Node, facts: NodeFacts, reported: SlurmLayout) -> dict[str, Any]:
    """Return what the controller's configuration has to say of a node.

    Raises:
        ValueError: the node's report is not valid.
    """
    layout = {
        **{key: getattr(reported, key) for key in ("sockets", "cores", "threads", "memory", "hostname")},
        "gpus": [{"minor": gpu.minor, "model": str(gpu.model), "socket": gpu.socket} for gpu in reported.gpus],
    }
    leaf = str(node.variables.get("cluster_leaf") or node.variables.get("cluster_rack") or "")
    labels = node.variables.get("cluster_labels") or {}
    address = data_address(node.variables, facts)
    return slurm_config.node_entry(layout, address=str(address), leaf=leaf, labels=labels)


def _layout(scene: Scene) -> Verdict:
    if not _is_managed(scene.node.variables):
        return skip("slurm.present")
    if not scene.node.takes_jobs:
        return skip("check.no_jobs")
    state, name = known(scene.facts.slurm), scene.node.name
    if state.layout is None:
        return skip("slurm.layout.unknown")
    try:
        entry = entry_of(scene.node, scene.facts, state.layout)
    except ValueError as error:
        return fail("slurm.layout.invalid", cause=str(error)[:200])
    _, claims = _entries(scene.cluster, scene.all_facts)
    if name in claims:
        return fail("slurm.layout.name_taken", host=entry["hostname"], other=claims[name])
    return passed("slurm.layout.ok", host=entry["hostname"])


def _node(scene: Scene) -> Verdict:
    if not scene.node.takes_jobs:
        return skip("check.no_jobs")
    node = _seen(scene)
    if node is None:
        return fail("slurm.node.not_registered")
    if node.state_cause.startswith(slurm_config.REASON) and node.state.startswith(_OUT):
        return fail("slurm.node.unhealthy", problem=node.state_cause.removeprefix(slurm_config.REASON))
    if node.state.startswith(_ABSENT) or node.state.endswith("*"):
        return fail("slurm.node.down", state=node.state, cause=node.state_cause)
    if node.state.startswith(_OUT):
        return warn("slurm.node.drained", state=node.state, cause=node.state_cause, user=node.user)
    return passed("slurm.node.ok", state=node.state)


def _seen(scene: Scene) -> SlurmNode | None:
    state = known(scene.facts.slurm)
    return state.nodes.get(state.node)


def _gres(scene: Scene) -> Verdict:
    if not scene.node.takes_jobs:
        return skip("check.no_jobs")
    node, state = _seen(scene), known(scene.facts.slurm)
    count = sum(int(number) for number in _GRES.findall(node.gres)) if node else 0
    gpus = scene.facts.gpus
    current = len(gpus) if not isinstance(gpus, Unknown) else len(state.layout.gpus) if state.layout else 0
    simulated = scene.simulated("gpus")
    if count != current:
        return fail("slurm.gres.differs", simulated=simulated, count=count, current=current)
    return passed("slurm.gres.ok", simulated=simulated, count=count)


def _devices(scene: Scene) -> Verdict:
    constrained = known(scene.facts.slurm).devices
    if constrained is None:
        return skip("slurm.devices.unknown")
    return passed("slurm.devices.ok") if constrained else fail("slurm.devices.off")


def _accounting(scene: Scene) -> Verdict:
    variables = scene.node.variables
    if not _is_managed(variables):
        return skip("slurm.present")
    if variables.get("slurm_accounting") != slurm_config.SLURMDBD:
        return skip("slurm.accounting.none")
    if scene.node.name != controllers_of(scene.cluster, variables)[0]:
        return skip("slurm.accounting.elsewhere")
    state = known(scene.facts.slurm).accounting
    if state is None:
        return fail("slurm.accounting.missing")
    if state.problem:
        return fail("slurm.accounting.no_answer", cause=state.problem)
    return passed("slurm.accounting.ok") if state.is_registered else fail("slurm.accounting.not_registered")


# Planning


def _is_disruptive(causes: Sequence[Cause], state: NodeState) -> bool:
    """Return whether the step can disrupt a job.

    Daemons of Slurm and munge restart under running jobs. Packages are replaced on idle nodes only. Before its first
    run, jobs of another engine may use the GPUs that Slurm hands out from then on. A whole run makes systemd read its
    units again, which takes the GPUs from containers that got them by the legacy hook.
    """
    if not state.node.takes_jobs:
        return False
    if any(cause.kind is CauseKind.PACKAGE for cause in causes):
        return True
    own = _state(state.facts)
    if is_whole_run(causes) and _is_managed(state.node.variables) and (own is None or not own.controllers):
        return True
    legacy = state.node.variables.get("nvidia_container_flavor") == "nvidia-docker2"
    return legacy and is_whole_run(causes) and not docker_is_unused(state.facts)


def _request(causes: Sequence[Cause], state: NodeState) -> str | None:
    """A controller needs the layouts of the nodes; a node needs the key and its place from the controller."""
    if not _is_managed(state.node.variables):
        return None
    if state.node.name in controllers_of(state.cluster, state.node.variables):
        names = {"slurm.configuration", "slurm.munge", _STATE, _KEY}
        whole = {CauseKind.RECEIPT, CauseKind.CODE, CauseKind.FORCED}
        return "layouts" if any(cause.kind in whole or cause.name in names for cause in causes) else None
    return "controller" if any(cause.kind is not CauseKind.UNIT for cause in causes) else None


def _take_part(requested: Mapping[str, Sequence[str]], state: NodeState) -> Reason | None:
    if names := requested.get("layouts"):
        return reason("slurm.layout_needed", nodes=names)
    is_controller = state.node.name in controllers_of(state.cluster, state.node.variables)
    if is_controller and (names := requested.get("controller")):
        return reason("slurm.controller_needed", nodes=names)
    return None


def _fixable(state: NodeState, _: CheckResult) -> bool:
    return _is_managed(state.node.variables)


def _node_is_fixable(state: NodeState, result: CheckResult) -> bool:
    """A node that its health checks drained becomes healthy first."""
    return _is_managed(state.node.variables) and result.reason.code != "slurm.node.unhealthy"


def _configuration_is_fixable(state: NodeState, _: CheckResult) -> bool:
    """Return whether a line can change now: those of nodes with jobs stay until the jobs have ended."""
    own = _state(state.facts)
    if not _is_managed(state.node.variables) or own is None:
        return False
    recorded, (wanted, claims) = _recorded(own), _entries(state.cluster, state.all_facts)
    members = [node.name for node in state.cluster.nodes if node.takes_jobs]
    valid = {name: one for name, one in wanted.items() if name not in claims}
    return slurm_config.merged(valid, recorded, members, _busy(own, recorded))[0] != recorded


def _is_of_others(facts: NodeFacts) -> bool:
    """Return whether a Slurm answers on the node that the role has not set up."""
    own = _state(facts)
    has_receipt = isinstance(facts.receipts, Unknown) or "slurm" in facts.receipts
    return own is not None and bool(own.nodes) and not own.controllers and not has_receipt


def _settings(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    if not _is_managed(variables):
        return
    if _is_of_others(facts):
        yield (
            PreflightCode.VARIABLE_INVALID, "slurm_source",
            "the node is in a Slurm cluster that provision has not set up, which would lose its configuration and jobs",
            "Set slurm_source: present in the inventory, or remove that Slurm from the node first.",
        )  # fmt: skip
    names = {"partitions": "slurm_partitions", "options": "slurm_options", "state_folder": "slurm_state_folder"}
    settings = {key: variables.get(name) for key, name in names.items() if plain(variables.get(name))}
    backup = variables.get("slurm_backup_controller")
    for variable, problem in slurm_config.setting_problems({**settings, "controllers": ["", backup] if backup else []}):
        yield PreflightCode.VARIABLE_INVALID, variable, problem, "Correct the value in the inventory."


def _system_settings(variables: Variables, system: Variables, _: NodeFacts) -> Iterator[Setting]:
    version = system.get("__platform_slurm_version")
    if version is None or not _is_managed(variables):
        return
    problem = slurm_config.version_problem(str(version), str(system.get("__platform_title")))
    if problem:
        remedy = "Set cluster_engine: direct, or install a supported version yourself and set slurm_source: present."
        yield PreflightCode.VARIABLE_INVALID, "cluster_engine", problem, remedy


def _cluster_settings(node: Node, cluster: Cluster, all_facts: Mapping[str, NodeFacts]) -> Iterator[Setting]:
    engines = {str(one.variables.get("cluster_engine") or "direct") for one in cluster.nodes}
    if len(engines) > 1:
        remedy = "Set the same cluster_engine for all nodes, in group_vars/all.yml."
        yield (
            PreflightCode.CLUSTER_MIXED,
            "cluster_engine",
            f"the nodes have several: {', '.join(sorted(engines))}",
            remedy,
        )
    names = {one.name for one in cluster.nodes}
    for name in controllers_of(cluster, node.variables):
        if name not in names:
            problem, remedy = f"'{name}' is not in the inventory", "Name a node of the inventory."
            yield PreflightCode.VARIABLE_INVALID, "slurm_controller", problem, remedy
    if not _is_managed(node.variables):
        return
    yield from _partition_settings(node, cluster, all_facts)
    releases: dict[str, list[str]] = {}
    for name, facts in all_facts.items():
        if not isinstance(facts.system, Unknown):
            releases.setdefault(system_label(facts), []).append(name)
    if len(releases) > 1:
        texts = (f"{release} on {', '.join(sorted(own)[:3])}" for release, own in sorted(releases.items()))
        problem = f"nodes with several systems cannot form one Slurm cluster ({'; '.join(texts)})"
        remedy = "Install the same release on all nodes, or describe them as two clusters in two inventories."
        yield PreflightCode.CLUSTER_MIXED, "operating system", problem, remedy
    invalid = [name for name in sorted(names) if not matches(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")(name)]
    if invalid:
        problem, remedy = (
            f"'{invalid[0]}' is not a valid name of a node in Slurm",
            "Use letters, digits, '-', '_', '.'.",
        )
        yield PreflightCode.VARIABLE_INVALID, "inventory name", problem, remedy


def _partition_settings(node: Node, cluster: Cluster, all_facts: Mapping[str, NodeFacts]) -> Iterator[Setting]:
    """Yield what would lose the queue, end jobs, or leave nodes without a partition.

    As in the role, only the records of the node and of the controller count: any node could stop all others.
    """
    variables = node.variables
    partitions: Any = variables.get("slurm_partitions", slurm_config.PARTITIONS)
    settings = {"partitions": partitions, "state_folder": variables.get("slurm_state_folder")}
    if not plain(settings):
        return
    members = [one.name for one in cluster.nodes if one.takes_jobs]
    for variable, problem in slurm_config.membership_problems(partitions, members):
        yield PreflightCode.VARIABLE_INVALID, variable, problem, "Correct the partitions in the inventory."
    first = controllers_of(cluster, variables)[0]
    states = {name: state for name in (node.name, first) if (state := _state(all_facts.get(name))) is not None}
    keys = ("controllers", "state_folder", "partitions", "busy_partitions")
    records = {name: {key: getattr(state, key) for key in keys} for name, state in states.items()}
    for variable, problem, remedy in slurm_config.record_problems(records, first, settings):
        yield PreflightCode.VARIABLE_INVALID, variable, problem, remedy


def _packages(variables: Variables, _: Variables, __: NodeFacts) -> Iterator[str]:
    if _is_managed(variables):
        yield from ("munge", "slurm-client")
        if str(variables.get("cluster_takes_jobs", True)).lower() not in {"false", "no", "off", "0"}:
            yield "slurmd"


def _controller_packages(node: Node, cluster: Cluster) -> Iterator[str]:
    controllers = controllers_of(cluster, node.variables)
    if not _is_managed(node.variables) or node.name not in controllers:
        return
    yield "slurmctld"
    if node.name == controllers[0] and node.variables.get("slurm_accounting") == slurm_config.SLURMDBD:
        yield from ("slurmdbd", "mariadb-server")


def _files(variables: Variables, _: NodeFacts) -> Iterator[str]:
    if _is_managed(variables):
        yield from (_KEY, _STATE)
        yield from ("/etc/slurm/prolog.d/50-provision", "/etc/slurm/epilog.d/50-provision", "/etc/default/slurmd")
        yield from ("/etc/systemd/system/slurmd.service.d/90-provision.conf", "/usr/local/sbin/provision-slurm-health")
        if variables.get("slurm_backup_controller"):
            yield "/etc/systemd/system/slurmctld.service.d/90-provision.conf"


_APPLY = "Run: provision apply"
_WORDINGS = {
    "slurm.layout_needed": Wording("the controller {nodes:few} writes the configuration of all nodes"),
    "slurm.controller_needed": Wording("{nodes:few} require the key and the configuration of the controller"),
    "slurm.present": Wording("others manage this Slurm (slurm_source: present)"),
    "slurm.controller.ok": Wording("slurmctld answers (Slurm {version})"),
    "slurm.controller.not_installed": Wording("Slurm is not installed", _APPLY),
    "slurm.controller.no_answer": Wording(
        "slurmctld does not answer this node ({cause})",
        "Run `provision apply`. If that does not help, read /var/log/slurm/slurmctld.log on the controller.",
    ),
    "slurm.version.ok": Wording("{version}"),
    "slurm.version.unknown": Wording("the version of the node or of the controller is unknown"),
    "slurm.version.differs": Wording(
        "Slurm {version} runs here, and {controller} on the controller",
        "Install the same release of the system on all nodes of the cluster.",
    ),
    "slurm.munge.ok": Wording("the same key as on the controller"),
    "slurm.munge.missing": Wording("munge has no key", _APPLY),
    "slurm.munge.unknown": Wording("the controller was not probed"),
    "slurm.munge.differs": Wording("the key differs from that of the controller", _APPLY),
    "slurm.configuration.ok": Wording("it fits {count} nodes"),
    "slurm.configuration.elsewhere": Wording("this node is not the controller"),
    "slurm.configuration.wrong": Wording(
        "{problems}", "Run `provision apply`. The lines of nodes with running jobs change when these have ended."
    ),
    "slurm.configuration.missing": Wording("{nodes:few} are not in it"),
    "slurm.configuration.differ": Wording("CPUs, memory, GPUs, address or labels of {nodes:few} differ from it"),
    "slurm.configuration.removed": Wording("{nodes:few} take no jobs, or are not in the inventory any more"),
    "slurm.layout.ok": Wording("valid, with the host name {host}"),
    "slurm.layout.unknown": Wording("slurmd is not installed"),
    "slurm.layout.invalid": Wording(
        "what it reports cannot enter the configuration of Slurm ({cause})",
        "Check `slurmd -C` and the host name on the node, whose software may be damaged or manipulated, then run: "
        "provision apply",
    ),
    "slurm.layout.name_taken": Wording(
        "its host name '{host}' is that of the node {other}",
        "Give each node a host name of its own (hostnamectl set-hostname), then run: provision apply",
    ),
    "slurm.node.ok": Wording("{state}"),
    "slurm.node.not_registered": Wording("Slurm does not know this node", _APPLY),
    "slurm.node.down": Wording(
        "Slurm has this node as {state} ({cause})",
        "Run `provision apply`. If that does not help, read /var/log/slurm/slurmd.log on the node.",
    ),
    "slurm.node.drained": Wording(
        "drained by {user} ({cause})", "Resume it when its reason is gone: scontrol update NodeName=NAME State=RESUME"
    ),
    "slurm.node.unhealthy": Wording(
        "its health checks drained it ({problem})",
        "Remove the cause; `provision verify` shows more. The health checks resume the node when they passed twice.",
    ),
    "slurm.gres.ok": Wording("{count} GPUs"),
    "slurm.gres.differs": Wording("Slurm counts {count} GPUs, and the node has {current}", _APPLY),
    "slurm.accounting.ok": Wording("slurmdbd answers, and knows the cluster"),
    "slurm.accounting.none": Wording("slurm_accounting: none"),
    "slurm.accounting.elsewhere": Wording("slurmdbd runs on the controller"),
    "slurm.accounting.missing": Wording("slurmdbd is not set up", _APPLY),
    "slurm.accounting.no_answer": Wording(
        "slurmdbd does not answer ({cause})",
        "Run `provision apply`. If that does not help, read /var/log/slurm/slurmdbd.log on the controller.",
    ),
    "slurm.accounting.not_registered": Wording("its database does not have the cluster", _APPLY),
    "slurm.devices.ok": Wording("on"),
    "slurm.devices.off": Wording("off: every job can use every GPU of the node", _APPLY),
    "slurm.devices.unknown": Wording("Slurm does not report its cgroup settings"),
}

COMPONENT = Component(
    role="slurm",
    engine=ENGINE,
    after=("docker_engine",),
    after_all_waves=True,  # the controller's configuration has the layouts of all nodes
    read_variables=("slurm_source", "slurm_controller", "slurm_backup_controller", "slurm_accounting"),
    harmless_variables=frozenset({"slurm_start_timeout_seconds"}),
    is_disruptive=_is_disruptive,
    exchange=Exchange(request=_request, reason=_take_part),
    checks=(
        Check("slurm.controller", _controller),
        Check("slurm.version", _version, after="slurm.controller"),
        Check("slurm.munge", _munge),
        Check("slurm.layout", _layout),
        Check("slurm.configuration", _configuration),
        Check("slurm.node", _node, after="slurm.controller"),
        Check("slurm.gres", _gres, after="slurm.node"),
        Check("slurm.devices", _devices, after="slurm.controller"),
        Check("slurm.accounting", _accounting),
    ),
    never_fixes=frozenset({"slurm.version", "slurm.layout"}),
    fixes_if={
        **dict.fromkeys(("slurm.controller", "slurm.munge", "slurm.gres", "slurm.devices"), _fixable),
        "slurm.node": _node_is_fixable,
        "slurm.configuration": _configuration_is_fixable,
    },
    settings=_settings,
    system_settings=_system_settings,
    cluster_settings=_cluster_settings,
    packages=_packages,
    cluster_packages=_controller_packages,
    files=_files,
    reasons=_WORDINGS,
)
