#!/usr/bin/python
"""Ansible module: start a daemon of Slurm, restart it, or let it read its configuration again."""

DOCUMENTATION = r"""
module: slurm_service
short_description: Start a daemon of Slurm, restart it, or let it read its configuration again
description:
  - Compares what the daemon has to read with what it was started with, which the module records in
    C(/var/lib/provision/slurm). So an interrupted run is completed by the next one.
  - Jobs survive restarts of slurmctld, slurmd and munge. Their units end the daemon alone.
  - Waits until slurmctld or slurmdbd answers, or until slurmctld knows the node.
  - Stops only a daemon that it has started.
options:
  unit: {description: The unit., type: str, required: true}
  state: {description: Whether the daemon runs., type: str, choices: [started, stopped], default: started}
  restart_key: {description: A hash of what the daemon reads only when it starts. Empty if it is unknown., type: str, default: ""}
  reload_key: {description: A hash of all that slurmctld reads. Empty if it is unknown., type: str, default: ""}
  changed: {description: Whether this run has changed a file that the daemon reads., type: bool, default: false}
  reread_units: {description: Whether systemd has to read its units again., type: bool, default: false}
  node: {description: The name of the node in Slurm. Wait for it., type: str, default: ""}
  cluster: {description: 'The name of the cluster, which slurmdbd has to know.', type: str, default: ""}
  timeout: {description: Seconds to wait., type: int, default: 90}
author: [provision]
"""

import json
import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import record_unit, write_private_json
from ansible.module_utils.slurm_probe import CLUSTERS

FOLDER = "/var/lib/provision/slurm"
LOGS = {"{}.service".format(name): "/var/log/slurm/{}.log".format(name) for name in ("slurmctld", "slurmd", "slurmdbd")}
ABSENT = ("down", "unk", "inval", "not_resp", "no_resp", "power")


class Service:
    """One unit and the record of what it was started with."""

    def __init__(self, module):
        """Read the record; change nothing."""
        self.module, self.unit = module, module.params["unit"]
        self.path = os.path.join(FOLDER, self.unit + ".json")
        self.wanted = {key: module.params[key + "_key"] for key in ("restart", "reload")}
        try:
            with open(self.path, encoding="utf-8") as stream:
                self.recorded = json.load(stream)
        except (OSError, ValueError):
            self.recorded = {}

    def run(self, *command):
        """Run a program; return its exit status and output."""
        code, out, err = self.module.run_command(list(command))
        return code, out + err

    def action(self):
        """Return what the daemon needs: start, restart, reload or nothing."""
        if self.run("systemctl", "is-active", "--quiet", self.unit)[0] != 0:
            return "start"
        if not self.wanted["restart"]:
            return "restart" if self.module.params["changed"] else ""
        if not self.recorded:  # the package has started it, or an earlier run was interrupted
            return "restart"
        is_changed = {key: self.recorded.get(key, "") != value for key, value in self.wanted.items()}
        if is_changed["restart"]:
            return "restart"
        if is_changed["reload"]:
            return "reload"
        return "restart" if self.module.params["changed"] else ""  # what it has read since is unknown

    def act(self, action):
        """Do it, and record it when the daemon answers."""
        if self.module.params["reread_units"]:
            self.run("systemctl", "daemon-reload")
        if action in ("start", "restart"):
            self.run("systemctl", "reset-failed", self.unit)
            code, text = self.run("systemctl", "restart", self.unit)
            if code != 0:
                self.fail("does not start", text)
        self.wait()
        if action and self.unit == "slurmctld.service":  # sends the configuration to the nodes too
            code, text = self.run("scontrol", "reconfigure")
            if code != 0:
                self.fail("does not read its configuration again", text)
            self.wait()
        if self.wanted["restart"]:
            os.makedirs(FOLDER, mode=0o700, exist_ok=True)
            write_private_json(self.path, self.wanted)

    def register(self, cluster):
        """Register a cluster in the database, unless it is registered; return whether that is a change."""
        if not cluster or cluster in self.run(*CLUSTERS)[1].split():
            return False
        code, text = self.run("sacctmgr", "--immediate", "add", "cluster", cluster)
        if code != 0:
            self.fail("does not register the cluster {}".format(cluster), text)
        return True

    def stop(self):
        """Stop and disable the daemon if this module has started it; return whether that is a change."""
        if not os.path.exists(self.path):
            return False
        code, text = self.run("systemctl", "disable", "--now", self.unit)
        if code != 0:
            self.fail("cannot be stopped", text)
        os.unlink(self.path)
        return True

    def wait(self):
        """Return when the daemon answers."""
        deadline, why = time.monotonic() + self.module.params["timeout"], ""
        while time.monotonic() < deadline:
            why = self.problem()
            if not why:
                return
            time.sleep(0.25)
        self.fail("does not work", why)

    def problem(self):
        """Return why the daemon does not work yet."""
        if self.run("systemctl", "is-active", "--quiet", self.unit)[0] != 0:
            return "the unit is not active"
        if self.unit == "slurmctld.service":
            _, text = self.run("scontrol", "ping")
            return "" if " is UP" in text else text.strip()
        if self.unit == "slurmdbd.service":
            code, text = self.run(*CLUSTERS)
            return "" if code == 0 else text.strip()
        if self.unit == "slurmd.service":
            node = self.module.params["node"]
            code, text = self.run("sinfo", "--noheader", "--Node", "--nodes", node, "--format", "%T")
            state = text.strip().splitlines()[0] if code == 0 and text.strip() else ""
            if code != 0 or not state or state.endswith("*") or state.startswith(ABSENT):
                return "slurmctld has the node as {}".format(state or text.strip() or "unknown")
        return ""

    def fail(self, what, text):
        """End the module with the last lines of the daemon's log."""
        log = LOGS.get(self.unit)
        tail = self.run("tail", "--lines=8", log)[1] if log and os.path.exists(log) else ""
        tail = tail or self.run("journalctl", "--unit", self.unit, "--lines=8", "--no-pager", "--output=cat")[1]
        self.module.fail_json(msg="{} {} ({}). {}".format(self.unit, what, text.strip(), tail.strip()))


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
            "restart_key": {"type": "str", "default": "", "no_log": False},
            "reload_key": {"type": "str", "default": "", "no_log": False},
            "changed": {"type": "bool", "default": False},
            "reread_units": {"type": "bool", "default": False},
            "node": {"type": "str", "default": ""},
            "cluster": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 90},
        }
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    record_unit(module, module.params["unit"])
    service = Service(module)
    if module.params["state"] == "stopped":
        module.exit_json(changed=service.stop(), action="stop")
    is_enabled = service.run("systemctl", "is-enabled", "--quiet", service.unit)[0] == 0
    action = service.action()
    if not is_enabled:
        code, text = service.run("systemctl", "--no-reload", "enable", service.unit)
        if code != 0:
            service.fail("cannot be enabled", text)
    service.act(action)
    is_registered = service.register(module.params["cluster"])
    module.exit_json(changed=bool(action) or not is_enabled or is_registered, action=action)


if __name__ == "__main__":
    main()
