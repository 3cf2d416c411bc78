"""The end of an attempt on this node: SIGTERM, the grace time, SIGKILL, and the removal of everything that is left."""

import os
import time

from provision.node import files as node_files
from provision.node.jobs import leases as node_leases
from provision.node.jobs import records as node_records
from provision.node.supervisor.attempt import END
from provision.node.supervisor.peers import Peers
from provision.node.supervisor.records import InstanceRecords
from provision.node.supervisor.runtime import Runtime

GONE_SECONDS = 5  # time for docker to report the end of a container whose process has ended
MARGIN_SECONDS = 2  # time for a container to end after SIGKILL
KILL_SECONDS = 60  # after this time, what does not end after SIGKILL is left and recorded


class Finish(Peers, InstanceRecords):
    """The part of a job supervisor that ends the instances, and removes what is left."""

    def continue_end(self) -> None:
        """Do the next step of the end: SIGTERM, the grace time, SIGKILL, then the records and the removal."""
        if self.state["phase"] != END or (self.worker is not None and self.worker.is_alive()) or self.events:
            return
        now = time.monotonic()
        if self.ending_since is None:
            self.ending_since = now
            for runtime in self.runtimes:
                if self.is_running(runtime):
                    runtime.terminate()
        if self.has_running(now, self.ending_since):
            return
        self.quiet_since = self.quiet_since or now
        patience = GONE_SECONDS if self.is_terminated else KILL_SECONDS
        if all(item.is_output_complete for item in self.runtimes) or now - self.quiet_since > patience:
            self.finish(self.ending_since)

    def has_running(self, now: float, ending_since: float) -> bool:
        """Return whether something runs that can still be ended; send it the next signal when its time has come."""
        running = [item for item in self.runtimes if self.is_running(item)]
        for runtime in running:
            runtime.repeat_termination()
        grace = self.state["end"].get("grace")
        grace = float(self.request.get("grace_seconds") or 0) if grace is None else float(grace)
        if not running or now - ending_since < grace:
            return bool(running)
        if self.killed_since is None:
            self.killed_since = now
            for runtime in running:
                runtime.kill()
        for runtime in running:
            if runtime.is_gone() and now - self.killed_since > GONE_SECONDS:
                runtime.give_up()
        return now - self.killed_since <= KILL_SECONDS

    def finish(self, ending_since: float) -> None:
        """Record the end on this node and remove everything; the leader waits for the other nodes first."""
        patience = float(self.request.get("grace_seconds") or 0) + self.lost + 20
        waiting = [name for name, report in self.peers.items() if not report.get("done")] if self.is_leader else []
        limit = self.silence_limit()
        silent = [name for name in waiting if time.monotonic() - self.heard.get(name, self.began) > limit]
        if not self.state.get("done"):
            self.clear()
        if self.is_leader and set(waiting) - set(silent) and time.monotonic() - ending_since < patience:
            return
        if not self.is_leader and self.channel is not None and not self.is_acknowledged:
            heard = self.leader_heard or self.began
            if time.monotonic() - heard < limit and time.monotonic() - ending_since < patience:
                return
        self.close()

    def silence_limit(self) -> float:
        """Return the silence after which the part of another node has ended: it ends its part when it hears no node.

        A result that is written earlier would report an end while the other node is in its grace time. A command that
        stops a job waits for the confirmation of each node, and for no result.
        """
        if self.state["go"] is None or self.state["end"].get("status") == "STOPPED":
            return self.lost
        return self.lost + float(self.request.get("grace_seconds") or 0) + 2 * self.beat + MARGIN_SECONDS

    def clear(self) -> None:
        """Complete the records of all instances, and remove the containers and the leases."""
        for runtime in self.runtimes:
            self.complete_records(runtime)
        clean = self.request.get("clean") or "None"
        alive = [item.name for item in self.runtimes if self.is_running(item)]
        for runtime in self.runtimes:
            ended = self.state["ended"].get(runtime.name)
            if runtime.id and (clean == "All" or (clean == "Running" and (not ended or ended["stopped"]))):
                runtime.remove()
        if alive:
            self.add_event("{} could not be ended".format(", ".join(alive)), "Warning")
        elif not any(self.may_run(item) for item in self.runtimes):
            self.release()
        self.state["done"] = True
        self.save()
        self.send()

    def may_run(self, runtime: Runtime) -> bool:
        """Return whether a runtime without a known end may be running; then its GPUs are in use."""
        return runtime.name not in self.state["ended"] and runtime.may_run()

    def release(self) -> None:
        """Release the leases; after an error, the next command that checks leases releases them."""
        try:
            node_leases.release_all(self.request["name"], self.request["id"], self.request["attempt"])
        except (node_files.Refused, OSError) as problem:
            self.add_event("its leases could not be released yet: {}".format(problem), "Warning")

    def close(self) -> None:
        """Write the result, and remove the secrets."""
        end = self.state["end"]
        names = ("status", "reason", "code", "params", "exit_code", "first_failure", "first_rank")
        result = {name: end.get(name) for name in names}
        result.update({"ended": time.time(), "chief": self.is_leader, "first_failure": end.get("first_failure") or ""})
        self.write("result.json", result)
        if self.unwritten:
            return
        if self.is_leader:
            words = {"SUCCEEDED": "the job succeeded", "STOPPED": "the job was stopped"}
            word = words.get(end["status"], "the job failed")
            text = "{}: {}".format(word, end["reason"]) if end["reason"] else word
            self.add_event(text, "Warning" if end["status"] == "FAILED" else "Normal")
            self.send()
        self.remove_job_secrets(end["status"])
        node_files.remove(
            os.path.join(node_records.UNIT_FILES, node_records.unit_name(self.name, self.request["attempt"]))
        )
        node_records.remove_secrets(self.folder)
        self.is_done = True

    def remove_job_secrets(self, status: str) -> None:
        """Remove the secrets of the job from this node, unless it may be retried."""
        folder = node_records.job_folder(self.name)
        queue = node_files.read_json(os.path.join(folder, "queue.json"))
        retries = int(queue.get("retry") or 0) - int(queue.get("failures") or 0)
        if status != "FAILED" or (retries <= 0 and not self.state["end"].get("broken_off")):
            node_files.remove(os.path.join(folder, "secrets.json"))
