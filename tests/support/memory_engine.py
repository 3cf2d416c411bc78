"""An engine of batch jobs in memory: no node, no container. For wording, tables and exit codes alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from provision.errors import NameTaken, NotFound
from provision.jobs.engines.base import Tried
from provision.model.job import InstanceRecord, JobRecord, JobSpec, JobStatus, Kind, Seat
from provision.model.job_views import DryRun, JobSurvey

__all__ = ["MemoryEngine", "job_of"]


def job_of(
    name: str = "pytorch-dist",
    kind: Kind = Kind.PYTORCH,
    *,
    status: JobStatus = JobStatus.RUNNING,
    nodes: tuple[str, ...] = ("gpu1", "gpu2"),
    submitted: float = 1000.0,
    held: bool = True,
    seats: bool = True,
    words: tuple[str, str] = ("Running", "abcde"),
    record: Mapping[str, object] | None = None,
    **spec: object,
) -> JobRecord:
    """Return a job with a seat for each of its workers, dealt out over the nodes in turn."""
    workers = int(spec.setdefault("workers", len(nodes)))  # type: ignore[call-overload]
    made = JobSpec(name, kind, ("python3 x.py",), image="i", **spec)  # type: ignore[arg-type]
    roles = [("master", 0)] + [("worker", n) for n in range(workers - 1)]
    if kind is Kind.MPI:
        roles = [("launcher", 0)] + [("worker", n) for n in range(workers)]
    places = []
    for at, (role, index) in enumerate(roles):
        where = max(at - 1, 0) if kind is Kind.MPI else at
        node = nodes[where % len(nodes)]
        gpus = () if role == "launcher" else tuple(range(made.gpus))
        suffix = words[1] if role == "launcher" else str(index)
        address = f"10.0.0.{nodes.index(node) + 1}"
        uuids = tuple(f"GPU-{node}-{role}{index}-{n}" for n in gpus)
        places.append(Seat(f"{name}-{role}-{suffix}", role, index, node, address, where, at == 0, gpus, uuids))
    leases: dict[str, tuple[str, ...]] = {}
    for seat in places:
        leases[seat.node] = (*leases.get(seat.node, ()), *seat.uuids)
    going = held and not status.over and seats
    whole = JobRecord(
        made,
        f"id-{name}",
        "me@here",
        submitted,
        status,
        attempt=1 if seats else 0,
        seats=tuple(places) if seats else (),
        instances={s.instance: InstanceRecord(s.instance, words[0], started=submitted) for s in places}
        if seats
        else {},
        started=submitted if seats else 0.0,
        leases=leases if going else {},
    )
    return dataclasses.replace(whole, **(record or {}))  # type: ignore[arg-type]


class MemoryEngine:
    """Keeps jobs in a dictionary; a job goes through the states that a test gives it, one at each look."""

    name = "memory"

    def __init__(self, jobs: tuple[JobRecord, ...] = (), survey: JobSurvey | None = None) -> None:
        self.known = {job.spec.name: job for job in jobs}
        self.survey = survey or JobSurvey(())
        self.coming: list[JobRecord] = []
        """What the next looks find, the first one first."""
        self.tries: list[Tried | Exception] = []
        """What the next looks at the queue come to, the first one first."""
        self.changes = 0
        """So many watches hear of something at once."""
        self.lines: list[tuple[str, bytes]] = []
        self.calls: list[tuple[object, ...]] = []
        self.plan = DryRun((), "", {}, {})

    def submit(self, spec: JobSpec, secrets, say) -> JobRecord:
        self.calls.append(("submit", spec, secrets))
        if spec.name in self.known:
            raise NameTaken(f"there is a job {spec.name} already", remedy=f"provision delete {spec.name}")
        say("looking at 2 nodes")
        job = self.coming.pop(0) if self.coming else JobRecord(spec, "id", "me@here", 1000.0, JobStatus.RUNNING)
        self.known[spec.name] = dataclasses.replace(job, spec=spec)
        return self.known[spec.name]

    def dry_run(self, spec: JobSpec) -> DryRun:
        self.calls.append(("dry_run", spec))
        return self.plan

    def jobs(self, *, nodes: bool = False) -> JobSurvey:
        self.calls.append(("jobs", nodes))
        return dataclasses.replace(self.survey, jobs=tuple(self.known.values()))

    def get(self, name: str, *, hurry: bool = False) -> JobRecord:
        del hurry
        if name not in self.known:
            raise NotFound(f"there is no job {name}", remedy="provision list")
        if self.coming:
            self.known[name] = self.coming.pop(0)
        return self.known[name]

    def logs(self, name: str, request, write) -> JobRecord:
        self.calls.append(("logs", name, request))
        for instance, line in self.lines:
            write(instance, line)
        return self.get(name)

    def stop(self, name: str, say, *, grace: float = 15.0) -> JobRecord:
        say(f"stopping {name}")
        self.calls.append(("stop", name, grace))
        self.known[name] = dataclasses.replace(self.get(name), status=JobStatus.STOPPED)
        return self.known[name]

    def delete(self, name: str, say, *, lost=()) -> None:
        say(f"deleting {name}")
        self.get(name)
        self.calls.append(("delete", name, *lost))
        self.known.pop(name, None)

    def restart(self, name: str, say, *, supply=None, renew=False) -> JobRecord:
        say(f"restarting {name}")
        self.calls.append(("restart", name, supply(self.known[name].spec)) if renew else ("restart", name))
        return self.get(name)

    def release(self, name: str, say) -> JobRecord:
        say(f"releasing {name}")
        self.calls.append(("release", name))
        return self.get(name)

    def owns(self, job: JobRecord) -> bool:
        return job.owner == "me@here"

    def owned(self, jobs) -> list[str]:
        return [job.id for job in jobs if self.owns(job)]

    def refuses(self, _job: JobRecord) -> bool:
        return False

    def await_starts(self) -> None:
        self.calls.append(("await_starts",))

    def start_pending(self, say, *, patience: float | None = None) -> Tried:
        del patience
        say("looking at 2 nodes")
        self.calls.append(("start_pending",))
        if self.tries:
            tried = self.tries.pop(0)
            if isinstance(tried, Exception):
                raise tried
            return tried
        return Tried(tuple(name for name, job in self.known.items() if job.status is JobStatus.PENDING))

    def watch(self, seconds: float, stop) -> bool:
        self.calls.append(("watch", seconds))
        if self.changes:
            self.changes -= 1
            return True
        stop.wait(seconds)
        return False

    def exec_argv(self, name: str, instance: str, argv, *, terminal: bool) -> tuple[str, ...]:
        self.calls.append(("exec", name, instance, tuple(argv), terminal))
        return ("sh", "-c", "exit 3")

    def forward_argv(self, name: str, local: int, target: str) -> tuple[str, ...]:
        self.calls.append(("forward", name, local, target))
        return ("true",)
