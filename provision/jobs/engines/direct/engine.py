"""The engine that needs nothing but SSH and docker: it reads the nodes, and acts on them."""

from __future__ import annotations

import contextlib
import secrets as random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from provision.batch.records import Report, contradictions
from provision.batch.signed import check_secrets, secrets_digest
from provision.connectors import connect, each
from provision.documents.jobs import (
    Deleted,
    Done,
    LookAnswer,
    QueueEntry,
    ReportAnswer,
    Reserved,
    SecretsDocument,
    SignedJob,
    Written,
)
from provision.errors import (
    LockedError,
    NameTaken,
    NodeError,
    NodeUnreachable,
    NotFound,
    ProvisionError,
    TimedOut,
    UsageError,
)
from provision.jobs.engines.base import LogRequest, Secrets, Tried
from provision.jobs.engines.direct import reading
from provision.jobs.engines.direct.finding import PATIENCE_SECONDS, told_of
from provision.jobs.engines.direct.head import (
    mark,
    owner,
    queue_held,
)
from provision.jobs.engines.direct.invalid import InvalidJob, delete_invalid, insist_on_valid
from provision.jobs.engines.direct.known import Eyes, Sight
from provision.jobs.engines.direct.looks import NodeLook
from provision.jobs.engines.direct.ways import Ways
from provision.jobs.node_ask import ask_jobs
from provision.model import Cluster, Node
from provision.model.job import JobRecord, JobSpec, JobStatus, as_document
from provision.model.job_views import DryRun, JobSurvey

if TYPE_CHECKING:
    import threading

    from provision.jobs.code import Archive
    from provision.jobs.engines.direct.starting import Extras
    from provision.jobs.signing import JobKeys

__all__ = ["DirectEngine", "head_of"]

Say = Callable[[str], None]

LOOK_SECONDS = 60.0
TOKEN_BYTES = 6
SALT_BYTES = 32


class DirectEngine:
    """Runs jobs on the nodes of one cluster. What only starts jobs is imported when one starts: reading is quick.

    Args:
        cluster: with the roles' defaults; ``cluster_head`` names the node that keeps the queue, else it is the first.
        eyes: looks at nodes as places for jobs.
        keys: signs jobs, and says whose jobs start.
        extras: brings code, data and TensorBoard.
    """

    name = "direct"

    def __init__(self, cluster: Cluster, eyes: Eyes, keys: JobKeys, extras: Extras | None = None) -> None:
        self._cluster = cluster
        self._keys = keys
        self._nodes: dict[str, Node] = {node.name: node for node in cluster.nodes}
        self._eyes = eyes
        self._agent = any(node.connection.agent for node in cluster.nodes)
        self._extras = extras
        self._watched: Mapping[str, Mapping[str, Any]] = {}
        self.head = head_of(cluster)

    # Submitting

    def submit(self, spec: JobSpec, secrets: Secrets, say: Say) -> JobRecord:
        """Reserve the name, record the job, start it where it fits now; else it is PENDING with the reason."""
        from provision.jobs.code import pack_code
        from provision.jobs.engines.direct.placing import allowed

        allowed(spec, self._cluster.nodes)
        with pack_code(spec.sync, secrets.sync, say) as (sync, code):
            return self._submit(replace(spec, sync=sync), secrets, code, say)

    def _submit(self, spec: JobSpec, secrets: Secrets, code: Archive | None, say: Say) -> JobRecord:
        from provision.batch.spec_checks import check_recorded
        from provision.jobs.code_archives import store_archive

        check_recorded(spec, packed=code is not None)
        token, kept = random.token_hex(TOKEN_BYTES), _stored(secrets)
        signed = SignedJob(
            version=1,
            cluster=self._keys.cluster,
            id=token,
            name=spec.name,
            owner=owner(),
            submitted=time.time(),
            spec=spec,
            secrets=secrets_digest(kept),
            code=code.about if code is not None else None,
        )
        text, signature = self._keys.sign(signed)
        job = {"id": token, "owner": signed.owner, "spec": as_document(spec), "signed": text, "signature": signature}
        queue = {"state": "held" if spec.hold else "pending", "attempt": 0, "failures": 0, "retry": spec.retry}
        request = {"name": spec.name, "job": job, "queue": queue, "secrets": msgspec.to_builtins(kept) if kept else {}}
        try:
            with contextlib.closing(connect(self._nodes[self.head])) as way:
                if code is not None:
                    store_archive(way, token, code)
                    request["upload"] = token
                answer = ask_jobs(way, "reserve", Reserved, **request)
        except NodeError:
            raise
        except ProvisionError as error:
            raise NodeUnreachable(
                f"jobs are recorded on {self.head}, which does not answer: {error.message}",
                node=self.head,
                remedy="mend the node, or name another by cluster_head in the inventory",
            ) from error
        if not answer.reserved:
            raise NameTaken(
                f"there is a job {spec.name} already",
                remedy=f"take another name, or forget that one: provision delete {spec.name}",
            )
        try:
            _, refused = self._start_waiting(say, mine=spec.name, own={token: code} if code is not None else {})
        except LockedError as error:
            say(f"{spec.name} stays in the queue: {error.message}")
            refused = None
        if refused is not None:
            self._forget(spec.name, token)
            raise refused
        if self._agent:
            say(f"{spec.name} waits for an operator's queue, which starts it (provision queue run --daemon)")
        return self.get(spec.name)

    def start_pending(self, say: Say) -> Tried:
        """Start what waits and fits, and what is to be tried again; forget what is over for as long as it asked."""
        return self._start_waiting(say)[0]

    def watch(self, seconds: float, stop: threading.Event) -> bool:
        """Wait until something happened that may let a job start since `start_pending` last looked."""
        from provision.jobs.engines.direct.watching import await_change

        return await_change(self._nodes, self._watched, seconds, stop)

    def release(self, name: str, say: Say) -> JobRecord:
        """Let a job go that is held: it starts now where it fits, else it is PENDING; any other job stays as it is."""
        record = self.get(name)
        if record.status is not JobStatus.QUEUING:
            return record
        event = {"time": time.time(), "source": "queue", "type": "Normal", "message": f"released by {owner()}"}
        queue = {"state": "pending", "reason": ""}
        with Ways(self._nodes) as ways:
            ask_jobs(
                ways.to(self.head), "queue", Written, name=name, queue=queue, merge=True, event=event, action="released"
            )
        try:
            self._start_waiting(say)
        except LockedError as error:
            say(f"{name} stays in the queue: {error.message}")
        return self.get(name)

    def _start_waiting(
        self,
        say: Say,
        *,
        mine: str = "",
        patience: float | None = None,
        own: Mapping[str, Archive] | None = None,
    ) -> tuple[Tried, ProvisionError | None]:
        """Start all that fits. Returns why the job `mine` never will, and leaves it to the caller to forget it."""
        if self._agent:  # an operator's command or queue starts what submitters submit
            return Tried(), None
        from provision.jobs.engines.direct.booking import Booking
        from provision.jobs.engines.direct.starts import start_all
        from provision.jobs.engines.direct.watching import watches

        sight = Sight(self._eyes, self._cluster)
        if mine:
            sight.begin()
        with Ways(self._nodes) as ways:
            with queue_held(ways, self.head) as all_tried:
                looks, unreachable = self._look(patience)
                booking = Booking(ways, self._cluster, self.head, sight, self._keys)
                attempts, refused = booking.book(looks, unreachable, mine)
                if booking.whole:
                    all_tried()
            for problem in (*contradictions(list(looks.values()), self.head), *booking.refused):
                say(f"warning: {problem}")
            self._forget_aged(booking.aged, say)
            failed = start_all(ways, self.head, attempts, self._extras, say, mine=mine, own=own)
        self._watched = watches(booking.looks, self.head, attempts, waits=bool(booking.waiting))
        started = tuple(attempt.spec.name for attempt in attempts if attempt.spec.name not in failed)
        return Tried(started, tuple(booking.waiting)), refused

    def _look(self, patience: float | None = None) -> tuple[dict[str, NodeLook], dict[str, str]]:
        """Ask all nodes what is taken and what waits, by one session each; with `patience` the late ones are away."""
        found = each(
            self._cluster.nodes, lambda way: ask_jobs(way, "look", LookAnswer, timeout=LOOK_SECONDS), patience=patience
        )
        looks = {name: NodeLook.of(name, one) for name, one in found.items() if not isinstance(one, ProvisionError)}
        lost = {name: one.message for name, one in found.items() if isinstance(one, ProvisionError)}
        if self.head in lost:
            raise NodeUnreachable(f"{self.head}, which keeps the queue, does not answer: {lost[self.head]}")
        return looks, lost

    def dry_run(self, spec: JobSpec) -> DryRun:
        """Say where it would go and what would be started; nothing is written on any node."""
        if self._agent:
            raise UsageError("the job agent does not look for places for jobs: this needs an operator")
        from provision.jobs.engines.direct import dry
        from provision.jobs.engines.direct.placing import allowed, place_job

        nodes, _ = allowed(spec, self._cluster.nodes)
        looks, _ = self._look()
        known = self._eyes.look(self._cluster, list(looks))
        placed = place_job(spec, known, looks, [node.name for node in nodes])
        return dry.dry_run(spec, placed, known, self._extras)

    # Reading

    def jobs(self, *, nodes: bool = False) -> JobSurvey:
        """Return all jobs, and with `nodes` the nodes too, by one SSH session each."""
        do, kind = ("look", LookAnswer) if nodes else ("report", ReportAnswer)
        found = each(self._cluster.nodes, lambda way: ask_jobs(way, do, kind, names=None, brief=True))
        return reading.survey(self._cluster, self.head, found, nodes=nodes)

    def get(self, name: str, *, hurry: bool = False) -> JobRecord:
        """Return all that is known of one job, with its events; in a `hurry` nodes that are late are left out."""
        found = told_of(name, self._nodes, self.head, hurry=hurry)
        survey = reading.survey(self._cluster, self.head, found, nodes=False)
        for record in survey.jobs:
            if record.spec.name == name:
                return record
        insist_on_valid(name, found)
        away = ", ".join(survey.unreachable)
        if away and hurry:
            return self.get(name)
        if away:
            raise NodeUnreachable(f"no node that answers knows a job {name}, and these do not answer: {away}")
        raise NotFound(f"there is no job {name}", remedy="`provision list` has the names")

    def logs(self, name: str, request: LogRequest, write: Callable[[str, bytes], None]) -> JobRecord:
        """Write out lines; with ``follow`` until the job has ended. Returns the job as it is then."""
        return reading.logs(self, self._nodes, name, request, write)

    # Ending

    def stop(self, name: str, say: Say, *, grace: float = 15.0) -> JobRecord:
        """End a job in good order; its record stays. A job that is over stays as it is."""
        record = self.get(name)
        if record.status.over:
            return record
        self._end(record, say, grace)
        self._start_others(say)
        return self.get(name)

    def _start_others(self, say: Say) -> None:
        """What has been given back may be what others wait for; if that cannot be seen to now, a later command does."""
        with contextlib.suppress(ProvisionError):
            self._start_waiting(say, patience=PATIENCE_SECONDS)

    def _end(self, record: JobRecord, say: Say, grace: float) -> None:
        name = record.spec.name
        targets = list(dict.fromkeys((self.head, *(seat.node for seat in record.seats))))
        say(f"ending {name} on {', '.join(targets)}")
        reason = f"stopped by {owner()}"
        with contextlib.suppress(ProvisionError), Ways(self._nodes) as ways:
            queue = QueueEntry(attempt=record.attempt, retry=record.spec.retry)
            mark(ways, self.head, record, queue, state="stopped", reason=reason, over=True)
        found = each(
            [self._nodes[node] for node in targets if node in self._nodes],
            lambda way: ask_jobs(way, "stop", Done, timeout=grace + 60, name=name, reason=reason, grace=grace),
        )
        lost = {node: one.message for node, one in found.items() if isinstance(one, ProvisionError)}
        if lost and len(lost) == len(found):
            raise NodeUnreachable(f"{name} could not be ended: {_told(lost)}")
        last = self._await(name, lambda one: one.status.over, grace + 30)
        if not last.status.over:
            if lost:
                raise NodeUnreachable(f"{name} is told to end, but may run on: {_told(lost)} did not answer")
            raise TimedOut(f"{name} is told to end and is {last.status} after {grace + 30:g} s: {last.reason}")

    def _await(self, name: str, done: Callable[[JobRecord], bool], seconds: float) -> JobRecord:
        deadline = time.monotonic() + seconds
        record = self.get(name)
        while not done(record) and time.monotonic() < deadline:
            time.sleep(0.5)
            record = self.get(name)
        return record

    def delete(self, name: str, say: Say, *, force: bool = False) -> None:
        """Stop a job and forget it; what is gone already is no error."""
        try:
            record = self.get(name)
        except NotFound:
            return
        except InvalidJob as error:
            delete_invalid(
                error, lambda names, work: each([self._nodes[one] for one in names], work), self.head, force=force
            )
            return
        if record.owner and record.owner != owner() and not force and not record.status.over:
            raise NodeError(
                f"the job {name} is of {record.owner} and is {record.status}", remedy="--force deletes it all the same"
            )
        if not record.status.over:
            self._end(record, say, 15.0)
            self._start_others(say)
        silent = self._forget(name, record.id)
        keeping = [node for node in silent if any(seat.node == node for seat in record.seats)]
        if keeping:
            say(
                f"warning: {', '.join(keeping)} did not answer, and what is there of {name} stays: delete it once more "
                "when it is listed again"
            )

    def _forget(self, name: str, token: str) -> list[str]:
        """Forget it everywhere; the head is the last, so that the name is free only when nothing is left.

        Returns the nodes that did not answer.
        """
        silent: list[str] = []
        others = [node for node in self._cluster.nodes if node.name != self.head]
        for group in (others, [self._nodes[self.head]]):
            found = each(group, lambda way: ask_jobs(way, "delete", Deleted, name=name, id=token))
            lost = {node: one for node, one in found.items() if isinstance(one, ProvisionError)}
            for node, one in lost.items():
                if isinstance(one, NodeError) or node == self.head:
                    raise one
                silent.append(node)
        return silent

    def _forget_aged(self, records: Sequence[JobRecord], say: Say) -> None:
        """Forget jobs by their --ttl-after-finished; what cannot be forgotten now is tried at the next look."""
        for record in records:
            try:
                self._forget(record.spec.name, record.id)
            except ProvisionError as error:
                say(f"warning: {record.spec.name} is over for long and could not be forgotten: {error}")
            else:
                say(f"{record.spec.name} is forgotten: it was over for {record.spec.ttl_after_finished:g} s")

    def restart(self, name: str, say: Say) -> JobRecord:
        """Start a job that is over (or stop it first) as its next attempt.

        Raises:
            ProvisionError: it must not start, e.g. its secrets were removed when it ended; it continues to run then.
        """
        from provision.jobs.engines.direct.starting import insist_on_secrets
        from provision.jobs.engines.direct.starts import secrets_of

        record = self.get(name)
        with Ways(self._nodes) as ways:
            kept = ask_jobs(ways.to(self.head), "secrets", SecretsDocument, name=name)
            answer = ask_jobs(ways.to(self.head), "report", ReportAnswer, names=[name], brief=False)
        insist_on_secrets(record.spec, secrets_of(kept))
        for job in Report.of(self.head, answer).jobs:
            if job.name == name:
                check_secrets(self._keys.check(job, self.head), kept, self.head)
        if not record.status.over:
            self._end(record, say, 15.0)
            record = self.get(name)
        with Ways(self._nodes) as ways:
            queue = QueueEntry(attempt=record.attempt, retry=record.spec.retry)
            more = {"secrets": msgspec.to_builtins(kept) if kept else {}, "action": "restarted"}
            ask_jobs(ways.to(self.head), "queue", Written, name=name, queue={}, merge=True, **more)
            mark(ways, self.head, record, queue, state="pending")
        try:
            _, refused = self._start_waiting(say, mine=name)
        except LockedError as error:
            say(f"{name} stays in the queue: {error.message}")
            refused = None
        if refused is not None:
            raise refused
        return self.get(name)

    def exec_argv(self, name: str, instance: str, argv: Sequence[str], *, terminal: bool) -> tuple[str, ...]:
        """Return the command (of this machine) that runs `argv` inside an instance; the node records it."""
        record = self.get(name)
        line = reading.exec_argv(record, self._nodes, instance, argv, terminal=terminal)
        seat = reading.instance_of(record, instance)
        with contextlib.closing(connect(self._nodes[seat.node])) as way:
            ask_jobs(way, "attached", Done, name=name, instance=seat.instance)
        return line

    def forward_argv(self, name: str, local: int, target: str) -> tuple[str, ...]:
        """Return the command (of this machine) that forwards 127.0.0.1:`local` to a port (or ``tensorboard``)."""
        return reading.forward_argv(self.get(name), self._nodes, local, target)


def head_of(cluster: Cluster) -> str:
    """Return the node that keeps the queue."""
    wanted = str(cluster.nodes[0].variables.get("cluster_head") or "")
    return wanted if any(node.name == wanted for node in cluster.nodes) else cluster.nodes[0].name


def _stored(secrets: Secrets) -> SecretsDocument:
    """Return secrets as the head stores them, with a salt so that their hash tells nothing of them."""
    files = {path: text.encode("utf-8", "surrogateescape") for path, text in secrets.files.items()}
    document = SecretsDocument(dict(secrets.env), dict(secrets.sync), files, dict(secrets.registry))
    return msgspec.structs.replace(document, salt=random.token_hex(SALT_BYTES)) if document else document


def _told(lost: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" for name, text in lost.items())
