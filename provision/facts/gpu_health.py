"""What the driver tells of one GPU's health, with everything that it does not tell left unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["FIELDS", "GpuHealth", "health"]

FIELDS = (
    "mig.mode.current",
    "ecc.mode.current",
    "ecc.mode.pending",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.pending",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "clocks_event_reasons.active",
    "fabric.state",
    "fabric.status",
    "gpu_recovery_action",
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
    "remapped_rows.correctable",
    "remapped_rows.uncorrectable",
    "remapped_rows.pending",
    "remapped_rows.failure",
)
"""What is asked of ``nvidia-smi --query-gpu`` beside the identity."""

_NOT_TOLD = re.compile(
    r"\[?(?:n/a|not supported|not available|insufficient permissions|requested functionality.*)?\]?", re.IGNORECASE
)
_COMPLAINT = re.compile(r"\[(.+)\]|(err!)", re.IGNORECASE)
_EVENTS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


@dataclass(frozen=True)
class GpuHealth:
    """Counts are None and words empty where the product, the driver, MIG or a virtual GPU does not tell them."""

    mig: bool = False
    """Whether MIG is on: then the GPU's NVLinks are not in use and some counts are not told."""
    ecc: bool | None = None
    ecc_pending: bool | None = None
    """What ECC will be after the next reset."""
    uncorrected: int | None = None
    """Uncorrected ECC errors since the driver was loaded or the GPU reset."""
    uncorrected_ever: int | None = None
    """Uncorrected ECC errors in the GPU's life."""
    sram_threshold_exceeded: bool | None = None
    pages_pending: bool | None = None
    """Whether pages wait for a reset to be retired; products before Ampere."""
    rows_correctable: int | None = None
    rows_uncorrectable: int | None = None
    rows_pending: bool | None = None
    rows_failure: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    clock_events: int | None = None
    """The bits for which the clocks are below what they could be."""
    fabric_state: str = ""
    """``Not Started``, ``In Progress``, ``Completed``; empty for a product that joins no NVLink fabric."""
    fabric_status: str = ""
    recovery: str = ""
    """What the driver wants done: ``None``, ``Reset``, ``Reboot``, ...; older drivers do not say."""
    complaints: tuple[str, ...] = ()
    """Words in place of values that tell of a fault, e.g. ``GPU requires reset``."""


def health(cells: Mapping[str, str]) -> GpuHealth:
    """Read the columns of one GPU: title without unit -> text; a column may be missing."""

    def told(name: str) -> str:
        text = cells.get(name, "").strip()
        return text if _tells(text) else ""

    def number(name: str) -> int | None:
        digits = re.match(r"\d+", told(name))
        return int(digits[0]) if digits else None

    return GpuHealth(
        mig=told("mig.mode.current") == "Enabled",
        ecc=_flag(told("ecc.mode.current")),
        ecc_pending=_flag(told("ecc.mode.pending")),
        uncorrected=number("ecc.errors.uncorrected.volatile.total"),
        uncorrected_ever=number("ecc.errors.uncorrected.aggregate.total"),
        sram_threshold_exceeded=_flag(told("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded")),
        pages_pending=_flag(told("retired_pages.pending")),
        rows_correctable=number("remapped_rows.correctable"),
        rows_uncorrectable=number("remapped_rows.uncorrectable"),
        rows_pending=_flag(told("remapped_rows.pending")),
        rows_failure=_flag(told("remapped_rows.failure")),
        pcie_generation=number("pcie.link.gen.current"),
        pcie_generation_max=number("pcie.link.gen.max"),
        pcie_width=number("pcie.link.width.current"),
        pcie_width_max=number("pcie.link.width.max"),
        clock_events=_bits(next((told(name) for name in _EVENTS if told(name)), "")),
        fabric_state=_bare(told("fabric.state"), "state"),
        fabric_status=_bare(told("fabric.status"), "status"),
        recovery=told("gpu_recovery_action"),
        complaints=tuple(dict.fromkeys(_complaints(cells))),
    )


@lru_cache(maxsize=1024)
def _tells(text: str) -> bool:
    """Return whether a cell holds a value; most cells of most GPUs hold one of few texts."""
    return not _NOT_TOLD.fullmatch(text) and not _COMPLAINT.fullmatch(text)


def _complaints(cells: Mapping[str, str]) -> list[str]:
    texts = [cells.get(name, "").strip() for name in FIELDS]
    found = [_COMPLAINT.fullmatch(text) for text in texts if not _tells(text) and not _NOT_TOLD.fullmatch(text)]
    return [match[1] or match[2] for match in found if match]


def _flag(text: str) -> bool | None:
    """Drivers print Yes and No, Enabled and Disabled, or 1 and 0; row counts that are flags come as numbers too."""
    words = {"yes": True, "enabled": True, "active": True, "no": False, "disabled": False}
    return bool(int(text)) if text.isdecimal() else words.get(text.lower())


def _bits(text: str) -> int | None:
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else None


def _bare(text: str, word: str) -> str:
    """Some drivers print the column's name before the value: ``state  Completed``."""
    told = re.sub(rf"^{word}\s+", "", text, flags=re.IGNORECASE)
    return "" if _NOT_TOLD.fullmatch(told) else told
