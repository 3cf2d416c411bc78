"""PCI addresses."""

from __future__ import annotations


def slot_of(address: str) -> str:
    """Return domain, bus and device of a PCI address in lower case: nvidia-smi prints eight digits of the domain."""
    domain, _, rest = address.lower().partition(".")[0].partition(":")
    return f"{domain[-4:]}:{rest}"
