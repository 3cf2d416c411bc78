"""The simulated nvidia-smi repeats an answer only as long as it describes the same machine."""

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
    """Run the installed program with a cache directory of the test."""
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


def test_a_repeated_answer_does_not_start_python(smi, tmp_path):
    """A second call prints the first answer, including SIMULATED, without starting Python."""
    first = smi("dgx1v")
    (cached,) = (tmp_path / "kept").iterdir()
    cached.write_text(cached.read_text().replace("V100", "V999"))

    second = smi()

    assert "V100" in first[0]
    assert "SIMULATED" in first[1]
    assert second == (first[0].replace("V100", "V999"), first[1])


def test_another_machine_or_fault_changes_the_answer_immediately(smi, tmp_path):
    """Answers for another description, or without a fault, are not repeated."""
    smi("dgx1v")

    assert "A100" in smi("dgxa100")[0]
    (tmp_path / "faults.json").write_text(json.dumps({"all": {"name": "BROKEN"}}))
    assert "BROKEN" in smi()[0]
    (tmp_path / "faults.json").unlink()
    assert "A100" in smi()[0]
