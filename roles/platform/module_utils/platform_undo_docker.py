"""Reset docker: remove the role's container and image, and restore the state of a pre-existing engine."""

import os
import re
import shutil

from ansible.module_utils.platform_origin import records
from ansible.module_utils.platform_undo_files import Step, parsed, read, settings_after_reset

CONFIG = "/etc/docker/daemon.json"
DROP_INS = "/etc/systemd/system/docker.service.d/"
DATA_FOLDER = "/var/lib/docker"
ENGINES = ("docker.io", "docker-ce", "moby-engine")
LABEL = "training_container"
START_RECORD = "/run/provision/docker_engine.json"
SECONDS = "60"
_ANONYMOUS_VOLUME = re.compile("[0-9a-f]{64}")


class Engine:
    """The docker engine of the node before and after the reset.

    Args:
        module: runs programs.
        removable: names of the packages that the reset removes.
        files: records of files.
        steps: steps for files.
    """

    def __init__(self, module, removable, files, steps):
        """Read the state of docker and its containers."""
        self.module, self.files, self.steps = module, files, steps
        self.is_removed = bool(set(ENGINES) & set(removable))
        self.removable = removable
        before = [doc for doc in records("data") if doc["path"] == DATA_FOLDER and doc["existed"]]
        self.removes_data = self.is_removed and not before
        self.unit = next((doc for doc in records("units") if doc["name"] == "docker.service"), None)
        names = "LoadState,ActiveState,UnitFileState,MainPID"
        out = module.run_command(["systemctl", "show", "docker.service", "--property=" + names])[1]
        self.state = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        self.exists = self.state.get("LoadState") == "loaded"
        self.active = self.state.get("ActiveState") == "active"
        self.answers = self.active and self._docker("version")[0] == 0
        self.role_containers, self.other_containers = self._containers() if self.answers else ([], [])

    def _docker(self, *words):
        """Run docker with a time limit, because it can hang; return exit code, output and error."""
        if not self.module.get_bin_path("docker"):
            return 127, "", "the command docker is not installed"
        code, out, err = self.module.run_command(["timeout", "--kill-after=5", SECONDS, "docker", *words])
        return code, out, f"no answer within {SECONDS} s" if code == 124 else (err or out).strip()

    def _containers(self):
        """Return the containers of the roles and all others: name, ID and whether it runs."""
        form = '{{.ID}}\t{{.Names}}\t{{.Status}}\t{{.Label "provision.role"}}'
        lines = [
            line.split("\t") for line in self._docker("ps", "--all", "--no-trunc", "--format", form)[1].splitlines()
        ]
        containers = [
            (words[1], words[0], words[2].startswith("Up"), words[3] == LABEL) for words in lines if len(words) == 4
        ]
        return [item[:3] for item in containers if item[3]], [item[:3] for item in containers if not item[3]]

    def _volumes(self):
        """Return the volumes with a name."""
        names = self._docker("volume", "ls", "--quiet")[1].split() if self.answers else []
        return [name for name in names if not _ANONYMOUS_VOLUME.fullmatch(name)]

    def _removed_folders(self):
        """Return the data folders of docker that the reset removes."""
        if not self.is_removed and self.exists:
            return []
        paths = [doc["path"] for doc in records("data") if not doc["existed"] and not doc["path"].startswith("/etc/")]
        return [path for path in paths if os.path.isdir(path) and not os.path.islink(path)]

    # Refusals

    def refusals(self):
        """Return sentences with the reasons why a change of docker would be disruptive."""
        reasons = []
        names = [item[0] for item in self.other_containers]
        running = [name for name, _, up in self.other_containers if up]
        contents = [f"container {name}" for name in names] + [f"volume {name}" for name in self._volumes()]
        folders = self._removed_folders()
        if not self.answers:  # a stopped engine also loses its contents if its data is removed
            contents = [item for path in folders for item in _foreign_contents(path)]
        if (self.removes_data or folders) and contents:
            reasons.append(f"docker would be removed with objects that the roles did not create: {_summary(contents)}")
        elif running and self.is_removed:
            reasons.append(
                f"docker would be removed under running containers that the roles did not create: {_summary(running)}"
            )
        elif running and self.requires_restart():
            reasons.append(
                f"docker would be restarted under running containers that the roles did not create: {_summary(running)}"
            )
        elif running and self._requires_stop():
            reasons.append(
                f"docker would be stopped, as before, under running containers that the roles did not create: {_summary(running)}"
            )
        if (
            self.exists
            and not self.is_removed
            and not self.answers
            and (self.unit or {}).get("ActiveState") == "active"
        ):
            reasons.append(
                "docker does not answer, so the training container cannot be removed: read `systemctl status docker`"
            )
        return reasons

    def requires_restart(self):
        """Return whether a pre-existing engine must be restarted to use its original settings."""
        if self.is_removed or not self.active or self._requires_stop():
            return False
        recorded_paths = [doc["path"] for doc in self.files]
        drop_ins = [path for path in recorded_paths if path.startswith(DROP_INS)]
        if any(step.path in drop_ins for step in self.steps) or (drop_ins and _is_newer(DROP_INS, self._start_time())):
            return True
        doc = next((doc for doc in self.files if doc["path"] == CONFIG), None)
        if doc is None:
            return False
        running = self._running_settings()
        return running is None or running != settings_after_reset(doc)

    def _requires_stop(self):
        return (
            not self.is_removed
            and self.active
            and (self.unit or {}).get("ActiveState", "active") in ("inactive", "failed")
        )

    def _start_time(self):
        """Return when dockerd was started, in seconds since 1970; 0 if unknown."""
        with open("/proc/stat", encoding="ascii") as stream:
            boot = next((int(line.split()[1]) for line in stream if line.startswith("btime")), 0)
        ticks = _ticks(self.state.get("MainPID"))
        return boot + ticks / os.sysconf("SC_CLK_TCK") if ticks else 0

    def _running_settings(self):
        """Return the settings of the running dockerd, None if they are unknown."""
        start = parsed(read(START_RECORD)) or {}
        if start.get("pid") == self.state.get("MainPID") and start.get("ticks") == _ticks(start.get("pid")):
            return start.get("settings")
        return parsed(read(CONFIG)) if not _is_newer(CONFIG, self._start_time()) else None

    # Steps

    def first_steps(self):
        """Return the steps that require docker: containers, then images."""
        steps = [
            Step(f"stop and remove the container {name}", self._removal("rm", "--force", "--volumes", identity))
            for name, identity, _ in self.role_containers
        ]
        if self.removes_data:
            return steps + [
                Step(
                    f"stop and remove the container {name}, which the roles did not create",
                    self._removal("rm", "--force", identity),
                )
                for name, identity, _ in self.other_containers
            ]
        return steps + (self._image_steps() if self.answers else [])

    def _image_steps(self):
        steps = []
        for doc in records("images"):
            now = self._image(doc["name"])
            dangling = self._dangling(doc)
            if now and not doc["id"]:
                steps.append(Step(f"remove the image {doc['name']}", self._removal("image", "rm", doc["name"])))
            elif doc["id"] and now != doc["id"] and self._image(doc["id"]) and "@" not in doc["name"]:
                tag = self._removal("image", "tag", doc["id"], doc["name"])
                steps.append(Step(f"give the name {doc['name']} back to the image {doc['id'][7:19]}", tag))
            for identity in dangling:
                steps.append(
                    Step(
                        f"remove the image {identity[7:19]}, an earlier one of the roles",
                        self._removal("image", "rm", identity),
                    )
                )
        return steps

    def _image(self, name):
        code, out, _ = self._docker("image", "inspect", "--format", "{{.Id}}", name)
        return out.strip() if code == 0 else ""

    def _dangling(self, doc):
        """Return new images of the same repository that lost their name."""
        repository = re.sub(r":[^:/]+$", "", doc["name"].split("@")[0])
        form = "{{.Repository}} {{.ID}}"
        out = self._docker("image", "ls", "--filter", "dangling=true", "--no-trunc", "--format", form)[1]
        lines = [line.split() for line in out.splitlines()]
        # The image store of containerd forgets the repository: there it is an image to which a role gave the name.
        brought = doc["managed"].get("ids", [])
        return sorted(
            {
                identity
                for name, identity in lines
                if identity not in doc["all"] and (name == repository or (name == "<none>" and identity in brought))
            }
        )

    def _removal(self, *words):
        def act():
            code, _, err = self._docker(*words)
            is_missing = "No such" in err
            return f"`docker {' '.join(words)}` failed: {err[-300:]}" if code != 0 and not is_missing else None

        return act

    def last_steps(self):
        """Return the steps for the engine itself, which restore the state of a pre-existing engine."""
        if not self.exists:
            return []
        if self.is_removed:
            return [Step("stop docker", self.stop)]
        steps = []
        if self._requires_stop():
            steps.append(Step("stop docker, which did not run before", self._control("stop", "docker.service")))
        elif self.requires_restart():
            steps.append(Step("restart docker with its original settings", self._control("restart", "docker.service")))
        if self.unit and self.unit["UnitFileState"] == "disabled" and self.state.get("UnitFileState") == "enabled":
            steps.append(Step("disable docker at boot, as before", self._control("disable", "docker.service")))
        if self.unit and self.unit["UnitFileState"] == "masked" and self.state.get("UnitFileState") != "masked":
            steps.append(Step("mask docker, as before", self._control("mask", "docker.service")))
        return steps

    def _control(self, verb, name):
        def act():
            self.module.run_command(["systemctl", "daemon-reload"])
            self.module.run_command(["systemctl", "reset-failed", "docker.service", "docker.socket"])
            code, _, err = self.module.run_command(["systemctl", verb, name])
            if code != 0:
                self.module.fail_json(
                    msg=f"docker: cannot {verb} ({err.strip()[-300:]}). Read `journalctl -u docker` on the node, then reset again."
                )

        return act

    def stop(self):
        """Stop an engine that the reset removes."""
        containerd = ["containerd.service"] if {"containerd", "containerd.io"} & set(self.removable) else []
        self.module.run_command(["systemctl", "stop", "docker.socket", "docker.service", *containerd])
        program = self.module.get_bin_path("ip")
        if program and os.path.isdir("/sys/class/net/docker0"):
            self.module.run_command([program, "link", "delete", "docker0"])

    def data_steps(self):
        """Return the steps for new data folders; those of an engine that stays are left."""
        steps = []
        for doc in records("data"):
            path = doc["path"]
            if doc["existed"] or not os.path.isdir(path) or os.path.islink(path):
                continue
            if not self.is_removed and self.exists and re.search("docker|containerd", path):
                continue
            steps.append(Step(f"remove {path}, unless something else uses it", _remove_data(path)))
        return steps


def _remove_data(path):
    def act():
        if path.startswith("/etc/"):
            if os.path.exists(path + "/key.json"):
                os.unlink(path + "/key.json")
            if os.path.isdir(path) and not os.listdir(path):
                os.rmdir(path)
            return None
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as stream:
            mounted = [line.split()[1] for line in stream if line.split()[1].startswith(path + "/")]
        if mounted or os.path.ismount(path):
            return f"leave {path}: something is mounted in it"
        shutil.rmtree(path, ignore_errors=True)
        return None

    return act


def _foreign_contents(folder):
    """Return the containers and volumes in a data folder that the roles did not create, without the help of docker."""
    contents = []
    for name in _folders(folder + "/containers"):
        config = parsed(read(f"{folder}/containers/{name}/config.v2.json")) or {}
        labels = (config.get("Config") or {}).get("Labels") or {}
        if labels.get("provision.role") != LABEL:
            contents.append(f"container {str(config.get('Name') or name[:12]).lstrip('/')}")
    return contents + [
        f"volume {name}" for name in _folders(folder + "/volumes") if not _ANONYMOUS_VOLUME.fullmatch(name)
    ]


def _folders(path):
    """Return the names of the folders in a folder, none if it does not exist."""
    names = os.listdir(path) if os.path.isdir(path) else []
    return sorted(name for name in names if os.path.isdir(os.path.join(path, name)))


def _is_newer(path, moment):
    try:
        return os.stat(path).st_ctime > moment + 1
    except OSError:
        return False


def _ticks(pid):
    """Return when a process was started, in clock ticks since boot; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stream:
            return int(stream.read().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _summary(items):
    return ", ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")
