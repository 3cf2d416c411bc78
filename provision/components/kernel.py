"""The role kernel: a kernel beside the running one, which an apply with a reboot boots on trial."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from provision.components.base import Component, NodeState, Setting, Variables
from provision.components.check import Check, Scene, Verdict, fail, known, passed, skip
from provision.components.common import package_manager, text
from provision.components.maintenance_windows import parse_windows
from provision.facts import NodeFacts, Unknown, is_container, plain
from provision.facts.kernel_upgrade import KernelUpgrade
from provision.model import CheckResult, PreflightCode
from provision.model.cause import Cause, CauseKind
from provision.model.reason import Reason, Wording, reason

ROLE = "kernel"
_RELEASE = re.compile(r"[0-9][A-Za-z0-9._+~-]{0,99}")
_SCHEDULERS = frozenset({"slurm", "kubernetes"})
"""Job engines whose nodes their own scheduler has to drain."""
_LEAST_SECONDS, _MOST_SECONDS = 60, 86400
_REBOOT = (
    "Run: provision apply --limit {node} --reboot. With cluster_window set, an apply inside the window reboots without "
    "the option."
)

_LEFT = {
    "rejected": "kernel.release.rejected",
    "expired": "kernel.release.fell_back",
    "fell_back": "kernel.release.fell_back",
}
"""Phase of a kernel that does not run any more -> the reason of the check."""

CAUSES = {
    "kernel.fallback.not_booted": Wording("it did not boot: it panicked, or GRUB could not start it"),
    "kernel.fallback.lost": Wording("it stopped during its trial: a panic, a reset or a reboot"),
    "kernel.fallback.not_confirmed": Wording("the controller did not confirm it in time"),
    "kernel.fallback.no_contact": Wording("the node could not be reached over SSH while it ran"),
    "kernel.fallback.worse": Wording("checks failed that passed before"),
    "kernel.fallback.unknown": Wording("the node gives no known reason"),
}
"""Why a node left a new kernel."""


def cause_reason(code: str) -> Reason:
    """Return the reason with which a node left a kernel; the code comes from the node."""
    known_reasons = (
        reason("kernel.fallback.not_booted"),
        reason("kernel.fallback.lost"),
        reason("kernel.fallback.not_confirmed"),
        reason("kernel.fallback.no_contact"),
        reason("kernel.fallback.worse"),
    )
    return next((one for one in known_reasons if one.code == code), reason("kernel.fallback.unknown"))


def _release(scene: Scene) -> Verdict:
    if scene.container:
        return skip("kernel.release.container")
    if scene.undecided("kernel_release"):
        return skip("kernel.release.undecided")
    release, running, upgrade = scene.want("kernel_release", ""), known(scene.facts.system).kernel, _upgrade(scene)
    if upgrade.is_on_trial(running):
        return fail("kernel.release.on_trial", release=running, previous=upgrade.source)
    if running == release:
        return passed("kernel.release.ok", release=release)
    code = _LEFT.get(upgrade.phase) if upgrade.target == release else None
    if code is None:
        return fail("kernel.release.differs", release=release, running=running)
    return fail(code, release=release, running=running, cause=cause_reason(upgrade.cause))


def _drain(scene: Scene) -> Verdict:
    upgrade = _upgrade(scene)
    return fail("kernel.drain.left") if upgrade.drained else passed("kernel.drain.none")


def _upgrade(scene: Scene) -> KernelUpgrade:
    return known(scene.facts.kernel_upgrade)


def _is_fixable(_: NodeState, result: CheckResult) -> bool:
    """A rejected kernel is tried again only with --force."""
    return result.reason.code != "kernel.release.rejected"


def _needs_reboot(causes: Sequence[Cause], state: NodeState) -> bool:
    """A kernel on trial is confirmed without a reboot, and a rejected one is not booted again, except with --force."""
    release = state.node.variables.get("kernel_release")
    system, upgrade = state.facts.system, state.facts.kernel_upgrade
    if is_container(state.facts) or isinstance(system, Unknown) or isinstance(upgrade, Unknown):
        return False
    if not isinstance(release, str) or not release or system.kernel == release or upgrade.is_on_trial(system.kernel):
        return False
    rejected = upgrade.target == release and upgrade.phase == "rejected"
    return not rejected or any(cause.kind is CauseKind.FORCED for cause in causes)


def _settings(variables: Variables, _: NodeFacts) -> Iterator[Setting]:
    release, seconds = variables.get("kernel_release"), variables.get("kernel_confirm_seconds", _LEAST_SECONDS)
    if release and not (isinstance(release, str) and _RELEASE.fullmatch(release)):  # a template is not evaluated later
        remedy = "Set it to the release as uname -r prints it, such as 6.1.0-49-amd64."
        yield PreflightCode.VARIABLE_INVALID, "kernel_release", "is not the release of a kernel", remedy
    if plain(seconds) and not (isinstance(seconds, int) and _LEAST_SECONDS <= seconds <= _MOST_SECONDS):
        problem = f"is not a number of seconds from {_LEAST_SECONDS} to {_MOST_SECONDS}"
        yield PreflightCode.VARIABLE_INVALID, "kernel_confirm_seconds", problem, "Use 900."
    engine = text(variables, "cluster_engine")
    if engine in _SCHEDULERS and not variables.get("cluster_drain"):
        problem, remedy = (
            f"is not set, and {engine} would start jobs on nodes that reboot",
            f"Set cluster_drain: {engine}",
        )
        yield PreflightCode.VARIABLE_MISSING, "cluster_drain", problem, remedy
    if plain(variables.get("cluster_window")):
        try:
            parse_windows(text(variables, "cluster_window"))
        except ValueError as error:
            remedy = "Write it as: Sat 02:00-06:00 Europe/Berlin"
            yield PreflightCode.VARIABLE_INVALID, "cluster_window", str(error), remedy


def _files(_: Variables, facts: NodeFacts) -> Iterator[str]:
    if not is_container(facts):
        yield from ("/usr/local/lib/provision/kernel_node.py", "/usr/local/lib/provision/kernel-upgrade")
        yield from ("/etc/systemd/system/provision-kernel.service", "/etc/default/grub.d/zz-provision-kernel.cfg")


def _packages(variables: Variables, system: Variables, facts: NodeFacts) -> Iterator[str]:
    """The running kernel is installed. The names of dnf contain a version, which a query by name does not match."""
    running = "" if isinstance(facts.system, Unknown) else facts.system.kernel
    release = text(variables, "kernel_release")
    if plain(release) and release != running and not is_container(facts) and package_manager(facts) == "apt":
        for name in system.get("__platform_kernel_packages", ()):
            yield str(name).replace("{kernel}", release)


COMPONENT = Component(
    role=ROLE,
    after=("peer_memory", "docker_engine", "slurm"),  # modules are built for the new kernel by what these roles install
    required_variable="kernel_release",
    read_variables=("kernel_release", "kernel_confirm_seconds"),
    harmless_variables=frozenset({"kernel_confirm_seconds", "kernel_rehearsal"}),
    needs_reboot=_needs_reboot,
    checks=(Check("kernel.release", _release), Check("kernel.drain", _drain)),
    never_fixes=frozenset({"kernel.drain"}),
    fixes_if={"kernel.release": _is_fixable},
    settings=_settings,
    files=_files,
    packages=_packages,
    missing_package_remedy="Set kernel_release to a kernel that the repositories of the node have.",
    reasons={
        **CAUSES,
        "kernel.release.container": Wording("a container node runs the kernel of its host"),
        "kernel.release.undecided": Wording("kernel_release contains a template, which only Ansible can evaluate"),
        "kernel.release.ok": Wording("{release}"),
        "kernel.release.on_trial": Wording(
            "the kernel {release} runs on trial; without a confirmation the node returns to {previous}",
            "Run: provision apply --limit {node}",
        ),
        "kernel.release.differs": Wording("the kernel {running} runs, and the inventory has {release}", _REBOOT),
        "kernel.release.fell_back": Wording(
            "the node returned from the kernel {release} to {running}: {cause}", _REBOOT
        ),
        "kernel.release.rejected": Wording(
            "the kernel {release} was rejected ({cause}), and {running} runs",
            "Set kernel_release to another kernel. To try this one again: provision apply --limit {node} --reboot "
            "--force kernel",
        ),
        "kernel.upgrade.refused": Wording(
            "`kernel-upgrade {action}` refused: {problem} ({cause})",
            "Correct the cause on the node, then run: provision apply --limit {node} --reboot",
        ),
        "kernel.upgrade.no_reboot": Wording(
            "the node answers, but has not rebooted",
            "Check what keeps it from stopping (systemctl list-jobs on the node), then apply again.",
        ),
        "kernel.upgrade.stuck": Wording(
            "the node runs the kernel {release} although it was rejected",
            "Check GRUB's default (grub-editenv list) on the node, then reboot it.",
        ),
        "kernel.upgrade.worse": Wording(
            "the node was returned from the kernel {release} to {running}, because checks fail that passed before: "
            "{checks}",
            "Run the new kernel on one node by hand to find the cause. To try it again: provision apply --limit {node} "
            "--reboot --force kernel",
        ),
        "kernel.upgrade.fell_back": Wording(
            "the node returned from the kernel {release} to {running}: {cause}",
            "Read the messages of that boot (journalctl -b -1). To try it again: provision apply --limit {node} "
            "--reboot --force kernel",
        ),
        "kernel.drain.none": Wording("no upgrade drained the node"),
        "kernel.drain.left": Wording(
            "an interrupted kernel upgrade left the node drained", "Run: provision apply --limit {node}"
        ),
    },
)
