"""Differences between NCCL versions: the classes of distances, and the path of the kernel module.

Read from the release tags 2.3.7 to 2.30.7.
"""

from __future__ import annotations

Version = tuple[int, ...]

_CLASSES: tuple[tuple[Version, tuple[str, ...]], ...] = (
    ((2, 27, 5), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")),
    ((2, 27), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "P2C", "PHB", "SYS")),
    ((2, 26), ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "PXN", "PHB", "SYS")),
    ((2, 12), ("LOC", "NVL", "NVB", "PIX", "PXB", "PXN", "PHB", "SYS")),
    ((2, 8), ("LOC", "NVL", "NVB", "PIX", "PXB", "PHB", "SYS")),
    ((2, 6), ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")),
)
"""First version -> the classes, ordered by number; newest first."""

_ONE_PLACE_BEFORE = (2, 23)
"""NCCL before this version detects the peer memory module only in /sys/kernel/mm/memory_peers."""


def version_tuple(version: str | None) -> Version | None:
    """Return ``2.27.5`` as (2, 27, 5); None without a version."""
    parts = (version or "").split(".")
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else None


def distance_name(version: str | None, number: int) -> str | None:
    """Return the class (``PXB``, ``SYS``, ...) of a distance in this version; None if unknown.

    The numbers changed six times, so a number means nothing without the version.
    """
    parsed = version_tuple(version)
    classes = next((names for first, names in _CLASSES if parsed and parsed >= first), ())
    return classes[number] if 0 <= number < len(classes) else None


def expects_one_place(version: str | None) -> bool:
    """Return whether this version detects the peer memory module only in /sys/kernel/mm/memory_peers."""
    parsed = version_tuple(version)
    return parsed is not None and parsed < _ONE_PLACE_BEFORE
