"""Action plugin: write the receipts of roles on the node, or store them for the end of the play.

A task in which the controller only stores a value costs as much processor time as one on a node, so one task does both.
Each stored receipt is a fact `platform_receipt_of_ROLE` of the node. The module that writes them is `platform_receipt`.
"""

from __future__ import annotations

import sys

from ansible.plugins.action import ActionBase
from ansible.plugins.loader import action_loader


class ActionModule(ActionBase):
    """Write the receipts, or store them."""

    def run(self, tmp=None, task_vars=None):
        """Return the result of the module, and the receipts that are still to be written."""
        result, arguments = super().run(tmp, task_vars), self._task.args
        receipts = {f"platform_receipt_of_{receipt['role']}": receipt for receipt in arguments["receipts"]}
        if arguments.get("later"):
            return {**result, "on_controller": True, "ansible_facts": receipts}
        light = sys.modules[action_loader.get("platform_light", class_only=True).__module__]
        program = light.light_program(
            "platform_receipt", {"receipts": arguments["receipts"], "fingerprints": arguments["fingerprints"]}
        )
        answer = self._execute_module(
            module_name="platform_light", module_args={"program": program}, task_vars=task_vars
        )
        return {**result, **answer, "ansible_facts": dict.fromkeys(receipts)}
