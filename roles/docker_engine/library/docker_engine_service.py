#!/usr/bin/python
"""Ansible module: run dockerd with the settings on disk, with a reload instead of a restart if possible."""

DOCUMENTATION = r"""
module: docker_engine_service
short_description: Start, reload or restart docker if required
description:
  - Compares the settings with which dockerd was started with those on disk, so that a run completes an earlier, interrupted run.
  - Refuses a restart while a job runs, unless it is allowed.
  - Stops all containers before a restart with another data root or image store, where dockerd does not know them.
  - Does not restart a dockerd that was started manually because of files that were changed manually. Assumes that dockerd uses them.
  - Restores the previous daemon.json if dockerd does not start with the new one or refuses it on a reload. C(systemctl reload) does
    not report this; the event of the engine and the journal do.
options:
  config: {description: Path of daemon.json., type: path, default: /etc/docker/daemon.json}
  settings: {description: Settings in that file., type: dict, required: true}
  written: {description: 'Settings of the role, stored for the next run in a file that only root can read.', type: dict, default: {}}
  unit_files: {description: Files that systemd must reread before the restart if they are newer., type: list, elements: path, default: []}
  programs: {description: Programs that require a restart if they are newer than the running dockerd., type: list, elements: path, default: []}
  restart_allowed: {description: Restart even while a job runs., type: bool, default: false}
author: [provision]
"""

import json
import os
import re
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.docker_engine_json import action_for, storage_of
from ansible.module_utils.platform_busy import running_jobs
from ansible.module_utils.platform_origin import record_file, record_path, record_unit, records
from ansible.module_utils.platform_replace import replace

PREVIOUS = ".provision-previous"
START_RECORD = "/run/provision/docker_engine.json"
LAST_SETTINGS = "/var/lib/provision/docker_engine.json"
ENGINE_PACKAGES = ("containerd", "docker", "nvidia-container", "nvidia-docker")
RELOAD_SECONDS = 60
# Log messages of dockerd versions 20 to 28 that refuse settings.
REFUSAL = re.compile(
    r"level=(?:error|fatal) .*(?:reconfiguring the daemon|reloading configuration|unable to configure the Docker daemon"
    r"|configuration validation|validating authorization plugin)"
)
LOG_TEXT = re.compile(r'(?:msg|error)="((?:[^"\\]|\\.)*)"')


def load(path):
    """Return a JSON file's content, None if it is missing or invalid."""
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def origin_of(path):
    """Return the path of the record of a file's original state."""
    return record_path("files", os.path.normpath(path)) + ".json"


def refusal_reason(lines):
    """Return why dockerd refused its settings according to its log, empty if it did not."""
    line = next((line for line in lines if REFUSAL.search(line)), "")
    words = [text.replace('\\"', '"') for text in LOG_TEXT.findall(line)]
    return (": ".join(words) or line)[-400:]


def change_time(path):
    """Return when a file was changed, 0 if it does not exist."""
    try:
        return os.stat(path).st_ctime
    except OSError:
        return 0


class Docker:
    """The docker service of this node."""

    def __init__(self, module):
        """Read the state of docker.service from systemd."""
        self.module = module
        self.config = module.params["config"]
        names = ["LoadState", "ActiveState", "UnitFileState", "MainPID", "NeedDaemonReload"]
        out = module.run_command(["systemctl", "show", "docker.service", "--property=" + ",".join(names)])[1]
        state = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        self.masked = state.get("LoadState") == "masked"
        self.installed = self.masked or state.get("LoadState") == "loaded"
        self.active = state.get("ActiveState") == "active"
        # systemd reports the state that it last read; is-enabled checks the links.
        self.enabled = state.get("UnitFileState") == "enabled" or (
            module.run_command(["systemctl", "is-enabled", "--quiet", "docker.service"])[0] == 0
        )
        self.pid = state.get("MainPID", "0")
        self.needs_daemon_reload = state.get("NeedDaemonReload") == "yes"
        self.ticks = self._start_ticks()

    def _start_ticks(self):
        """Return when dockerd was started, in clock ticks since boot (independent of clock changes); 0 if it does not run."""
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

    def _start_record(self):
        """Return the record of the start of this dockerd, None if this module did not start it."""
        start = load(START_RECORD)
        return start if start and (start.get("pid"), start.get("ticks")) == (self.pid, self.ticks) else None

    def running_settings(self):
        """Return the settings of the running dockerd, None if they are unknown."""
        start = self._start_record()
        if start:
            return start["settings"]
        if change_time(self.config) <= self._start_time() + 1 or not self._is_recorded(self.config):
            return self.module.params["settings"]
        before = load(self.config + PREVIOUS)
        first = load(LAST_SETTINGS) is None and not load(origin_of(self.config)).get("existed")
        return {} if before is None and first else before

    def changed_file(self):
        """Return the first file that changed since dockerd was started, empty if none did."""
        files, start = self.watched_files(), self._start_record()
        if start:
            return next((path for path in files if start["files"].get(path) != files[path]), "")
        newer = [path for path in files if files[path] > self._start_time() + 1]
        return next((path for path in newer if self._may_be_changed_by_role(path)), "")

    def _may_be_changed_by_role(self, path):
        """Return whether a run of a role may have changed the file."""
        if path in self.module.params["programs"]:
            packages = [name for record in records("packages") for part in record["managed"].values() for name in part]
            return any(name.startswith(ENGINE_PACKAGES) for name in packages)
        return any(
            self._is_recorded(name)
            for name in self.module.params["unit_files"]
            if path in (name, os.path.dirname(name))
        )

    @staticmethod
    def _is_recorded(path):
        """Return whether a role ever changed the file."""
        return os.path.exists(origin_of(path))

    def watched_files(self):
        """Return the change times of the files that a running dockerd does not reread."""
        unit_files = self.module.params["unit_files"]
        folders = {os.path.dirname(path) for path in unit_files if not os.path.exists(path)}
        paths = [*unit_files, *folders, *self.module.params["programs"]]
        return {path: change_time(path) for path in paths if os.path.exists(path)}

    def required_action(self):
        """Return the required action and its reason."""
        if not self.active:
            return "start", "docker does not run"
        path = self.changed_file()
        if path:
            return "restart", f"{path} was changed since docker was started"
        running = self.running_settings()
        if running is None:
            return "restart", f"{self.config} is newer than the running docker"
        action = action_for(running, self.module.params["settings"])
        if action == "none":
            return ("none", "") if self.enabled else ("enable", "docker does not start at boot")
        return action, f"{self.config} has changed"

    def unmask(self):
        """Unmask docker, which makes systemd reread all units."""
        self._systemctl("unmask", "docker.service", "docker.socket")
        self._systemctl("--runtime", "unmask", "docker.service", "docker.socket")

    def perform(self, action):
        """Perform the action, and restore the previous settings if dockerd does not start with the new ones."""
        if action in ("start", "restart") and self.needs_daemon_reload:
            self._systemctl("daemon-reload")
        if not self.enabled:
            # A daemon-reload would remove the GPUs from containers that got them through the legacy hook.
            self._systemctl("--no-reload", "enable", "docker.service")
        if action == "enable":
            return
        if action == "reload":
            reason = self._reload(RELOAD_SECONDS)
            if reason:
                self._fall_back(action, reason)
        else:
            running, settings = self.running_settings(), self.module.params["settings"]
            if action == "restart" and running is not None and storage_of(running) != storage_of(settings):
                self._stop_containers()
            if action == "restart" and settings.get("live-restore"):
                self._reload(10)  # so that containers survive the restart, which reports settings that this refuses
            self._systemctl("reset-failed", "docker.service", "docker.socket")
            code, _, err = self._systemctl(action, "docker.service")
            if code != 0:
                self._fall_back(action, self._start_error() or err.strip())
        self._record_start()

    def settle(self):
        """Remove the backup, because docker runs with the settings on disk, and store the settings of the role."""
        if os.path.exists(self.config + PREVIOUS):
            os.unlink(self.config + PREVIOUS)
        if load(LAST_SETTINGS) != self.module.params["written"]:
            replace(LAST_SETTINGS, json.dumps(self.module.params["written"], sort_keys=True), 0o600)

    def _stop_containers(self):
        """Stop all containers, because dockerd will not know them; with live-restore, they would run on without it."""
        names = self.module.run_command(["docker", "ps", "--quiet"])[1].split()
        if names:
            self.module.run_command(["docker", "stop", *names])

    def _reload(self, seconds):
        """Make dockerd reread its settings; return why it refused them, empty if it did not."""
        since, cursor = time.time(), self._journal("--lines=0", "--show-cursor").partition("-- cursor: ")[2].strip()
        code, _, err = self._systemctl("reload", "docker.service")
        if code != 0:
            return err.strip() or "docker.service cannot be reloaded"
        deadline = time.monotonic() + seconds
        while True:
            reason = refusal_reason(self._journal(f"--after-cursor={cursor}").splitlines()) if cursor else ""
            if reason or self._reloaded(since):
                return reason
            if time.monotonic() >= deadline:
                return f"dockerd did not confirm the new settings within {seconds} seconds"
            time.sleep(0.2)

    def _reloaded(self, since):
        """Return whether dockerd reports that it accepted new settings since then, which it does at every log level."""
        if not self.module.get_bin_path("docker"):
            return "Reloaded configuration" in self._journal(f"--since=@{int(since)}")
        command = ["docker", "events", f"--since={since:.9f}", f"--until={time.time():.9f}", "--filter=type=daemon"]
        code, out, _ = self.module.run_command([*command, "--filter=event=reload", "--format={{.Action}}"])
        return code == 0 and "reload" in out

    def _journal(self, *arguments):
        command = ["journalctl", "--unit=docker.service", "--no-pager", "--output=cat", *arguments]
        return self.module.run_command(command)[1]

    def _start_error(self):
        """Return the line of the journal with the reason why docker did not start."""
        lines = [line for line in self._journal("--lines=40").splitlines() if line.strip()]
        phrases = ("unable to configure", "failed to start", "level=fatal")
        errors = [line for line in lines if any(phrase in line for phrase in phrases)]
        return (errors or lines or [""])[-1][-400:]

    def _systemctl(self, *arguments):
        return self.module.run_command(["systemctl", *arguments])

    def _record_start(self):
        """Record the settings with which dockerd now runs."""
        now = Docker(self.module)
        settings = self.module.params["settings"]
        start = {"pid": now.pid, "ticks": now.ticks, "files": now.watched_files(), "settings": settings}
        replace(START_RECORD, json.dumps(start, sort_keys=True), 0o600)

    def _fall_back(self, action, reason):
        """Restore the previous daemon.json, start docker with it, and fail with the message of docker."""
        previous, outcome = self.config + PREVIOUS, "docker does not run"
        # Lines that repeat all settings are excluded: they can contain a password.
        lines = [line for line in self._journal("--lines=15").splitlines() if "Reloaded configuration" not in line]
        if os.path.exists(previous):
            record_file(self.config + ".provision-refused")
            os.rename(self.config, self.config + ".provision-refused")
            os.rename(previous, self.config)
            outcome = "the previous {0} was restored and docker {1} with it; the refused file is {0}.provision-refused".format(
                self.config, "runs" if self._resume(action) else "does not start either"
            )
        elif action == "reload":
            outcome = f"docker still runs with its previous settings, but cannot start with {self.config}"
        self.module.fail_json(
            msg=f"docker: cannot {action} ({reason}); {outcome}. Correct docker_engine_registry_mirrors or "
            "docker_engine_daemon_options, and read `journalctl -u docker` on the node.",
            stdout="\n".join(lines),
        )

    def _resume(self, action):
        """Make docker use the previous settings again; return whether it does."""
        if action == "reload" and Docker(self.module).active:
            return not self._reload(RELOAD_SECONDS)  # undoes the settings that it accepted
        self._systemctl("reset-failed", "docker.service", "docker.socket")
        return self._systemctl("start", "docker.service")[0] == 0


def require_idle_node(module, action, reason):
    """Fail if a job runs, unless its disruption is allowed."""
    jobs = [] if module.params["restart_allowed"] else running_jobs()
    if jobs:
        module.fail_json(
            msg="docker: must be {} ({}), but a job runs on this node ({}). Apply again when the job has finished, or set "
            "docker_engine_restart_allowed to true.".format(action, reason, "; ".join(jobs))
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
            msg="docker.service: not installed on this node. Run the whole play, or the tag of this role. If "
            "docker_engine_source is `present`, which installs nothing, set it to `distribution` or `docker`."
        )
    masked = docker.masked
    if masked:
        require_idle_node(module, "unmasked", "docker.service is masked")
        if not module.check_mode:
            record_unit(module, "docker.service")
            docker.unmask()
            docker = Docker(module)
    action, reason = docker.required_action()
    if action == "restart":
        require_idle_node(module, "restarted", reason)
    if not module.check_mode:
        if action != "none":
            record_unit(module, "docker.service")
            docker.perform(action)
        docker.settle()
    module.exit_json(changed=masked or action != "none", action=action, reason=reason)


if __name__ == "__main__":
    main()
