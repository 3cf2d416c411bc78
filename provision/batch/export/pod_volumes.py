"""The volumes of a job that the pod of an MPIJob or PyTorchJob has."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from provision.batch.export.findings import Findings, PodFields
from provision.batch.export.pods import CODE, SHARED_MEMORY
from provision.model.reason import reason

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -3, "u": -2, "m": -1, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_DOCKER = "bkmgt"
_MOST = 1 << 60


def docker_size(quantity: object) -> str:
    """Return a quantity of Kubernetes as a size of docker, in the largest unit that gives a whole number.

    Raises:
        ValueError: it is not a quantity, or not between one byte and 1 EiB.
    """
    text = str(quantity)
    exact = text[:-2] if text[-2:-1] in {"K", "M", "G", "T"} and text.endswith("i") else ""
    if exact.isdecimal() and 0 < len(exact) < 10 and int(exact) and _BINARY[text[-2:]] < len(_DOCKER):  # noqa: PLR2004
        return exact + text[-2].lower()
    if text.isdecimal() and len(text) < 19 and int(text):  # noqa: PLR2004 - 1 EiB has 19 digits
        return f"{text}b"
    factor = Decimal(1)
    if text[-2:] in _BINARY:
        text, factor = text[:-2], Decimal(1024) ** _BINARY[text[-2:]]
    elif text[-1:] in _DECIMAL:
        text, factor = text[:-1], Decimal(1000) ** _DECIMAL[text[-1:]]
    try:
        size = Decimal(text) * factor
    except InvalidOperation as error:
        raise ValueError(f"invalid quantity {text}") from error
    if not 0 < size < _MOST:
        raise ValueError("a size is between one byte and 1Ei")
    whole, power = int(size.to_integral_value("ROUND_CEILING")), 0
    while power + 1 < len(_DOCKER) and whole % 1024 == 0:
        whole, power = whole // 1024, power + 1
    return f"{whole}{_DOCKER[power]}"


def read_volumes(
    spec: Mapping[str, Any], container: Mapping[str, Any], path: str, pod: PodFields, findings: Findings, at: int = 0
) -> None:
    """Read the volumes that the container `at` of a pod mounts."""
    volumes = {one["name"]: (one, f"{path}.volumes[{index}]") for index, one in enumerate(spec.get("volumes") or [])}
    data: list[tuple[str, str]] = []
    mounts: list[str] = []
    files = 0
    for index, mount in enumerate(container.get("volumeMounts") or []):
        where = f"{path}.containers[{at}].volumeMounts[{index}]"
        volume, source = volumes.get(mount["name"], ({}, where))
        part = next((name for name in ("subPathExpr", "subPath") if mount.get(name)), "")
        _read_propagation(mount, where, findings)
        if "persistentVolumeClaim" in volume and not part:
            claim = volume["persistentVolumeClaim"]
            data.append((claim["claimName"], mount["mountPath"]))
            if mount.get("readOnly"):
                findings.note(f"{where}.readOnly")
            if claim.get("readOnly"):
                findings.note(f"{source}.persistentVolumeClaim.readOnly")
        elif "hostPath" in volume and not part:
            host = volume["hostPath"]
            mounts.append(f"{host['path']}:{mount['mountPath']}" + ":ro" * bool(mount.get("readOnly")))
            if host.get("type"):
                findings.note(f"{source}.hostPath.type")
        elif "emptyDir" in volume and not mount.get("subPathExpr"):
            _read_scratch(volume, mount, source, pod, findings)
        elif str((volume.get("secret") or {}).get("secretName", "")).endswith("-files") and part != "subPathExpr":
            files += 1
            findings.pending["config_files"] = (source, files)
        else:
            findings.refuse(f"{where}.{part}" if part else source, "subPath" if part else "")
    pod.fields |= {"data": tuple(data)} if data else {}
    pod.fields |= {"mounts": tuple(mounts)} if mounts else {}


def _read_propagation(mount: Mapping[str, Any], path: str, findings: Findings) -> None:
    """Containers of jobs do not share later mounts with the node, as with the propagation ``None``."""
    propagation = mount.get("mountPropagation")
    if propagation == "HostToContainer":
        findings.note(f"{path}.mountPropagation")
    elif propagation not in {None, "None"}:
        findings.refuse(f"{path}.mountPropagation")


def _read_scratch(
    volume: Mapping[str, Any], mount: Mapping[str, Any], path: str, pod: PodFields, findings: Findings
) -> None:
    """Read an emptyDir: shared memory, the folder of fetched code, or a folder that the container has anyway."""
    scratch = volume["emptyDir"] or {}
    if mount["mountPath"] == SHARED_MEMORY and scratch.get("medium") == "Memory":
        limit = scratch.get("sizeLimit")
        if limit is None:
            return
        try:
            pod.fields["share_memory"] = docker_size(limit)
        except ValueError:
            where = f"{path}.emptyDir.sizeLimit"
            expected = "a quantity between 1 and 1Ei, such as 32Gi"
            findings.problems.append(
                (where, reason("manifest.wrong_type", path=where, value=str(limit)[:40], expected=expected))
            )
    elif volume["name"] != CODE:
        findings.note(path)
