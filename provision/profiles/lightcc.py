"""LightCC, a Horovod with other algorithms, and the variables of Horovod that go with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provision.errors import UsageError
from provision.model import Setting

__all__ = ["LIGHT", "LightVariable", "check_light", "horovod_settings", "lightcc_settings", "lossy_ones"]


@dataclass(frozen=True)
class LightVariable:
    """One variable of LightCC."""

    name: str
    kind: str
    """``bool`` (0 or 1), ``count`` (1 or more), ``bytes`` (0 or more) or ``ratio`` (above 0, at most 1)."""
    default: str
    meaning: str
    lossy: bool = False
    """True where it makes gradients less exact, and with them the model."""


_ALL = (
    LightVariable("LIGHT_2D_ALLREDUCE", "bool", "0", "sums within groups of GPUs first, then between them"),
    LightVariable("LIGHT_INTRA_SIZE", "count", "8", "GPUs of such a group"),
    LightVariable("LIGHT_HIERARCHICAL_THRESHOLD", "bytes", "1073741824", "groups are used up to this size"),
    LightVariable("LIGHT_TOPK_ALLREDUCE", "bool", "0", "sends only the largest gradients", lossy=True),
    LightVariable("LIGHT_TOPK_RATIO", "ratio", "0.01", "how many of them, as a share"),
    LightVariable("LIGHT_TOPK_THRESHOLD", "bytes", "1048576", "only from this size on"),
    LightVariable("LIGHT_TOPK_FP16", "bool", "0", "sends them in half precision", lossy=True),
)
LIGHT: Mapping[str, LightVariable] = {variable.name: variable for variable in _ALL}
"""Every variable that LightCC knows, by name."""

_GUIDE_THRESHOLD = "2097152"


def check_light(values: Mapping[str, str | None]) -> None:
    """Refuse variables of LightCC that it does not know, or whose value it would not take; others are not looked at.

    None is a value that nobody here knows.

    Raises:
        UsageError: with the variable, and what it takes.
    """
    for name, value in values.items():
        if not name.startswith("LIGHT_"):
            continue
        known = LIGHT.get(name)
        if known is None:
            raise UsageError(f"LightCC has no variable {name}", remedy=f"It has: {', '.join(LIGHT)}.")
        if value is not None and not _fits(known.kind, value):
            raise UsageError(f"{name}={value}: it takes {_TAKES[known.kind]}", remedy=f"{name}: {known.meaning}.")


_TAKES = {
    "bool": "0 or 1",
    "count": "a whole number from 1 on",
    "bytes": "a number of bytes",
    "ratio": "a share above 0, at most 1",
}


def _fits(kind: str, value: str) -> bool:
    if kind == "ratio":
        return bool(re.fullmatch(r"[0-9]{0,30}\.?[0-9]{0,30}(e-?[0-9]{1,3})?", value, re.IGNORECASE)) and _is_share(
            value
        )
    if not (value.isascii() and value.isdecimal()):
        return False
    return {"bool": value in {"0", "1"}, "count": int(value) > 0}.get(kind, True)


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


def horovod_settings(source: str) -> tuple[Setting, ...]:
    """Return what LightCC wants of Horovod: that it hands every tensor on at once, unfused."""
    why = "LightCC takes each tensor by itself: Horovod"
    return (
        Setting("-x", "HOROVOD_FUSION_THRESHOLD", "0", source, f"{why} joins none"),
        Setting("-x", "HOROVOD_CYCLE_TIME", "0", source, f"{why} waits for no others"),
    )


def lightcc_settings(gpus_per_node: int, source: str, *, lossy: bool) -> tuple[Setting, ...]:
    """Return the variables of Horovod and LightCC; with `lossy` also those that compress, as its guide has them."""
    chosen = {"LIGHT_INTRA_SIZE": str(gpus_per_node or LIGHT["LIGHT_INTRA_SIZE"].default), "LIGHT_2D_ALLREDUCE": "1"}
    if lossy:
        chosen |= {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": _GUIDE_THRESHOLD}
    return (*horovod_settings(source), *(_setting(name, value, source) for name, value in chosen.items()))


def _setting(name: str, value: str, source: str) -> Setting:
    known = LIGHT[name]
    loss = "; LOSSY: it changes what is trained" if known.lossy else ""
    return Setting("-x", name, value, source, f"{known.meaning}{loss} (default {known.default})")


def lossy_ones(settings: Iterable[Setting]) -> list[str]:
    """Return the names of the variables among `settings` that make gradients less exact and are on."""
    return [s.name for s in settings if s.name in LIGHT and LIGHT[s.name].lossy and s.value == "1"]
