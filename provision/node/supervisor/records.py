"""What a keeper writes down of an attempt and its instances."""

import os
import time

from provision.node import files as node_files
from provision.node import output
from provision.node.jobs import records as node_records

WRITE_SECONDS = 1  # so often what could not be written is tried again
UP, GO, END = "up", "go", "end"
"""How far a keeper is: its part is ready, all runs, all is to end."""


class Records:
    """The part of a keeper that writes."""

    def write(self, item, document):
        """Write a file of the attempt; what the disk does not take now is kept and tried again, for the job goes on."""
        self.unwritten[item] = document
        self.write_rest()

    def write_rest(self):
        """Write what could not be written before, and say once that it could not."""
        if not self.unwritten or time.monotonic() < self.write_at:
            return
        try:
            for item in list(self.unwritten):
                node_files.write_json(os.path.join(self.folder, item), self.unwritten[item])
                del self.unwritten[item]
        except OSError as problem:
            self.write_at = time.monotonic() + WRITE_SECONDS
            self.unwritable = self.unwritable or str(problem.strerror)
        if not self.unwritten and self.unwritable:
            self.event("for a while nothing could be written down: {}".format(self.unwritable), "Warning")
            self.unwritable = ""

    def note(self, instance, container, **changes):
        """Write down what is known of an instance."""
        item = instance + ".json"
        known = self.unwritten.get(item) or node_files.read_json(os.path.join(self.folder, item))
        record = dict(node_records.new_record(instance), **known)
        if record["status"] in node_records.OVER:
            return
        record.update(changes, log=os.path.basename(container.log)[: -len(".log")])
        self.write(item, record)

    def conclude(self, container):
        """Write down how a container's instances have ended."""
        ended = self.state["ended"].get(container.name)
        end = self.state["end"] or {}
        for place, instance in enumerate(container.config["instances"]):
            changes = self.of_instance(instance, container, ended, end, apart=place > 0)
            if changes["status"] == "Error":
                named = instance == end.get("first_failure") and end.get("lines")
                changes["last_lines"] = named or output.last_lines(container.log)
            self.note(instance, container, **changes)

    def of_instance(self, instance, container, ended, end, *, apart):
        """Return how an instance has ended. Those `apart` only live in a container that another one is told by."""
        when = ended["time"] if ended else time.time()
        if instance == end.get("first_failure") and (apart or not ended or ended["stopped"]):
            code = end.get("rank_code", end.get("exit_code"))
            return {
                "status": "Error",
                "exit_code": code,
                "signal": end.get("signal"),
                "reason": end.get("why", ""),
                "ended": when,
            }
        if self.runs(container):
            return {"status": "Lost", "reason": "it could not be ended", "ended": when}
        if ended is None:
            failed = " {} failed".format(container.name) in self.trouble
            return {
                "status": "Error" if failed else "Stopped",
                "reason": self.trouble if failed else end.get("reason", ""),
            }
        if ended["stopped"] or (apart and ended["code"] != 0):
            word = "Completed" if end.get("status") == "SUCCEEDED" else "Stopped"
            return {"status": word, "reason": end.get("reason", ""), "ended": when}
        word = "Completed" if ended["code"] == 0 and not ended["reason"] else "Error"
        return {
            "status": word,
            "exit_code": ended["code"],
            "signal": ended["signal"],
            "reason": ended["reason"],
            "ended": when,
        }
