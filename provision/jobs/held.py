"""The GPUs of a job of `provision run` are leased as those of a batch job are, as long as it lasts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from provision.connectors import RemoteProcess, connect
from provision.documents.jobs import HeldLeases, Lease
from provision.errors import LaunchError, ProvisionError
from provision.jobs.node_ask import begin, first_line
from provision.jobs.request import JobRequest
from provision.model import Node
from provision.threads import outcomes

__all__ = ["held_gpus"]

_MANY = 64
_GIVE_BACK_SECONDS = 60.0
"""How long a node may take until it has taken its GPUs back."""
PATIENCE_SECONDS = 3.0
"""So long a node waits for the GPUs of a job that starts at the same time, and may give them back."""
BEAT_SECONDS = 15.0
"""The nodes give the GPUs back when they hear nothing of us for a minute, and nothing of the job is left."""


@contextlib.contextmanager
def held_gpus(request: JobRequest, counts: Mapping[str, int]) -> Iterator[None]:
    """Hold the GPUs that the ranks use while the job runs; the nodes give them back when we are gone and it has ended.

    Args:
        request: the job; with a placement just its GPUs are held, else the first ones of each node, as ranks take them.
        counts: node -> how many of its GPUs the ranks use; nodes without GPUs are not in it.

    Raises:
        LaunchError: another job holds one of them; nothing is held then.
    """
    wanted = {
        place.node: [uuid for rank in place.ranks for uuid in rank.gpus if not uuid.isdecimal()]
        for place in request.placement
    }
    wants = [_Want(name, wanted.get(name, ()), counts[name]) for name in sorted(counts)]
    held: list[_Held] = []
    over = threading.Event()
    try:
        problem = _hold_all(request, wants, held, at_once=max(len(wants), 1))
        if isinstance(problem, _OthersStart) and len(wants) > 1:
            outcomes(_Held.give_back, held, limit=_MANY)
            problem = _hold_all(request, wants, held, at_once=1)
        if problem:
            raise problem
        threading.Thread(target=_beat, args=(held, over), daemon=True, name="holds").start()
        yield
    finally:
        over.set()
        for one in held:
            one.close()


class _OthersStart(LaunchError):
    """A GPU is held by another job of `provision run` that starts just now, and may be refused for ours."""


@dataclass(frozen=True)
class _Want:
    """What is wanted of one node."""

    node: str
    uuids: Sequence[str]
    """Empty: the first `count` that it has."""
    count: int


def _hold_all(request: JobRequest, wants: Sequence[_Want], held: list[_Held], *, at_once: int) -> Exception | None:
    """Add to `held` what the nodes give, and return why one gives nothing.

    Two jobs that start at the same time can take from each other what both need when they ask all nodes at once. One
    node after another in the order of their names, each waiting a while for the other, one of them gets all.
    """
    for first in range(0, len(wants), at_once):
        some = wants[first : first + at_once]
        found = outcomes(lambda want: _hold(request, want, wait=at_once == 1), some, limit=_MANY)
        held += [one[0] for one in found if isinstance(one, tuple)]
        for want, one in zip(some, found, strict=True):
            if isinstance(one, Exception):
                return one
            if one[1].taken:
                return _refusal(want.node, one[1].taken, starting=one[1].starting)
    return None


def _beat(held: Sequence[_Held], over: threading.Event) -> None:
    """Give the nodes a sign of life now and then; one that is gone ends the job by itself."""
    while not over.wait(BEAT_SECONDS):
        for one in held:
            with contextlib.suppress(ProvisionError, OSError):
                if one.process is not None:
                    one.process.write(b"\n")


class _Held:
    """A connection and the request on it, which ends with it."""

    def __init__(self, node: Node) -> None:
        self.connector = connect(node)
        self.process: RemoteProcess | None = None

    def give_back(self) -> None:
        """Let the GPUs go, and return when the node has taken them back; no rank has started."""
        with contextlib.suppress(ProvisionError):
            if self.process is not None:
                self.process.close_stdin()
                self.process.deadline = time.monotonic() + _GIVE_BACK_SECONDS
                for _ in self.process.output():
                    pass

    def close(self) -> None:
        """Let the GPUs go, as soon as nothing of the job is left on the node."""
        if self.process is not None:
            with contextlib.suppress(ProvisionError):
                self.process.close_stdin()
            self.process.close()
        self.connector.close()


def _hold(request: JobRequest, want: _Want, *, wait: bool) -> tuple[_Held, HeldLeases]:
    held = _Held(request.nodes[want.node])
    try:
        leases = dict.fromkeys(want.uuids, "")
        held.process = begin(
            held.connector,
            "hold",
            job=request.job,
            id=request.job,
            attempt=1,
            leases=leases,
            count=want.count,
            beats=True,
            patience=PATIENCE_SECONDS if wait else 0,
        )
        return held, first_line(held.process, want.node, HeldLeases)
    except BaseException:
        held.close()
        raise


def _refusal(name: str, taken: Mapping[str, Lease], *, starting: bool) -> LaunchError:
    uuid = min(taken)
    by = taken[uuid].job
    return (_OthersStart if starting else LaunchError)(
        f"{uuid} is held by the job {by}",
        node=name,
        remedy="wait until it has ended (`provision top node -d` shows who holds what), "
        "or let free GPUs be chosen: --gputopology",
    )
