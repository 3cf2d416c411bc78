"""The job engine `slurm-login`: the jobs of an ordinary user in a Slurm cluster that others manage.

It connects to one login node as the user, and nothing runs as root. Records, secrets and outputs are in the home folder
of the account, which the nodes of the cluster share. It lacks what needs programs of root on the nodes of a job.
"""

from __future__ import annotations

import contextlib
import secrets as random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from provision.batch.slurm.states import gpu_count, node_states, refusal, used_minors
from provision.documents.jobs import Done
from provision.documents.slurm_jobs import SlurmSubmitted, SlurmText
from provision.documents.slurm_login import LoginCheck, LoginReport, LoginReserved
from provision.errors import NameTaken, NeverFits, NodeError, NotFound, ProvisionError, TimedOut, UsageError
from provision.jobs.engines.base import (
    Capability,
    GpuRequest,
    LogRequest,
    MaintenanceResult,
    MissingCapability,
    NodeSample,
    Progress,
    Secrets,
    TakeOver,
    WriteLine,
    page_of,
)
from provision.jobs.engines.common.queue_host import owner
from provision.jobs.engines.slurm.login.ask import ask_login
from provision.jobs.engines.slurm.login.job_script import LoginSite, job_script, sbatch_options, secrets_text
from provision.jobs.engines.slurm.login.records import LoginRecord, records_of
from provision.model import Cluster, Node
from provision.model.job import JobRecord, JobSpec, JobStatus, as_document
from provision.model.job_views import DryRun, GpuView, JobPage, NodeList, NodeView
from provision.model.reason import NO_REASON, Reason, reason
from provision.report.reasons import error_of

if TYPE_CHECKING:
    from provision.connectors import Connector

T = TypeVar("T")

TOKEN_BYTES = 6
END_SECONDS = 90.0
"""How long the end of a job is waited for; Slurm kills its processes after KillWait, 30 seconds by default."""
POLL_SECONDS = 1.0
_NEVER = "slurm.never_"
_MOST_GPUS = 1024


class LoginEngine:
    """Runs jobs of one account.

    Args:
        cluster: the inventory, with the defaults of the roles.
        login: the login node.
        site: the settings of jobs.
        labels: partition, account and QOS.
    """

    name = "slurm-login"
    capabilities = frozenset({Capability.GANG, Capability.FOLLOW, Capability.OWN_QUEUE})
    remedies: Mapping[Capability, str] = {
        Capability.RETRY: "Leave out --retry. Restart a failed job: provision restart JOB",
        Capability.TOPOLOGY: "Leave out --gputopology: Slurm chooses the GPUs.",
        Capability.ATTACH: "Run a command in the job with Slurm: srun --overlap --jobid=NUMBER --pty sh",
        Capability.PORT_FORWARD: "Use ssh through the login node: ssh -J LOGIN -L PORT:localhost:PORT NODE",
        Capability.LABELS: "Choose nodes by name: --nodes NODE,...",
        Capability.DRAIN: "Ask the administrator of the cluster.",
        Capability.GPU_RESERVATION: "Submit a job, or allocate nodes with Slurm: salloc",
        Capability.SAMPLING: "Run it in the job with Slurm: srun --overlap --jobid=NUMBER nvidia-smi",
        Capability.TAKE_OVER: "Submit the jobs again.",
    }
    """What to do instead, for capabilities that this engine lacks."""

    def __init__(self, cluster: Cluster, login: Node, site: LoginSite, labels: Mapping[str, str]) -> None:
        self._cluster, self._login, self._site, self._labels = cluster, login, site, labels
        self._open: Connector | None = None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connector]:
        """Use one connection for several requests."""
        from provision.connectors import connect

        if self._open is not None:
            yield self._open
            return
        with contextlib.closing(connect(self._login)) as connector:
            self._open = connector
            try:
                yield connector
            finally:
                self._open = None

    def _ask(self, do: str, kind: type[T], **request: Any) -> T:
        with self._connected() as connector:
            return ask_login(connector, do, kind, **request)

    # Starting

    def submit(self, spec: JobSpec, secrets: Secrets, progress: Progress) -> JobRecord:
        """Record a job in the home folder of the account, and submit it."""
        job_script(spec, self._site, "/", 1)  # refuses options before anything is recorded
        after = self._after(spec)
        token = random.token_hex(TOKEN_BYTES)
        job = {
            "name": spec.name,
            "id": token,
            "owner": owner(),
            "submitted": time.time(),
            "spec": as_document(spec),
        }
        with self._connected():
            self._submit_first(spec, job, secrets, after, progress)
            return self.get(spec.name)

    def _submit_first(
        self, spec: JobSpec, job: Mapping[str, Any], secrets: Secrets, after: list[int], progress: Progress
    ) -> None:
        """Record a job and submit it; a refused job is deleted."""
        answer = self._ask("reserve", LoginReserved, name=spec.name, job=job)
        if not answer.reserved:
            raise NameTaken(
                f"there is a job {spec.name} already",
                remedy=f"Choose another name, or delete that job: provision delete {spec.name}",
            )
        try:
            self._submit(spec, job["id"], 1, secrets, answer.home, after, progress)
        except ProvisionError as error:
            if error.code != "slurm.uncertain":
                with contextlib.suppress(ProvisionError):
                    self._ask("delete", Done, name=spec.name, id=job["id"])
            raise

    def _submit(
        self, spec: JobSpec, token: str, attempt: int, secrets: Secrets, home: str, after: list[int], progress: Progress
    ) -> None:
        """Submit the batch script of an attempt.

        Raises:
            NeverFits: Slurm refuses it, because it could never start.
            UsageError: Slurm refuses it for another reason.
            NodeError: it is not known whether Slurm has it.
        """
        script, warnings = job_script(spec, self._site, home, attempt)
        for line in warnings:
            progress(f"warning: {line}")
        request = {"name": spec.name, "id": token, "attempt": attempt, "secrets": secrets_text(secrets)}
        options = sbatch_options(spec, token, after, self._labels)
        try:
            answer = self._ask("submit", SlurmSubmitted, **request, script=script, options=options)
        except ProvisionError as error:
            answer = SlurmSubmitted(0, error.message, uncertain=True)
        if answer.uncertain:
            why = reason("slurm.uncertain", cause=answer.refused[-300:])
            raise error_of(NodeError, why, node=self._login.name)
        if not answer.job:
            raise _refused(answer.refused)

    def _after(self, spec: JobSpec) -> list[int]:
        """Return the jobs in Slurm on which a job waits; those that have succeeded are left out."""
        numbers = []
        for name in spec.depends:
            record = self._get(name)
            if record.status is JobStatus.SUCCEEDED:
                continue
            if record.status.over or not record.number:
                raise error_of(UsageError, reason("job.dependency_failed", job=name, status=str(record.status)))
            numbers.append(record.number)
        return numbers

    def dry_run(self, spec: JobSpec) -> DryRun:
        """Return the batch script, and whether Slurm would accept it; nothing is written."""
        job_script(spec, self._site, "/", 1)
        options = sbatch_options(spec, "0" * 2 * TOKEN_BYTES, self._after(spec), self._labels)
        home = self._report([]).home
        script, warnings = job_script(spec, self._site, home, 1)
        answer = self._ask("check", LoginCheck, script=script, options=options)
        refused = refusal(answer.refused) if answer.refused else NO_REASON
        return DryRun((), refused, {}, {}, {"job.sh": script}, tuple(warnings))

    def restart(
        self,
        name: str,
        progress: Progress,
        *,
        supply: Callable[[JobSpec], Secrets] | None = None,
        renew: bool = False,
    ) -> JobRecord:
        """Submit the next attempt of a job; stop it first if it runs. Its secrets are read again."""
        del renew
        record = self._get(name)
        secrets = supply(record.spec) if supply is not None and record.spec.secret_env else Secrets()
        if record.spec.secret_env and not secrets.env:
            raise error_of(UsageError, reason("slurm.login_secrets", names=record.spec.secret_env))
        after = self._after(record.spec)
        if not record.status.over:
            self._end(record, progress)
        report = self._report([record.spec.name])
        attempt = next((job.attempt for job in report.jobs if job.id == record.id), record.attempt) + 1
        self._submit(record.spec, record.id, attempt, secrets, report.home, after, progress)
        return self.get(record.spec.name)

    def release(self, name: str, progress: Progress) -> JobRecord:
        """Release a held job."""
        del progress
        record = self._get(name)
        if record.status is not JobStatus.QUEUING:
            return record
        self._ask("release", Done, name=record.spec.name, id=record.id, job=record.number)
        return self.get(record.spec.name)

    # Reading

    def _report(self, names: Sequence[str] | None) -> LoginReport:
        return self._ask("report", LoginReport, names=None if names is None else list(names))

    def jobs(self, *, limit: int = 0, cursor: str = "", recent: int = 0, time_limit: float | None = None) -> JobPage:
        """Return the jobs of the account, the newest first."""
        del recent, time_limit
        page, following = page_of(records_of(self._report(None)), limit, cursor)
        return JobPage(page, following)

    def get(self, name: str, *, time_limit: float | None = None) -> JobRecord:
        """Return all that is known of a job."""
        del time_limit
        return self._get(name)

    def _get(self, name: str) -> LoginRecord:
        records = records_of(self._report(None))
        for record in records:
            if name in {record.spec.name, record.id}:
                return record
        raise NotFound(f"there is no job {name} of this account", remedy="See the names: provision list")

    def logs(self, job: JobRecord, request: LogRequest, write: WriteLine) -> JobRecord:
        """Write lines of output; with ``follow`` until the job has ended."""
        from provision.jobs.engines.slurm.login.output import write_output

        with self._connected() as connector:
            return write_output(connector, self._get, job.spec.name, request, write)

    def nodes(self, *, time_limit: float | None = None) -> NodeList:
        """Return the nodes of Slurm; their GPUs are numbered as in Slurm."""
        del time_limit
        states = node_states(self._ask("nodes", SlurmText).text)
        views = []
        for state in states.values():
            used = used_minors(state.gres_used)
            count = min(gpu_count(state.gres), _MOST_GPUS)
            gpus = tuple(
                GpuView(at, f"{state.name}/{at}", foreign="a job in Slurm" * (at in used)) for at in range(count)
            )
            problem = state.problem
            drained = problem.code == "slurm.node_drained"
            views.append(NodeView(state.name, "", not problem.code or drained, problem, drained, gpus=gpus))
        return NodeList(tuple(views))

    def owns(self, job: JobRecord) -> bool:
        """Return True: only jobs of this account are reported."""
        del job
        return True

    def owned(self, jobs: Sequence[JobRecord]) -> list[str]:
        """Return all IDs: only jobs of this account are reported."""
        return [job.id for job in jobs]

    def refuses(self, job: JobRecord) -> bool:
        """Return False: the account may change its jobs."""
        del job
        return False

    # Ending

    def stop(self, name: str, progress: Progress, *, grace: float = 15.0) -> JobRecord:
        """Cancel a job in Slurm, whose KillWait is the grace time; STOPPING as long as it has not ended."""
        del grace
        record = self._get(name)
        if record.status.over:
            return record
        with contextlib.suppress(TimedOut):
            self._end(record, progress)
        return self.get(name)

    def _end(self, record: LoginRecord, progress: Progress) -> None:
        """Cancel a job and wait for its end.

        Raises:
            TimedOut: it has not ended.
        """
        name = record.spec.name
        progress(f"cancelling {name} (job {record.number} in Slurm)")
        numbers = [record.number] if record.number else []
        deadline = time.monotonic() + END_SECONDS
        with self._connected():
            self._ask("stop", Done, name=name, id=record.id, jobs=numbers)
            while time.monotonic() < deadline:
                if self._get(record.id).status.over:
                    return
                time.sleep(POLL_SECONDS)
        raise TimedOut(
            f"{name} has not ended {END_SECONDS:g} s after its cancellation in Slurm",
            remedy=f"Run the command again. See what it does: scontrol show job {record.number}",
        )

    def delete(self, name: str, progress: Progress, *, lost: Sequence[str] = ()) -> None:
        """Stop a job and delete its record and its output."""
        del lost
        record = self._get(name)
        if not record.status.over:
            self._end(record, progress)
        self._ask("delete", Done, name=record.spec.name, id=record.id)

    def maintenance(self) -> LoginMaintenance:
        """Return the context of maintenance passes; Slurm starts waiting jobs itself."""
        return LoginMaintenance(self)

    # What this engine lacks

    def _lacks(self, capability: Capability, what: str) -> NoReturn:
        raise MissingCapability(what, self.name, capability, self.remedies.get(capability, ""))

    def take_over(self, progress: Progress, *, dry_run: bool = False) -> TakeOver:
        """Raise MissingCapability."""
        del progress, dry_run
        self._lacks(Capability.TAKE_OVER, "provision queue migrate")

    def exec_argv(self, name: str, instance: str, argv: Sequence[str], *, terminal: bool) -> tuple[str, ...]:
        """Raise MissingCapability."""
        del name, instance, argv, terminal
        self._lacks(Capability.ATTACH, "provision attach")

    def forward_argv(self, name: str, local: int, target: str) -> tuple[str, ...]:
        """Raise MissingCapability."""
        del name, local, target
        self._lacks(Capability.PORT_FORWARD, "provision port-forward")

    def drain(self, names: Sequence[str], reason: str) -> Mapping[str, ProvisionError | None]:
        """Raise MissingCapability."""
        del names, reason
        self._lacks(Capability.DRAIN, "provision node drain")

    def resume(self, names: Sequence[str], progress: Progress) -> Mapping[str, ProvisionError | None]:
        """Raise MissingCapability."""
        del names, progress
        self._lacks(Capability.DRAIN, "provision node resume")

    def set_labels(self, labels: Mapping[str, Mapping[str, str]]) -> None:
        """Raise MissingCapability."""
        del labels
        self._lacks(Capability.LABELS, "provision node label")

    def reserve_gpus(self, owner: str, requests: Sequence[GpuRequest]) -> contextlib.AbstractContextManager[None]:
        """Raise MissingCapability."""
        del owner, requests
        self._lacks(Capability.GPU_RESERVATION, "GPUs for a program")

    def sample(self, job: JobRecord, *, seconds: float, interval: float) -> Mapping[str, NodeSample | ProvisionError]:
        """Raise MissingCapability."""
        del job, seconds, interval
        self._lacks(Capability.SAMPLING, "samples of a job")


class LoginMaintenance:
    """Maintenance of the engine `slurm-login`: there is none.

    Args:
        engine: the engine.
    """

    def __init__(self, engine: LoginEngine) -> None:
        self._engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, progress: Progress, *, time_limit: float | None = None) -> MaintenanceResult:
        """Return the jobs that wait in Slurm."""
        del progress, time_limit
        jobs = self._engine.jobs().jobs
        return MaintenanceResult((), tuple(job.spec.name for job in jobs if job.status is JobStatus.PENDING))

    @staticmethod
    def wait(seconds: float, stop: threading.Event) -> bool:
        """Wait; nothing needs another pass early."""
        stop.wait(seconds)
        return False


def _refused(text: str) -> ProvisionError:
    """Return the error of a job that Slurm refused."""
    why: Reason = refusal(text)
    return error_of(NeverFits if why.code.startswith(_NEVER) else UsageError, why)
