"""The pod of an instance: container, variables, volumes, rights and placement."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from provision.batch.containers import CAPABILITIES
from provision.batch.export.expansion import literal
from provision.batch.export.secrets import ENV, FILES, REGISTRY, SYNC, secret_name
from provision.batch.export.workload import ExportOptions, Group, Workload, code_folder, fetches_code
from provision.model.job import CodeSource, JobSpec

GPU = "nvidia.com/gpu"
HOST_NAME = "kubernetes.io/hostname"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
WORKER_LABEL = "provision/worker-of"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 # nosec B108 # in the containers
CODE = "code"
MOST_ID = (1 << 31) - 1
"""Of users and groups."""
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME}")
_DOMAIN_PART = re.compile(r"[a-z0-9]([-a-z0-9]{0,251}[a-z0-9])?")
_LONGEST = 253
_VALUE = re.compile(rf"({_NAME})?")
_PULL = {"always": "Always", "missing": "IfNotPresent", "never": "Never"}
_SIZES = {"b": "", "k": "Ki", "m": "Mi", "g": "Gi", "t": "Ti"}


def is_key(key: str) -> bool:
    """Return whether Kubernetes accepts the key of a label or annotation."""
    domain, slash, _ = key.rpartition("/")
    return _KEY.fullmatch(key) is not None and (not slash or is_domain(domain))


def is_domain(name: str) -> bool:
    """Return whether a name is a DNS-1123 subdomain, as the names of most objects."""
    return len(name) <= _LONGEST and all(_DOMAIN_PART.fullmatch(part) for part in name.split("."))


def is_label(key: str, value: str) -> bool:
    """Return whether Kubernetes accepts a label."""
    return is_key(key) and _VALUE.fullmatch(value) is not None


def drop_empty(value: Any) -> Any:
    """Return a document without empty mappings, lists and nulls; empty texts and volumes of type emptyDir stay."""
    if isinstance(value, Mapping):
        items = {key: drop_empty(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if key == "emptyDir" or not _is_empty(item)}
    if isinstance(value, list):
        return [drop_empty(item) for item in value]
    return value


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping | list) and not value)


def pod_spec(
    workload: Workload,
    group: Group,
    options: ExportOptions,
    name: str,
    *,
    ranks: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> dict[str, Any]:
    """Return the specification of the pods of a group; `ranks` are further variables, `more` further fields."""
    spec = workload.spec
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if options.host_network else {}
    registry = [{"name": secret_name(spec, REGISTRY)}] if options.logs_in else []
    return {
        **more,
        **network,
        "initContainers": [_code_container(spec, spec.sync, options)] if spec.sync and fetches_code(spec) else [],
        "containers": [container(workload, group, options, name, ranks)],
        "volumes": [_volume(spec, index, one.kind, one.source) for index, one in enumerate(workload.volumes)]
        + [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _size(spec.share_memory)}}],
        "imagePullSecrets": registry,
        "securityContext": _account(spec),
        "nodeSelector": _selector(spec),
        "affinity": _affinity(spec, apart=group.role != "launcher"),
        "tolerations": [{"key": UNSCHEDULABLE, "operator": "Exists"}] if spec.allow_drained else [],
    }


def container(
    workload: Workload, group: Group, options: ExportOptions, name: str, ranks: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the container of a group."""
    spec = workload.spec
    limits: dict[str, Any] = {}
    if group.gpus:
        limits[GPU] = group.gpus
    if spec.rdma and options.rdma_resource and group.role != "launcher":
        limits[options.rdma_resource] = 1
    mounts = [_mount(index, one.kind, one.target, one.read_only) for index, one in enumerate(workload.volumes)]
    return {
        "name": name,
        "image": group.image,
        "imagePullPolicy": _PULL[spec.pull],
        "command": [literal(word) for word in group.command],
        "workingDir": spec.working_dir,
        "env": [*_variables(workload), *ranks],
        "resources": {"limits": limits} if limits else {},
        "volumeMounts": [*mounts, {"name": "shm", "mountPath": SHARED_MEMORY}],
        "securityContext": _rights(spec),
    }


def _variables(workload: Workload) -> list[dict[str, Any]]:
    spec = workload.spec
    plain = [
        {"name": name, "value": literal(value)}
        for name, value in workload.environment.items()
        if name not in spec.secret_env
    ]
    return [*plain, *(_from_secret(name, secret_name(spec, ENV)) for name in spec.secret_env)]


def _from_secret(name: str, secret: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}


def _rights(spec: JobSpec) -> dict[str, Any]:
    if spec.privileged:
        return {"privileged": True}
    return {"capabilities": {"add": list(CAPABILITIES)}}


def _account(spec: JobSpec) -> dict[str, Any]:
    if not spec.user:
        return {}
    account, *groups = spec.user.split(",")
    uid, _, gid = account.partition(":")
    return {"runAsUser": int(uid), "runAsGroup": int(gid), "supplementalGroups": [int(group) for group in groups]}


def _size(text: str) -> str:
    """Return a size of docker as a quantity; both count in powers of 1024."""
    return text.rstrip("bkmgt") + _SIZES.get(text[-1], "")


def _volume(spec: JobSpec, index: int, kind: str, source: str) -> dict[str, Any]:
    name = CODE if kind == CODE else f"{kind}-{index}"
    if kind == "data":
        return {"name": name, "persistentVolumeClaim": {"claimName": source}}
    if kind == "path":
        return {"name": name, "hostPath": {"path": source}}
    if kind == CODE:
        return {"name": name, "emptyDir": {}}
    return {"name": name, "secret": {"secretName": secret_name(spec, FILES)}}


def _mount(index: int, kind: str, target: str, read_only: bool) -> dict[str, Any]:  # noqa: FBT001 - a field of the volume
    name = CODE if kind == CODE else f"{kind}-{index}"
    mount: dict[str, Any] = {"name": name, "mountPath": target}
    if read_only:
        mount["readOnly"] = True
    if kind == "file":
        mount["subPath"] = f"file-{index}"
    return mount


def _code_container(spec: JobSpec, sync: CodeSource, options: ExportOptions) -> dict[str, Any]:
    """Return the container that fetches the code with git-sync before the job starts."""
    folder = code_folder(spec)
    settings = {
        "GITSYNC_REPO": sync.source,
        "GITSYNC_REF": sync.revision or "HEAD",
        "GITSYNC_ROOT": folder,
        "GITSYNC_LINK": sync.name,
        "GITSYNC_ONE_TIME": "true",
        **sync.options,
    }
    plain = [{"name": name, "value": literal(value)} for name, value in settings.items()]
    return {
        "name": CODE,
        "image": options.sync_image,
        "env": [*plain, *(_from_secret(name, secret_name(spec, SYNC)) for name in options.sync_secrets)],
        "volumeMounts": [{"name": CODE, "mountPath": folder}],
    }


def _selector(spec: JobSpec) -> dict[str, str]:
    return {key: value for key, value in spec.selector.items() if is_label(key, value)}


def _affinity(spec: JobSpec, *, apart: bool) -> dict[str, Any]:
    affinity: dict[str, Any] = {}
    named = (("In", spec.nodes), ("NotIn", spec.exclude))
    rules = [{"key": HOST_NAME, "operator": word, "values": list(names)} for word, names in named if names]
    if rules:
        terms = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if not apart:
        return affinity
    others = {"labelSelector": {"matchLabels": {WORKER_LABEL: spec.name}}, "topologyKey": HOST_NAME}
    if spec.max_per_node == 1:
        affinity["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [others]}
    elif spec.spread:
        preferred = [{"weight": 100, "podAffinityTerm": others}]
        affinity["podAntiAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    return affinity
