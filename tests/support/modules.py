"""Ansible modules of the roles, loaded and run as on a node but in this process."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import ansible.module_utils
import pytest
from ansible.module_utils.testing import patch_module_args

ROLES = Path(__file__).resolve().parents[2] / "roles"


def provide_utils() -> None:
    """Put what roles have beside ansible.module_utils there."""
    for folder in map(str, ROLES.glob("*/module_utils")):
        if folder not in ansible.module_utils.__path__:
            ansible.module_utils.__path__.append(folder)


def load(role: str, name: str, *, part: str = "library") -> ModuleType:
    """Load a role's module (or filter plugin) with what roles put beside ansible.module_utils."""
    provide_utils()
    return _from(ROLES / role / part / f"{name}.py", name)


def run(module: ModuleType, *, check: bool = False, **parameters: Any) -> dict[str, Any]:
    """Run a module with these parameters; return its result for Ansible."""
    output = io.StringIO()
    with (
        patch_module_args({**parameters, "_ansible_check_mode": check}),
        redirect_stdout(output),
        pytest.raises(SystemExit),
    ):
        module.main()
    result: dict[str, Any] = json.loads(output.getvalue())
    return result


def play_commands(monkeypatch: pytest.MonkeyPatch, ansible: type, node: Any) -> None:
    """Let a played node answer what modules ask of the class AnsibleModule: `run_command` and `get_bin_path`."""
    monkeypatch.setattr(ansible, "run_command", lambda _self, command, **_more: node.run_command(command))
    if hasattr(node, "get_bin_path"):
        monkeypatch.setattr(ansible, "get_bin_path", lambda _self, name, **_more: node.get_bin_path(name))


def undone(steps: Iterable[Any]) -> list[str]:
    """Carry out the steps of a reset, which must not fail; return what each of them says."""
    ended = list(steps)
    assert [message for step in ended if (message := step.act())] == []
    return [step.sentence for step in ended]


def _from(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
