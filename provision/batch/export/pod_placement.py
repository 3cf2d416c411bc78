"""The nodes of a job that the pod of an MPIJob or PyTorchJob selects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.batch.export.findings import Findings, PodFields
from provision.batch.export.pods import HOST_NAME, UNSCHEDULABLE, WORKER_LABEL

PLACEMENT = ("selector", "nodes", "exclude", "max_per_node", "spread", "allow_drained")
"""Fields of a job that the placement of its pods gives."""
_REQUIRED, _PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))
_OPERATOR_LABELS = ("training.kubeflow.org/job-name", "job-name")
"""Labels that the operators add to the pods of a job; their value is its name."""


def read_placement(template: Mapping[str, Any], path: str, pod: PodFields, findings: Findings, job: str = "") -> None:
    """Read selector, affinity and tolerations of a pod template; `path` is that of its spec."""
    spec = template.get("spec") or {}
    if spec.get("nodeSelector"):
        pod.fields["selector"] = dict(spec["nodeSelector"])
    labels = {**dict.fromkeys((*_OPERATOR_LABELS, WORKER_LABEL), job)}
    labels |= (template.get("metadata") or {}).get("labels") or {}
    _read_affinity(spec.get("affinity") or {}, f"{path}.affinity", pod, findings, labels)
    for index, one in enumerate(spec.get("tolerations") or []):
        is_drain = one.get("key") == UNSCHEDULABLE and one.get("operator") == "Exists"
        if is_drain and one.get("effect") in {None, "", "NoSchedule"}:
            pod.fields["allow_drained"] = True
        else:
            findings.note(f"{path}.tolerations[{index}]")


def _read_affinity(
    affinity: Mapping[str, Any], path: str, pod: PodFields, findings: Findings, labels: Mapping[str, str]
) -> None:
    node = affinity.get("nodeAffinity") or {}
    required = node.get(_REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or []
    if len(terms) > 1 or "podAffinity" in affinity:
        findings.refuse(path, "affinity")
        return
    if node.get(_PREFERRED):
        findings.note(f"{path}.nodeAffinity.{_PREFERRED}")
    for term in terms:
        where = f"{path}.nodeAffinity.{_REQUIRED}.nodeSelectorTerms[0]"
        if term.get("matchFields"):
            findings.refuse(f"{where}.matchFields", "affinity")
        _read_rules(term.get("matchExpressions") or [], f"{where}.matchExpressions", pod, findings)
    apart = affinity.get("podAntiAffinity") or {}
    others = apart.get(_REQUIRED) or []
    preferred = [one["podAffinityTerm"] for one in apart.get(_PREFERRED) or []]
    if others:
        if _is_own_on_host(others, labels):
            pod.fields["max_per_node"] = 1
        else:
            findings.refuse(f"{path}.podAntiAffinity.{_REQUIRED}", "affinity")
    if preferred:
        if not others and _is_own_on_host(preferred, labels):
            pod.fields["spread"] = True
        else:
            findings.note(f"{path}.podAntiAffinity.{_PREFERRED}")


def _read_rules(rules: Sequence[Mapping[str, Any]], path: str, pod: PodFields, findings: Findings) -> None:
    """Read rules of which all must hold."""
    for index, rule in enumerate(rules):
        values, word, key = tuple(rule.get("values") or ()), rule["operator"], rule["key"]
        selector = pod.fields.get("selector", {})
        if key == HOST_NAME and word == "In" and values and "nodes" not in pod.fields:
            pod.fields["nodes"] = values
        elif key == HOST_NAME and word == "NotIn" and values:
            pod.fields["exclude"] = tuple(dict.fromkeys((*pod.fields.get("exclude", ()), *values)))
        elif key != HOST_NAME and word == "In" and len(values) == 1 and selector.get(key, values[0]) == values[0]:
            pod.fields["selector"] = {**selector, key: values[0]}
        else:
            findings.refuse(f"{path}[{index}]", "affinity")


def _is_own_on_host(terms: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> bool:
    """Return whether terms keep the pods of the job apart, each on a node of its own, and no other pods."""
    if len(terms) != 1:
        return False
    (term,) = terms
    selector = term.get("labelSelector") or {}
    matched = selector.get("matchLabels") or {}
    return (
        {name for name, value in term.items() if value} == {"labelSelector", "topologyKey"}
        and term["topologyKey"] == HOST_NAME
        and {name for name, value in selector.items() if value} == {"matchLabels"}
        and all(labels.get(key) == value for key, value in matched.items())
    )
