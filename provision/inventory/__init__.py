"""Inventories: read, validate, select nodes, and write them with ``init``."""

from provision.inventory.load import load
from provision.inventory.resolve import resolve
from provision.inventory.select import select

__all__ = ["load", "resolve", "select"]
