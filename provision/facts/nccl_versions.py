"""What differs between NCCL's versions, as data: the classes behind a distance, and how it looks for the kernel module.

Read from the release tags 2.3.7 to 2.30.7.
"""

from __future__ import annotations

__all__ = ["distance_name", "module_note", "version_tuple"]

Version = tuple[int, ...]

_CLASSES: tuple[tuple[Version, tuple[str, ...]], ...] = (
    ((2, 27, 5), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")),
    ((2, 27), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "P2C", "PHB", "SYS")),
    ((2, 26), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "PHB", "SYS")),
    ((2, 12), ("LOC", "NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS")),
    ((2, 8), ("LOC", "NVL", "NVB", "PIX", "PXB", "PHB", "SYS")),
    ((2, 6), ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")),
)
"""First version -> the classes in the order of their numbers; newest first."""

_ONE_PLACE = (
    "This NCCL looks for the module under /sys/kernel/mm/memory_peers alone, which kernels from 6.4 on do not have: "
    "there, use NCCL 2.23 or newer."
)
_MODULE_NOTES: tuple[tuple[Version, str], ...] = (
    ((2, 23), ""),
    ((2, 3), _ONE_PLACE),
)
"""First version -> what it misses; newest first."""


def version_tuple(version: str | None) -> Version | None:
    """Return ``2.27.5`` as (2, 27, 5), None when there is none."""
    parts = (version or "").split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else None


def distance_name(version: str | None, number: int) -> str | None:
    """Return the class (``PXB``, ``SYS``, ...) that a distance has in this version; None when it cannot be told.

    The numbers changed six times, so that without the version a number says nothing.
    """
    wanted = version_tuple(version)
    classes = next((names for first, names in _CLASSES if wanted and wanted >= first), ())
    return classes[number] if 0 <= number < len(classes) else None


def module_note(version: str | None) -> str:
    """Return what to know about how this version looks for the peer-memory module, empty when nothing."""
    wanted = version_tuple(version)
    return next((note for first, note in _MODULE_NOTES if wanted and wanted >= first), "")
