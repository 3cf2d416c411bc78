"""GPU leases of programs that are not batch jobs, such as those of `provision run`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from provision.connectors import RemoteProcess, connect
from provision.documents.jobs import HeldLeases, Lease
from provision.errors import LaunchError, ProvisionError
from provision.jobs.engines.base import GpuRequest
from provision.jobs.node_ask import begin, first_line
from provision.model import Node
from provision.threads import outcomes

_MANY = 64
_RELEASE_SECONDS = 60.0
"""The time that a node has to release GPUs."""
PATIENCE_SECONDS = 3.0
"""The time that a node waits for the GPUs of a job that starts at the same time and may release them."""
BEAT_SECONDS = 15.0
"""The nodes release the GPUs if they receive nothing for a minute and no process of the job is left."""


@contextlib.contextmanager
def reserved_gpus(
    owner: str,
    requests: Sequence[GpuRequest],
    nodes: Mapping[str, Node],
    slurm_jobs: Mapping[str, int] | None = None,
) -> Iterator[None]:
    """Lease GPUs while the context is open. If this process dies, the nodes release them when the program has ended.

    Args:
        owner: the program, for example the ID of a job of `provision run`.
        requests: the GPUs, one request for each node.
        nodes: all nodes by name.
        slurm_jobs: node -> number of the allocation in Slurm that has the GPUs.

    Raises:
        LaunchError: another job has one of them; then none is leased.
    """
    ordered = sorted(requests, key=lambda request: request.node)
    leases: list[_Lease] = []
    ended = threading.Event()
    try:
        take = partial(_lease, owner, nodes, slurm_jobs or {})
        problem = _lease_all(take, ordered, leases, at_once=max(len(ordered), 1))
        if isinstance(problem, _ConcurrentStart) and len(ordered) > 1:
            outcomes(_Lease.release, leases, limit=_MANY)
            problem = _lease_all(take, ordered, leases, at_once=1)
        if problem:
            raise problem
        threading.Thread(target=_beat, args=(leases, ended), daemon=True, name="gpu leases").start()
        yield
    finally:
        ended.set()
        for lease in leases:
            lease.close()


class _ConcurrentStart(LaunchError):
    """A GPU is leased by another job of `provision run` that starts at the same time and may still fail to start."""


def _lease_all(
    lease: Callable[..., tuple[_Lease, HeldLeases]],
    requests: Sequence[GpuRequest],
    leases: list[_Lease],
    *,
    at_once: int,
) -> Exception | None:
    """Add the leases of all nodes to `leases`, and return why a node refuses, else None.

    Two jobs that start at the same time and ask all nodes at once can each get GPUs that the other one needs. If they
    ask one node after another in the order of the names, and wait a short time for each other, one of them gets all.
    """
    for first in range(0, len(requests), at_once):
        group = requests[first : first + at_once]
        results = outcomes(partial(lease, wait=at_once == 1), group, limit=_MANY)
        leases += [result[0] for result in results if isinstance(result, tuple)]
        for request, result in zip(group, results, strict=True):
            if isinstance(result, Exception):
                return result
            if result[1].taken:
                return _refusal(request.node, result[1].taken, starting=result[1].starting)
    return None


def _beat(leases: Sequence[_Lease], ended: threading.Event) -> None:
    """Send the nodes a sign of life regularly; a node that is gone ends the job itself."""
    while not ended.wait(BEAT_SECONDS):
        for lease in leases:
            with contextlib.suppress(ProvisionError, OSError):
                if lease.process is not None:
                    lease.process.write(b"\n")


class _Lease:
    """A connection and the request on it; the lease ends with it."""

    def __init__(self, node: Node) -> None:
        self.connector = connect(node)
        self.process: RemoteProcess | None = None

    def release(self) -> None:
        """Release the GPUs of a job that has not started, and return when the node has done so."""
        with contextlib.suppress(ProvisionError):
            if self.process is not None:
                self.process.close_stdin()
                self.process.deadline = time.monotonic() + _RELEASE_SECONDS
                for _ in self.process.output():
                    pass

    def close(self) -> None:
        """Release the GPUs as soon as no process of the job is left on the node."""
        if self.process is not None:
            with contextlib.suppress(ProvisionError):
                self.process.close_stdin()
            self.process.close()
        self.connector.close()


def _lease(
    owner: str, nodes: Mapping[str, Node], slurm_jobs: Mapping[str, int], request: GpuRequest, *, wait: bool
) -> tuple[_Lease, HeldLeases]:
    lease = _Lease(nodes[request.node])
    try:
        lease.process = begin(
            lease.connector,
            "hold",
            job=owner,
            id=owner,
            attempt=1,
            leases=dict.fromkeys(request.uuids, ""),
            count=request.count,
            slurm=slurm_jobs.get(request.node, 0),
            beats=True,
            patience=PATIENCE_SECONDS if wait else 0,
        )
        return lease, first_line(lease.process, request.node, HeldLeases)
    except BaseException:
        lease.close()
        raise


def _refusal(name: str, leases: Mapping[str, Lease], *, starting: bool) -> LaunchError:
    uuid = min(leases)
    by = leases[uuid].job
    return (_ConcurrentStart if starting else LaunchError)(
        f"{uuid} is held by the job {by}",
        node=name,
        remedy="Wait until that job has ended (`provision top node -d` shows the jobs of all GPUs), "
        "or choose free GPUs: --gputopology",
    )
