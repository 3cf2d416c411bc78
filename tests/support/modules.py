"""Ansible modules of the roles, loaded and run as on a node but in this process."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

ROLES = Path(__file__).resolve().parents[2] / "roles"


def load(role: str, name: str, *, part: str = "library") -> ModuleType:
    """Load a role's module (or filter plugin) with what roles put beside ansible.module_utils."""
    for path in ROLES.glob("*/module_utils/*.py"):
        if f"ansible.module_utils.{path.stem}" not in sys.modules:
            sys.modules[f"ansible.module_utils.{path.stem}"] = _from(path, f"ansible.module_utils.{path.stem}")
    return _from(ROLES / role / part / f"{name}.py", name)


def run(module: ModuleType, *, check: bool = False, **parameters: Any) -> dict[str, Any]:
    """Run a module with these parameters; return what it tells Ansible."""
    told = io.StringIO()
    with (
        patch_module_args({**parameters, "_ansible_check_mode": check}),
        redirect_stdout(told),
        pytest.raises(SystemExit),
    ):
        module.main()
    result: dict[str, Any] = json.loads(told.getvalue())
    return result


def _from(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
