"""The fields of a job that the pod of an MPIJob or PyTorchJob has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.batch.containers import CAPABILITIES
from provision.batch.export.expansion import expanded, references
from provision.batch.export.findings import Findings, PodFields
from provision.batch.export.pod_account import read_account
from provision.batch.export.pod_placement import read_placement
from provision.batch.export.pod_volumes import read_volumes
from provision.batch.export.pods import CODE, GPU, WORKER_LABEL
from provision.model.reason import reason

_IGNORED_POD = frozenset({"restartPolicy", "dnsPolicy", "enableServiceLinks", "hostNetwork", "hostIPC"})
"""Fields that need no note: jobs have the network of their node, and pods are not restarted."""
_NOTED_POD = frozenset(
    {"hostPID", "dnsConfig", "schedulerName", "serviceAccount", "serviceAccountName", "automountServiceAccountToken"}
    | {"terminationGracePeriodSeconds", "priorityClassName", "priority", "preemptionPolicy", "subdomain", "hostname"}
    | {"setHostnameAsFQDN", "runtimeClassName", "topologySpreadConstraints", "shareProcessNamespace", "os", "hostUsers"}
    | {"overhead", "imagePullSecrets"}
)
_READ_POD = frozenset(
    {"containers", "initContainers", "volumes", "nodeSelector", "affinity", "tolerations", "securityContext"}
)
_IGNORED_CONTAINER = frozenset({"name", "ports", "stdin", "tty", "terminationMessagePath", "terminationMessagePolicy"})
_NOTED_CONTAINER = frozenset({"livenessProbe", "readinessProbe", "startupProbe", "resizePolicy"})
_READ_CONTAINER = frozenset(
    {"image", "imagePullPolicy", "command", "args", "workingDir", "env", "resources", "volumeMounts", "securityContext"}
)
_PULL = {"Always": "always", "IfNotPresent": "missing", "Never": "never"}
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_NETWORK = re.compile(r"rdma|hca|roce|mlnx|mellanox|infiniband|/efa$")
"""In the names of resources of networks, which jobs use without a request."""
_SHELLS = {"sh": "sh", "/bin/sh": "sh", "bash": "bash", "/bin/bash": "bash", "/usr/bin/bash": "bash"}


def read_pod(template: Mapping[str, Any], path: str, findings: Findings, main: str = "", job: str = "") -> PodFields:
    """Return the fields of a pod template.

    Args:
        template: the template.
        path: its path.
        findings: get the problems and notes.
        main: the name of the container, if the manifest names it.
        job: the name of the job.
    """
    pod = PodFields(path=path)
    _read_metadata(template.get("metadata") or {}, f"{path}.metadata", findings)
    spec, path = template.get("spec") or {}, f"{path}.spec"
    findings.sort(spec, path, _READ_POD, _NOTED_POD, _IGNORED_POD)
    containers = spec.get("containers") or []
    if len(containers) != 1 or (main and containers[0].get("name") != main):
        findings.refuse(f"{path}.containers")
        return pod
    one, where = containers[0], f"{path}.containers[0]"
    _read_code(spec.get("initContainers") or [], f"{path}.initContainers", pod, findings)
    _read_container(one, where, pod, findings)
    read_volumes(spec, one, path, pod, findings)
    contexts = (spec.get("securityContext") or {}, one.get("securityContext") or {})
    read_account(*contexts, (f"{path}.securityContext", f"{where}.securityContext"), pod, findings)
    read_placement(template, path, pod, findings, job)
    return pod


def as_command(argv: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return an argument vector as the command of a job, and its shell: ``sh -c LINE`` is a command line."""
    if len(argv) == 3 and argv[0] in _SHELLS and argv[1] == "-c":  # noqa: PLR2004 - SHELL -c LINE
        return (argv[2],), _SHELLS[argv[0]]
    return tuple(argv), "sh"


def _read_metadata(metadata: Mapping[str, Any], path: str, findings: Findings) -> None:
    for part in ("labels", "annotations"):
        given = [key for key in metadata.get(part) or {} if not key.startswith("kueue.x-k8s.io/")]
        if set(given) - {WORKER_LABEL}:
            findings.note(f"{path}.{part}")


def _read_code(containers: Sequence[Mapping[str, Any]], path: str, pod: PodFields, findings: Findings) -> None:
    """Read the container that fetches code, of an exported manifest; its source is in the annotation ``sync``."""
    for index, one in enumerate(containers):
        if one.get("name") != CODE:
            findings.refuse(f"{path}[{index}]", "initContainers")
            continue
        findings.pending["sync"] = (f"{path}[{index}]", 1)
        pod.sync_secrets += [item["name"] for item in one.get("env") or [] if item.get("valueFrom")]


def _read_container(one: Mapping[str, Any], path: str, pod: PodFields, findings: Findings) -> None:
    findings.sort(one, path, _READ_CONTAINER, _NOTED_CONTAINER, _IGNORED_CONTAINER)
    pod.image = one.get("image") or ""
    if one.get("imagePullPolicy") in _PULL:
        pod.fields["pull"] = _PULL[one["imagePullPolicy"]]
    if one.get("workingDir"):
        pod.fields["working_dir"] = one["workingDir"]
    _read_variables(one.get("env") or [], f"{path}.env", pod, findings)
    if one.get("args") and not one.get("command"):
        findings.refuse(f"{path}.args", "command")
    for part in ("command", "args"):
        for index, word in enumerate(one.get(part) or ()):
            pod.argv = (*pod.argv, expanded(word, pod.env))
            _check_references(word, f"{path}.{part}[{index}]", pod, findings)
    _read_resources(one.get("resources") or {}, f"{path}.resources", pod, findings)
    rights = one.get("securityContext") or {}
    if rights.get("privileged"):
        pod.fields["privileged"] = True
    capabilities = rights.get("capabilities") or {}
    if set(capabilities.get("add") or ()) - set(CAPABILITIES):
        findings.note(f"{path}.securityContext.capabilities.add")
    if capabilities.get("drop"):
        findings.note(f"{path}.securityContext.capabilities.drop")


def _check_references(word: str, path: str, pod: PodFields, findings: Findings) -> None:
    """Refuse ``$(NAME)`` of a variable whose value is not known here: a shell would run NAME as a command.

    Kubernetes leaves references to unknown names as they are, so that ``$(date)`` is a command there too.
    """
    for name in references(word):
        if name in pod.secret_env or (name not in pod.env and _VARIABLE.fullmatch(name)):
            findings.problems.append((path, reason("manifest.reference", path=path, name=name)))


def _read_variables(items: Sequence[Mapping[str, Any]], path: str, pod: PodFields, findings: Findings) -> None:
    """Read variables; the last one of a name counts, as in a pod."""
    for index, one in enumerate(items):
        name, source, where = one["name"], one.get("valueFrom"), f"{path}[{index}]"
        if name in pod.secret_env:
            pod.secret_env.remove(name)
        if source is None:
            value = one.get("value") or ""
            for known in references(value):
                if known in pod.secret_env:
                    path_of = f"{where}.value"
                    findings.problems.append((path_of, reason("manifest.reference", path=path_of, name=known)))
            pod.env[name] = expanded(value, pod.env)
            continue
        pod.env.pop(name, None)
        secret = source.get("secretKeyRef")
        if secret is None:
            findings.refuse(f"{where}.valueFrom")
            continue
        if secret.get("key") != name or secret.get("optional"):
            where = f"{where}.valueFrom.secretKeyRef"
            findings.notes.append((where, reason("manifest.from_environment", path=where, name=name)))
        pod.secret_env.append(name)


def _read_resources(resources: Mapping[str, Any], path: str, pod: PodFields, findings: Findings) -> None:
    for part in ("limits", "requests"):
        for name, amount in (resources.get(part) or {}).items():
            where = f"{path}.{part}.{name}"
            if name == GPU and str(amount).isdecimal() and len(str(amount)) < 10:  # noqa: PLR2004 - as other numbers of jobs
                pod.gpus = int(amount)
            elif "gpu" in name or ("/" in name and not _NETWORK.search(name)):
                findings.refuse(where, "resources")
            else:
                findings.note(where)
    if resources.get("claims"):
        findings.refuse(f"{path}.claims", "resources")


def differences(first: PodFields, second: PodFields) -> Iterator[tuple[str, str]]:
    """Yield the fields in which two pods of a job differ, each with its path in the second pod."""
    container = f"{second.path}.spec.containers[0]"
    if first.gpus != second.gpus:
        yield "nvidia.com/gpu", f"{container}.resources"
    for name in {**first.fields, **second.fields}:
        if first.fields.get(name) != second.fields.get(name):
            yield name, f"{second.path}.spec"
    yield from variable_differences(first, second)


def variable_differences(first: PodFields, second: PodFields) -> Iterator[tuple[str, str]]:
    """Yield the variables that are different in two pods, or in one of them only."""
    env = f"{second.path}.spec.containers[0].env"
    for name in dict.fromkeys((*first.env, *second.env)):
        if first.env.get(name) != second.env.get(name):
            yield f"env {name}", env
    for name in sorted({*first.secret_env} ^ {*second.secret_env}):
        yield f"env {name}", env
