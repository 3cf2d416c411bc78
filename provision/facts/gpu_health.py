"""The health that the driver reports for one GPU; values that it does not report are unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

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
    "mig.mode.pending",
    "persistence_mode",
)
"""Fields of ``nvidia-smi --query-gpu`` in addition to the identity."""

_NOT_REPORTED = re.compile(
    r"\[?(?:n/a|not supported|not available|insufficient permissions|requested functionality.*)?\]?", re.IGNORECASE
)
_COMPLAINT = re.compile(r"\[(.+)\]|(err!)", re.IGNORECASE)
_EVENTS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


@dataclass(frozen=True)
class GpuHealth:
    """Counts are None and texts empty if the product, the driver, MIG or a virtual GPU does not report them."""

    mig: bool = False
    """Whether MIG mode is on: then NVLinks are not in use and some counts are not reported."""
    mig_pending: bool | None = None
    """MIG mode after the next reset of the GPU; None if it is not reported."""
    has_mig: bool = False
    """Whether the GPU has a MIG mode; also if its driver answers with an error instead of the mode."""
    persistence: bool | None = None
    """Whether persistence mode is on."""
    ecc: bool | None = None
    ecc_pending: bool | None = None
    """The ECC mode after the next reset."""
    uncorrected: int | None = None
    """Uncorrected ECC errors since the driver was loaded or the GPU reset."""
    uncorrected_ever: int | None = None
    """Uncorrected ECC errors in the lifetime of the GPU."""
    sram_threshold_exceeded: bool | None = None
    pages_pending: bool | None = None
    """Whether pages wait for a reset to be retired; for products before Ampere."""
    rows_correctable: int | None = None
    rows_uncorrectable: int | None = None
    rows_pending: bool | None = None
    rows_failure: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    clock_events: int | None = None
    """Bit mask of the reasons why the clocks are below their maximum."""
    fabric_state: str = ""
    """``Not Started``, ``In Progress``, ``Completed``; empty for a product without an NVLink fabric."""
    fabric_status: str = ""
    recovery: str = ""
    """The recovery action that the driver requests: ``None``, ``Reset``, ``Reboot``, ...; older drivers report none."""
    complaints: tuple[str, ...] = ()
    """Error texts in place of values, e.g. ``GPU requires reset``."""


def health(cells: Mapping[str, str]) -> GpuHealth:
    """Parse the columns of one GPU: title without unit -> text; columns may be missing."""

    def value(name: str) -> str:
        text = cells.get(name, "").strip()
        return text if _is_value(text) else ""

    def number(name: str) -> int | None:
        digits = re.match(r"\d+", value(name))
        return int(digits[0]) if digits else None

    return GpuHealth(
        mig=value("mig.mode.current") == "Enabled",
        mig_pending=_flag(value("mig.mode.pending")),
        has_mig=not _NOT_REPORTED.fullmatch(cells.get("mig.mode.current", "").strip()),
        persistence=_flag(value("persistence_mode")),
        ecc=_flag(value("ecc.mode.current")),
        ecc_pending=_flag(value("ecc.mode.pending")),
        uncorrected=number("ecc.errors.uncorrected.volatile.total"),
        uncorrected_ever=number("ecc.errors.uncorrected.aggregate.total"),
        sram_threshold_exceeded=_flag(value("ecc.errors.uncorrected.aggregate.sram.thresholdExceeded")),
        pages_pending=_flag(value("retired_pages.pending")),
        rows_correctable=number("remapped_rows.correctable"),
        rows_uncorrectable=number("remapped_rows.uncorrectable"),
        rows_pending=_flag(value("remapped_rows.pending")),
        rows_failure=_flag(value("remapped_rows.failure")),
        pcie_generation=number("pcie.link.gen.current"),
        pcie_generation_max=number("pcie.link.gen.max"),
        pcie_width=number("pcie.link.width.current"),
        pcie_width_max=number("pcie.link.width.max"),
        clock_events=_bits(next((value(name) for name in _EVENTS if value(name)), "")),
        fabric_state=_bare(value("fabric.state"), "state"),
        fabric_status=_bare(value("fabric.status"), "status"),
        recovery=value("gpu_recovery_action"),
        complaints=tuple(dict.fromkeys(_complaints(cells))),
    )


@lru_cache(maxsize=1024)
def _is_value(text: str) -> bool:
    """Return whether a cell contains a value. The cache helps because most cells have one of few texts."""
    return not _NOT_REPORTED.fullmatch(text) and not _COMPLAINT.fullmatch(text)


def _complaints(cells: Mapping[str, str]) -> list[str]:
    texts = [cells.get(name, "").strip() for name in FIELDS]
    matches = [
        _COMPLAINT.fullmatch(text) for text in texts if not _is_value(text) and not _NOT_REPORTED.fullmatch(text)
    ]
    return [match[1] or match[2] for match in matches if match]


def _flag(text: str) -> bool | None:
    """Parse a flag: Yes and No, Enabled and Disabled, or a number."""
    words = {"yes": True, "enabled": True, "active": True, "no": False, "disabled": False}
    return bool(int(text)) if text.isdecimal() else words.get(text.lower())


def _bits(text: str) -> int | None:
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else None


def _bare(text: str, word: str) -> str:
    """Remove the column's name, which some drivers print before the value: ``state  Completed``."""
    value = re.sub(rf"^{word}\s+", "", text, flags=re.IGNORECASE)
    return "" if _NOT_REPORTED.fullmatch(value) else value
