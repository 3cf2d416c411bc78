"""Modules of the roles as nodes get them: sent by the action plugin `platform_light`, run by any interpreter."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.modules import ROLES, load

__all__ = ["MODULES", "light", "run_light"]

MODULES = sorted(path for path in ROLES.glob("*/library/*.py") if path.stem != "platform_light")
light = load("platform", "platform_light", part="action_plugins")
"""The action plugin, as Python."""
_RUNNER = (ROLES / "platform/library/platform_light.py").read_text(encoding="utf-8")


def run_light(
    python: str, program: str, *, check: bool = False, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, dict[str, Any]]:
    """Run what `light_program` returned, as Ansible does; return its exit status and result."""
    arguments = json.dumps({"program": program, "_ansible_check_mode": check})
    text = _RUNNER.replace("<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>", arguments)
    done = subprocess.run(
        [python], input=text, env={**os.environ, **(env or {})}, cwd=cwd,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)
