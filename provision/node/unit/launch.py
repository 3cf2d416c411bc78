"""What the shim of a unit has to start: a file that the job supervisor writes."""

from typing import Any, Dict, List, NamedTuple

FILE = "told"
"""The name of the file in the folder of the unit; it contains secrets and is removed once the shim has read it."""


class Bind(NamedTuple):
    """A mount of a path of the node."""

    source: str
    target: str
    mode: str
    """``ro`` or ``rw``."""
    is_of_job: bool
    """Whether the source is in the job's own folder."""


class Launch(NamedTuple):
    """A program, its environment and its account."""

    command: List[str]
    env: Dict[str, str]
    folder: str
    """The working directory."""
    binds: List[Bind]
    private: List[str]
    """Where file systems in memory are mounted."""
    log: str
    """The file for the output."""
    uid: int
    gid: int
    groups: List[int]


def document_of(launch: Launch) -> Dict[str, Any]:
    """Return the JSON object of a launch."""
    return dict(launch._asdict())


def launch_of(document: Dict[str, Any]) -> Launch:
    """Return the launch of a JSON object; ValueError if it has other keys."""
    try:
        return Launch(**dict(document, binds=[Bind(*bind) for bind in document["binds"]]))
    except (KeyError, TypeError) as problem:
        raise ValueError("invalid file of the job supervisor: {}".format(problem)) from None
