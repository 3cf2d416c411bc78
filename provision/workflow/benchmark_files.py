"""Results of benchmarks, kept on this machine: a file for each, in the folder of all that is kept between commands."""

from __future__ import annotations

import dataclasses
import json
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from provision.benchmarks import Record
from provision.benchmarks.record import from_document
from provision.documents import decode
from provision.errors import InvalidDocument, ProvisionError
from provision.local_files import state_folder, write_private

_MOST = 500
"""As many results are kept; the oldest beyond them go."""


def folder() -> Path:
    """Return where the results are."""
    return state_folder() / "benchmarks"


def new_id() -> str:
    """Return a fresh id; ids sort by time, to the millisecond."""
    seconds, fraction = divmod(time.time(), 1)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(seconds))
    return f"{stamp}{int(fraction * 1000):03d}-{secrets.token_hex(2)}"


def store_record(record: Record) -> Path:
    """Write a result down, whole or not at all, for this user alone; return its file.

    Raises:
        ProvisionError: it cannot be written.
    """
    place = folder()
    target = place / f"{record.id}.json"
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(target, json.dumps(dataclasses.asdict(record), indent=1))
        for old in sorted(place.glob("*.json"))[:-_MOST]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise ProvisionError(
            f"the result cannot be kept in {place}: {error.strerror}",
            remedy="Make room there, or set XDG_STATE_HOME to another folder.",
        ) from error
    return target


def stored_records() -> list[Record]:
    """Return all kept results, oldest first; a file that is none is passed over."""
    return [record for file in sorted(folder().glob("*.json")) if (record := _read(file)) is not None]


def find_records(word: str) -> list[Record]:
    """Return the kept results of this id or name, oldest first."""
    return [record for record in stored_records() if word in (record.id, record.name)]


def _read(file: Path) -> Record | None:
    with suppress(OSError, InvalidDocument):
        return from_document(decode(file.read_bytes(), dict[str, Any], node="", what=str(file)))
    return None
