"""Jobs and nodes as Slurm reports them, and why a job waits there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from provision.batch.slurm.hostlist import MOST_NAMES, expand
from provision.documents.text import printable_line
from provision.errors import InvalidDocument
from provision.model.reason import NO_REASON, Reason, reason

SEPARATOR = "\x1f"
ROOT = "0"
_COMMENT = re.compile(r"provision:([a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?)@([A-Za-z0-9][A-Za-z0-9_.-]{0,127})")
_HOLDER = re.compile(r"provision(?:-run)?:([A-Za-z0-9][A-Za-z0-9_.-]{0,199})(?:@.*)?")
_STATE = re.compile(r"[A-Z][A-Z_]{0,30}")
_JOB_FIELDS, _NODE_FIELDS = 13, 6
_NODES_FIELD = 9
_PLACED = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_GPUS = re.compile(r"gpu(?::[A-Za-z0-9_.-]+)?:([0-9]{1,5})(?:\(|,|$)")
_USED = re.compile(r"gpu(?::(?:g([0-9]{1,4})|[A-Za-z0-9_.-]+))?:([0-9]{1,4})\(IDX:([0-9,N/A-]*)\)")
_TYPES = re.compile(r"gpu:g([0-9]{1,5}):1(?=\(|,|$)")
_ATTEMPTS = re.compile(r'\{"attempts": ([0-9]{1,6})\}')
_MOST_GPUS = 1024
_LINES = 200_000
_MOST_PLACES = 4_000_000
"""Names of nodes of all jobs together: a short compressed list can have very many."""
_DIGITS = 11

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"})
COMPLETING = "COMPLETING"
ACTIVE = frozenset({"RUNNING", "CONFIGURING", COMPLETING, "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"})
"""Other states are those of jobs that have ended."""
HELD = frozenset({"JobHeldUser", "JobHeldAdmin"})
_HELD_AGAIN = re.compile(r"requeued (in )?held")
"""Slurm's words after a failed start, such as ``launch failed requeued held``."""


@dataclass(frozen=True)
class SlurmJob:
    """A job of ours in Slurm."""

    number: int
    name: str
    id: str
    state: str
    pending_reason: str = ""
    """Slurm's word for why it waits or how it ended."""
    restarts: int = 0
    started: float = 0.0
    ended: float = 0.0
    partition: str = ""
    nodes: tuple[str, ...] = ()
    """Without those whose epilog has ended, if the job is COMPLETING."""
    required_nodes: tuple[str, ...] = ()
    """The nodes that were chosen at the submission, for a job with --gputopology."""
    required_minors: frozenset[int] = frozenset()
    """The minor numbers of the GPUs that were chosen on each of them."""

    @property
    def awaits_nodes(self) -> bool:
        """Whether the job waits for nothing but free nodes and GPUs."""
        waits = self.pending_reason in _FOR_NODES or _NODES.match(self.pending_reason)
        return self.state == "PENDING" and not self.is_held and bool(waits)

    @property
    def is_held(self) -> bool:
        """Whether the job waits until it is released, also after a failed start."""
        held = self.pending_reason in HELD or _HELD_AGAIN.search(self.pending_reason.replace("_", " ").lower())
        return self.state in WAITING and bool(held)

    @property
    def has_ended(self) -> bool:
        """Whether Slurm has finished the job."""
        return self.state not in WAITING | ACTIVE


@dataclass(frozen=True)
class SlurmNodeState:
    """A node in Slurm."""

    name: str
    state: str
    """Lower case, with suffixes such as ``+drain``."""
    gres: str = ""
    gres_used: str = ""
    reason: str = ""

    @property
    def problem(self) -> Reason:
        """Why the node takes no jobs; `NO_REASON` if it does."""
        words = set(re.split(r"[+*~#!%$@^-]", self.state.lower()))
        if words & {"drain", "drained", "draining"}:
            return reason("slurm.node_drained", cause=self.reason)
        if (
            words & {"down", "fail", "failing", "error", "unknown", "future", "power", "powered", "not"}
            or "*" in self.state
        ):
            return reason("slurm.node_down", state=self.state, cause=self.reason)
        if words & {"reserved", "maint"}:
            return reason("slurm.node_reserved", state=self.state)
        return NO_REASON


def our_jobs(text: str) -> dict[str, SlurmJob]:
    """Return the newest job in Slurm of each of our jobs, by ID, from the same text as `all_our_jobs`."""
    return newest_jobs(all_our_jobs(text))


def newest_jobs(jobs: Iterable[SlurmJob]) -> dict[str, SlurmJob]:
    """Return the newest job in Slurm of each of our jobs, by ID."""
    return {job.id: job for job in sorted(jobs, key=lambda job: job.number)}


def all_our_jobs(text: str, account: str = ROOT) -> list[SlurmJob]:
    """Return our jobs in Slurm, several of an ID after a restart; other jobs of the account (a UID) are ignored.

    Raises:
        InvalidDocument: a line does not have the requested fields, or the jobs have too many nodes.
    """
    jobs: list[SlurmJob] = []
    left = _MOST_PLACES
    for values in _rows(text, _JOB_FIELDS, "squeue"):
        number, user, state, why, restarts, _, started, ended, partition, nodes, required, gres, comment = values
        match = _COMMENT.fullmatch(comment)
        if user != account or match is None:
            continue
        if not number.isdecimal() or not restarts.isdecimal() or not _STATE.fullmatch(state):
            raise InvalidDocument(f"squeue: invalid line of job {number!r:.80}", remedy="Check the output of squeue.")
        cause, times = printable_line(why)[:500], (_time(started), _time(ended))
        named, placed = (int(number), match[1], match[2]), tuple(expand(nodes, min(left, MOST_NAMES)))
        left -= len(placed)
        chosen = tuple(expand(required, min(left, MOST_NAMES)))
        left -= len(chosen)
        job = SlurmJob(*named, state, cause, int(restarts), *times, partition, placed)
        jobs.append(replace(job, required_nodes=chosen, required_minors=gpu_types(gres)))
    return jobs


def holders(text: str) -> dict[str, list[str]]:
    """Return Slurm node -> our jobs and programs that are active there, from the same text as `our_jobs`."""
    by_node: dict[str, list[str]] = {}
    left = _MOST_PLACES
    for values in _rows(text, _JOB_FIELDS, "squeue"):
        match = _HOLDER.fullmatch(values[-1])
        if values[1] == ROOT and match is not None and values[2] in ACTIVE:
            names = expand(values[_NODES_FIELD], min(left, MOST_NAMES))
            left -= len(names)
            for name in names:
                by_node.setdefault(name, []).append(match[1])
    return by_node


def node_states(text: str) -> dict[str, SlurmNodeState]:
    """Return the nodes of Slurm by name, each once."""
    states = {}
    for name, state, gres, used, _, why in _rows(text, _NODE_FIELDS, "sinfo"):
        cause = "" if why in {"none", "(null)"} else printable_line(why)[:500]
        states[name] = SlurmNodeState(name, state, gres, used, cause)
    return states


def _rows(text: str, fields: int, program: str) -> Iterator[list[str]]:
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > _LINES:
        raise InvalidDocument(
            f"{program}: {len(lines)} lines, limit {_LINES}", remedy=f"Check the output of {program}."
        )
    for line in lines:
        values = line.split(SEPARATOR)
        if len(values) != fields + 1:
            raise InvalidDocument(
                f"{program}: a line has {len(values) - 1} fields instead of {fields}",
                remedy=f"Check the output of {program}.",
            )
        yield [value.strip() for value in values[:-1]]


def _time(text: str) -> float:
    return float(text) if text.isdecimal() and len(text) <= _DIGITS else 0.0


def gpu_counts(text: str) -> dict[str, int]:
    """Return Slurm node -> number of GPUs of a job, from ``scontrol show job -d -o``."""
    counts: dict[str, int] = {}
    for nodes, gres in _PLACED.findall(text):
        count = gpu_count(gres)
        for name in expand(nodes):
            counts[name] = counts.get(name, 0) + count
    return counts


def gpu_count(gres: str) -> int:
    """Return the number of GPUs of a node, from its field Gres."""
    return sum(int(number) for number in _GPUS.findall(gres))


def allocated_minors(text: str) -> dict[str, set[int]]:
    """Return Slurm node -> minor numbers of a job's GPUs with a type of their own, from ``scontrol show job -d -o``."""
    minors: dict[str, set[int]] = {}
    for nodes, gres in _PLACED.findall(text):
        for name in expand(nodes):
            minors.setdefault(name, set()).update(gpu_types(gres))
    return minors


def gpu_types(gres: str) -> frozenset[int]:
    """Return the minor numbers of GPUs that have a type of their own (g0, g1, ...), of a node or of a request."""
    return frozenset(int(number) for number in _TYPES.findall(gres))


def excluded_nodes(text: str) -> list[str]:
    """Return the nodes in Slurm that a job must not get, from ``scontrol show job``."""
    match = re.search(r" ExcNodeList=(\S+)", text)
    return list(expand(match[1])) if match and match[1] != "(null)" else []


def restarts_of(text: str) -> int:
    """Return how often Slurm has requeued a job, from ``scontrol show job``; -1 if the text does not have it."""
    match = re.search(r" Restarts=([0-9]{1,9})(?: |$)", text, re.MULTILINE)
    return int(match[1]) if match else -1


def admin_comment(text: str) -> str:
    """Return the hexadecimal text that the starter recorded in Slurm, from ``scontrol show job``; empty without."""
    match = re.search(r" AdminComment=((?:[0-9a-f]{2}){1,10000})(?: |$)", text, re.MULTILINE)
    return match[1] if match else ""


def attempts_comment(count: int) -> str:
    """Return the hexadecimal text that records how many attempts of a job have begun."""
    return f'{{"attempts": {count}}}'.encode().hex()


def attempts_begun(text: str) -> int:
    """Return how many attempts of a job have begun, from ``scontrol show job``; 0 without a record.

    Slurm's own number of restarts also counts starts that led to no attempt.
    """
    match = _ATTEMPTS.fullmatch(bytes.fromhex(admin_comment(text)).decode("ascii", "replace"))
    return int(match[1]) if match else 0


def used_minors(gres_used: str) -> frozenset[int]:
    """Return the minor numbers of the GPUs that Slurm has allocated on a node, from the field GresUsed of sinfo.

    With a type for each GPU (g0, g1, ...), the type has the number. Else it is the index in gres.conf, where GPUs are
    in the order of their minor numbers. Spans beyond the GPUs of one node are ignored.
    """
    minors: set[int] = set()
    left = _MOST_GPUS + 1
    for kind, count, indices in _USED.findall(gres_used):
        if kind:
            minors |= {int(kind)} if int(count) else set()
        else:
            for span in indices.split(","):
                first, _, last = span.partition("-")
                if len(span) <= 2 * _DIGITS and first.isdecimal() and (not last or last.isdecimal()):
                    listed = range(int(first), min(int(last or first), _MOST_GPUS) + 1)[:left]
                    left -= len(listed)
                    minors.update(listed)
    return frozenset(minors)


def tasks_per_node(text: str, limit: int = 100_000) -> list[int]:
    """Return the numbers of tasks in ``SLURM_TASKS_PER_NODE``, such as ``2(x3),1``.

    Raises:
        InvalidDocument: the text has another form.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if match is None or len(counts) + int(match[2] or 1) > limit:
            raise InvalidDocument(f"SLURM_TASKS_PER_NODE: invalid or too long: {text!r:.120}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


# Why a job waits

_WHY = {
    "None": "slurm.waits",
    "Resources": "slurm.resources",
    "Priority": "slurm.priority",
    "Dependency": "slurm.dependency",
    "DependencyNeverSatisfied": "slurm.dependency_failed",
    "JobHeldUser": "slurm.held",
    "JobHeldAdmin": "slurm.held_admin",
    "BeginTime": "slurm.begin_time",
    "Reservation": "slurm.reservation",
    "Prolog": "slurm.prolog",
    "Cleaning": "slurm.cleaning",
    "PartitionDown": "slurm.partition_down",
    "PartitionInactive": "slurm.partition_down",
    "PartitionTimeLimit": "slurm.partition_limit",
    "PartitionNodeLimit": "slurm.partition_limit",
    "Licenses": "slurm.licenses",
}
_FOR_NODES = frozenset({"None", "Resources", "Priority", "BeginTime"})
_NODES = re.compile(r"(ReqNodeNotAvail|Nodes required for job|NodeDown|BadConstraints)", re.IGNORECASE)
_LIMITS = re.compile(r"(QOS|Assoc|MaxJobs|JobArray|Account|Max|Grp)[A-Za-z]*")


def waiting_reason(job: SlurmJob) -> Reason:
    """Return why a job waits in Slurm. A reason that is not known is passed on in Slurm's words."""
    code = _WHY.get(job.pending_reason)
    if code is not None:
        return reason(code, partition=job.partition)
    if job.is_held:
        return reason("slurm.held_admin")
    if _NODES.match(job.pending_reason):
        return reason("slurm.nodes_unavailable", cause=job.pending_reason)
    if _LIMITS.fullmatch(job.pending_reason):
        return reason("slurm.limit", cause=job.pending_reason)
    return reason("slurm.other", cause=job.pending_reason)


_REFUSALS = (
    (
        "slurm.never_nodes",
        re.compile(r"Requested node configuration is not available|Node count specification invalid"),
    ),
    ("slurm.never_memory", re.compile(r"Memory (required|specification)", re.IGNORECASE)),
    ("slurm.never_feature", re.compile(r"Invalid feature specification")),
    ("slurm.never_gres", re.compile(r"Invalid generic resource|gres", re.IGNORECASE)),
    ("slurm.never_partition", re.compile(r"[Ii]nvalid partition|partition")),
    ("slurm.never_limit", re.compile(r"time limit|violates accounting/QOS policy|Association", re.IGNORECASE)),
)


def refusal(text: str) -> Reason:
    """Return why sbatch refused a job: it could never start."""
    said = next((line for line in reversed(text.strip().splitlines()) if line.strip()), "sbatch failed")
    said = printable_line(said.removeprefix("sbatch: ").removeprefix("error: ")).strip()[:500]
    for code, pattern in _REFUSALS:
        if pattern.search(text):
            return reason(code, cause=said)
    return reason("slurm.refused", cause=said)
