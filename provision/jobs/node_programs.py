"""What goes to a node for batch jobs: the program that answers requests, and the keeper; each with its parts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["FILES", "jobs_program", "keeper_programs"]

FILES = Path(__file__).with_name("files")
_KEEPER = (
    "keeper.py",
    "keeper_channel.py",
    "keeper_containers.py",
    "keeper_endings.py",
    "keeper_output.py",
    "node_docker.py",
    "node_files.py",
    "node_keepers.py",
    "node_leases.py",
    "node_records.py",
)

# One program, whose parts are imported from the text that came along, each compiled when it is imported.
_IMPORTER = """import sys
from _frozen_importlib import ModuleSpec
PARTS = {parts!r}
class Parts:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, origin=name + ".py") if name in PARTS else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(PARTS[name], name + ".py", "exec"), module.__dict__)
sys.meta_path.insert(0, Parts())
import node_jobs
sys.exit(node_jobs.main())
"""


@cache
def jobs_program() -> bytes:
    """Return the program that answers one request, as one text: `node_jobs.py` with its parts."""
    parts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FILES.glob("node_*.py"))}
    return _IMPORTER.format(parts=parts).encode()


@cache
def keeper_programs() -> dict[str, str]:
    """Return the files of the keeper by name: ``programs`` of the request ``start``."""
    return {name: (FILES / name).read_text(encoding="utf-8") for name in _KEEPER}
