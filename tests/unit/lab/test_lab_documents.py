"""Files of a lab that are damaged: an error with the remedy, or as if they were missing; never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.errors import LabError
from provision.lab import container_plan, engine_process, state, vm_plan
from provision.lab.services import Services, processes

DEEP = "[" * 200_000
SPEC = {"name": "a", "driver": "vm", "nodes": 2}


@pytest.mark.parametrize(
    ("read", "name", "content"),
    [
        (state.load_spec, "lab.json", {**SPEC, "nodes": "many"}),
        (state.load_spec, "lab.json", {**SPEC, "driver": "cloud"}),
        (state.load_spec, "lab.json", {**SPEC, "packages": [1]}),
        (state.load_spec, "lab.json", [SPEC]),
        (vm_plan.load_plan, "plan.json", {"subnet": "x", "multicast_port": 1}),
        (vm_plan.load_plan, "plan.json", {"subnet": 1, "multicast_port": 1, "ssh_ports": {"a-1": "ssh"}}),
        (container_plan.load_plan, "containers.json", {"lab": ["a"], "block": 1}),
        (container_plan.load_plan, "containers.json", {"lab": "a", "block": 1.5}),
        (engine_process.engine_of, "engine.json", {"host": None, "private": "no"}),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_damaged_file_of_a_lab_is_an_error_with_a_remedy(
    tmp_path: Path, read: Callable[[Path], object], name: str, content: Any, *, nested: bool
) -> None:
    """Wrong types and endless nesting alike."""
    (tmp_path / name).write_text(DEEP if nested else json.dumps(content))

    with pytest.raises(LabError) as caught:
        read(tmp_path)

    assert name in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("content", [{"pid": "1", "started": 1, "boot": "x"}, {"pid": 1, "started": None}, [], "DEEP"])
def test_a_damaged_record_of_a_process_names_no_process(tmp_path: Path, content: Any) -> None:
    """Nothing is ended because of it."""
    (tmp_path / "record").write_text(DEEP if content == "DEEP" else json.dumps(content))

    assert processes.read_record(tmp_path / "record") is None
    assert not processes.running(tmp_path / "record")


def test_damaged_information_of_services_is_ignored(tmp_path: Path) -> None:
    """The next `up` makes it anew."""
    (tmp_path / "services").mkdir()
    about = {"registry": 1, "ca_certificate": "", "image_reference": "", "image_digest": ""}
    (tmp_path / "services" / "info.json").write_text(json.dumps({**about, "repositories": "x", "simulated": []}))

    assert Services(tmp_path).info(tmp_path) is None
