"""The GPUs of a job of `provision run` are leased as those of a batch job are, as long as it lasts."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.connectors import RemoteProcess, connect
from provision.errors import LaunchError, ProvisionError
from provision.jobs.node_ask import begin, first_line
from provision.jobs.request import JobRequest
from provision.model import Node
from provision.threads import outcomes

__all__ = ["held_gpus"]

_MANY = 64
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
    names = sorted(counts)
    with contextlib.ExitStack() as stack:
        found = outcomes(lambda name: _hold(request, name, wanted.get(name, ()), counts[name]), names, limit=_MANY)
        for one in found:
            if isinstance(one, tuple):
                stack.callback(one[0].close)
        for name, one in zip(names, found, strict=True):
            if isinstance(one, Exception):
                raise one
            taken = one[1].get("taken")
            if isinstance(taken, Mapping) and taken:
                raise _refusal(name, taken)
        over = threading.Event()
        stack.callback(over.set)
        held = [one[0] for one in found if isinstance(one, tuple)]
        threading.Thread(target=_beat, args=(held, over), daemon=True, name="holds").start()
        yield


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

    def close(self) -> None:
        """Let the GPUs go, as soon as nothing of the job is left on the node."""
        if self.process is not None:
            with contextlib.suppress(ProvisionError):
                self.process.close_stdin()
            self.process.close()
        self.connector.close()


def _hold(request: JobRequest, name: str, uuids: Any, count: int) -> tuple[_Held, dict[str, Any]]:
    held = _Held(request.nodes[name])
    try:
        leases = dict.fromkeys(uuids, "")
        held.process = begin(
            held.connector,
            "hold",
            job=request.job,
            id=request.job,
            attempt=1,
            leases=leases,
            count=count,
            beats=True,
        )
        return held, first_line(held.process, name)
    except BaseException:
        held.close()
        raise


def _refusal(name: str, taken: Mapping[str, Any]) -> LaunchError:
    uuid, lease = next(iter(sorted(taken.items())))
    by = lease.get("job") if isinstance(lease, Mapping) else lease
    return LaunchError(
        f"{uuid} is held by the job {by}",
        node=name,
        remedy="wait until it has ended (`provision top node -d` shows who holds what), "
        "or let free GPUs be chosen: --gputopology",
    )
