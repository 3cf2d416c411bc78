"""Which nodes we drained and have not resumed yet: kept on this machine, for a later apply to resume."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from provision.documents import decode
from provision.documents.state import DrainedRecord
from provision.errors import InvalidDocument
from provision.local_files import state_folder, write_private
from provision.model import Cluster
from provision.workflow.inventory_state import identity


class DrainRecord:
    """The record of an inventory: node -> how it was drained (``kind``, ``name``, ``since``, ``user``).

    Changes require the lock `alone`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.path = state_folder() / "drained" / f"{identity(cluster)}.json"
        self.trouble = ""
        """Why the record could not be read."""
        self.nodes: dict[str, dict[str, str]] = {}
        self.read()

    def read(self) -> None:
        """Read what is there now."""
        self.nodes, self.trouble = {}, ""
        try:
            record = decode(self.path.read_bytes(), DrainedRecord, node="", what="the record")
            self.nodes = dict(record.nodes)
        except FileNotFoundError:
            pass
        except (OSError, InvalidDocument) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no record of ours"
            self.trouble = f"{self.path}: {why}"

    def add(self, entries: Mapping[str, Mapping[str, str]]) -> None:
        """Write down nodes; OSError where that cannot be done, and then nothing has changed."""
        self._write(self.nodes | {name: dict(entry) for name, entry in entries.items()})

    def forget(self, names: Iterable[str]) -> None:
        """Take nodes out."""
        gone = set(names) & self.nodes.keys()
        if gone:
            self._write({name: entry for name, entry in self.nodes.items() if name not in gone})

    def _write(self, nodes: dict[str, dict[str, str]]) -> None:
        """Whole or not at all: a crash leaves the old record or the new one."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.path, json.dumps({"nodes": nodes}), durable=True)
        self.nodes = nodes
