"""The leader's decisions: whether the job starts, continues or ends, and why."""

import time
from typing import Iterator, List, NamedTuple, Optional, Tuple

from provision.node import endings, output
from provision.node.supervisor.attempt import GO, UP
from provision.node.supervisor.messages import Message
from provision.node.supervisor.peers import Peers
from provision.node.supervisor.runtime import Document

SETTLE_SECONDS = 0.5  # time for other nodes to report a failure before the first reported one
LINE = 300  # maximum characters of each last line of mpirun that the node of the failed rank receives
OUTPUT_SECONDS = 10
LOST_LAUNCHER_SECONDS = 5  # grace time of mpirun after the loss of one of its nodes
LAUNCHER_SECONDS = 2  # time before a failure of the launcher is judged if it names no rank


class Failure(NamedTuple):
    """The end of a container that should not have ended."""

    time: float
    """By the leader's clock."""
    node: str
    container: str
    end: Document


class Judge(Peers):
    """The part of the leader's supervisor that decides, from the reports of all nodes."""

    def judge(self) -> None:
        """Decide whether the job starts, continues or ends."""
        stop = self.stop_request or next((one["stop"] for _, one in self.reports() if one.get("stop")), None)
        if stop:
            self.end(endings.stopped(stop))
            return
        failures = self.failures()
        if failures:
            self.judge_failure(failures[0])
            return
        for name, report in self.reports():
            if report.get("trouble"):
                self.end(endings.node_error(name, report["trouble"]))
                return
        for end in (self.end_of_silence, self.end_of_timeout, self.end_of_missing_node, self.success):
            document = end()
            if document:
                self.end(document)
                return
        if self.state["phase"] == UP and all(report.get("up") for _, report in self.reports()):
            self.go()

    def judge_failure(self, failure: Failure) -> None:
        """End the job by its first failure, after all nodes could report an earlier one."""
        now = time.monotonic()
        if self.settled_at is None:
            self.settled_at, self.query_sent = now + (SETTLE_SECONDS if self.peers else 0), time.time()
            self.send()
        if now < self.settled_at or not self.has_output(failure, self.settled_at + OUTPUT_SECONDS):
            return
        if any(self.peers[name].get("asked") != self.query_sent for name in self.heard):
            silence = self.end_of_silence()  # may be the cause of the failure
            if silence:
                self.end(silence)
            return
        end = self.end_of_failure(failure)
        if not self.is_of_launcher(failure) or "lines" in end or now >= self.settled_at + LAUNCHER_SECONDS:
            self.end(end)

    def reports(self) -> Iterator[Tuple[str, Message]]:
        """Yield the name and the report of each node, the leader first."""
        yield self.node, self.report()
        yield from self.peers.items()

    # Failures

    def failures(self) -> List[Failure]:
        """Return the failures in order of time.

        The launcher of mpi fails because of a worker's container, never the other way round, although its failure may
        be reported first; therefore it is last.
        """
        failures = []
        for name, report in self.reports():
            for container, end in (report.get("ended") or {}).items():
                has_failed = end.get("code") != 0 or end.get("reason")
                is_worker = self.ends_with_launcher() and not self.is_launcher(name, container)
                if not end.get("stopped") and (has_failed or is_worker):
                    when = float(end.get("time") or 0) + self.clock_offsets.get(name, 0.0)
                    failures.append(Failure(when, name, container, end))
        return sorted(failures, key=lambda failure: (self.is_of_launcher(failure), *failure[:3]))

    def ends_with_launcher(self) -> bool:
        """Return whether the end of the launcher is the end of the job (mpi)."""
        return bool(self.request["ends"] == "chief")

    def is_launcher(self, node: str, container: str) -> bool:
        """Return whether a container is the one in which the launcher runs."""
        return node == self.node and container == self.launcher_container()

    def is_of_launcher(self, failure: Failure) -> bool:
        """Return whether the launcher has failed."""
        return self.ends_with_launcher() and self.is_launcher(failure.node, failure.container)

    def launcher_container(self) -> str:
        """Return the container of this node that is started last: with mpi, the launcher's."""
        return next((item.name for item in self.runtimes if item.start_group == 2), "")

    def has_output(self, failure: Failure, deadline: float) -> bool:
        """Return whether the output is complete: docker's log has mpirun's last lines. After a deadline it is used."""
        is_complete = all(
            item.is_output_complete
            for item in self.runtimes
            if failure.node == self.node and item.name == failure.container
        )
        return is_complete or time.monotonic() > deadline

    def end_of_failure(self, failure: Failure) -> Document:
        """Return how the job ends by a container's failure."""
        _, name, container, end = failure
        if self.is_of_launcher(failure):
            of_rank = self.end_of_rank(end)
            if of_rank:
                return of_rank
        instance = self.first_instance(container, is_removed=bool(end.get("removed")))
        reason = end.get("reason") or "it ended unexpectedly"
        ranks = {one.get("instance"): one.get("rank") for one in self.assignments() if one.get("role") != "launcher"}
        rank = ranks.get(instance)
        document = endings.job_end(
            "FAILED",
            "{} on {} failed: {}".format(instance, name, reason),
            end.get("code"),
            cause=("job.instance_failed", {"instance": instance, "rank": rank, "exit_code": end.get("code")}),
        )
        document.update(first_failure=instance, first_rank=rank, signal=end.get("signal"), why=reason)
        return document

    def end_of_rank(self, end: Document) -> Optional[Document]:
        """Return how the job ends by the rank that mpirun names as failed; None if it names none."""
        launcher = self.launcher_container()
        lines = output.last_lines(next(item.log for item in self.runtimes if item.name == launcher), 400)
        failed = endings.first_of_mpirun("\n".join(lines))
        if not failed:
            return None
        assignment = endings.assignment_of_rank(self.assignments(), failed["rank"], failed["node"])
        why = endings.words_of(failed["code"], failed["signal"])
        where = " on {}".format(assignment["node"]) if assignment else ""
        instance = assignment["instance"] if assignment else self.first_instance(launcher)
        document = endings.job_end(
            "FAILED",
            "rank {}{} failed: {}".format(failed["rank"], where, why),
            end.get("code"),
            cause=(
                "job.instance_failed",
                {"instance": instance, "rank": failed["rank"], "exit_code": failed["code"]},
            ),
        )
        document.update(first_rank=failed["rank"], signal=failed["signal"], rank_code=failed["code"], why=why)
        document["first_failure"] = instance
        document["lines"] = [line[:LINE] for line in lines[-20:]]
        return document

    def first_instance(self, container: str, *, is_removed: bool = False) -> str:
        """Return the instance that represents a container: the launcher, or its rank if the container was removed."""
        inside = [one for one in self.assignments() if one.get("container") == container]
        preferred = [one for one in inside if bool(one.get("chief")) is not is_removed]
        if inside:
            return str((preferred or inside)[0]["instance"])
        runtime = next((item for item in self.runtimes if item.name == container), None)
        return str(runtime.config["instances"][0]) if runtime else container

    # Silence and time limits

    def end_of_silence(self) -> Optional[Document]:
        """Return the end if a node that has answered before is silent; if all are, this node is isolated."""
        before = self.began if self.state["phase"] == GO else time.monotonic()
        silent = {name: time.monotonic() - self.heard.get(name, before) for name in self.peers}
        lost = next((name for name in self.peers if silent[name] > self.lost), None)
        if lost is None:
            return None
        least = min(silent.values())
        isolated = self.isolation_error(silence=least if least > self.lost - 2 * self.beat else 0.0)
        grace = self.grace_without_node()
        if isolated:
            return endings.node_isolated(self.node, isolated, grace=grace)
        message = "node {} does not answer: nothing was heard of it for {:.0f} s".format(lost, silent[lost])
        return endings.node_silent(lost, message, silent[lost], grace=grace)

    def grace_without_node(self) -> Optional[float]:
        """Return the grace time after the loss of a node: mpirun only waits for its part there."""
        grace = float(self.request.get("grace_seconds") or 0)
        return min(grace, LOST_LAUNCHER_SECONDS) if self.ends_with_launcher() else None

    def end_of_missing_node(self) -> Optional[Document]:
        """Return the end if a node's supervisor was never started: the command that starts them was interrupted."""
        elapsed = time.monotonic() - max(self.state["began"], self.began)
        if self.state["phase"] == GO or elapsed < self.join_timeout():
            return None
        name = next((name for name in self.peers if name not in self.heard), None)
        return endings.broken_off(name) if name else None

    def end_of_timeout(self) -> Optional[Document]:
        """Return the end if the start or the run takes too long."""
        now, starting = time.monotonic(), float(self.request.get("starting_timeout") or 0)
        running = float(self.request.get("running_timeout") or 0)
        if self.state["go"] is None and starting and now - self.state["began"] > starting:
            return self.end_of_start(starting)
        if self.state["go"] is not None and running and now - self.state["go"] > running:
            message = "it ran for longer than {:.0f} s (running_timeout)".format(running)
            cause = ("job.running_timeout", {"seconds": round(running)})
            return endings.job_end("FAILED", message, cause=cause)
        return None

    def end_of_start(self, limit: float) -> Document:
        """Return the end because some nodes were not ready within a time limit."""
        late = [(name, report) for name, report in self.reports() if not report.get("up")]
        name, report = late[0] if late else (self.node, {})
        activity = report.get("doing") or ("" if report else "it was not heard of")
        more = " (and {} more)".format(len(late) - 1) if late[1:] else ""
        reason = "node {}{} was not ready within {:.0f} s (starting_timeout)".format(name, more, limit)
        params = {"nodes": [one for one, _ in late] or [name], "seconds": round(limit), "activity": activity}
        message = "{}: {}".format(reason, activity) if activity else reason
        return endings.job_end("FAILED", message, cause=("job.starting_timeout", params))

    def success(self) -> Optional[Document]:
        """Return the end if the launcher, or all instances, have succeeded."""
        if self.state["phase"] != GO:
            return None
        if self.ends_with_launcher():
            is_complete = self.launcher_container() in self.state["ended"]
        else:
            is_complete = all(report.get("over") for _, report in self.reports())
        return endings.job_end("SUCCEEDED", "", 0) if is_complete else None
