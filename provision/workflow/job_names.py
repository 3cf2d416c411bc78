"""The names of the jobs that this machine saw last, for shell completion, which asks no node."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from provision import cache_files
from provision.documents import decode
from provision.documents.state import JobNames
from provision.errors import InvalidDocument

_KIND = "job-names"


def known_job_names(inventory: Path) -> list[str]:
    """Return the names that are stored for an inventory, the newest job first."""
    content = cache_files.read(_KIND, cache_files.inventory_key(inventory))
    if content is None:
        return []
    try:
        return decode(content, JobNames, node="", what="names of jobs").names
    except InvalidDocument:
        return []


def store_job_names(inventory: Path, names: Iterable[str]) -> None:
    """Store the names of all jobs of an inventory; those beyond the limit of the document are left out."""
    document = JobNames(list(dict.fromkeys(names))[: JobNames.MOST])
    cache_files.write(_KIND, cache_files.inventory_key(inventory), msgspec.json.encode(document))


def add_job_name(inventory: Path, name: str) -> None:
    """Store the name of a job that was submitted."""
    store_job_names(inventory, [name, *known_job_names(inventory)])


def remove_job_name(inventory: Path, name: str) -> None:
    """Remove the name of a job that was deleted."""
    store_job_names(inventory, [one for one in known_job_names(inventory) if one != name])
