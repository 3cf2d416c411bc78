#!/usr/bin/python
"""Ansible module: dockerd runs, and runs with what is on disk; by a reload where that is enough."""

DOCUMENTATION = r"""
module: docker_engine_service
short_description: Start, reload or restart docker, whichever is needed
description:
  - Compares what dockerd was started with to what is on disk, so a run that was cut short is finished by the next one.
  - A restart while a job runs is refused unless allowed.
  - A docker that others started is not restarted for what others changed since; what they wrote counts as what it runs with.
  - When dockerd does not start with a changed daemon.json, or does not take it when told to reread it, the previous one is put
    back. C(systemctl reload) cannot tell; the engine's own event and the journal do.
options:
  config: {description: The settings' file., type: path, default: /etc/docker/daemon.json}
  settings: {description: What that file holds., type: dict, required: true}
  written: {description: What of it is ours; kept for the next run where only root can read it., type: dict, default: {}}
  unit_files: {description: Files that systemd must reread before the restart when they are newer., type: list, elements: path, default: []}
  programs: {description: A restart is needed when one of these is newer than the running dockerd., type: list, elements: path, default: []}
  restart_allowed: {description: Restart even while a job runs., type: bool, default: false}
author: [provision]
"""

import json
import os
import re
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.docker_engine_json import action_for
from ansible.module_utils.platform_busy import running_jobs
from ansible.module_utils.platform_origin import record_file, record_path, record_unit, records
from ansible.module_utils.platform_replace import replace

PREVIOUS = ".provision-previous"
MARK = "/run/provision/docker_engine.json"
WRITTEN = "/var/lib/provision/docker_engine.json"
ENGINE_PACKAGES = ("containerd", "docker", "nvidia-container", "nvidia-docker")
RELOAD_SECONDS = 60
# What dockerd says when it does not take its settings, in versions 20 to 28.
REFUSED = re.compile(
    r"level=(?:error|fatal) .*(?:reconfiguring the daemon|reloading configuration|unable to configure the Docker daemon"
    r"|configuration validation|validating authorization plugin)"
)
WORDS = re.compile(r'(?:msg|error)="((?:[^"\\]|\\.)*)"')


def load(path):
    """Return a JSON file's content, None when there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def note_of(path):
    """Return where it is noted how a file was before we changed it."""
    return record_path("files", os.path.normpath(path)) + ".json"


def refusal(lines):
    """Return why dockerd did not take its settings, by what it logged; empty when it does not say so."""
    line = next((line for line in lines if REFUSED.search(line)), "")
    words = [text.replace('\\"', '"') for text in WORDS.findall(line)]
    return (": ".join(words) or line)[-400:]


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
        self.masked = state.get("LoadState") == "masked"
        self.installed = self.masked or state.get("LoadState") == "loaded"
        self.active = state.get("ActiveState") == "active"
        # systemd tells what it last read; the links may say more since.
        self.enabled = state.get("UnitFileState") == "enabled" or (
            module.run_command(["systemctl", "is-enabled", "--quiet", "docker.service"])[0] == 0
        )
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
        if changed_at(self.config) <= self._start_time() + 1 or not self._noted(self.config):
            return self.module.params["settings"]
        before = load(self.config + PREVIOUS)
        first = load(WRITTEN) is None and not load(note_of(self.config)).get("existed")
        return {} if before is None and first else before

    def stale(self):
        """Return the first file that changed since dockerd was started, empty when there is none."""
        files, mark = self.watched(), self._own_mark()
        if mark:
            return next((path for path in files if mark["files"].get(path) != files[path]), "")
        newer = [path for path in files if files[path] > self._start_time() + 1]
        return next((path for path in newer if self._can_be_ours(path)), "")

    def _can_be_ours(self, path):
        """Return whether a change of the file may come from a run of ours."""
        if path in self.module.params["programs"]:
            brought = [name for record in records("packages") for part in record["managed"].values() for name in part]
            return any(name.startswith(ENGINE_PACKAGES) for name in brought)
        return any(
            self._noted(name) for name in self.module.params["unit_files"] if path in (name, os.path.dirname(name))
        )

    @staticmethod
    def _noted(path):
        """Return whether we ever changed the file."""
        return os.path.exists(note_of(path))

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

    def unmask(self):
        """Let systemd start docker again; it rereads all its units for that."""
        self._systemctl("unmask", "docker.service", "docker.socket")
        self._systemctl("--runtime", "unmask", "docker.service", "docker.socket")

    def perform(self, action):
        """Do it; put the previous settings back when dockerd does not start with the new ones."""
        if action in ("start", "restart") and self.reread:
            self._systemctl("daemon-reload")
        if not self.enabled:
            # A daemon-reload would take the GPUs away from containers that got them by the legacy hook.
            self._systemctl("--no-reload", "enable", "docker.service")
        if action == "enable":
            return
        if action == "reload":
            reason = self._reload(RELOAD_SECONDS)
            if reason:
                self._fall_back(action, reason)
        else:
            if action == "restart" and self.module.params["settings"].get("live-restore"):
                self._reload(10)  # so that containers survive what follows; what is refused here, the restart tells
            self._systemctl("reset-failed", "docker.service", "docker.socket")
            code, _, err = self._systemctl(action, "docker.service")
            if code != 0:
                self._fall_back(action, self._last_words() or err.strip())
        self._mark()

    def settle(self):
        """Docker runs with what is on disk: no way back is needed, and what of it is ours is noted."""
        if os.path.exists(self.config + PREVIOUS):
            os.unlink(self.config + PREVIOUS)
        if load(WRITTEN) != self.module.params["written"]:
            replace(WRITTEN, json.dumps(self.module.params["written"], sort_keys=True), 0o600)

    def _reload(self, seconds):
        """Have dockerd reread its settings; return why it did not take them, empty when it did."""
        since, cursor = time.time(), self._journal("--lines=0", "--show-cursor").partition("-- cursor: ")[2].strip()
        code, _, err = self._systemctl("reload", "docker.service")
        if code != 0:
            return err.strip() or "docker.service cannot be reloaded"
        deadline = time.monotonic() + seconds
        while True:
            reason = refusal(self._journal(f"--after-cursor={cursor}").splitlines()) if cursor else ""
            if reason or self._reloaded(since):
                return reason
            if time.monotonic() >= deadline:
                return f"it did not say within {seconds} seconds that it took its settings"
            time.sleep(0.2)

    def _reloaded(self, since):
        """Return whether dockerd says that it took new settings since then; it does so at every log level."""
        if not self.module.get_bin_path("docker"):
            return "Reloaded configuration" in self._journal(f"--since=@{int(since)}")
        command = ["docker", "events", f"--since={since:.9f}", f"--until={time.time():.9f}", "--filter=type=daemon"]
        code, out, _ = self.module.run_command([*command, "--filter=event=reload", "--format={{.Action}}"])
        return code == 0 and "reload" in out

    def _journal(self, *arguments):
        command = ["journalctl", "--unit=docker.service", "--no-pager", "--output=cat", *arguments]
        return self.module.run_command(command)[1]

    def _last_words(self):
        """Return the line of the journal that tells why docker did not start."""
        lines = [line for line in self._journal("--lines=40").splitlines() if line.strip()]
        marks = ("unable to configure", "failed to start", "level=fatal")
        telling = [line for line in lines if any(mark in line for mark in marks)]
        return (telling or lines or [""])[-1][-400:]

    def _systemctl(self, *arguments):
        return self.module.run_command(["systemctl", *arguments])

    def _mark(self):
        """Note what dockerd runs with now."""
        now = Docker(self.module)
        settings = self.module.params["settings"]
        mark = {"pid": now.pid, "ticks": now.ticks, "files": now.watched(), "settings": settings}
        replace(MARK, json.dumps(mark, sort_keys=True), 0o600)

    def _fall_back(self, action, reason):
        """Bring docker back with the previous daemon.json, and fail with docker's own words."""
        previous, outcome = self.config + PREVIOUS, "docker does not run now"
        # Not the lines that repeat all settings: they can hold a password.
        lines = [line for line in self._journal("--lines=15").splitlines() if "Reloaded configuration" not in line]
        if os.path.exists(previous):
            record_file(self.config + ".provision-refused")
            os.rename(self.config, self.config + ".provision-refused")
            os.rename(previous, self.config)
            outcome = (
                "the previous {0} was put back and docker {1} with it; the refused one is {0}.provision-refused".format(
                    self.config, "runs" if self._resume(action) else "does not start either"
                )
            )
        elif action == "reload":
            outcome = f"docker runs on with its former settings, but would not start again with {self.config}"
        self.module.fail_json(
            msg=f"docker could not {action}: {reason}. {outcome}. Look at docker_engine_registry_mirrors, "
            "docker_engine_daemon_options and `journalctl -u docker` on the node.",
            stdout="\n".join(lines),
        )

    def _resume(self, action):
        """Have docker run with the previous settings again; return whether it does."""
        if action == "reload" and Docker(self.module).active:
            return not self._reload(RELOAD_SECONDS)  # what it took of the refused ones is undone
        self._systemctl("reset-failed", "docker.service", "docker.socket")
        return self._systemctl("start", "docker.service")[0] == 0


def refuse_under_jobs(module, what, reason):
    """Fail when a job runs that would be hurt, unless that is allowed."""
    jobs = [] if module.params["restart_allowed"] else running_jobs()
    if jobs:
        module.fail_json(
            msg="docker must be {} ({}), and a job runs on this node: {}. Apply again when it has ended, or set "
            "docker_engine_restart_allowed to true.".format(what, reason, "; ".join(jobs))
        )


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "path", "default": "/etc/docker/daemon.json"},
            "settings": {"type": "dict", "required": True},
            "written": {"type": "dict", "default": {}},
            "unit_files": {"type": "list", "elements": "path", "default": []},
            "programs": {"type": "list", "elements": "path", "default": []},
            "restart_allowed": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    docker = Docker(module)
    if not docker.installed and not module.check_mode:
        module.fail_json(
            msg="docker.service is not installed on this node; run the whole play, or with the tag of this role. Where "
            "docker_engine_source is `present`, none is installed: set it for this node to `distribution` or `docker`."
        )
    masked = docker.masked
    if masked:
        refuse_under_jobs(module, "unmasked", "docker.service is masked")
        if not module.check_mode:
            record_unit(module, "docker.service")
            docker.unmask()
            docker = Docker(module)
    action, reason = docker.needed()
    if action == "restart":
        refuse_under_jobs(module, "restarted", reason)
    if not module.check_mode:
        if action != "none":
            record_unit(module, "docker.service")
            docker.perform(action)
        docker.settle()
    module.exit_json(changed=masked or action != "none", action=action, reason=reason)


if __name__ == "__main__":
    main()
