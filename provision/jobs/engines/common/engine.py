"""The part of job engines that is the same where jobs are recorded on the queue host and supervised on their nodes.

It reads the state of jobs from the nodes, ends and deletes jobs, and records, signs and restarts them. A subclass
decides when and where an attempt starts.
"""

from __future__ import annotations

import contextlib
import re
import secrets as random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from provision.batch.direct_record import DirectRecord
from provision.batch.records import Report, result_of
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
)
from provision.jobs import job_access
from provision.jobs.cluster_snapshot import ClusterProbe
from provision.jobs.connections import Connections
from provision.jobs.engines.base import (
    Capability,
    GpuRequest,
    LogRequest,
    NodeSample,
    Secrets,
    page_of,
)
from provision.jobs.engines.common.invalid_jobs import InvalidJob, delete_invalid, insist_on_valid
from provision.jobs.engines.common.job_end import Ending, carry_out, pending
from provision.jobs.engines.common.job_reports import reports_of
from provision.jobs.engines.common.queue_host import mark, owner
from provision.jobs.engines.common.recent_jobs import left_out, only_recent
from provision.jobs.engines.common.survey import job_list, node_views
from provision.jobs.node_ask import ask_jobs
from provision.jobs.node_contact import Contact
from provision.model import Cluster, Node
from provision.model.job import JobRecord, JobSpec, JobStatus, as_document
from provision.model.job_views import JobPage, NodeList
from provision.report.node_names import in_short

if TYPE_CHECKING:
    from provision.connectors import Connector
    from provision.connectors.absent import AbsentNodes
    from provision.jobs.code import Archive
    from provision.jobs.extras import JobExtras
    from provision.jobs.signing import JobKeys

Say = Callable[[str], None]
Answer = TypeVar("Answer", bound=ReportAnswer)

SHORT_SECONDS = 15.0
"""Time limit for the state of a job in an error message."""
TOKEN_BYTES = 6
SALT_BYTES = 32
_TOKEN = re.compile(rf"[0-9a-f]{{{2 * TOKEN_BYTES}}}")


class RecordedJobs:
    """Jobs on the nodes of one cluster. Modules that only start jobs are imported when a job starts.

    Args:
        cluster: with the roles' defaults; ``cluster_head`` names the node that keeps the queue, else it is the first.
        cluster_probe: probes nodes as targets of jobs.
        keys: signs jobs, and verifies the signatures of jobs.
        extras: code, data and TensorBoard.
        absent: nodes that did not answer a short time ago.
        head: the queue host, if it is another one.
    """

    name = ""
    capabilities: frozenset[Capability] = frozenset()
    remedies: Mapping[Capability, str] = MappingProxyType({})

    def __init__(
        self,
        cluster: Cluster,
        cluster_probe: ClusterProbe,
        keys: JobKeys,
        extras: JobExtras | None = None,
        absent: AbsentNodes | None = None,
        *,
        head: str = "",
    ) -> None:
        self._cluster = cluster
        self._keys = keys
        self._nodes: dict[str, Node] = {node.name: node for node in cluster.nodes}
        self._contact = Contact(self._nodes, absent)
        self._cluster_probe = cluster_probe
        self._agent = any(node.connection.agent for node in cluster.nodes)
        self._extras = extras
        self.head = head or head_of(cluster)

    # Submitting

    def submit(self, spec: JobSpec, secrets: Secrets, say: Say) -> JobRecord:
        """Reserve the name, record the job and begin it; a job that does not fit now is PENDING with the reason."""
        from provision.jobs.code import pack_code
        from provision.jobs.engines.common.placement import allowed

        self._check(spec)
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
        state = "held" if spec.hold else "pending"
        queue = {"state": state, "attempt": 0, "failures": 0, "retry": spec.retry, "engine": self.name}
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
            refused = self._begin(RecordedJob(signed, text, signature, stored, code), say)
        except LockedError as error:
            say(f"{spec.name} stays in the queue: {error.message}")
            refused = None
        if refused is not None:
            self._delete_refused(spec.name, token)
            raise refused
        if self._agent:
            say(f"{spec.name} waits for an operator's queue, which starts it (provision queue run --daemon)")
        return self.get(spec.name)

    def _check(self, spec: JobSpec) -> None:
        """Refuse a job that this engine cannot run, before anything is recorded."""

    def _check_change(self, record: JobRecord) -> None:
        """Refuse to change a job that another engine starts."""

    def _begin(self, job: RecordedJob, say: Say) -> ProvisionError | None:
        """Begin a job that has just been recorded. Returns why it can never start; the caller deletes it."""
        raise NotImplementedError

    def _begin_again(self, record: JobRecord, say: Say) -> ProvisionError | None:
        """Begin the next attempt of a job, which is pending again. Returns why it can never start."""
        raise NotImplementedError

    def _next_entry(self, record: JobRecord) -> QueueEntry:
        """Return the queue entry of a finished job whose next attempt follows."""
        return QueueEntry(attempt=record.attempt, retry=record.spec.retry, engine=self.name)

    def _begin_released(self, record: JobRecord, say: Say) -> None:
        """Begin a held job, which is pending now."""
        raise NotImplementedError

    def _begin_waiting(self, say: Say) -> None:
        """Begin jobs that waited for resources that have just been released."""

    def _with_engine(self, answers: Mapping[str, Answer | ProvisionError]) -> Mapping[str, Answer | ProvisionError]:
        """Return the reports of nodes, completed by what another system knows of the jobs."""
        return answers

    def _end_elsewhere(self, record: JobRecord) -> None:
        """End a job in another system that would start it (again)."""

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

    def release(self, name: str, say: Say) -> JobRecord:
        """Release a held job: it starts if it fits now, otherwise it is PENDING; other jobs are not changed."""
        record = self.get(name)
        if record.status is not JobStatus.QUEUING:
            return record
        self._check_change(record)
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
            self._begin_released(record, say)
        except LockedError as error:
            say(f"{name} stays in the queue: {error.message}")
        return self.get(name)

    # Reading

    def jobs(self, *, limit: int = 0, cursor: str = "", recent: int = 0, time_limit: float | None = None) -> JobPage:
        """Return jobs, the newest first; all nodes are asked for every page."""
        reports: Mapping[str, ReportAnswer | ProvisionError] = self._contact.each(
            self._cluster.nodes,
            lambda connector: self._report(connector, None, brief=True, recent=recent),
            time_limit=time_limit,
        )
        if recent:
            reports = self._with_left_out(reports, time_limit)
        answers = self._with_engine(reports)
        self._carry_out(answers)
        everything = job_list(self.head, answers)
        self._record_results(everything.jobs)
        page, following = page_of(everything.jobs, limit, cursor)
        return replace(everything, jobs=page, next_cursor=following)

    def _with_left_out(
        self, reports: Mapping[str, ReportAnswer | ProvisionError], time_limit: float | None
    ) -> Mapping[str, ReportAnswer | ProvisionError]:
        """Return reports about the same jobs: those that the queue host reports, and what else is not settled.

        A node counts its own jobs, so it may leave out one of them, or report one that the queue host leaves out.
        """
        missing = left_out(reports, self.head)
        more = self._contact.each(
            [self._nodes[name] for name in missing],
            lambda connector: self._report(connector, missing[connector.name], brief=True),
            time_limit=time_limit,
        )
        return only_recent(reports, more, self.head)

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
        reports = self._reports_of(name, time_limit)
        if self._carry_out(reports):
            reports = self._reports_of(name, time_limit)
        survey = job_list(self.head, reports)
        self._record_results(survey.jobs)
        named = [record for record in survey.jobs if record.spec.name == name]
        if named:
            return next((record for record in named if not record.name_reused), named[0])
        insist_on_valid(name, reports)
        away = in_short(list(survey.unreachable))
        if away and time_limit is not None:
            return self.get(name)
        by_id = [record for record in self.jobs().jobs if record.id == name] if _TOKEN.fullmatch(name) else []
        if by_id:
            return by_id[0]
        if away:
            raise NodeUnreachable(f"no answering node knows a job {name}, and these nodes do not answer: {away}")
        raise NotFound(f"there is no job {name}", remedy="See the names: provision list")

    def _report(
        self, connector: Connector, names: Sequence[str] | None, *, brief: bool, recent: int = 0
    ) -> ReportAnswer:
        """Return the report of a node about jobs; `names` is None for all of them, or for `recent` ones."""
        only = {"recent": recent} if recent else {}
        return ask_jobs(connector, "report", ReportAnswer, names=names, brief=brief, **only)

    def _reports_of(self, name: str, time_limit: float | None) -> Mapping[str, ReportAnswer | ProvisionError]:
        """Return the reports of the nodes of one job."""
        report = partial(self._report, names=[name], brief=False)
        return self._with_engine(reports_of(name, self._contact, self.head, report, time_limit=time_limit))

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

    def logs(self, job: JobRecord, request: LogRequest, write: Callable[[str, bytes], None]) -> JobRecord:
        """Write lines of output; with ``follow`` until the job has ended. Returns the job as it is then."""
        return job_access.logs(self.get, self._contact, job, request, write)

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
        self._check_change(record)
        unconfirmed = self._end(record, say, grace)
        self._begin_waiting(say)
        try:
            return self.get(name)
        except NotFound:  # it was deleted meanwhile, or another job has its name
            return replace(record, status=JobStatus.STOPPING if unconfirmed else JobStatus.STOPPED)

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
        self._check_change(record)
        self._delete(record, say, lost)
        if not record.status.over:
            self._begin_waiting(say)

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
        self._end_elsewhere(record)
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
        self._check_change(record)
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
            queue = self._next_entry(record)
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
            refused = self._begin_again(record, say)
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
        self._begin_waiting(say)
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
        from provision.jobs.engines.common.gpu_reservation import reserved_gpus

        return reserved_gpus(owner, requests, self._nodes)

    def sample(self, job: JobRecord, *, seconds: float, interval: float) -> dict[str, NodeSample | ProvisionError]:
        """Sample a running job on all of its nodes in parallel."""
        from provision.jobs.sampling import sample_job

        samples = sample_job(self._contact, job, seconds=seconds, interval=interval)
        return {
            name: sample if isinstance(sample, ProvisionError) else NodeSample(*sample)
            for name, sample in samples.items()
        }


@dataclass(frozen=True)
class RecordedJob:
    """A signed and recorded job."""

    signed: SignedJob
    text: str
    """The signed text."""
    signature: str
    stored: SecretsDocument
    code: Archive | None = None
    """The packed code, on this machine."""


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
