"""The job engine that needs SSH and Docker only: it reads the state of the nodes and acts on them."""

from __future__ import annotations

import contextlib
import re
import secrets as random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import msgspec

from provision.batch.direct_record import DirectRecord
from provision.batch.records import Report, contradictions, result_of
from provision.batch.signed import SIGNED_VERSION, Refused, check_secrets, secrets_digest
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
    WrittenMany,
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
from provision.jobs import job_access
from provision.jobs.cluster_snapshot import BackgroundProbe, ClusterProbe
from provision.jobs.connections import Connections
from provision.jobs.engines.base import (
    Capability,
    GpuRequest,
    LogRequest,
    MaintenanceResult,
    NodeSample,
    Secrets,
    page_of,
)
from provision.jobs.engines.direct.invalid_jobs import InvalidJob, delete_invalid, insist_on_valid
from provision.jobs.engines.direct.job_end import Ending, carry_out, pending
from provision.jobs.engines.direct.job_reports import PATIENCE_SECONDS, reports_of
from provision.jobs.engines.direct.node_probe import NodeProbe
from provision.jobs.engines.direct.queue_host import (
    mark,
    owner,
    queue_held,
)
from provision.jobs.engines.direct.survey import job_list, node_views
from provision.jobs.node_ask import ask_jobs
from provision.jobs.node_contact import Contact
from provision.model import Cluster, Node
from provision.model.job import JobRecord, JobSpec, JobStatus, as_document
from provision.model.job_views import DryRun, JobPage, NodeList
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.connectors.absent import AbsentNodes
    from provision.jobs.code import Archive
    from provision.jobs.extras import JobExtras
    from provision.jobs.signing import JobKeys

Say = Callable[[str], None]

LOOK_SECONDS = 60.0
SHORT_SECONDS = 15.0
"""Time limit for the state of a job in an error message."""
TOKEN_BYTES = 6
SALT_BYTES = 32
_TOKEN = re.compile(rf"[0-9a-f]{{{2 * TOKEN_BYTES}}}")


class DirectEngine:
    """Runs jobs on the nodes of one cluster. Modules that only start jobs are imported when a job starts.

    Args:
        cluster: with the roles' defaults; ``cluster_head`` names the node that keeps the queue, else it is the first.
        cluster_probe: probes nodes as targets of jobs.
        keys: signs jobs, and verifies the signatures of jobs.
        extras: code, data and TensorBoard.
        absent: nodes that did not answer a short time ago.
    """

    name = "direct"
    capabilities = frozenset(Capability) - {Capability.OWN_QUEUE}

    def __init__(
        self,
        cluster: Cluster,
        cluster_probe: ClusterProbe,
        keys: JobKeys,
        extras: JobExtras | None = None,
        absent: AbsentNodes | None = None,
    ) -> None:
        self._cluster = cluster
        self._keys = keys
        self._nodes: dict[str, Node] = {node.name: node for node in cluster.nodes}
        self._contact = Contact(self._nodes, absent)
        self._cluster_probe = cluster_probe
        self._agent = any(node.connection.agent for node in cluster.nodes)
        self._extras = extras
        self._watched: Mapping[str, Mapping[str, Any]] = {}
        self._starts: list[threading.Thread] = []
        self.head = head_of(cluster)

    # Submitting

    def submit(self, spec: JobSpec, secrets: Secrets, say: Say) -> JobRecord:
        """Reserve the name and record the job; start it if it fits now, otherwise it is PENDING with the reason."""
        from provision.jobs.code import pack_code
        from provision.jobs.engines.direct.placement import allowed

        allowed(spec, self._cluster.nodes)
        with pack_code(spec.sync, secrets.sync, say) as (sync, code):
            return self._submit(replace(spec, sync=sync), secrets, code, say)

    def _submit(self, spec: JobSpec, secrets: Secrets, code: Archive | None, say: Say) -> JobRecord:
        from provision.batch.spec_checks import check_recorded

        check_recorded(spec, packed=code is not None)
        token, stored = random.token_hex(TOKEN_BYTES), _stored(secrets)
        signed = SignedJob(
            version=SIGNED_VERSION,
            cluster=self._keys.cluster,
            id=token,
            name=spec.name,
            owner=owner(),
            submitted=time.time(),
            spec=spec,
            secrets=secrets_digest(stored),
            code=code.about if code is not None else None,
        )
        text, signature = self._keys.sign(signed)
        job = {"id": token, "owner": signed.owner, "spec": as_document(spec), "signed": text, "signature": signature}
        queue = {"state": "held" if spec.hold else "pending", "attempt": 0, "failures": 0, "retry": spec.retry}
        request = {
            "name": spec.name,
            "job": job,
            "queue": queue,
            "secrets": msgspec.to_builtins(stored) if stored else {},
        }
        reserve = partial(self._reserve, token, code, request)
        if not reserve() and (self._is_taken(spec.name) or not reserve()):
            raise NameTaken(f"a job {spec.name} exists", remedy="Submit again.")
        try:
            _, refused = self._start_waiting(say, mine=spec.name, own={token: code} if code is not None else {})
        except LockedError as error:
            say(f"{spec.name} stays in the queue: {error.message}")
            refused = None
        if refused is not None:
            self._delete_refused(spec.name, token)
            raise refused
        if self._agent:
            say(f"{spec.name} waits for an operator's queue, which starts it (provision queue run --daemon)")
        return self.get(spec.name)

    def _reserve(self, token: str, code: Archive | None, request: dict[str, Any]) -> bool:
        """Reserve a name on the queue host and record the job there; return whether the name was free."""
        from provision.jobs.code_archives import store_archive

        try:
            with contextlib.closing(self._contact.connect(self.head)) as connector:
                if code is not None:
                    store_archive(connector, token, code)
                    request["upload"] = token
                return ask_jobs(connector, "reserve", Reserved, **request).reserved
        except NodeError:
            raise
        except ProvisionError as error:
            raise NodeUnreachable(
                f"the queue host {self.head}, which records jobs, does not answer: {error.message}",
                node=self.head,
                remedy=f"Submit again when {self.head} answers, or set another `cluster_head` in the inventory.",
            ) from error

    def owns(self, job: JobRecord) -> bool:
        """Return whether a job (of `get`) is owned by this user: the key that signed it decides."""
        return isinstance(job, DirectRecord) and self._keys.owns(job, owner())

    def owned(self, jobs: Sequence[JobRecord]) -> list[str]:
        """Return the IDs of those jobs (of `jobs`) that are owned by this user."""
        if not jobs:
            return []
        names = sorted({job.spec.name for job in jobs})
        with contextlib.closing(self._contact.connect(self.head)) as connector:
            answer = ask_jobs(connector, "report", ReportAnswer, names=names, brief=False)
        recorded = {job.id: job for job in Report.of(self.head, answer).jobs}
        signed_records = (
            replace(job, signed=one.signed, signature=one.signature)
            for job in jobs
            if (one := recorded.get(job.id)) is not None and isinstance(job, DirectRecord)
        )
        return [job.id for job in signed_records if self.owns(job)]

    def refuses(self, job: JobRecord) -> bool:
        """Return whether the nodes refuse and record every change of a job (of `get`) by this user.

        The job agent does so for submitters; it does not show them the signed text of other users' jobs.
        """
        return self._agent and isinstance(job, DirectRecord) and not job.signed and not self.owns(job)

    def _is_taken(self, name: str) -> bool:
        """Return False if the job of this name was deleted meanwhile.

        Raises:
            NameTaken: a job has the name, with its state.
        """
        try:
            record = self.get(name, time_limit=SHORT_SECONDS)
        except NotFound:
            return False
        except ProvisionError:
            raise _name_taken(name, None) from None
        raise _name_taken(name, record)

    def maintenance(self) -> QueueMaintenance:
        """Return the context of scheduling passes: this engine's queue is processed by commands."""
        return QueueMaintenance(self)

    def start_pending(self, say: Say, *, patience: float | None = None) -> MaintenanceResult:
        """Start waiting jobs that fit, and retries; delete finished jobs after their retention time.

        With `patience`, starts that take longer than so many seconds continue after the return: a slow registry of one
        job keeps no other job waiting.
        """
        return self._start_waiting(say, start_patience=patience)[0]

    def await_starts(self) -> None:
        """Wait for the end of all starts that continued after `start_pending`."""
        for thread in self._starts:
            thread.join()

    def watch(self, seconds: float, stop: threading.Event) -> bool:
        """Wait for a change since the last `start_pending` that may let a job start."""
        from provision.jobs.engines.direct.change_watch import await_change

        return await_change(self._nodes, self._watched, seconds, stop)

    def release(self, name: str, say: Say) -> JobRecord:
        """Release a held job: it starts if it fits now, otherwise it is PENDING; other jobs are not changed."""
        record = self.get(name)
        if record.status is not JobStatus.QUEUING:
            return record
        event = {"time": time.time(), "source": "queue", "type": "Normal", "message": f"released by {owner()}"}
        queue = {"state": "pending", "reason": ""}
        request: dict[str, Any] = {
            "name": record.spec.name,
            "queue": queue,
            "merge": True,
            "event": event,
            "if_id": record.id,
        }
        with Connections(self._contact) as connections:
            ask_jobs(connections.to(self.head), "queue", Written, **request, action="released")
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
        start_patience: float | None = None,
    ) -> tuple[MaintenanceResult, ProvisionError | None]:
        """Start all jobs that fit. Returns why the job `mine` can never start; the caller deletes it."""
        if self._agent:  # an operator's command or queue starts what submitters submit
            return MaintenanceResult(), None
        from provision.jobs.engines.direct.change_watch import watches
        from provision.jobs.engines.direct.queue_starts import start_all
        from provision.jobs.engines.direct.scheduling import SchedulingPass

        background_probe = BackgroundProbe(self._cluster_probe, self._cluster, self._contact.present)
        if mine:
            background_probe.begin()
        with contextlib.ExitStack() as stack:
            connections = stack.enter_context(Connections(self._contact))
            with queue_held(connections, self.head) as all_tried:
                probes, unreachable = self._probe_nodes(patience)
                scheduling_pass = SchedulingPass(connections, self._cluster, self.head, background_probe, self._keys)
                attempts, refused = scheduling_pass.schedule(probes, unreachable, mine)
                if scheduling_pass.is_complete:
                    all_tried()
            for problem in (*contradictions(list(probes.values()), self.head), *scheduling_pass.refused):
                say(f"warning: {problem}")
            self._delete_aged(scheduling_pass.aged, say)
            open_connections = stack.pop_all()

        failed: set[str] = set()

        def start() -> None:
            with open_connections:
                failed.update(start_all(connections, self.head, attempts, self._extras, say, mine=mine, own=own))

        if start_patience is None:
            start()
        else:
            self._start_in_background(start, start_patience)
        self._watched = watches(scheduling_pass.probes, self.head, attempts, waits=bool(scheduling_pass.waiting))
        started = tuple(attempt.spec.name for attempt in attempts if attempt.spec.name not in failed)
        return MaintenanceResult(started, tuple(scheduling_pass.waiting)), refused

    def _start_in_background(self, start: Callable[[], None], seconds: float) -> None:
        """Run a function in a thread, and wait at most so many seconds for its end."""
        thread = threading.Thread(target=start, daemon=True, name="starts")
        thread.start()
        thread.join(seconds)
        self._starts = [one for one in (*self._starts, thread) if one.is_alive()]

    def _probe_nodes(self, patience: float | None = None) -> tuple[dict[str, NodeProbe], dict[str, str]]:
        """Probe all nodes for leases and waiting jobs; with `patience`, late nodes count as unreachable."""
        answers = self._contact.each(
            self._cluster.nodes,
            lambda connector: ask_jobs(connector, "look", LookAnswer, timeout=LOOK_SECONDS),
            patience=patience,
        )
        self._carry_out(answers)
        probes = {name: NodeProbe.of(name, one) for name, one in answers.items() if not isinstance(one, ProvisionError)}
        lost = {name: one.message for name, one in answers.items() if isinstance(one, ProvisionError)}
        if self.head in lost:
            raise NodeUnreachable(f"{self.head}, which keeps the queue, does not answer: {lost[self.head]}")
        return probes, lost

    def dry_run(self, spec: JobSpec) -> DryRun:
        """Return what would be started and where; nothing is written on any node."""
        if self._agent:
            raise UsageError("--dry-run needs an operator's inventory: the job agent does not place jobs")
        from provision.jobs.engines.direct import dry_run as plan
        from provision.jobs.engines.direct.placement import allowed, place_job

        nodes, _ = allowed(spec, self._cluster.nodes)
        probes, _ = self._probe_nodes()
        snapshot = self._cluster_probe.probe(self._cluster, list(probes))
        placement = place_job(spec, snapshot, probes, [node.name for node in nodes])
        return plan.dry_run(spec, placement, snapshot, self._extras)

    # Reading

    def jobs(self, *, limit: int = 0, cursor: str = "", time_limit: float | None = None) -> JobPage:
        """Return jobs, the newest first; all nodes are asked for every page."""
        answers = self._contact.each(
            self._cluster.nodes,
            lambda connector: ask_jobs(connector, "report", ReportAnswer, names=None, brief=True),
            time_limit=time_limit,
        )
        self._carry_out(answers)
        everything = job_list(self.head, answers)
        self._record_results(everything.jobs)
        page, following = page_of(everything.jobs, limit, cursor)
        return replace(everything, jobs=page, next_cursor=following)

    def nodes(self, *, time_limit: float | None = None) -> NodeList:
        """Return the nodes with their GPUs."""
        answers = self._contact.each(
            self._cluster.nodes,
            lambda connector: ask_jobs(connector, "look", LookAnswer, names=None, brief=True),
            time_limit=time_limit,
        )
        self._carry_out(answers)
        unreachable = {name: one.message for name, one in answers.items() if isinstance(one, ProvisionError)}
        return NodeList(node_views(self._cluster, self.head, answers), unreachable)

    def get(self, name: str, *, time_limit: float | None = None) -> JobRecord:
        """Return all that is known of a job, with its events; without nodes that have not answered in `time_limit`.

        An ID is accepted in place of a name, also of a job whose name another job has now.
        """
        reports = reports_of(name, self._contact, self.head, time_limit=time_limit)
        if self._carry_out(reports):
            reports = reports_of(name, self._contact, self.head, time_limit=time_limit)
        survey = job_list(self.head, reports)
        self._record_results(survey.jobs)
        named = [record for record in survey.jobs if record.spec.name == name]
        if named:
            return next((record for record in named if not record.name_reused), named[0])
        insist_on_valid(name, reports)
        away = ", ".join(survey.unreachable)
        if away and time_limit is not None:
            return self.get(name)
        by_id = [record for record in self.jobs().jobs if record.id == name] if _TOKEN.fullmatch(name) else []
        if by_id:
            return by_id[0]
        if away:
            raise NodeUnreachable(f"no answering node knows a job {name}, and these nodes do not answer: {away}")
        raise NotFound(f"there is no job {name}", remedy="See the names: provision list")

    def _carry_out(self, reports: Mapping[str, Any]) -> bool:
        """Carry out requested ends on the nodes that answered; return whether there were any."""
        ends = pending(reports, self.head)
        if self._agent:
            ends = [end for end in ends if end.owner == owner()]
        if ends:
            carry_out(self._contact, self.head, ends)
        return bool(ends)

    def _record_results(self, jobs: Sequence[JobRecord]) -> None:
        """Record new results on the queue host, so that they are known while the nodes of the jobs are silent.

        After a failure the next command records them. The job agent records nothing.
        """
        many = []
        for job in jobs:
            result = result_of(job) if isinstance(job, DirectRecord) and job.unrecorded and not self._agent else None
            if result is not None:
                queue = {"result": msgspec.to_builtins(result)}
                only = {"if_id": job.id, "if_state": ["started"], "if_attempt": job.attempt}
                many.append({"name": job.spec.name, "queue": queue, "merge": True, **only})
        if many:
            self._contact.each(
                [self._nodes[self.head]], lambda connector: ask_jobs(connector, "queues", WrittenMany, many=many)
            )

    def logs(self, name: str, request: LogRequest, write: Callable[[str, bytes], None]) -> JobRecord:
        """Write lines of output; with ``follow`` until the job has ended. Returns the job as it is then."""
        return job_access.logs(self.get, self._contact, name, request, write)

    # Ending

    def stop(self, name: str, say: Say, *, grace: float = 15.0) -> JobRecord:
        """End a job gracefully; its record stays. A finished job is not changed.

        Returns:
            The job; STOPPING as long as a node has not confirmed the end.

        Raises:
            NodeUnreachable: a node has not confirmed, and the queue host does not answer either.
        """
        record = self.get(name)
        if record.status.over:
            return record
        unconfirmed = self._end(record, say, grace)
        self._start_waiting_quietly(say)
        try:
            return self.get(name)
        except NotFound:  # it was deleted meanwhile, or another job has its name
            return replace(record, status=JobStatus.STOPPING if unconfirmed else JobStatus.STOPPED)

    def _start_waiting_quietly(self, say: Say) -> None:
        """Start jobs that waited for released resources; after a failure a later command does it."""
        with contextlib.suppress(ProvisionError):
            self._start_waiting(say, patience=PATIENCE_SECONDS)

    def _end(self, record: JobRecord, say: Say, grace: float, *, keep_secrets: bool = False) -> ProvisionError | None:
        """End a job; return the error of nodes that have not confirmed it."""
        ending, unrecorded = Ending(self._contact, self.head, record, keep_secrets=keep_secrets), None
        try:
            ending.request()
        except NodeUnreachable as error:
            unrecorded = error
        say(f"ending {record.spec.name} on {', '.join(ending.nodes or (self.head,))}")
        left = ending.stop(grace)
        ending.confirm(set(ending.nodes) - set(left))
        if unrecorded is not None and (left or not ending.nodes):
            where = f"{record.spec.name} may still run: {_error_text(left)}; " if left else ""
            raise NodeUnreachable(
                f"{where}{unrecorded.message}",
                remedy=f"Run `provision stop {record.spec.name}` again when the queue host {self.head} answers.",
            )
        return _unconfirmed(ending, record.spec.name, left) if left else None

    def delete(self, name: str, say: Say, *, lost: Sequence[str] = ()) -> None:
        """Stop a job and delete its record; its name is free when all of its nodes have confirmed.

        Args:
            name: the name or ID.
            say: takes lines of progress.
            lost: nodes that never come back, so their confirmation is not waited for.

        Raises:
            NotFound: there is no such job.
            NodeUnreachable: a node has not confirmed; the job is STOPPING until it does.
        """
        try:
            record = self.get(name)
        except InvalidJob as error:
            delete_invalid(
                error,
                lambda names, work: self._contact.each([self._nodes[one] for one in names], work),
                self.head,
            )
            return
        self._delete(record, say, lost)
        if not record.status.over:
            self._start_waiting_quietly(say)

    def _delete(self, record: JobRecord, say: Say, lost: Sequence[str] = ()) -> None:
        """Delete a job everywhere; on the queue host last, so that the name is free only when nothing is left.

        Raises:
            NodeUnreachable: a node has not confirmed that nothing is left there.
            NodeError: a node could not delete it.
        """
        name, ending = record.spec.name, Ending(self._contact, self.head, record, delete=True)
        every = tuple(self._nodes) if record.attempt else ()
        gone = list(dict.fromkeys(lost))
        ending.check_lost(gone, ending.nodes or every)
        ending.request()
        nodes = ending.nodes or every  # jobs of old versions have no list of nodes
        ending.confirm(gone)
        asked = [node for node in nodes if node not in gone]
        left: dict[str, str] = {}
        if not record.status.over:
            say(f"ending {name} on {', '.join(ending.nodes or (self.head,))}")
            left = ending.stop(15.0, asked)
        others = [node for node in asked if node not in left and node != self.head]
        left |= ending.remove(others)
        ending.confirm(set(asked) - set(left))
        if left:
            raise _unconfirmed(ending, name, left)
        if ending.recorded:
            ending.remove([self.head])

    def _delete_refused(self, name: str, token: str) -> None:
        """Delete a job that never started, which only the queue host has."""
        answer = self._contact.each(
            [self._nodes[self.head]], lambda connector: ask_jobs(connector, "delete", Deleted, name=name, id=token)
        )[self.head]
        if isinstance(answer, ProvisionError):
            raise answer

    def _delete_aged(self, records: Sequence[JobRecord], say: Say) -> None:
        """Delete jobs after their --ttl-after-finished; the next pass repeats it after a failure."""
        for record in records:
            try:
                self._delete(record, say)
            except ProvisionError as error:
                say(f"warning: {record.spec.name} finished long ago and could not be deleted: {error}")
            else:
                say(f"{record.spec.name} deleted: it finished more than {record.spec.ttl_after_finished:g} s ago")

    def restart(
        self, name: str, say: Say, *, supply: Callable[[JobSpec], Secrets] | None = None, renew: bool = False
    ) -> JobRecord:
        """Start the next attempt of a finished job; stop it first if it runs.

        Args:
            name: the name or ID.
            say: takes lines of progress.
            supply: returns the secrets of a job of this user again; they are deleted when a job ends.
            renew: whether to use `supply` also while the secrets are still stored.

        Raises:
            ProvisionError: it must not start, e.g. its secrets are missing; then a running attempt continues.
        """
        record = self.get(name)
        if record.deleting:
            raise NodeError(f"the job {name} is being deleted", remedy="Submit it again under another name.")
        if record.name_reused:
            raise NodeError(
                f"the queue host {self.head} has another job {record.spec.name}, so {record.id} cannot be restarted",
                remedy=f"End it: provision delete {record.id}",
            )
        name = record.spec.name
        stored, signed_again = self._secrets_of_next_attempt(record, supply, renew=renew)
        if not record.status.over:
            unconfirmed = self._end(record, say, 15.0, keep_secrets=True)
            if unconfirmed is not None:
                remedy = f"Run `provision restart {name}` again when these nodes have confirmed the end."
                raise type(unconfirmed)(unconfirmed.message, remedy=remedy)
            record = self.get(name)
        with Connections(self._contact) as connections:
            queue = QueueEntry(attempt=record.attempt, retry=record.spec.retry)
            more = {
                "secrets": msgspec.to_builtins(stored) if stored else {},
                "job": signed_again,
                "action": "restarted",
            }
            ask_jobs(
                connections.to(self.head), "queue", Written, name=name, queue={}, merge=True, if_id=record.id, **more
            )
            mark(connections, self.head, record, queue, state="pending")
        try:
            _, refused = self._start_waiting(say, mine=name)
        except LockedError as error:
            say(f"{name} stays in the queue: {error.message}")
            refused = None
        if refused is not None:
            raise refused
        return self.get(name)

    def _secrets_of_next_attempt(
        self, record: JobRecord, supply: Callable[[JobSpec], Secrets] | None, *, renew: bool
    ) -> tuple[SecretsDocument, dict[str, str]]:
        """Return the secrets for a restart, and the new signed text if the secrets are not the signed ones.

        Raises:
            Refused: the job must not start, or its secrets are missing.
        """
        name = record.spec.name
        with Connections(self._contact) as connections:
            stored = ask_jobs(connections.to(self.head), "secrets", SecretsDocument, name=name)
            answer = ask_jobs(connections.to(self.head), "report", ReportAnswer, names=[name], brief=False)
        recorded = next((job for job in Report.of(self.head, answer).jobs if job.name == name), None)
        if recorded is None:
            return stored, {}
        signed = self._keys.check(recorded, self.head)
        try:
            check_secrets(signed, stored, self.head)
        except Refused as error:
            if error.code != "job.secrets_missing" or supply is None:
                raise
        else:
            if not renew or supply is None:
                return stored, {}
        if not self.owns(record):
            raise Refused(
                f"only its owner {record.owner} can supply the secrets of {name}",
                "job.secrets_missing",
                node=self.head,
                remedy=f"Ask the owner to restart it, or delete it and submit it again: provision delete {name}",
            )
        stored = _stored(supply(signed.spec))
        if not (stored or signed.spec.secret_env or signed.spec.config_files):
            raise Refused(
                f"{name} needs a credential for its image or its code, and credentials are deleted when a job ends",
                "job.secrets_missing",
                node=self.head,
                remedy="Store it on the controller, then restart the job again: provision secret add --help",
            )
        again = msgspec.structs.replace(signed, secrets=secrets_digest(stored))
        check_secrets(again, stored, self.head)
        text, signature = self._keys.sign(again)
        return stored, {"signed": text, "signature": signature}

    def exec_argv(self, name: str, instance: str, argv: Sequence[str], *, terminal: bool) -> tuple[str, ...]:
        """Return the local command that runs `argv` in an instance; the node records it."""
        record = self.get(name)
        line = job_access.exec_argv(record, self._nodes, instance, argv, terminal=terminal)
        assignment = job_access.instance_of(record, instance)
        with contextlib.closing(self._contact.connect(assignment.node)) as connector:
            ask_jobs(connector, "attached", Done, name=name, instance=assignment.instance)
        return line

    def forward_argv(self, name: str, local: int, target: str) -> tuple[str, ...]:
        """Return the local command that forwards 127.0.0.1:`local` to a port or ``tensorboard``."""
        return job_access.forward_argv(self.get(name), self._nodes, local, target)

    # Nodes

    def drain(self, names: Sequence[str], reason: str) -> dict[str, ProvisionError | None]:
        """Exclude nodes from new jobs. Running jobs continue."""
        return self._on_each(names, "drain", reason=reason)

    def resume(self, names: Sequence[str], say: Say) -> dict[str, ProvisionError | None]:
        """Include drained nodes again, and start the jobs that waited for them."""
        errors = self._on_each(names, "resume")
        self._start_waiting_quietly(say)
        return errors

    def _on_each(self, names: Sequence[str], do: str, **request: Any) -> dict[str, ProvisionError | None]:
        """Send the same request to several nodes; return node -> the error there, None for success."""
        nodes = [self._nodes[name] for name in names]
        answers = self._contact.each(nodes, lambda connector: ask_jobs(connector, do, Done, **request))
        return {name: one if isinstance(one, ProvisionError) else None for name, one in answers.items()}

    def set_labels(self, labels: Mapping[str, Mapping[str, str]]) -> None:
        """Do nothing: this engine reads labels from the inventory at each start."""

    def reserve_gpus(self, owner: str, requests: Sequence[GpuRequest]) -> contextlib.AbstractContextManager[None]:
        """Lease all requested GPUs for the program `owner`, or none, while the context is open."""
        from provision.jobs.engines.direct.gpu_reservation import reserved_gpus

        return reserved_gpus(owner, requests, self._nodes)

    def sample(self, job: JobRecord, *, seconds: float, interval: float) -> dict[str, NodeSample | ProvisionError]:
        """Sample a running job on all of its nodes in parallel."""
        from provision.jobs.sampling import sample_job

        samples = sample_job(self._contact, job, seconds=seconds, interval=interval)
        return {
            name: sample if isinstance(sample, ProvisionError) else NodeSample(*sample)
            for name, sample in samples.items()
        }


class QueueMaintenance:
    """Scheduling passes; leaving the context waits for the starts that they began.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: DirectEngine) -> None:
        self._engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.await_starts()

    def run(self, progress: Say, *, time_limit: float | None = None) -> MaintenanceResult:
        """Do one pass. Starts that take longer than `time_limit` seconds continue after the return."""
        return self._engine.start_pending(progress, patience=time_limit)

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Wait for a change that may let a job start."""
        return self._engine.watch(seconds, stop)


def head_of(cluster: Cluster) -> str:
    """Return the queue host."""
    wanted = str(cluster.nodes[0].variables.get("cluster_head") or "")
    return wanted if any(node.name == wanted for node in cluster.nodes) else cluster.nodes[0].name


def _stored(secrets: Secrets) -> SecretsDocument:
    """Return secrets as the queue host stores them, with a salt that protects their hash."""
    files = {path: text.encode("utf-8", "surrogateescape") for path, text in secrets.files.items()}
    document = SecretsDocument(dict(secrets.env), dict(secrets.sync), files, dict(secrets.registry))
    return msgspec.structs.replace(document, salt=random.token_hex(SALT_BYTES)) if document else document


def _error_text(lost: Mapping[str, str]) -> str:
    """Return the reasons of nodes; nodes with the same reason are grouped."""
    names: dict[str, list[str]] = {}
    for name, text in lost.items():
        names.setdefault(text, []).append(name)
    return "; ".join(f"{in_short(group)}: {text}" for text, group in names.items())


def _unconfirmed(ending: Ending, name: str, left: Mapping[str, str]) -> ProvisionError:
    """Return the error of a job whose end is not confirmed by all nodes."""
    state = "not deleted on all of its nodes" if ending.has_result else "STOPPING and may still run"
    text = f"{name} is {state}: {_error_text(left)}"
    away = [node for node in left if node in ending.silent]
    if not away:
        return TimedOut(text, remedy=f"See what happens: provision get {name} -e")
    when = f"when {in_short(away)} answers again"
    remedy = f"It is carried out {when}; `provision get {name}` shows the state."
    if not ending.recorded:
        remedy = f"The queue host does not know this job. Run `provision delete {name}` {when}."
    return NodeUnreachable(
        text, remedy=f"{remedy} For a node that never comes back: provision delete {name} --lost NODE"
    )


def _name_taken(name: str, record: JobRecord | None) -> NameTaken:
    if record is not None and record.unconfirmed:
        away = in_short(record.unconfirmed)
        return NameTaken(
            f"the name {name} is taken: that job is {record.status}, and {away} has not confirmed its end",
            remedy=f"Choose another name, or wait for {away}: the name is free when all nodes have confirmed.",
        )
    return NameTaken(
        f"there is a job {name} already" + (f": it is {record.status}" if record is not None else ""),
        remedy=f"Choose another name, or delete that job: provision delete {name}",
    )
