"""The stand-in nvidia-smi repeats an answer as long as it describes the same machine, and never longer."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from provision.lab.machines import load, to_json
from provision.lab.services.packages import smi_program

ASKED = ("--query-gpu=index,name", "--format=csv")


@pytest.fixture
def smi(tmp_path):
    """Run the installed program; what it keeps is in a folder of the test."""
    program, machine = tmp_path / "nvidia-smi", tmp_path / "machine.json"
    identity = tmp_path / "machine-id"
    identity.write_text("one\n")
    text = smi_program().replace("/run/provision-lab", f"{tmp_path}/kept").replace("/etc/machine-id", str(identity))
    program.write_text(text)
    program.chmod(0o755)

    def run(name: str | None = None) -> tuple[str, str]:
        if name:
            machine.write_text(to_json(load(name)))
        environment = {**os.environ, "PROVISION_LAB_MACHINE_FILE": str(machine)}
        done = subprocess.run([program, *ASKED], env=environment, capture_output=True, text=True, check=True)
        return done.stdout, done.stderr

    return run


def test_the_same_machine_gets_the_same_answer_without_a_start_of_python(smi, tmp_path):
    """A second call says what the first one said, that it is SIMULATED too, though Python cannot run any more."""
    first = smi("dgx1v")
    (cached,) = (tmp_path / "kept").iterdir()
    cached.write_text(cached.read_text().replace("V100", "V999"))

    second = smi()

    assert "V100" in first[0]
    assert "SIMULATED" in first[1]
    assert second == (first[0].replace("V100", "V999"), first[1])


def test_another_machine_and_a_fault_are_seen_at_once(smi, tmp_path):
    """What is kept of another description, or of a time without a fault, is not said again."""
    smi("dgx1v")

    assert "A100" in smi("dgxa100")[0]
    (tmp_path / "faults.json").write_text(json.dumps({"all": {"name": "BROKEN"}}))
    assert "BROKEN" in smi()[0]
    (tmp_path / "faults.json").unlink()
    assert "A100" in smi()[0]
