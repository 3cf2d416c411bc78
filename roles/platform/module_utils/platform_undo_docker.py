"""What a reset does with docker: our container and image go, an engine that stood before runs on as it did."""

import os
import re
import shutil

from ansible.module_utils.platform_origin import records
from ansible.module_utils.platform_undo_files import Step, parsed, read, settings_then

CONFIG = "/etc/docker/daemon.json"
DROP_INS = "/etc/systemd/system/docker.service.d/"
DATA = "/var/lib/docker"
ENGINES = ("docker.io", "docker-ce", "moby-engine")
LABEL = "training_container"
MARK = "/run/provision/docker_engine.json"
SECONDS = "60"
_NUMBER = re.compile("[0-9a-f]{64}")


class Engine:
    """The docker engine of the node, as it is and as it will be.

    Args:
        module: runs programs.
        going: names of the packages that the reset removes.
        files: notes of files.
        steps: what is done with files.
    """

    def __init__(self, module, going, files, steps):
        """Ask docker what it holds."""
        self.module, self.files, self.steps = module, files, steps
        self.ours = bool(set(ENGINES) & set(going))
        self.going = going
        before = [doc for doc in records("data") if doc["path"] == DATA and doc["existed"]]
        self.data_goes = self.ours and not before
        self.unit = next((doc for doc in records("units") if doc["name"] == "docker.service"), None)
        names = "LoadState,ActiveState,UnitFileState,MainPID"
        out = module.run_command(["systemctl", "show", "docker.service", "--property=" + names])[1]
        self.state = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        self.there = self.state.get("LoadState") == "loaded"
        self.active = self.state.get("ActiveState") == "active"
        self.answers = self.active and self._docker("version")[0] == 0
        self.mine, self.others = self._containers() if self.answers else ([], [])

    def _docker(self, *words):
        """Run docker, which may hang, with a limit; return code, output, and what it complained of."""
        if not self.module.get_bin_path("docker"):
            return 127, "", "the command docker is not there"
        code, out, err = self.module.run_command(["timeout", "--kill-after=5", SECONDS, "docker", *words])
        return code, out, f"no answer within {SECONDS} s" if code == 124 else (err or out).strip()

    def _containers(self):
        """Return our containers and those of others: name, identity and whether it runs."""
        form = '{{.ID}}\t{{.Names}}\t{{.Status}}\t{{.Label "provision.role"}}'
        lines = [
            line.split("\t") for line in self._docker("ps", "--all", "--no-trunc", "--format", form)[1].splitlines()
        ]
        containers = [
            (words[1], words[0], words[2].startswith("Up"), words[3] == LABEL) for words in lines if len(words) == 4
        ]
        return [item[:3] for item in containers if item[3]], [item[:3] for item in containers if not item[3]]

    def _volumes(self):
        """Return the volumes that somebody named."""
        names = self._docker("volume", "ls", "--quiet")[1].split() if self.answers else []
        return [name for name in names if not _NUMBER.fullmatch(name)]

    def _doomed(self):
        """Return the folders of docker's data that the reset removes."""
        if not self.ours and self.there:
            return []
        paths = [doc["path"] for doc in records("data") if not doc["existed"] and not doc["path"].startswith("/etc/")]
        return [path for path in paths if os.path.isdir(path) and not os.path.islink(path)]

    # What is in the way

    def refusals(self):
        """Return why docker cannot be changed without hurting others, as sentences."""
        reasons = []
        names = [item[0] for item in self.others]
        running = [name for name, _, up in self.others if up]
        held = [f"container {name}" for name in names] + [f"volume {name}" for name in self._volumes()]
        doomed = self._doomed()
        if not self.answers:  # it may have been stopped: what it holds goes with its data all the same
            held = [item for path in doomed for item in _held_in(path)]
        if (self.data_goes or doomed) and held:
            reasons.append(f"docker came with us and would go, and it holds what is not ours: {_few(held)}")
        elif running and self.ours:
            reasons.append(f"docker came with us and would go from under containers that are not ours: {_few(running)}")
        elif running and self.restarting():
            reasons.append(f"docker would be restarted under containers that are not ours: {_few(running)}")
        elif running and self._stopping():
            reasons.append(
                f"docker did not run before and would be stopped under containers that are not ours: {_few(running)}"
            )
        if self.there and not self.ours and not self.answers and (self.unit or {}).get("ActiveState") == "active":
            reasons.append("docker does not answer, so our container cannot be removed; see `systemctl status docker`")
        return reasons

    def restarting(self):
        """Return whether an engine that stays has to be restarted to run with what it had before."""
        if self.ours or not self.active or self._stopping():
            return False
        noted_paths = [doc["path"] for doc in self.files]
        drop_ins = [path for path in noted_paths if path.startswith(DROP_INS)]
        if any(step.path in drop_ins for step in self.steps) or (drop_ins and _newer(DROP_INS, self._started())):
            return True
        doc = next((doc for doc in self.files if doc["path"] == CONFIG), None)
        if doc is None:
            return False
        running = self._running_settings()
        return running is None or running != settings_then(doc)

    def _stopping(self):
        return (
            not self.ours and self.active and (self.unit or {}).get("ActiveState", "active") in ("inactive", "failed")
        )

    def _started(self):
        """Return when dockerd was started, in seconds since 1970; 0 when nobody can say."""
        with open("/proc/stat", encoding="ascii") as stream:
            boot = next((int(line.split()[1]) for line in stream if line.startswith("btime")), 0)
        ticks = _ticks(self.state.get("MainPID"))
        return boot + ticks / os.sysconf("SC_CLK_TCK") if ticks else 0

    def _running_settings(self):
        """Return the settings that dockerd runs with, None when nobody can say."""
        mark = parsed(read(MARK)) or {}
        if mark.get("pid") == self.state.get("MainPID") and mark.get("ticks") == _ticks(mark.get("pid")):
            return mark.get("settings")
        return parsed(read(CONFIG)) if not _newer(CONFIG, self._started()) else None

    # What is done

    def first_steps(self):
        """Return the steps that need docker: containers, then images."""
        steps = [
            Step(f"stop and remove the container {name}", self._removal("rm", "--force", "--volumes", identity))
            for name, identity, _ in self.mine
        ]
        if self.data_goes:
            return steps + [
                Step(
                    f"stop and remove the container {name}, which is not ours", self._removal("rm", "--force", identity)
                )
                for name, identity, _ in self.others
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
                        f"remove the image {identity[7:19]}, an older one of ours",
                        self._removal("image", "rm", identity),
                    )
                )
        return steps

    def _image(self, name):
        code, out, _ = self._docker("image", "inspect", "--format", "{{.Id}}", name)
        return out.strip() if code == 0 else ""

    def _dangling(self, doc):
        """Return images of the same repository that lost their name and were not there before."""
        repository = re.sub(r":[^:/]+$", "", doc["name"].split("@")[0])
        form = "{{.Repository}} {{.ID}}"
        out = self._docker("image", "ls", "--filter", "dangling=true", "--no-trunc", "--format", form)[1]
        lines = [line.split() for line in out.splitlines()]
        return sorted({words[1] for words in lines if words[0] == repository and words[1] not in doc["all"]})

    def _removal(self, *words):
        def act():
            code, _, err = self._docker(*words)
            gone = "No such" in err
            return f"`docker {' '.join(words)}` failed: {err[-300:]}" if code != 0 and not gone else None

        return act

    def last_steps(self):
        """Return the steps for the engine itself: one that stays runs as it did before."""
        if not self.there:
            return []
        if self.ours:
            return [Step("stop docker", self.stop)]
        steps = []
        if self._stopping():
            steps.append(Step("stop docker, which did not run before", self._control("stop", "docker.service")))
        elif self.restarting():
            steps.append(
                Step("restart docker, which gets its former settings back", self._control("restart", "docker.service"))
            )
        if self.unit and self.unit["UnitFileState"] == "disabled" and self.state.get("UnitFileState") == "enabled":
            steps.append(
                Step("docker does not start at boot again, as before", self._control("disable", "docker.service"))
            )
        if self.unit and self.unit["UnitFileState"] == "masked" and self.state.get("UnitFileState") != "masked":
            steps.append(Step("docker is masked again, as before", self._control("mask", "docker.service")))
        return steps

    def _control(self, verb, name):
        def act():
            self.module.run_command(["systemctl", "daemon-reload"])
            self.module.run_command(["systemctl", "reset-failed", "docker.service", "docker.socket"])
            code, _, err = self.module.run_command(["systemctl", verb, name])
            if code != 0:
                self.module.fail_json(
                    msg=f"docker could not {verb}: {err.strip()[-300:]}. See `journalctl -u docker` on the node, and reset again."
                )

        return act

    def stop(self):
        """Stop an engine that goes."""
        below = ["containerd.service"] if {"containerd", "containerd.io"} & set(self.going) else []
        self.module.run_command(["systemctl", "stop", "docker.socket", "docker.service", *below])
        program = self.module.get_bin_path("ip")
        if program and os.path.isdir("/sys/class/net/docker0"):
            self.module.run_command([program, "link", "delete", "docker0"])

    def data_steps(self):
        """Return the steps for what an engine that goes leaves, where it was not there before."""
        steps = []
        for doc in records("data"):
            path = doc["path"]
            if doc["existed"] or not os.path.isdir(path) or os.path.islink(path):
                continue
            if not self.ours and self.there:
                continue
            steps.append(Step(f"remove {path}, unless something else needs it", _data(path)))
        return steps


def _data(path):
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


def _held_in(folder):
    """Return what a folder of docker's data holds that is not ours, when docker itself cannot be asked."""
    users = []
    for name in _folders(folder + "/containers"):
        config = parsed(read(f"{folder}/containers/{name}/config.v2.json")) or {}
        labels = (config.get("Config") or {}).get("Labels") or {}
        if labels.get("provision.role") != LABEL:
            users.append(f"container {str(config.get('Name') or name[:12]).lstrip('/')}")
    return users + [f"volume {name}" for name in _folders(folder + "/volumes") if not _NUMBER.fullmatch(name)]


def _folders(path):
    """Return the names of the folders in a folder, none where it is not there."""
    names = os.listdir(path) if os.path.isdir(path) else []
    return sorted(name for name in names if os.path.isdir(os.path.join(path, name)))


def _newer(path, moment):
    try:
        return os.stat(path).st_ctime > moment + 1
    except OSError:
        return False


def _ticks(pid):
    """Return when a process was started, in clock ticks since boot; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stream:
            return int(stream.read().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _few(items):
    return ", ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")
