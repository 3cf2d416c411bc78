"""The inventory: read, validated, chosen from, and written by ``init``."""

from provision.inventory.load import load
from provision.inventory.resolve import resolve
from provision.inventory.select import select

__all__ = ["load", "resolve", "select"]
