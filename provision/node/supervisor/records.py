"""The records of the instances of an attempt."""

import os
import time
from typing import Any, Optional

from provision.node import files as node_files
from provision.node import output
from provision.node.jobs import records as node_records
from provision.node.supervisor.attempt import Attempt
from provision.node.supervisor.runtime import Document, Runtime


class InstanceRecords(Attempt):
    """The part of a job supervisor that writes the records of instances."""

    def update_record(self, instance: str, runtime: Runtime, **changes: Any) -> None:
        """Change the record of an instance, unless it is complete."""
        item = instance + ".json"
        known = self.unwritten.get(item) or node_files.read_json(os.path.join(self.folder, item))
        record = dict(node_records.new_record(instance), **known)
        if record["status"] in node_records.OVER:
            return
        record.update(changes, log=os.path.basename(runtime.log)[: -len(".log")])
        self.write(item, record)

    def complete_records(self, runtime: Runtime) -> None:
        """Record how a runtime's instances have ended."""
        ended = self.state["ended"].get(runtime.name)
        end = self.state["end"] or {}
        for index, instance in enumerate(runtime.config["instances"]):
            changes = self.end_of_instance(instance, runtime, ended, end, is_secondary=index > 0)
            if changes["status"] == "Error":
                of_rank = instance == end.get("first_failure") and end.get("lines")
                changes["last_lines"] = of_rank or output.last_lines(runtime.log)
            self.update_record(instance, runtime, **changes)

    def end_of_instance(
        self, instance: str, runtime: Runtime, ended: Optional[Document], end: Document, *, is_secondary: bool
    ) -> Document:
        """Return how an instance has ended.

        A secondary instance shares a container whose end is that of another instance.
        """
        when = ended["time"] if ended else time.time()
        if instance == end.get("first_failure") and (is_secondary or not ended or ended["stopped"]):
            code = end.get("rank_code", end.get("exit_code"))
            return {
                "status": "Error",
                "exit_code": code,
                "signal": end.get("signal"),
                "reason": end.get("why", ""),
                "ended": when,
            }
        if self.is_running(runtime):
            return {"status": "Lost", "reason": "it could not be ended", "ended": when}
        if ended is None:
            has_failed = " {} failed".format(runtime.name) in self.trouble
            return {
                "status": "Error" if has_failed else "Stopped",
                "reason": self.trouble if has_failed else end.get("reason", ""),
            }
        if ended["stopped"] or (is_secondary and ended["code"] != 0):
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
