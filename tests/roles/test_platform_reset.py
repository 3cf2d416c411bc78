"""The module that resets a node: packages, docker, units and order. test_platform_origin.py tests files."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.modules import load, provide_utils, run

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")
apt_get = importlib.import_module("ansible.module_utils.platform_package_apt")
packages = importlib.import_module("ansible.module_utils.platform_undo_packages")
docker = importlib.import_module("ansible.module_utils.platform_undo_docker")
files = importlib.import_module("ansible.module_utils.platform_undo_files")
kernel = importlib.import_module("ansible.module_utils.platform_undo_kernel")


class Node:
    """Replaces the programs of a node (dpkg, docker, systemctl), and records the commands that change something."""

    def __init__(self) -> None:
        self.packages: dict[str, str] = {}
        self.manual: list[str] = []
        self.containers: list[tuple[str, str, str]] = []
        self.volumes: list[str] = []
        self.images: dict[str, str] = {}
        self.dangling = ""
        self.unit = {"LoadState": "not-found", "ActiveState": "inactive", "UnitFileState": "", "MainPID": "0"}
        self.ran: list[list[str]] = []
        self.fails: set[str] = set()

    def run(self, command: list[str]) -> tuple[int, str, str]:
        """Answer one program; record programs that change something."""
        words = command[3:] if command[0] == "timeout" else command
        answer = next((reply for start, reply in self._replies().items() if " ".join(words).startswith(start)), None)
        if answer is not None:
            return answer
        if words[0] == "apt-get" and "-s" in words:
            return 0, "".join(f"Purg {name} [1]\n" for name in words[words.index("-s") + 2 :]), ""
        if words[:3] == ["docker", "image", "inspect"]:
            reply = self.images.get(words[-1], "")
            return int(not reply), reply + "\n", ""
        self.ran.append(words)
        if self.fails & set(words):
            return 1, "", "E: simulated failure"
        for name in words[words.index("purge") + 1 :] if "purge" in words else ():
            self.packages.pop(name)
        return 0, "", ""

    def _replies(self) -> dict[str, tuple[int, str, str]]:
        """Return the answers to queries by the start of their command lines."""
        table = "".join(f"{name}\tinstalled\t1\t\t, {needs}\n" for name, needs in self.packages.items())
        rows = [f"{name}id\t{name}\t{status}\t{role}\n" for name, status, role in self.containers]
        return {
            "dpkg-query -S": (1, "", "no path found"),
            f"dpkg-query -W -f {apt_get.FORM}": (0, table, ""),
            "dpkg-query -W": (0, "".join(f"{name} installed 1\n" for name in self.packages), ""),
            "apt-mark": (0, "\n".join(self.manual), ""),
            "systemctl show": (0, "".join(f"{key}={value}\n" for key, value in self.unit.items()), ""),
            "docker version": (0, "26", ""),
            "docker ps": (0, "".join(rows), ""),
            "docker volume ls": (0, "\n".join(self.volumes), ""),
            "docker image ls --filter dangling=true": (0, self.dangling, ""),
            "docker image ls": (0, "", ""),
        }


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return a bare node whose programs the modules run."""
    bare_node = Node()
    for module in (reset_module(), load("platform", "platform_packages"), load("platform", "platform_note")):
        monkeypatch.setattr(module.AnsibleModule, "run_command", lambda _self, command, **_more: bare_node.run(command))
        monkeypatch.setattr(module.AnsibleModule, "get_bin_path", lambda _self, name, **_more: f"/usr/bin/{name}")
    return bare_node


@pytest.fixture
def reset(node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the module on an idle node, unless `jobs` run there."""
    module = reset_module()
    monkeypatch.setattr(module, "RUN", str(tmp_path / "run"))
    monkeypatch.setattr(docker, "START_RECORD", str(tmp_path / "run" / "docker_engine.json"))
    assert node is not None

    def call(jobs: tuple[str, ...] = (), **parameters: Any) -> dict[str, Any]:
        monkeypatch.setattr(module, "running_jobs", lambda: list(jobs))
        return run(module, **parameters)

    return call


MODULE: list[ModuleType] = []


def reset_module() -> ModuleType:
    """Return the module, which is loaded once."""
    if not MODULE:
        MODULE.append(load("platform", "platform_reset"))
    return MODULE[0]


def install_packages(
    node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *names: str, without: str = "", **needs: str
) -> None:
    """Install packages with platform_packages, together with their dependencies."""
    module, origin_packages = (
        load("platform", "platform_packages"),
        importlib.import_module("ansible.module_utils.platform_origin_packages"),
    )
    monkeypatch.setattr(apt_get.Apt, "is_fresh", lambda _self: True)
    monkeypatch.setattr(origin_packages, "etc_files", lambda: [str(path) for path in (tmp_path / "etc").glob("*")])

    def install(_self: Any, requested: list[str], _streams: list[str], _versions: dict[str, str]) -> None:
        (tmp_path / "etc").mkdir(exist_ok=True)
        (tmp_path / "etc" / f"left-by-{requested[0]}").write_text("x\n")
        node.packages.pop(without, None)
        node.packages.update(dict.fromkeys(requested, "") | needs)

    with monkeypatch.context() as patch:
        patch.setattr(apt_get.Apt, "install", install)
        assert run(module, packages=list(names))["changed"]


def start_docker(node: Node) -> subprocess.Popen[bytes]:
    """Start a process in place of dockerd, which ends with the test."""
    process = subprocess.Popen(["sleep", "600"])
    node.unit.update(LoadState="loaded", ActiveState="active", UnitFileState="enabled", MainPID=str(process.pid))
    return process


@pytest.fixture
def engine(node: Node) -> Any:
    """Run docker during the test."""
    process = start_docker(node)
    yield process
    process.kill()
    process.wait()


def test_a_node_without_origin_records_has_nothing_to_reset(reset: Callable[..., Any], node: Node) -> None:
    """Neither plan nor reset does anything on a bare node."""
    assert reset(plan=True)["steps"] == reset()["steps"] == []
    assert not reset()["changed"]
    assert node.ran == []


def test_a_node_from_before_origin_records_is_not_reset(reset: Callable[..., Any], origins: Path) -> None:
    """Without records of the original state nothing changes, and the result contains the reason."""
    (origins.parent / "receipts").mkdir()

    result = reset()

    assert result["steps"] == []
    assert "before they recorded its original state" in result["left"][0]
    assert (origins.parent / "receipts").exists()


def test_the_plan_changes_nothing(
    reset: Callable[..., Any], node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origins: Path
) -> None:
    """The plan and check mode list the same steps."""
    install_packages(node, monkeypatch, tmp_path, "pigz")
    origin.record_file(str(tmp_path / "x"), "ours\n")
    (tmp_path / "x").write_text("ours\n")
    before = sorted(origins.rglob("*"))

    planned = reset(plan=True)
    checked = reset(check=True)

    assert planned["steps"] == checked["steps"]
    assert f"remove {tmp_path / 'x'}" in planned["steps"]
    assert "remove the package pigz" in planned["steps"]
    assert planned["steps"][-1] == "remove the receipts and records of the roles"
    assert (node.ran, sorted(origins.rglob("*")), (tmp_path / "x").exists()) == ([], before, True)


def test_installed_items_are_removed_and_earlier_ones_preserved(
    reset: Callable[..., Any], node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origins: Path
) -> None:
    """Packages, their dependencies, their leftovers in /etc, and receipts. The next reset has nothing to do."""
    node.packages.update({"libc6": "", "kmod": "libc6"})
    install_packages(node, monkeypatch, tmp_path, "docker.io", "containerd", runc="libc6")
    install_packages(node, monkeypatch, tmp_path, "dkms")
    (origins.parent / "receipts").mkdir()
    (origins.parent / "history.jsonl").write_text("{}\n")

    result = reset()

    assert sorted(node.packages) == ["kmod", "libc6"]
    assert list((tmp_path / "etc").iterdir()) == []
    assert [path.name for path in origins.parent.iterdir()] == ["history.jsonl"]
    assert "remove the 4 packages containerd, dkms, docker.io, runc" in result["steps"]
    assert reset()["steps"] == []


def test_the_plan_counts_the_jobs_whose_outputs_are_removed(reset: Callable[..., Any], origins: Path) -> None:
    """They exist nowhere else, so an operator sees them before answering."""
    jobs = origins.parent / "jobs"
    for name in (".lock", "mnist", "vgg"):
        (jobs / name).mkdir(parents=True)
    origin.record_file(str(origins.parent.parent / "x"), "ours\n")

    sentence = f"remove the records and outputs of 2 batch jobs in {jobs}"
    assert sentence in reset(plan=True)["steps"]
    assert jobs.exists()
    assert sentence in reset()["steps"]
    assert not jobs.exists()


def test_a_file_in_etc_that_was_edited_later_is_preserved(
    reset: Callable[..., Any], node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file came with a package and was edited afterwards."""
    install_packages(node, monkeypatch, tmp_path, "pigz")
    path = tmp_path / "etc" / "left-by-pigz"
    os.utime(path, (path.stat().st_mtime + 100,) * 2)

    reset()

    assert path.exists()


def test_an_account_of_a_person_that_was_created_later_is_preserved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A person ran useradd while packages were installed; packages only create system accounts."""
    passwd, group = tmp_path / "passwd", tmp_path / "group"
    passwd.write_text(
        "root:x:0:0::/root:/bin/sh\nalice:x:1001:1001::/home/alice:/bin/sh\n_rpc:x:104:65534::/run:/bin/no\n"
    )
    group.write_text("root:x:0:\nalice:x:1001:\ndocker:x:995:\n")
    monkeypatch.setattr(packages, "PASSWD", str(passwd))
    monkeypatch.setattr(packages, "GROUP", str(group))

    remains = packages.leftovers([{"managed": {"users": ["alice", "_rpc"], "groups": ["alice", "docker"]}}])

    assert remains == {"users": ["_rpc"], "groups": ["docker"], "etc": []}


def test_a_package_that_others_require_is_preserved(
    reset: Callable[..., Any], node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A package that a later package requires stays, and so does one that was requested manually since."""
    install_packages(node, monkeypatch, tmp_path, "docker.io", containerd="", runc="", pigz="")
    node.packages["docker.io"] = "containerd (>= 1.4), iptables | nftables"
    node.packages["containerd"] = "runc"
    node.packages["kubelet"] = "cri-o | containerd:any"
    node.manual = ["docker.io", "kubelet", "pigz"]

    result = reset()

    assert sorted(node.packages) == ["containerd", "kubelet", "pigz", "runc"]
    assert "leave the package containerd: kubelet requires it" in result["left"]
    assert "leave the package runc: containerd requires it" in result["left"]
    assert "leave the package pigz: it was requested manually since" in result["left"]


def test_a_transaction_interrupted_by_a_power_cut_is_reversed() -> None:
    """Without a record of its effects, it installed the requested packages and their missing dependencies."""
    known = {
        name: {"status": "installed", "version": "1", "names": {name}, "needs": needs}
        for name, needs in {"dkms": [["gcc", "clang"], ["libc6"]], "gcc": [["libc6"]], "libc6": [], "vim": []}.items()
    }

    installed = packages.installed_packages(
        [{"requested": ["dkms"], "installed": {"libc6": "1"}, "managed": {}}], known
    )

    assert installed == {"dkms", "gcc"}


def test_a_package_replaced_by_ours_is_installed_again(
    reset: Callable[..., Any], node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """docker-ce replaced docker.io. The reset installs docker.io again and preserves its data."""
    node.packages["docker.io"] = ""
    install_packages(node, monkeypatch, tmp_path, "docker-ce", without="docker.io")
    assert "docker.io" not in node.packages
    origin.record("data", docker.DATA_FOLDER, {"path": docker.DATA_FOLDER, "existed": True})

    result = reset()

    assert "install the packages again that the roles' packages replaced: docker.io" in result["steps"]
    apt = [words for words in node.ran if words[0] == "apt-get"]
    assert [(words[-2], words[-1]) for words in apt if "purge" in words or "remove" in words] == [
        ("remove", "docker-ce"),
        ("purge", "docker-ce"),
    ]
    assert apt[-1][-2:] == ["install", "docker.io"]


def test_nothing_is_removed_if_apt_would_remove_other_packages(
    reset: Callable[..., Any], node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The message names the other packages, and the records stay for the next reset."""
    install_packages(node, monkeypatch, tmp_path, "pigz")
    answer = node.run
    monkeypatch.setattr(node, "run", lambda words: (0, "Purg pigz\nRemv vim\n", "") if "-s" in words else answer(words))

    result = reset()

    assert result["failed"]
    assert "change others (vim)" in result["msg"]
    assert "pigz" in node.packages
    assert "remove the package pigz" in reset(plan=True)["steps"]


def test_an_interrupted_reset_is_completed_by_the_next_one(
    reset: Callable[..., Any], node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origins: Path
) -> None:
    """Completed steps are not repeated; the remaining ones are performed."""
    (tmp_path / "x").write_text("first\n")
    origin.record_file(str(tmp_path / "x"), "ours\n")
    (tmp_path / "x").write_text("ours\n")
    install_packages(node, monkeypatch, tmp_path, "pigz")
    node.fails = {"purge"}
    cut = reset()
    node.fails = set()

    planned = reset(plan=True)
    reset()

    assert cut["failed"]
    assert (tmp_path / "x").read_text() == "first\n"
    assert f"restore {tmp_path / 'x'}" not in planned["steps"]
    assert (node.packages, origins.exists()) == ({}, False)


def test_a_busy_node_is_refused_without_disruptive(reset: Callable[..., Any], tmp_path: Path) -> None:
    """The message names the job and nothing changes; --disruptive performs the reset."""
    origin.record_file(str(tmp_path / "x"), "ours\n")
    (tmp_path / "x").write_text("ours\n")
    job = "process 4711 (python3 of root) holds /dev/nvidia0"

    planned, result = reset((job,), plan=True), reset((job,))
    file_exists = (tmp_path / "x").exists()
    forced = reset((job,), disruptive=True)

    assert planned["refused"] == [f"a job runs: {job}"]
    assert result["failed"]
    assert job in result["msg"]
    assert file_exists
    assert not forced.get("failed")
    assert not (tmp_path / "x").exists()


def test_a_change_that_waits_refuses_the_reset(
    node: Node, reset: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node would revert a part of the reset. With --disruptive the reset takes the place of the revert."""
    rescue = importlib.import_module("ansible.module_utils.platform_rescue_node")
    monkeypatch.setattr(rescue, "FOLDER", str(tmp_path / "rescue"))
    monkeypatch.setattr(rescue, "UNITS", str(tmp_path / "units"))
    (tmp_path / "rescue").mkdir()
    origin.record("sysctls", "x", {"key": "x", "path": str(tmp_path / "x"), "before": "1"})
    change = {"token": "a" * 32, "role": "base_system", "what": "rules of ufw", "seconds": 45, "files": []}
    rescue.write_document("pending", change)

    assert reset(plan=True)["refused"] == ["a change waits for its confirmation: rules of ufw (role base_system)"]
    assert reset()["failed"]
    assert rescue.read_document("pending") == change

    assert reset(disruptive=True)["steps"][0] == "end the wait for a confirmation: rules of ufw"
    assert rescue.read_document("pending") == {}
    timers = ["provision-rescue-aaaaaaaaaaaa.timer", "provision-rescue-aaaaaaaaaaaa-guard.timer"]
    assert ["systemctl", "stop", *timers] in node.ran


@pytest.mark.parametrize(("phase", "refused"), [("rebooting", True), ("trial", True), ("confirmed", False)])
def test_a_node_with_a_kernel_on_trial_is_not_reset(
    reset: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, phase: str, *, refused: bool
) -> None:
    """Without its watchdog, the node would stay in an unconfirmed kernel."""
    record = tmp_path / "upgrade.json"
    record.write_text(json.dumps({"phase": phase, "to": "6.1.0-50-amd64"}))
    monkeypatch.setattr(kernel, "KERNEL_UPGRADE", str(record))
    origin.record_file(str(tmp_path / "x"), "ours\n")

    assert reset().get("failed", False) is refused
    assert not reset(disruptive=True).get("failed", False)


def test_the_menu_of_grub_is_written_after_its_settings_are_removed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then, and for the boot loader that the node has."""
    settings = [files.Step("remove it", lambda: None, f"{kernel.GRUB_SETTINGS}zz.cfg")]
    monkeypatch.setattr(kernel.os.path, "isfile", lambda path: path == "/boot/grub2/grub.cfg")
    module = SimpleNamespace(run_command=node.run)

    assert kernel.loader_steps(module, [files.Step("remove it", lambda: None, "/etc/fstab")]) == []
    [step] = kernel.loader_steps(module, settings)
    assert step.act() is None
    assert node.ran == [["grub2-mkconfig", "-o", "/boot/grub2/grub.cfg"]]


def test_a_role_that_was_interrupted_after_its_first_value_is_reset(
    reset: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The governor is set before the files of the role are written, so that its record can be the only one."""
    links = importlib.import_module("ansible.module_utils.platform_links")
    governor = tmp_path / "scaling_governor"
    governor.write_text("performance\n")
    monkeypatch.setattr(links, "GOVERNORS", str(governor))
    origin.record("governors", "governor", {"values": {str(governor): "powersave"}})
    origin.mark_managed("governors", "governor", "values", "performance")

    assert reset()["steps"][0] == "set the CPU governor back to powersave"
    assert governor.read_text() == "powersave"


def test_only_the_container_of_provision_is_removed(reset: Callable[..., Any], node: Node, engine: Any) -> None:
    """On a pre-existing engine, the label identifies the container, and pre-existing images are preserved."""
    node.containers = [("provision-training", "Up 2 hours", "training_container"), ("web", "Up 3 hours", "")]
    record = load("platform", "platform_note")
    node.images = {"r/other:1": "sha256:" + "1" * 64}
    run(record, images=["r/other:1", "r/role:1"])
    node.images["r/role:1"] = "sha256:" + "2" * 64
    origin.record("units", "docker.service", {"name": "docker.service", **node.unit})

    result = reset()

    assert engine.poll() is None
    assert node.ran[:2] == [
        ["docker", "rm", "--force", "--volumes", "provision-trainingid"],
        ["docker", "image", "rm", "r/role:1"],
    ]
    assert not any({"restart", "stop"} & set(words) for words in node.ran)
    assert "stop and remove the container provision-training" in result["steps"]


def test_earlier_images_of_the_roles_are_removed_from_both_image_stores(
    reset: Callable[..., Any], node: Node, engine: Any
) -> None:
    """The store of containerd forgets the repository of an image without a name; the role's record does not."""
    first, second, others = (f"sha256:{letter * 64}" for letter in "abc")
    run(load("platform", "platform_note"), images=["r/role:1"])
    origin.mark_managed("images", "r/role:1", "ids", first)
    node.images["r/role:1"] = "sha256:" + "d" * 64
    node.dangling = f"<none> {first}\nr/role {second}\n<none> {others}\nr/other {others}\n"

    result = reset()

    assert engine.poll() is None
    removed = [words[3] for words in node.ran if words[:3] == ["docker", "image", "rm"]]
    assert removed == ["r/role:1", first, second], result


def test_docker_with_containers_or_volumes_of_others_is_not_removed(
    reset: Callable[..., Any], node: Node, engine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Docker that the roles installed is not removed under containers and volumes of other users."""
    install_packages(node, monkeypatch, tmp_path, "docker.io")
    node.containers, node.volumes = [("web", "Exited (0)", "")], ["data", "f" * 64]

    result = reset(plan=True)

    assert engine.poll() is None
    assert len(result["refused"]) == 1
    assert "container web, volume data" in result["refused"][0]
    assert "stop and remove the container web, which the roles did not create" in result["steps"]


def test_data_of_others_in_stopped_docker_prevents_its_removal(
    reset: Callable[..., Any], node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Stopped docker does not list its contents, so the reset reads its data folder."""
    data = tmp_path / "docker"
    origin.record_data_folder(str(data))
    install_packages(node, monkeypatch, tmp_path, "docker.io")
    node.unit.update(LoadState="loaded", ActiveState="failed")
    for name, label in (("a" * 64, {"provision.role": "training_container"}), ("b" * 64, {})):
        (data / "containers" / name).mkdir(parents=True)
        config = {"Name": "/web", "Config": {"Labels": label}}
        (data / "containers" / name / "config.v2.json").write_text(json.dumps(config))
    (data / "volumes" / ("f" * 64)).mkdir(parents=True)
    (data / "volumes" / "results" / "_data").mkdir(parents=True)

    result = reset()

    assert result["failed"]
    assert "with objects that the roles did not create: container web, volume results" in result["refused"][0]
    assert (data / "volumes" / "results" / "_data").is_dir()

    assert reset(disruptive=True)["refused"] == []
    assert not data.exists()


def test_docker_is_restarted_only_for_changed_settings(
    reset: Callable[..., Any], node: Node, engine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not if the file has the same settings in another form, and not under running containers of other users."""
    path = tmp_path / "daemon.json"
    monkeypatch.setattr(docker, "CONFIG", str(path))
    path.write_text('{"debug":true}')
    os.utime(path, (1, 1))
    origin.record_file(str(path), kind="json", settings={"debug": True})
    path.write_text('{\n  "debug": true\n}\n')
    origin.record("units", "docker.service", {"name": "docker.service", **node.unit})
    start = {"pid": str(engine.pid), "ticks": docker._ticks(engine.pid), "settings": {"debug": True}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "docker_engine.json").write_text(json.dumps(start))
    same = reset(plan=True)
    origin.record_file(str(path), kind="json", settings={"debug": True, "live-restore": True})
    path.write_text('{"debug": true, "live-restore": true}')
    (tmp_path / "run" / "docker_engine.json").write_text(
        json.dumps({**start, "settings": {"debug": True, "live-restore": True}})
    )
    differs = reset(plan=True)
    node.containers = [("web", "Up 3 hours", "")]
    refused = reset(plan=True)
    node.containers = []
    reset()

    assert not any(sentence.startswith("restart docker") for sentence in same["steps"])
    assert "restart docker with its original settings" in differs["steps"]
    assert "restarted under running containers that the roles did not create: web" in refused["refused"][0]
    assert ["systemctl", "restart", "docker.service"] in node.ran
    assert path.read_text() == '{"debug":true}'


@pytest.mark.parametrize(("state", "verb"), [("disabled", "disable"), ("masked", "mask")])
def test_docker_that_was_stopped_before_is_stopped_again(
    reset: Callable[..., Any], node: Node, engine: Any, state: str, verb: str
) -> None:
    """It does not run or start at boot, as before."""
    before = {**node.unit, "ActiveState": "inactive", "UnitFileState": state}
    origin.record("units", "docker.service", {"name": "docker.service", **before})

    reset()

    assert engine.poll() is None
    assert ["systemctl", "stop", "docker.service"] in node.ran
    assert ["systemctl", verb, "docker.service"] in node.ran


def test_units_are_stopped_before_their_files_are_removed(
    reset: Callable[..., Any], node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Path units are stopped first, because they would start their services again."""
    import re

    monkeypatch.setattr(reset_module(), "UNIT", re.compile(re.escape(str(tmp_path)) + r"/([^/]+\.(?:path|service))$"))
    for name in ("a.service", "b.path"):
        origin.record_file(str(tmp_path / name), "ours\n")
        (tmp_path / name).write_text("ours\n")

    result = reset()

    assert result["steps"][:2] == ["stop and disable b.path", "stop and disable a.service"]
    stops = [words[2] for words in node.ran if words[:2] == ["systemctl", "stop"]]
    assert stops == ["b.path", "a.service"]
    assert node.ran[-1] == ["systemctl", "daemon-reexec"]
    assert not (tmp_path / "a.service").exists()


def test_only_an_account_created_by_provision_is_removed(
    reset: Callable[..., Any], node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account of the job agent is removed; another account of that name is preserved."""
    with Path("/etc/passwd").open(encoding="utf-8") as stream:
        name, *_, home, _ = next(stream).split(":")
    monkeypatch.setattr(reset_module().origin, "record_names", lambda kind: ["x.json"] if kind == "files" else [])
    records = [{"name": name, "home": home, "existed": True}, {"name": name, "home": "/elsewhere", "existed": False}]
    monkeypatch.setattr(reset_module().origin, "records", lambda kind: records if kind == "accounts" else [])
    assert [step for step in reset(plan=True)["steps"] if "account" in step] == []

    records.append({"name": name, "home": home, "existed": False})
    assert f"remove the account {name}" in reset(plan=True)["steps"]
    assert [words for words in node.ran if words[0] == "userdel"] == []


def test_the_database_of_slurm_is_removed_while_mariadb_runs_and_slurmdbd_does_not(
    reset: Callable[..., Any], node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """MariaDB would wait for the tables that slurmdbd uses."""
    for name in ("mariadb.service", "slurmdbd.service"):
        origin.record(
            "units", name, {"name": name, "ActiveState": "inactive", "UnitFileState": "", "LoadState": "loaded"}
        )
    origin.record("databases", "slurm_acct_db", {"name": "slurm_acct_db", "existed": False})
    install_packages(node, monkeypatch, tmp_path, "mariadb-server")

    assert reset(plan=True)["steps"][:3] == [
        "stop slurmdbd.service",
        "remove the database slurm_acct_db of MariaDB",
        "stop mariadb.service",
    ]
