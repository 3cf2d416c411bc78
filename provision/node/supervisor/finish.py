"""How a keeper ends its part of a job: SIGTERM, the grace time, SIGKILL, and nothing is left."""

import os
import time

from provision.node import files as node_files
from provision.node.jobs import leases as node_leases
from provision.node.jobs import records as node_records
from provision.node.supervisor.records import END

GONE_SECONDS = 5  # docker has so long to tell of what is gone
MARGIN_SECONDS = 2  # a container takes so long to end after SIGKILL
KILL_SECONDS = 60  # what does not end after SIGKILL for so long is left, and said


class Finish:
    """The part of a keeper that ends what runs, and takes away what is left."""

    def step(self):
        """Go on with ending: SIGTERM, the grace time, SIGKILL, then all that is to be written down and taken away."""
        if self.state["phase"] != END or (self.worker is not None and self.worker.is_alive()) or self.news:
            return
        now = time.monotonic()
        if self.ending_since is None:
            self.ending_since = now
            for container in self.containers:
                if self.runs(container):
                    container.terminate()
        if self.still_runs(now):
            return
        self.quiet_since = self.quiet_since or now
        patience = GONE_SECONDS if self.terminated else KILL_SECONDS
        if all(item.drained for item in self.containers) or now - self.quiet_since > patience:
            self.finish()

    def still_runs(self, now):
        """Return whether anything runs that can still be ended, and do what its time asks for."""
        running = [item for item in self.containers if self.runs(item)]
        for container in running:
            container.insist()
        grace = self.state["end"].get("grace")
        grace = float(self.told.get("grace_seconds") or 0) if grace is None else float(grace)
        if not running or now - self.ending_since < grace:
            return bool(running)
        if self.killed_since is None:
            self.killed_since = now
            for container in running:
                container.kill()
        for container in running:
            if container.is_gone() and now - self.killed_since > GONE_SECONDS:
                container.give_up()
        return now - self.killed_since <= KILL_SECONDS

    def runs(self, container):
        """Return whether a container was started and its end is not known here."""
        return container.watched and container.name not in self.state["ended"]

    def finish(self):
        """Write down how it ended here and leave nothing; the chief waits for the others before."""
        patience = float(self.told.get("grace_seconds") or 0) + self.lost + 20
        waiting = [name for name, told in self.others.items() if not told.get("done")] if self.chief else []
        certain = self.certain_after()
        silent = [name for name in waiting if time.monotonic() - self.heard.get(name, self.born) > certain]
        if not self.state.get("done"):
            self.clear()
        if self.chief and set(waiting) - set(silent) and time.monotonic() - self.ending_since < patience:
            return
        if not self.chief and self.line is not None and not self.acknowledged:
            heard = self.heard_chief or self.born
            if time.monotonic() - heard < certain and time.monotonic() - self.ending_since < patience:
                return
        self.close()

    def certain_after(self):
        """Return the silence after which the part of another node has ended: it ends its part when it hears nobody.

        A result that is written earlier would report an end while the other node is in its grace time. Whoever stops a
        job waits for the confirmation of each node, and for no result.
        """
        if self.state["go"] is None or self.state["end"].get("status") == "STOPPED":
            return self.lost
        return self.lost + float(self.told.get("grace_seconds") or 0) + 2 * self.beat + MARGIN_SECONDS

    def clear(self):
        """Conclude all instances, and take away the containers and the leases."""
        for container in self.containers:
            self.conclude(container)
        clean = self.told.get("clean") or "None"
        alive = [item.name for item in self.containers if self.runs(item)]
        for container in self.containers:
            ended = self.state["ended"].get(container.name)
            if container.id and (clean == "All" or (clean == "Running" and (not ended or ended["stopped"]))):
                container.take_away()
        if alive:
            self.event("{} could not be ended".format(", ".join(alive)), "Warning")
        elif not any(self.may_run(item) for item in self.containers):
            self.release()
        self.state["done"] = True
        self.save()
        self.tell()

    def may_run(self, container):
        """Return whether a container may run, whose end is not known here; its GPUs are in use then."""
        return container.name not in self.state["ended"] and container.may_run()

    def release(self):
        """Give back the leases; what stays is given back by the next command that looks, as the attempt is over."""
        try:
            node_leases.release_all(self.told["name"], self.told["id"], self.told["attempt"])
        except (node_files.Refused, OSError) as problem:
            self.event("its leases could not be given back yet: {}".format(problem), "Warning")

    def close(self):
        """Write the result, and take away what was secret."""
        end = self.state["end"]
        names = ("status", "reason", "code", "params", "exit_code", "first_failure", "first_rank")
        result = dict({name: end.get(name) for name in names}, ended=time.time(), chief=self.chief)
        result["first_failure"] = result["first_failure"] or ""
        self.write("result.json", result)
        if self.unwritten:
            return
        words = {"SUCCEEDED": "the job succeeded", "STOPPED": "the job was stopped"}.get(
            end["status"], "the job failed"
        )
        if self.chief:
            text = "{}: {}".format(words, end["reason"]) if end["reason"] else words
            self.event(text, "Warning" if end["status"] == "FAILED" else "Normal")
            self.tell()
        self.forget_secrets(end["status"])
        node_files.remove(
            os.path.join(node_records.UNIT_FILES, node_records.unit_name(self.name, self.told["attempt"]))
        )
        node_records.remove_secrets(self.folder)
        self.done = True

    def forget_secrets(self, status):
        """Take the job's secrets away where they are kept, unless it may be tried again."""
        folder = node_records.job_folder(self.name)
        waits = node_files.read_json(os.path.join(folder, "queue.json"))
        tries = int(waits.get("retry") or 0) - int(waits.get("failures") or 0)
        if status != "FAILED" or (tries <= 0 and not self.state["end"].get("broken_off")):
            node_files.remove(os.path.join(folder, "secrets.json"))
