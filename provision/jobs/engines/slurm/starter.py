"""The starter: runs on the first node of an allocation, starts an attempt of the job there and waits for its end.

The batch script runs it as root. It imports only our own modules and msgspec, because compute nodes have nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from provision.batch.ranks import assignments_of
from provision.batch.signed import secrets_digest
from provision.batch.slurm.hostlist import expand
from provision.batch.slurm.states import (
    allocated_minors,
    attempts_begun,
    attempts_comment,
    excluded_nodes,
    gpu_counts,
    restarts_of,
    tasks_per_node,
)
from provision.connectors import Connector
from provision.documents import decode
from provision.documents.jobs import Done, ReportAnswer, Result, SecretsDocument, Watched, Written
from provision.documents.slurm_jobs import StepGpus
from provision.errors import InvalidDocument, LaunchError, NodeError, ProvisionError
from provision.jobs import attempt_start
from provision.jobs.attempt import Attempt
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.connections import MANY, Connections
from provision.jobs.engines.slurm.allocation import AllocatedNode, allocated_node, is_planned, may_fit, places
from provision.jobs.engines.slurm.payload import Payload, PayloadNode, payload_of
from provision.jobs.engines.slurm.steps import HereConnector, StepConnector
from provision.jobs.extras import JobExtras
from provision.jobs.node_ask import ask_jobs, begin, first_line
from provision.model import Cluster, Connection, Node
from provision.model.job import as_document
from provision.model.job_requests import Secrets
from provision.model.reason import reason
from provision.node.slurm import RUN, STARTER
from provision.node.slurm.compute import KEYS, touch
from provision.report.reasons import error_of, message
from provision.threads import outcomes

if TYPE_CHECKING:
    from provision.jobs.code import Archive

STOP_GRACE_SECONDS = 10.0
"""The grace time of an attempt that Slurm cancels; after KillWait Slurm kills the starter."""
CONTROLLER_SECONDS = 3600.0
"""How long a failed attempt waits for slurmctld, which has to start the next one."""
SLOW_SECONDS = 2.0
"""A command that takes longer has waited for slurmctld itself."""
SETTLE_SECONDS = 10.0
"""Time for the nodes to register with a new slurmctld: before, it requeues a job without its GPUs (seen with 22.05)."""
MOST_LOST_STARTS = 3
"""Starts without an attempt, such as on a node that could not launch it, before missing GPUs are an error."""
_FOLDER = str(Path(__file__).resolve().parents[4])
"""The folder of this starter."""
_COMMAND_SECONDS = 60
_WATCH_SECONDS = 120.0
_ADMIN_COMMENT_BYTES = 4000
FAILED = 1


class Cancelled(BaseException):
    """Slurm cancels the job: `scancel`, its time limit, or a preemption. No handler of other errors catches it."""


def main(script: str) -> int:
    """Run the attempt of the batch script `script`; return the exit status of the job."""
    try:
        return Starter(payload_of(Path(script).read_text(encoding="ascii")), Allocation.of_environment()).run()
    except ProvisionError as error:
        _print(f"{error}" + (f" ({error.remedy})" if error.remedy else ""))
        return FAILED


@dataclass(frozen=True)
class Allocation:
    """What Slurm says of its job in the environment of the batch script."""

    job: int
    nodes: tuple[str, ...]
    tasks: tuple[int, ...]
    restarts: int

    @classmethod
    def of_environment(cls) -> Allocation:
        """Return the allocation of this process; remove its variables, which would constrain our steps."""
        values = {key: value for key, value in os.environ.items() if key.startswith("SLURM_")}
        for key in values:
            if key != "SLURM_CONF":
                del os.environ[key]
        try:
            job, restarts = int(values["SLURM_JOB_ID"]), int(values.get("SLURM_RESTART_COUNT") or 0)
            nodes, tasks = expand(values["SLURM_JOB_NODELIST"]), tasks_per_node(values["SLURM_TASKS_PER_NODE"])
        except (KeyError, ValueError) as error:
            raise LaunchError(
                f"this is no batch job of Slurm: {error}", remedy="Submit it: provision submit"
            ) from error
        if len(nodes) != len(tasks) or not nodes:
            raise InvalidDocument(
                f"{len(nodes)} nodes and {len(tasks)} numbers of tasks", remedy="Check Slurm's environment."
            )
        return cls(job, tuple(nodes), tuple(tasks), restarts)


class _Contact:
    """Connects to the nodes of the allocation."""

    def __init__(self, make: Callable[[str], Connector]) -> None:
        self.connect = make


class Starter:
    """One attempt of a job in an allocation."""

    def __init__(self, payload: Payload, allocation: Allocation) -> None:
        self._payload, self._allocation, self._spec = payload, allocation, payload.spec
        self._by_slurm = {node.slurm: node for node in payload.nodes}
        self._number = payload.first_attempt + allocation.restarts
        self._stop = threading.Event()
        self._started = False
        self._begun = 0
        """How many attempts have begun before this one; Slurm's restarts also count starts that led to no attempt."""
        Path(RUN).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix=STARTER.format(allocation.job), dir=RUN))

    def run(self) -> int:
        """Start the attempt, wait for its end, and return the exit status of the job."""
        signal.signal(signal.SIGTERM, self._on_signal)
        try:
            return self._run()
        except Cancelled as error:
            _print(str(error))
            return 128 + signal.SIGTERM
        except ProvisionError as error:
            self._record_failure(error)
            raise
        finally:
            self._remove_folder()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop.set()
        if not self._started:
            raise Cancelled("cancelled in Slurm before it ran")

    def _remove_folder(self) -> None:
        for path in self._folder.iterdir():
            path.unlink(missing_ok=True)
        self._folder.rmdir()

    def _run(self) -> int:
        restarts = self._allocation.restarts
        is_asked = restarts or self._spec.gpus
        shown = _command("scontrol", "show", "job", "-d", "-o", str(self._allocation.job)) if is_asked else ""
        self._begun = attempts_begun(shown) if restarts else 0
        if self._retries_left() < 0:
            raise error_of(LaunchError, reason("slurm.too_many_attempts"))
        nodes = self._own_nodes()
        self._write_certificates(nodes)
        with Connections(_Contact(self._connector)) as connections:  # type: ignore[arg-type]
            try:
                attempt = self._attempt(self._allocated(nodes, shown))
            except LaunchError as error:
                if error.code != "slurm.gpus_missing" or restarts - self._begun >= MOST_LOST_STARTS:
                    raise
                _print(str(error))
                self._start_again(connections.to(nodes[0].name))
                return FAILED
            self._guard(connections.to(attempt.leader.node), attempt)
            self._record_begin()
            self._start(connections, attempt)
            return self._wait(connections, attempt)

    def _retries_left(self) -> int:
        """Return how many attempts may follow this one; below 0 if Slurm has started it once too often."""
        return self._spec.retry - self._begun

    def _record_begin(self) -> None:
        """Record in Slurm that an attempt begins of a job that Slurm may start again."""
        if self._spec.retry or self._allocation.restarts:
            comment = attempts_comment(self._begun + 1)
            self._patiently("scontrol", "update", f"JobId={self._allocation.job}", f"AdminComment={comment}")

    def _start_again(self, here: Connector) -> None:
        """Let Slurm start the job again, which got no GPUs: that is not the fault of the job or of a node."""
        self._stop.wait(SETTLE_SECONDS)
        self._patiently("scontrol", "update", f"JobId={self._allocation.job}", "Requeue=1")
        self._requeue(here, ())

    def _own_nodes(self) -> list[PayloadNode]:
        """Return the nodes of the allocation."""
        return [self._known(name) for name in self._allocation.nodes]

    def _known(self, name: str) -> PayloadNode:
        node = self._by_slurm.get(name)
        if node is None:
            raise error_of(LaunchError, reason("slurm.node_unknown", node_name=name))
        return node

    # The nodes and their GPUs

    def _write_certificates(self, nodes: Sequence[PayloadNode]) -> None:
        for node in nodes:
            if node.certificate:
                self._certificate(node).write_text(node.certificate, encoding="ascii")

    def _certificate(self, node: PayloadNode) -> Path:
        return self._folder / f"{list(self._by_slurm).index(node.slurm)}.pem"

    def _connector(self, name: str) -> Connector:
        node = next(one for one in self._payload.nodes if one.name == name)
        return HereConnector(name) if node.slurm == self._allocation.nodes[0] else self._step(node)

    def _step(self, node: PayloadNode, gpus: str = "") -> StepConnector:
        """Return a connection whose steps get the GPUs of an option of srun, or those that the job requests by node."""
        certificate = str(self._certificate(node)) if node.certificate else ""
        return StepConnector(node.name, node.slurm, self._allocation.job, certificate, gpus)

    def _allocated(self, nodes: Sequence[PayloadNode], shown: str) -> list[AllocatedNode]:
        """Return the nodes with their GPUs; a step on each node reports them. `shown` is Slurm's text about the job.

        It also records on the node which attempt it runs, for Slurm's epilog, which removes the record.
        """
        counts = gpu_counts(shown) if self._spec.gpus else {}
        # The GPUs of these jobs have a type each, of which Slurm would refuse several to a request by number.
        minors = allocated_minors(shown) if is_planned(self._spec) or self._spec.exclusive else {}

        mark: dict[str, Any] = {
            "job": self._allocation.job,
            "name": self._spec.name,
            "id": self._payload.id,
            "attempt": self._number,
        }

        def ask(pair: tuple[PayloadNode, int]) -> AllocatedNode:
            node, workers = pair
            count = counts.get(node.slurm, 0)
            if not count:
                if not self._spec.gpus:  # else its GPUs are missing, and nothing starts
                    ask_jobs(self._connector(node.name), "slurm_mark", Written, **mark)
                return AllocatedNode(node, workers)
            connector = self._step(node, _gpu_option(count, minors.get(node.slurm, ()), min(counts.values())))
            return allocated_node(node, workers, ask_jobs(connector, "slurm_gpus", StepGpus, mark=mark))

        pairs = list(zip(nodes, self._allocation.tasks, strict=True))
        return _all(outcomes(ask, pairs, limit=MANY))

    def _attempt(self, allocated: Sequence[AllocatedNode]) -> Attempt:
        spec, payload = self._spec, self._payload
        assignments = assignments_of(spec, places(spec, allocated))
        nodes = [one.node for one in allocated]
        fenced = {one.node.name: tuple((one.uuids or {}).values()) for one in allocated if spec.exclusive and spec.gpus}
        job = {
            "id": payload.id,
            "owner": payload.owner,
            "submitted": payload.submitted,
            "spec": as_document(spec),
            "signed": payload.signed,
            "signature": payload.signature,
        }
        snapshot = ClusterSnapshot(
            addresses={node.name: node.address for node in nodes},
            interfaces={node.name: node.interface for node in nodes},
            networks={node.name: node.network for node in nodes if node.network is not None},
            hardware={node.name: node.hardware for node in nodes},
        )
        return Attempt(spec, payload.id, self._number, job, assignments, self._secrets(nodes[0]), snapshot, fenced)

    def _secrets(self, here: PayloadNode) -> Secrets:
        """Return the secrets of the job, which the key of this node decrypts.

        Raises:
            LaunchError: they cannot be decrypted, or are not those that were signed.
        """
        if not self._payload.sealed:
            return Secrets()
        path = self._folder / "sealed"
        path.write_text(self._payload.sealed, encoding="ascii")
        words = ["openssl", "cms", "-decrypt", "-binary", "-inform", "PEM", "-in", str(path)]
        words += ["-recip", f"{KEYS}/certificate.pem", "-inkey", f"{KEYS}/key.pem"]
        text, why = _command(*words), "they are not those that the job was signed with"
        document = decode(text, SecretsDocument, node=here.name, what="secrets of the job")
        if secrets_digest(document) != self._payload.secrets:
            raise error_of(LaunchError, reason("slurm.unsealed", node_name=here.name, cause=why), node=here.name)
        files = {path: content.decode("utf-8", "surrogateescape") for path, content in document.files.items()}
        return Secrets(document.env, document.sync, files, document.registry)

    # The attempt

    def _start(self, connections: Connections, attempt: Attempt) -> None:
        cluster = Cluster(
            "slurm",
            Path("/"),
            tuple(Node(name, Connection(name), self._payload.variables) for name in attempt.nodes),
        )
        with _renewed(connections, attempt), self._code() as code:
            extras, slurm_job = JobExtras(cluster), self._allocation.job
            attempt_start.start(connections, attempt, extras, _print, self._hand_over, code, slurm_job=slurm_job)

    def _hand_over(self) -> None:
        """Note that the nodes have the attempt from now on: its end is that of its supervisors.

        Raises:
            Cancelled: Slurm cancelled the job meanwhile.
        """
        self._started = True
        if self._stop.is_set():
            raise Cancelled("cancelled in Slurm before it ran")

    @contextlib.contextmanager
    def _code(self) -> Iterator[Archive | None]:
        """Yield the packed code of the job."""
        if self._payload.about is None:
            yield None
            return
        from provision.jobs.code import Archive

        path = self._folder / "code.tar.gz"
        try:
            path.write_bytes(self._payload.code)
            yield Archive(path, self._payload.about)
        finally:
            path.unlink(missing_ok=True)

    def _wait(self, connections: Connections, attempt: Attempt) -> int:
        """Wait for the end of the attempt; return its exit status. Slurm starts the next attempt after a failure."""
        here = connections.to(attempt.leader.node)
        watched = [{"name": attempt.spec.name, "attempt": attempt.number}]
        stopped = threading.Event()
        threading.Thread(target=self._stop_when_asked, args=(here, attempt, stopped), daemon=True).start()
        ended = False
        while not ended:
            touch(_FOLDER)  # a requeued job needs it again
            with contextlib.closing(begin(here, "watch", seconds=_WATCH_SECONDS, attempts=watched)) as process:
                ended = first_line(process, here.name, Watched).changed
        result = self._result(here, attempt)
        stopped.set()
        if result.status == "FAILED" and not self._stop.is_set() and self._retries_left() > 0:
            self._requeue(here, _nodes_at_fault(result))
        return 0 if result.status == "SUCCEEDED" else (result.exit_code or FAILED)

    def _stop_when_asked(self, here: Connector, attempt: Attempt, ended: threading.Event) -> None:
        """Ask the supervisors to end the attempt when Slurm cancels the job."""
        while not ended.is_set():
            if self._stop.wait(0.2):
                with contextlib.suppress(ProvisionError):
                    ask_jobs(
                        here, "stop", Done, timeout=STOP_GRACE_SECONDS + 60, name=attempt.spec.name, id=attempt.id,
                        attempt=attempt.number, reason="cancelled in Slurm", grace=STOP_GRACE_SECONDS,
                    )  # fmt: skip
                return

    def _result(self, here: Connector, attempt: Attempt) -> Result:
        from provision.batch.reports import Report

        answer = ask_jobs(here, "report", ReportAnswer, names=[attempt.spec.name], brief=True)
        for job in Report.of(here.name, answer).jobs:
            if job.id == attempt.id and job.attempt == attempt.number and job.result is not None:
                return job.result
        raise NodeError(f"the result of attempt {attempt.number} is missing", node=here.name, remedy="Check its disk.")

    def _requeue(self, here: Connector, bad: Collection[str]) -> None:
        """Let Slurm start the next attempt, without the nodes `bad`."""
        shown = self._patiently("scontrol", "show", "job", "-o", str(self._allocation.job))
        if self._stop.is_set() or restarts_of(shown) != self._allocation.restarts:
            _print("Slurm has cancelled the job, or started its next attempt: it is not requeued")
            return
        exclude = {node.slurm for node in self._payload.nodes if node.name in bad}
        if exclude:  # the new list replaces that of the submission and of earlier failures
            exclude.update(excluded_nodes(shown))
        others = [node for node in self._payload.nodes if node.slurm not in exclude]
        if is_planned(self._spec):  # the next attempt asks for the same GPUs, by number
            others = [node for node in others if _gpu_count(node) >= max(map(_gpu_count, self._own_nodes()))]
        if not may_fit(self._spec, others, len(self._allocation.nodes)):
            exclude = set()  # the node of the failure is better than none
        any_node = is_planned(self._spec) and bool(exclude)
        self._detach(here, "retry", job=self._allocation.job, exclude=sorted(exclude), any_node=any_node)
        self._patiently("scontrol", "requeue", str(self._allocation.job))

    def _patiently(self, *words: str) -> str:
        """Return the output of a command of Slurm, empty after a cancellation; wait while slurmctld does not answer."""
        begun = time.monotonic()
        try:
            text = _command(*words)
        except NodeError:
            while (
                not self._slurm_answers() and time.monotonic() < begun + CONTROLLER_SECONDS and not self._stop.is_set()
            ):
                self._stop.wait(1)
            self._stop.wait(SETTLE_SECONDS)
            return "" if self._stop.is_set() else _command(*words)
        if time.monotonic() - begun > SLOW_SECONDS:
            self._stop.wait(SETTLE_SECONDS)
        return text

    def _slurm_answers(self) -> bool:
        try:
            _command("squeue", "-h", "-j", str(self._allocation.job), "-o", "%A")
        except NodeError:
            return False
        return True

    def _detach(self, here: Connector, title: str, **request: Any) -> None:
        """Answer a request in a unit of its own, which outlives the job in Slurm."""
        unit = f"provision-slurm-{title}-{self._allocation.job}-{self._number}"
        text = msgspec.json.encode({"do": f"slurm_{title}", **request}).decode()
        result = here.run(_detached(unit, text), timeout=_COMMAND_SECONDS)
        if result.exit_code:
            lines = result.stderr.strip().splitlines()
            cause = lines[-1][:300] if lines else f"exit {result.exit_code}"
            raise error_of(LaunchError, reason("slurm.not_detached", unit=unit, cause=cause), node=here.name)

    def _guard(self, here: Connector, attempt: Attempt) -> None:
        """Let the node stop the attempt if this process is killed."""
        from provision.node.files import start_of

        mine = os.getpid()
        self._detach(
            here, "guard", pid=mine, start=start_of(mine), name=attempt.spec.name, id=attempt.id, attempt=attempt.number
        )

    def _record_failure(self, error: ProvisionError) -> None:
        """Record in Slurm why the start failed, for the commands that show the job."""
        cause = reason("job.start_failed", error=error.code, node_name=error.node, cause=error.reason or error.message)
        with contextlib.suppress(ProvisionError):
            shown = _command("scontrol", "show", "job", "-o", str(self._allocation.job))
            if restarts_of(shown) != self._allocation.restarts:  # the next start needs the number of attempts
                return
        text = msgspec.json.encode({"reason": message(cause), **cause.as_document()})
        if len(text) > _ADMIN_COMMENT_BYTES:
            plain = reason("job.unspecified", text=error.message[:1000])
            text = msgspec.json.encode({"reason": message(plain), **plain.as_document()})
        words = ["scontrol", "update", f"JobId={self._allocation.job}", f"AdminComment={text.hex()}"]
        with contextlib.suppress(ProvisionError):
            _command(*words)


def _nodes_at_fault(result: Result) -> set[str]:
    """Return the nodes whose fault the failure of an attempt is."""
    from provision.batch.reasons import NODE_FAULTS

    nodes = result.cause.params.get("nodes") if result.cause.code in NODE_FAULTS else ()
    return {str(name) for name in (nodes if isinstance(nodes, tuple) else (nodes,))}


def _gpu_option(count: int, minors: Collection[int], least: int) -> str:
    """Return the option of srun for GPUs of a node: by type, else by number.

    Where nodes have different numbers of GPUs, a step with --gpus can wait on the node with the `least`, and Slurm
    22.05 refuses --gpus-per-node on the others if each GPU has a type.
    """
    if minors:
        return "--gres=" + ",".join(f"gpu:g{minor}:1" for minor in sorted(minors))
    return f"--gpus-per-node={count}" if count == least else f"--gpus={count}"


def _gpu_count(node: PayloadNode) -> int:
    return len(node.machine.gpus) if node.machine is not None else 0


def _detached(unit: str, request: str) -> str:
    """Return the script that answers a request in a unit of its own, which outlives the job."""
    import shlex

    from provision.node_archive import archive_path

    words = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", "sh", "-c"]
    inner = f"printf '%s\\n' {shlex.quote(request)} | python3 -I -S {archive_path()} jobs"
    return shlex.join([*words, inner])


@contextlib.contextmanager
def _renewed(connections: Connections, attempt: Attempt) -> Iterator[None]:
    """Renew the leases of an attempt during its start, which may take long."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(attempt_start.BROKEN_SECONDS / 4):
            with contextlib.suppress(ProvisionError):
                attempt_start.renew(connections, attempt)

    thread = threading.Thread(target=renew, daemon=True, name="renew")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _all(results: Sequence[Any]) -> list[Any]:
    """Return results; raise the first error."""
    for one in results:
        if isinstance(one, Exception):
            raise one
    return list(results)


def _command(*words: str) -> str:
    """Return the output of a program on this node.

    Raises:
        NodeError: it failed.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeError(f"{words[0]}: {error}"[:300]) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise NodeError(f"{words[0]}: {lines[-1] if lines else f'exit {done.returncode}'}"[:500])
    return done.stdout


def _print(line: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%S"), line, flush=True)  # noqa: T201 # this is the output of the batch job
