"""A hypothetical machine, as described by ``provision gdr --assume``."""

from __future__ import annotations

import re
from dataclasses import replace

from provision.errors import UsageError
from provision.gdr import versions
from provision.gdr.base import Cards, Evidence, Flavor, Situation, Stack
from provision.gdr.compare import at_least
from provision.model.gpu_products import find_architecture

_ARCHITECTURES = f"{', '.join(versions.ARCHITECTURES)}, or a product, such as H100"
_INBOX_PEER = "inbox-peer"
"""The inbox stack of a kernel that has the peer memory interface itself, as some Ubuntu kernels do."""
_STACKS = (Stack.INBOX.value, _INBOX_PEER, Stack.OFED.value, Stack.OFED_LEGACY.value)
_PEERMEM: dict[str, Evidence] = {
    "stub": Evidence(peermem_file=True, peermem_stub=True),
    "missing": Evidence(peermem_file=False),
    "both": Evidence(loaded=frozenset({"nvidia_peermem", "nv_peer_mem"})),
}
"""Value of ``peermem`` -> the evidence that a probe of such a node would have."""

_KEYS: dict[str, tuple[str, str]] = {
    "driver": (r"\d{3,4}(\.\d+){0,2}", "a driver version, such as 570.133.20"),
    "modules": ("|".join(Flavor), " or ".join(Flavor)),
    "kernel": (r"\d+\.\d+[\w.+~-]*", "a kernel release, such as 6.8.0-60-generic"),
    "stack": ("|".join(map(re.escape, _STACKS)), ", ".join(_STACKS)),
    "cards": ("|".join(Cards), ", ".join(Cards)),
    "peermem": ("|".join(_PEERMEM), ", ".join(_PEERMEM)),
    "gpu": (r".+", _ARCHITECTURES),
    "nccl": (r"2\.\d+(\.\d+)?", "an NCCL version, such as 2.27.5"),
}
"""Key -> pattern and description of its values."""
_REQUIRED = ("driver", "kernel", "stack")

_FORM = "Use --assume " + ",".join(
    f"{key}={form}"
    for key, form in (
        ("driver", "V"),
        ("modules", "open|proprietary"),
        ("kernel", "V"),
        ("stack", "|".join(_STACKS)),
        ("cards", "|".join(Cards)),
        ("peermem", "|".join(_PEERMEM)),
        ("gpu", "PRODUCT|ARCHITECTURE"),
        ("nccl", "V"),
    )
)


def assumed(text: str) -> Situation:
    """Parse ``key=value,...``.

    The default of ``modules`` is the choice of the driver's installer for these GPUs, and of ``cards`` hardware;
    ``gpu``, ``nccl`` and ``peermem`` are optional.

    Raises:
        UsageError: A key or value is unknown, repeated or missing; the message lists the alternatives.
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or key not in _KEYS:
            raise UsageError(f"--assume: unknown key in {part.strip() or 'empty part'!r}", remedy=_FORM)
        if key in given:
            raise UsageError(f"--assume: {key} is given twice", remedy=_FORM)
        pattern, possible = _KEYS[key]
        value = value.lower() if key in {"modules", "stack", "cards", "peermem"} else value
        parsed = find_architecture(value) if key == "gpu" else value
        if not re.fullmatch(pattern, parsed):
            raise UsageError(f"--assume: invalid value {value!r} for {key}", remedy=f"Use for {key}: {possible}.")
        given[key] = parsed
    missing = [key for key in _REQUIRED if key not in given]
    if missing:
        raise UsageError(f"--assume: {', '.join(missing)} missing", remedy=_FORM)
    exports = given["stack"] == _INBOX_PEER
    evidence = _PEERMEM.get(given.get("peermem", ""), Evidence())
    return Situation(
        driver=given["driver"],
        kernel=given["kernel"],
        stack=Stack.INBOX if exports else Stack(given["stack"]),
        flavor=Flavor(given["modules"]) if "modules" in given else _usual(given["driver"], given.get("gpu")),
        gpus=(given["gpu"],) if "gpu" in given else (),
        nccl=given.get("nccl", ""),
        cards=Cards(given.get("cards", Cards.HARD)),
        evidence=replace(evidence, peer_api=True) if exports else evidence,
    )


def _usual(driver: str, gpu: str | None) -> Flavor:
    """Return the modules that the driver's installer selects: open ones since 560, if the GPU supports both."""
    known = versions.ARCHITECTURES.get(gpu or "")
    if known is not None and known.open_modules is not known.proprietary_modules:
        return Flavor.OPEN if known.open_modules else Flavor.PROPRIETARY
    return Flavor.OPEN if at_least(driver, versions.OPEN_MODULES_USUAL_DRIVER) else Flavor.PROPRIETARY
