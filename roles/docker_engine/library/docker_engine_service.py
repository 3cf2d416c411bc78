#!/usr/bin/python
"""Ansible module: dockerd runs, and runs with what is on disk; by a reload where that is enough."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_engine_service
short_description: Start, reload or restart docker, whichever is needed
description:
  - Compares what dockerd was started with to what is on disk, so a run that was cut short is finished by the next one.
  - A restart while a job runs is refused unless allowed.
  - When dockerd does not start with a changed daemon.json, the previous one is put back and docker started with it.
options:
  config: {description: The settings' file., type: path, default: /etc/docker/daemon.json}
  settings: {description: What that file holds., type: dict, required: true}
  unit_files: {description: Files that systemd must reread before the restart when they are newer., type: list, elements: path, default: []}
  programs: {description: A restart is needed when one of these is newer than the running dockerd., type: list, elements: path, default: []}
  restart_allowed: {description: Restart even while a job runs., type: bool, default: false}
author: [provision]
"""

EXAMPLES = r"""
- name: Run docker with its settings
  docker_engine_service:
    settings: "{{ config.settings }}"
"""

RETURN = r"""
action:
  description: What was, or in check mode would be, done.
  returned: always
  type: str
  sample: [none, enable, start, reload, restart]
"""

import json
import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.docker_engine_json import action_for
from ansible.module_utils.platform_busy import running_jobs

PREVIOUS = ".provision-previous"
MARK = "/run/provision/docker_engine.json"


def load(path):
    """Return a JSON file's content, None when there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def changed_at(path):
    """Return when a file was changed, 0 when there is none."""
    try:
        return os.stat(path).st_ctime
    except OSError:
        return 0


class Docker:
    """The docker service of this node."""

    def __init__(self, module):
        """Ask systemd how docker is."""
        self.module = module
        self.config = module.params["config"]
        names = ["LoadState", "ActiveState", "UnitFileState", "MainPID", "NeedDaemonReload"]
        out = module.run_command(["systemctl", "show", "docker.service", "--property=" + ",".join(names)])[1]
        state = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        self.installed = state.get("LoadState") == "loaded"
        self.active = state.get("ActiveState") == "active"
        self.enabled = state.get("UnitFileState") == "enabled"
        self.pid = state.get("MainPID", "0")
        self.reread = state.get("NeedDaemonReload") == "yes"
        self.ticks = self._start_ticks()

    def _start_ticks(self):
        """Return when dockerd was started, in clock ticks since boot (no clock change moves it); 0 when it does not run."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as stream:
                return int(stream.read().rsplit(")", 1)[1].split()[19])
        except OSError:
            return 0

    def _start_time(self):
        """Return when dockerd was started, in seconds since 1970."""
        with open("/proc/stat", encoding="ascii") as stream:
            boot = next((int(line.split()[1]) for line in stream if line.startswith("btime")), 0)
        return boot + self.ticks / os.sysconf("SC_CLK_TCK")

    def _own_mark(self):
        """Return what we noted when we started this very dockerd, None when others started it."""
        mark = load(MARK)
        return mark if mark and (mark.get("pid"), mark.get("ticks")) == (self.pid, self.ticks) else None

    def running_settings(self):
        """Return the settings that dockerd runs with, None when nobody can say."""
        mark = self._own_mark()
        if mark:
            return mark["settings"]
        return self.module.params["settings"] if changed_at(self.config) <= self._start_time() + 1 else None

    def stale(self):
        """Return the first file that changed since dockerd was started, empty when there is none."""
        files, mark = self.watched(), self._own_mark()
        if mark:
            return next((path for path in files if mark["files"].get(path) != files[path]), "")
        return next((path for path in files if files[path] > self._start_time() + 1), "")

    def watched(self):
        """Return the change times of the files that a running dockerd does not reread."""
        unit_files = self.module.params["unit_files"]
        folders = {os.path.dirname(path) for path in unit_files if not os.path.exists(path)}
        paths = [*unit_files, *folders, *self.module.params["programs"]]
        return {path: changed_at(path) for path in paths if os.path.exists(path)}

    def needed(self):
        """Return the action that is needed, and why."""
        if not self.active:
            return "start", "docker does not run"
        stale = self.stale()
        if stale:
            return "restart", f"{stale} was changed since docker was started"
        running = self.running_settings()
        if running is None:
            return "restart", f"{self.config} is newer than the running docker"
        action = action_for(running, self.module.params["settings"])
        if action == "none":
            return ("none", "") if self.enabled else ("enable", "docker does not start at boot")
        return action, f"{self.config} has changed"

    def perform(self, action):
        """Do it; put the previous settings back when dockerd does not start with the new ones."""
        if action in ("start", "restart") and self.reread:
            self._systemctl("daemon-reload")
        if not self.enabled:
            self._systemctl("enable", "docker.service")
        if action == "enable":
            return
        if action == "restart" and self.module.params["settings"].get("live-restore"):
            self._systemctl("reload", "docker.service")  # so that containers survive what follows
            time.sleep(1)
        self._systemctl("reset-failed", "docker.service", "docker.socket")
        code, _, err = self._systemctl(action, "docker.service")
        if code != 0:
            self._fall_back(action, err)
        self._mark()
        if os.path.exists(self.config + PREVIOUS):
            os.unlink(self.config + PREVIOUS)

    def _systemctl(self, *arguments):
        return self.module.run_command(["systemctl", *arguments])

    def _mark(self):
        """Note what dockerd runs with now."""
        now = Docker(self.module)
        os.makedirs(os.path.dirname(MARK), mode=0o755, exist_ok=True)
        with open(MARK + ".new", "w", encoding="utf-8") as stream:
            json.dump(
                {
                    "pid": now.pid,
                    "ticks": now.ticks,
                    "files": now.watched(),
                    "settings": self.module.params["settings"],
                },
                stream,
            )
        os.rename(MARK + ".new", MARK)

    def _fall_back(self, action, err):
        """Bring docker back with the previous daemon.json, and fail with docker's own words."""
        journal = ["journalctl", "--unit=docker.service", "--lines=40", "--no-pager", "--output=cat"]
        lines = [line for line in self.module.run_command(journal)[1].splitlines() if line.strip()]
        telling = [
            line
            for line in lines
            if "unable to configure" in line or "failed to start" in line or "level=fatal" in line
        ]
        reason = (telling or lines or [err.strip()])[-1][-400:]
        previous, outcome = self.config + PREVIOUS, "docker does not run now"
        if os.path.exists(previous):
            os.rename(self.config, self.config + ".provision-refused")
            os.rename(previous, self.config)
            self._systemctl("reset-failed", "docker.service", "docker.socket")
            back = self._systemctl("start", "docker.service")[0] == 0
            outcome = (
                "the previous {} was put back and docker {} with it; the refused one is {}.provision-refused".format(
                    self.config, "runs" if back else "does not start either", self.config
                )
            )
        self.module.fail_json(
            msg=f"docker could not {action}: {reason}. {outcome}. Look at docker_engine_daemon_options and "
            "`journalctl -u docker` on the node.",
            stdout="\n".join(lines[-15:]),
        )


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "path", "default": "/etc/docker/daemon.json"},
            "settings": {"type": "dict", "required": True},
            "unit_files": {"type": "list", "elements": "path", "default": []},
            "programs": {"type": "list", "elements": "path", "default": []},
            "restart_allowed": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    docker = Docker(module)
    if not docker.installed and not module.check_mode:
        module.fail_json(
            msg="docker.service is not installed on this node; run the whole play, or with the tag of this role"
        )
    action, reason = docker.needed()
    if action == "restart" and not module.params["restart_allowed"]:
        jobs = running_jobs()
        if jobs:
            module.fail_json(
                msg="docker must be restarted ({}), and a job runs on this node: {}. Apply again when it has ended, or set "
                "docker_engine_restart_allowed to true.".format(reason, "; ".join(jobs))
            )
    if action != "none" and not module.check_mode:
        docker.perform(action)
    module.exit_json(changed=action != "none", action=action, reason=reason)


if __name__ == "__main__":
    main()
