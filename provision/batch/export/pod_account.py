"""The account of a job that the pod of an MPIJob or PyTorchJob has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.batch.export.findings import Findings, PodFields
from provision.batch.export.pods import MOST_ID
from provision.model.reason import reason

_READ = frozenset({"runAsUser", "runAsGroup", "supplementalGroups", "runAsNonRoot"})
_OF_CONTAINER = frozenset({"privileged", "capabilities", "allowPrivilegeEscalation"})


def read_account(
    pod_context: Mapping[str, Any],
    container: Mapping[str, Any],
    paths: tuple[str, str],
    pod: PodFields,
    findings: Findings,
) -> None:
    """Read the account of a container: a field of its own securityContext has precedence over that of its pod."""
    at_pod, at_container = paths
    given = {name: value for name, value in pod_context.items() if value is not None}
    own = {name: value for name, value in container.items() if value is not None}
    where = {**dict.fromkeys(given, at_pod), **dict.fromkeys(own, at_container)}
    merged = {**given, **own}
    user, group, groups = merged.get("runAsUser"), merged.get("runAsGroup"), merged.get("supplementalGroups") or ()
    for name, value in (("runAsUser", user), ("runAsGroup", group), *(("supplementalGroups", one) for one in groups)):
        if value is not None and not 0 <= value <= MOST_ID:
            path = f"{where[name]}.{name}"
            expected = f"a number from 0 to {MOST_ID}"
            findings.problems.append(
                (path, reason("manifest.wrong_type", path=path, value=str(value)[:40], expected=expected))
            )
    if user is not None:
        pod.fields["user"] = ",".join([f"{user}:{group or 0}", *map(str, groups)])
    else:
        for name in ("runAsGroup", "supplementalGroups"):
            if merged.get(name):
                findings.refuse(f"{where[name]}.{name}", "securityContext")
    if merged.get("runAsNonRoot") and not user:
        findings.refuse(f"{where['runAsNonRoot']}.runAsNonRoot", "securityContext")
    findings.sort(pod_context, at_pod, _READ, frozenset(pod_context), frozenset())
    findings.sort(container, at_container, _READ, frozenset(container), _OF_CONTAINER)
