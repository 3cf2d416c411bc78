"""The roles' modules as Ansible sends and runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROLES = Path(__file__).parents[2] / "roles"
MODULES = [path.stem for path in sorted(ROLES.glob("*/library/*.py")) if path.stem != "platform_light"]
"""All but the one in which the others run: it is of no use in a task."""
ANSIBLE = Path(sys.executable).with_name("ansible-playbook")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run all modules in one play; return what Ansible prints for each."""
    paths = {part: ":".join(map(str, ROLES.glob(f"*/{part}"))) for part in ("library", "action_plugins")}
    environment = {
        **os.environ,
        "ANSIBLE_LIBRARY": paths["library"],
        "ANSIBLE_ACTION_PLUGINS": paths["action_plugins"],
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_NOCOLOR": "1",
    }
    tasks = [{"name": name, name: {"no_such_argument": 1}, "ignore_errors": True} for name in MODULES]
    playbook = tmp_path_factory.mktemp("modules") / "modules.yml"
    playbook.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    words = [str(ANSIBLE), "-i", "localhost,", "-c", "local", str(playbook)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=600)
    return dict(re.findall(r"^TASK \[(\w+)\](.*?)(?=^TASK|^PLAY|\Z)", done.stdout, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", MODULES)
def test_module_starts_with_all_its_imports(results: dict[str, str], name: str) -> None:
    """The action plugin sends the code that modules share, and the module checks its arguments."""
    assert re.search("Unsupported parameters|missing required arguments", results[name])
