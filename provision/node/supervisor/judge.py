"""What the chief's keeper decides: whether the job starts, goes on or ends, and by what."""

import time

from provision.node import endings, output
from provision.node.supervisor.records import GO, UP

SETTLE_SECONDS = 0.5  # so long other nodes may tell of a failure that came before the first that we heard of
LINE = 300  # so much of each last line of mpirun is told to the node of the rank that it names
OUTPUT_SECONDS = 10
LOST_LAUNCHER_SECONDS = 5  # mpirun has so long to end when a node of its is gone
LAUNCHER_SECONDS = 2  # a failure waits so long where the launcher failed and names no rank


class Judge:
    """The part of a keeper that decides, from what all nodes tell."""

    def judge(self):
        """Decide whether the job starts, goes on or ends."""
        if self.stop_asked:
            return self.end(endings.stopped(self.stop_asked))
        for _, told in self.everybody():
            if told.get("stop"):
                return self.end(endings.stopped(told["stop"]))
        failures = self.failures()
        if failures:
            return self.of_first(failures[0])
        for name, told in self.everybody():
            if told.get("trouble"):
                return self.end(endings.node_error(name, told["trouble"]))
        return self.lost_node() or self.too_long() or self.never_came() or self.success() or self.begin()

    def of_first(self, failure):
        """End the job by its first failure, when others had the time to tell of an earlier one."""
        now = time.monotonic()
        if self.settled_at is None:
            self.settled_at, self.asking = now + (SETTLE_SECONDS if self.others else 0), time.time()
            self.tell()
        if now < self.settled_at or not self.is_told(failure):
            return None
        if any(self.others[name].get("asked") != self.asking for name in self.heard):
            return self.lost_node()  # whose end may be why others failed
        end = self.of_failure(failure)
        if self.is_of_launcher(failure) and "lines" not in end and now < self.settled_at + LAUNCHER_SECONDS:
            return None
        return self.end(end)

    def is_of_launcher(self, failure):
        """Return whether it is the launcher that failed."""
        _, name, box, _ = failure
        return self.told["ends"] == "chief" and name == self.node and box == self.chief_container()

    def everybody(self):
        """Yield each node's name and what it told, our own first."""
        yield self.node, self.telling()
        yield from self.others.items()

    def failures(self):
        """Return the containers that have failed by themselves, the first by our clock first.

        The launcher of mpi ends because of a worker's container, never the other way round, and may be heard of first.
        """
        found = []
        chief_box = self.chief_container()
        for name, told in self.everybody():
            for box, ended in (told.get("ended") or {}).items():
                by_itself = ended.get("code") != 0 or ended.get("reason")
                worker = self.told["ends"] == "chief" and not (name == self.node and box == chief_box)
                if not ended.get("stopped") and (by_itself or worker):
                    when = float(ended.get("time") or 0) + self.offsets.get(name, 0.0)
                    found.append((when, name, box, ended))
        return sorted(found, key=lambda item: (self.is_of_launcher(item), *item[:3]))

    def chief_container(self):
        """Return the name of the container whose end is the job's, where one alone counts."""
        return next((item.name for item in self.containers if item.config.get("phase") != 1), "")

    def is_told(self, failure):
        """Return whether all is there that a failure is judged by: mpirun's last words come by docker's log."""
        _, name, box, _ = failure
        here = next((item for item in self.containers if name == self.node and item.name == box), None)
        return here is None or here.drained or time.monotonic() > self.settled_at + OUTPUT_SECONDS

    def of_failure(self, failure):
        """Return how the job ends by a container's failure."""
        _, name, box, ended = failure
        if self.is_of_launcher(failure):
            found = self.of_mpirun(ended)
            if found:
                return found
        instance = self.first_instance(box, removed=bool(ended.get("removed")))
        reason = ended.get("reason") or "it ended by itself, which it should not"
        ranks = {seat.get("instance"): seat.get("rank") for seat in self.seats() if seat.get("role") != "launcher"}
        rank = ranks.get(instance)
        found = endings.job_end(
            "FAILED",
            "{} on {} failed: {}".format(instance, name, reason),
            ended.get("code"),
            cause=("job.instance_failed", {"instance": instance, "rank": rank, "exit_code": ended.get("code")}),
        )
        found.update(first_failure=instance, first_rank=rank, signal=ended.get("signal"), why=reason)
        return found

    def of_mpirun(self, ended):
        """Return how the job ends by what mpirun says of a rank; None where it says nothing."""
        container = next(item for item in self.containers if item.name == self.chief_container())
        lines = output.last_lines(container.log, 400)
        said = endings.first_of_mpirun("\n".join(lines))
        if not said:
            return None
        seat = endings.assignment_of_rank(self.seats(), said["rank"], said["node"])
        why = endings.words_of(said["code"], said["signal"])
        where = " on {}".format(seat["node"]) if seat else ""
        instance = seat["instance"] if seat else self.first_instance(container.name)
        found = endings.job_end(
            "FAILED",
            "rank {}{} failed: {}".format(said["rank"], where, why),
            ended.get("code"),
            cause=("job.instance_failed", {"instance": instance, "rank": said["rank"], "exit_code": said["code"]}),
        )
        found.update(first_rank=said["rank"], signal=said["signal"], rank_code=said["code"], why=why)
        found["first_failure"] = instance
        found["lines"] = [line[:LINE] for line in lines[-20:]]
        return found

    def seats(self):
        """Return the seats of all instances."""
        return [seat for seat in self.record.get("seats") or () if isinstance(seat, dict)]

    def first_instance(self, box, *, removed=False):
        """Return the instance that a container is told by: the launcher, unless the container is gone with its rank."""
        inside = [seat for seat in self.seats() if seat.get("container") == box]
        chief = next((seat for seat in inside if bool(seat.get("chief")) is not removed), None)
        own = next((item.config["instances"][0] for item in self.containers if item.name == box), box)
        return chief["instance"] if chief else inside[0]["instance"] if inside else own

    def lost_node(self):
        """End the job where a node that has spoken is silent; where all are, it is this one that is cut off."""
        before = self.born if self.state["phase"] == GO else time.monotonic()
        silent = {name: time.monotonic() - self.heard.get(name, before) for name in self.others}
        lost = next((name for name in self.others if silent[name] > self.lost), None)
        if lost is None:
            return None
        least = min(silent.values())
        isolated = self.why_cut_off(alone=least if least > self.lost - 2 * self.beat else 0.0)
        grace = self.grace_without_a_node()
        if isolated:
            return self.end(endings.node_isolated(self.node, isolated, grace=grace))
        message = "node {} does not answer: nothing was heard of it for {:.0f} s".format(lost, silent[lost])
        return self.end(endings.node_silent(lost, message, silent[lost], grace=grace))

    def grace_without_a_node(self):
        """Return the grace time where a node is gone: mpirun waits in vain for its part there, and has no other use."""
        whole = float(self.told.get("grace_seconds") or 0)
        return min(whole, LOST_LAUNCHER_SECONDS) if self.told["ends"] == "chief" else None

    def never_came(self):
        """End the job where a node's keeper does not come at all: whoever started them was ended in between."""
        if self.state["phase"] == GO or time.monotonic() - max(self.state["began"], self.born) < self.coming():
            return None
        name = next((name for name in self.others if name not in self.heard), None)
        return name and self.end(endings.broken_off(name))

    def too_long(self):
        """End the job where it takes too long to start, or to run."""
        now, starting = time.monotonic(), float(self.told.get("starting_timeout") or 0)
        running = float(self.told.get("running_timeout") or 0)
        if self.state["go"] is None and starting and now - self.state["began"] > starting:
            late = [(name, told) for name, told in self.everybody() if not told.get("up")]
            name, told = late[0] if late else (self.node, {})
            doing = told.get("doing") or ("it was not heard of" if not told else "")
            more = " (and {} more)".format(len(late) - 1) if late[1:] else ""
            reason = "node {}{} was not ready within {:.0f} s (starting_timeout)".format(name, more, starting)
            params = {"nodes": [one for one, _ in late] or [name], "seconds": round(starting), "activity": doing}
            return self.end(
                endings.job_end(
                    "FAILED",
                    "{}: {}".format(reason, doing) if doing else reason,
                    cause=("job.starting_timeout", params),
                )
            )
        if self.state["go"] is not None and running and now - self.state["go"] > running:
            message = "it ran for longer than {:.0f} s (running_timeout)".format(running)
            cause = ("job.running_timeout", {"seconds": round(running)})
            return self.end(endings.job_end("FAILED", message, cause=cause))
        return None

    def success(self):
        """End the job where all that counts has ended well."""
        if self.state["phase"] != GO:
            return None
        if self.told["ends"] == "chief":
            over = self.chief_container() in self.state["ended"]
        else:
            over = all(told.get("over") for _, told in self.everybody())
        return self.end(endings.job_end("SUCCEEDED", "", 0)) if over else None

    def begin(self):
        """Let the job go when all nodes are ready."""
        if self.state["phase"] == UP and all(told.get("up") for _, told in self.everybody()):
            self.go()
