"""LightCC, a Horovod with other algorithms, and its variables of Horovod."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provision.errors import UsageError
from provision.model import Setting


@dataclass(frozen=True)
class LightVariable:
    """One variable of LightCC."""

    name: str
    kind: str
    """``bool`` (0 or 1), ``count`` (1 or more), ``bytes`` (0 or more) or ``ratio`` (above 0, at most 1)."""
    default: str
    meaning: str
    lossy: bool = False
    """Whether it makes gradients, and with them the model, less exact."""


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
"""Every variable of LightCC, by name."""

_GUIDE_THRESHOLD = "2097152"


def check_light(values: Mapping[str, str | None]) -> None:
    """Refuse unknown variables of LightCC and invalid values; other variables are ignored.

    None is an unknown value.

    Raises:
        UsageError: A variable is unknown or invalid; the message names the valid values.
    """
    for name, value in values.items():
        if not name.startswith("LIGHT_"):
            continue
        known = LIGHT.get(name)
        if known is None:
            raise UsageError(f"{name}: unknown LightCC variable", remedy=f"Use one of: {', '.join(LIGHT)}.")
        if value is not None and not _fits(known.kind, value):
            raise UsageError(
                f"{name}: invalid value {value}", remedy=f"Use {_VALUES[known.kind]} ({name}: {known.meaning})."
            )


_VALUES = {
    "bool": "0 or 1",
    "count": "a whole number of at least 1",
    "bytes": "a number of bytes",
    "ratio": "a number above 0 and at most 1",
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
    """Return the variables that make Horovod pass each tensor to LightCC immediately and unfused."""
    why = "LightCC processes tensors one by one: Horovod"
    return (
        Setting("-x", "HOROVOD_FUSION_THRESHOLD", "0", source, f"{why} does not fuse them"),
        Setting("-x", "HOROVOD_CYCLE_TIME", "0", source, f"{why} does not wait for others"),
    )


def lightcc_settings(gpus_per_node: int, source: str, *, lossy: bool) -> tuple[Setting, ...]:
    """Return the variables of Horovod and LightCC; with `lossy` also the compression settings of LightCC's guide."""
    chosen = {"LIGHT_INTRA_SIZE": str(gpus_per_node or LIGHT["LIGHT_INTRA_SIZE"].default), "LIGHT_2D_ALLREDUCE": "1"}
    if lossy:
        chosen |= {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": _GUIDE_THRESHOLD}
    return (*horovod_settings(source), *(_setting(name, value, source) for name, value in chosen.items()))


def _setting(name: str, value: str, source: str) -> Setting:
    known = LIGHT[name]
    loss = "; LOSSY: it changes the trained model" if known.lossy else ""
    return Setting("-x", name, value, source, f"{known.meaning}{loss} (default {known.default})")


def lossy_ones(settings: Iterable[Setting]) -> list[str]:
    """Return the names of enabled variables among `settings` that make gradients less exact."""
    return [s.name for s in settings if s.name in LIGHT and LIGHT[s.name].lossy and s.value == "1"]
