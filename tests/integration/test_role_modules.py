"""The roles' modules as Ansible sends and runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROLES = Path(__file__).parents[2] / "roles"
MODULES = sorted(ROLES.glob("*/library/*.py"))
ANSIBLE = Path(sys.executable).with_name("ansible")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_starts_with_all_its_imports(path: Path) -> None:
    """The action plugin sends the code that modules share, and the module checks its arguments."""
    paths = {part: ":".join(map(str, ROLES.glob(f"*/{part}"))) for part in ("library", "action_plugins")}
    environment = {
        **os.environ,
        "ANSIBLE_LIBRARY": paths["library"],
        "ANSIBLE_ACTION_PLUGINS": paths["action_plugins"],
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
    }
    words = [str(ANSIBLE), "localhost", "-i", "localhost,", "-c", "local", "-m", path.stem, "-a", "no_such_argument=1"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)

    assert re.search("Unsupported parameters|missing required arguments", done.stdout)
