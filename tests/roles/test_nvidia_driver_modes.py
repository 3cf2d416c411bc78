"""The role nvidia_driver: MIG mode and persistence mode of GPUs, and their reset.

The program nvidia-smi is the SIMULATED one of the lab, which has the words of the real one.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from provision.lab.machines import load as load_machine
from provision.lab.machines import to_json
from tests.roles.test_nvidia_driver_role import role
from tests.support.modules import load, play_commands, run, undone
from tests.support.nvidia_smi import run_file

module = load("nvidia_driver", "nvidia_driver_modes")
undo = importlib.import_module("ansible.module_utils.platform_undo_gpus")
QUERY = "--query-gpu=index,mig.mode.current,mig.mode.pending,persistence_mode"
DCGM = "nvidia-dcgm.service"


class Node:
    """A node with the SIMULATED GPUs of a described machine, and a running DCGM."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls, self.answer = root, [], ""
        self.dcgm_fails, self.refusal = False, ""
        self.machine("dgxa100")

    def machine(self, name: str) -> None:
        """Replace the machine."""
        (self.root / "machine.json").write_text(json.dumps({**json.loads(to_json(load_machine(name))), "seed": "1"}))

    def faults(self, faults: dict[str, Any]) -> None:
        """Let GPUs have faults."""
        (self.root / "faults.json").write_text(json.dumps(faults))

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        """Run a program."""
        words = command[2:] if command[0] == "timeout" else command
        if words[0] == "systemctl":
            self.calls.append(" ".join(words))
            is_down = words[-1] != DCGM or (words[1] == "start" and self.dcgm_fails)
            return (3 if is_down else 0), "", ""
        self.calls += [" ".join(words)] if "-mig" in words or "-pm" in words else []
        if self.answer:
            return 0, self.answer, ""
        if self.refusal and ("-mig" in words or "-pm" in words):
            return 4, self.refusal, ""
        done = run_file(self.root / "machine.json", *words[1:])
        return done.returncode, done.stdout, done.stderr

    def modes(self) -> list[str]:
        """Return index, MIG mode now and after a reset, and persistence mode of each GPU."""
        return run_file(self.root / "machine.json", QUERY, "--format=csv,noheader").stdout.splitlines()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """An idle node."""
    made = Node(tmp_path)
    (tmp_path / "simulated").touch()
    monkeypatch.setattr(module, "SIMULATED_GPUS", str(tmp_path / "simulated"))
    monkeypatch.setattr(module, "running_jobs", list)
    play_commands(monkeypatch, module.AnsibleModule, made)
    return made


def apply(action: str = "set", *, check: bool = False, **more: Any) -> dict[str, Any]:
    """Run the module."""
    return run(module, check=check, action=action, **more)


def reset(node: Node) -> tuple[list[str], list[str]]:
    """Reset the modes; return what was done and what was left."""
    left: list[str] = []
    return undone(undo.mode_steps(node, left)), left


def test_every_gpu_gets_the_mode_once(node: Node) -> None:
    """Services that use the GPUs are stopped for the change; a second run changes nothing."""
    first, second = apply(mig="enabled", persistence="disabled"), apply(mig="enabled", persistence="disabled")

    assert (first["changed"], second["changed"]) == (True, False)
    assert node.modes() == [f"{index}, Enabled, Enabled, Disabled" for index in range(8)]
    mig = [line for line in node.calls if "-mig" in line]
    assert len(mig) == 8
    start, stop = node.calls.index(f"systemctl start {DCGM}"), node.calls.index(f"systemctl stop {DCGM}")
    assert stop < node.calls.index(mig[0]) < start
    assert "MIG mode of GPU-" in first["diff"]["after"]


def test_check_mode_changes_nothing(node: Node) -> None:
    """It reports the change, also before the driver is installed."""
    assert apply(mig="enabled", check=True)["changed"]
    assert node.modes()[0] == "0, Disabled, Disabled, Enabled"
    node.answer = "NVIDIA-SMI has failed"
    assert not apply(mig="enabled", check=True)["changed"]


@pytest.mark.parametrize("action", ["check", "set"])
def test_mig_mode_is_not_changed_under_a_job(node: Node, monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    """Unless the operator consents; persistence mode, and a mode that is set already, disturb no job."""
    monkeypatch.setattr(module, "running_jobs", lambda: ["process 7 (python3 of u) holds /dev/nvidia3"])
    refused = apply(action, mig="enabled")

    assert refused["failed"]
    assert "process 7 (python3 of u) holds /dev/nvidia3" in refused["msg"]
    assert [line for line in node.calls if "-mig" in line] == []
    assert not apply(action, mig="disabled", persistence="disabled").get("failed")
    assert not apply(action, mig="enabled", disruptive=True).get("failed")
    assert node.modes()[3].startswith(f"3, {'Enabled' if action == 'set' else 'Disabled'}")


@pytest.mark.parametrize("action", ["check", "set"])
def test_a_gpu_without_mig_is_named_before_anything_changes(node: Node, action: str) -> None:
    """`disabled` is what such a GPU has."""
    node.machine("pair")
    refused = apply(action, mig="enabled")

    assert refused["failed"]
    assert "no MIG mode" in refused["msg"]
    assert "nvidia_driver_mig_mode" in refused["msg"]
    assert not apply(action, mig="disabled").get("failed")
    assert [line for line in node.calls if "-mig" in line] == []


def test_a_gpu_that_requires_a_reset_is_named(node: Node) -> None:
    """With the words of nvidia-smi; the next run sets the mode when nothing uses the GPU."""
    node.faults({"2": {"in_use": "yes"}})
    failed = apply(mig="enabled")

    assert failed["failed"]
    assert "requires a reset of the GPU" in failed["msg"]
    assert "In use by another client" in failed["msg"]
    assert "nvidia-smi --gpu-reset -i GPU-" in failed["msg"]
    assert failed["msg"].count("GPU-") == 2
    node.faults({})
    assert apply(mig="enabled")["changed"]
    assert {line[3:] for line in node.modes()} == {"Enabled, Enabled, Enabled"}


@pytest.mark.parametrize("answer", ["GPU-0; rm, Disabled, Disabled", "", "x\n" * 3])
def test_an_answer_of_another_form_changes_nothing(node: Node, answer: str) -> None:
    """And ends the run with the line."""
    node.answer = answer or "\n\nGPU-"
    failed = apply(mig="enabled")

    assert failed["failed"]
    assert "nvidia-smi answered no table" in failed["msg"]
    assert [line for line in node.calls if "-mig" in line] == []


def test_a_mode_that_the_driver_refuses_is_no_matter_of_a_reset_of_the_gpu(node: Node) -> None:
    """A reset of the GPU would end jobs, and change nothing."""
    node.refusal = "Unable to set persistence mode: Insufficient Permissions"
    failed = apply(persistence="disabled")

    assert "was not set (nvidia-smi: Unable to set" in failed["msg"]
    assert "reset" not in failed["msg"]


@pytest.mark.parametrize("word", ["[Unknown Error]", "[GPU requires reset]"])
def test_a_gpu_whose_driver_answers_with_an_error_is_not_one_without_mig(node: Node, word: str) -> None:
    """Who removed the variable for this node would lose MIG on its other GPUs, too."""
    node.answer = f"GPU-{'0' * 8}, {word}, {word}\n"
    failed = apply(mig="enabled")

    assert word in failed["msg"]
    assert "no MIG mode" not in failed["msg"]
    assert not apply("check", mig="enabled").get("failed")


def test_a_service_that_does_not_start_again_is_an_error(node: Node) -> None:
    """The GPUs would no longer be monitored."""
    node.dcgm_fails = True
    failed = apply(mig="enabled")

    assert f"{DCGM} did not start again" in failed["msg"]


def test_a_reset_stops_what_uses_the_gpus_meanwhile(node: Node) -> None:
    """Else MIG mode would wait for a reset of each GPU."""
    apply(mig="enabled")
    node.calls.clear()
    assert reset(node)[1] == []

    assert f"systemctl stop {DCGM}" in node.calls
    assert node.calls[-1] == f"systemctl start {DCGM}"


def test_a_reset_restores_the_modes(node: Node) -> None:
    """Of the GPUs that the role has changed."""
    run_file(node.root / "machine.json", "-i", "0", "-mig", "1")
    before = node.modes()
    apply(mig="enabled", persistence="disabled")
    done, left = reset(node)

    assert node.modes() == before
    assert len(done) == 7 + 8
    assert left == []
    assert reset(node) == ([], [])


def test_a_reset_leaves_what_somebody_changed_since(node: Node) -> None:
    """Here a GPU whose mode is the original one already."""
    apply(mig="enabled")
    run_file(node.root / "machine.json", "-i", "5", "-mig", "0")
    done, left = reset(node)

    assert (len(done), left) == (7, [])
    node.answer = "x"
    assert "nvidia-smi answered no table" in reset(node)[1][0]


@pytest.mark.parametrize(
    ("more", "words"),
    [({"container": True, "gpus": 8}, "belong to its host"), ({"gpus": 0}, "the node has no NVIDIA GPU")],
)
def test_modes_of_other_machines_are_left_out(
    node: Node, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], words: str
) -> None:
    """The receipt has the reason."""
    monkeypatch.setattr(module, "SIMULATED_GPUS", "/nowhere")
    result = apply("check", mig="enabled", **more)

    assert words in result["left_out"][0]
    assert node.calls == []


def test_the_role_sets_modes_with_a_driver_of_the_site() -> None:
    """Nothing else of the role applies; the modes that a boot loses are set at boot."""
    one = role(
        nvidia_driver_source="present", nvidia_driver_mig_mode="enabled", nvidia_driver_persistence_mode="enabled"
    )
    script, unit = one.value("__nvidia_driver_modes_files")

    assert (one.value("__nvidia_driver_applies"), one.value("__nvidia_driver_managed")) == (True, False)
    persistence, mig, again, end = script["content"].splitlines()[2:]
    assert (persistence, end) == ("nvidia-smi -pm 1 || failed=1", "exit ${failed:-0}")
    assert mig.endswith("| grep -qx Disabled || nvidia-smi -mig 1 || failed=1")
    assert again.endswith("| grep -qx Disabled || failed=1"), "a mode that waits for a reset of the GPU is a failure"
    assert "After=systemd-modules-load.service nvidia-persistenced.service" in unit["content"]
    assert " nvidia-dcgm.service" in unit["content"], "DCGM would use the GPUs before"


@pytest.mark.parametrize(
    "variables",
    [{}, {"nvidia_driver_mig_mode": "disabled"}, {"nvidia_driver_mig_mode": "enabled", "left_out": ["skipped"]}],
)
def test_a_node_without_modes_at_boot_has_no_unit(variables: dict[str, Any]) -> None:
    """The files of an earlier setting are removed. Disabled MIG mode is what a boot gives."""
    left_out = variables.pop("left_out", [])
    one = role(nvidia_driver_source="present", __nvidia_driver_modes_probe={"left_out": left_out}, **variables)

    assert [file["state"] for file in one.value("__nvidia_driver_modes_files")] == ["absent"] * 3
    assert one.value("__nvidia_driver_applies") is bool(variables)
