"""The playbooks as plain Ansible runs them, without the command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.command import ROOT, Provision

__all__ = ["changed_by_check_mode"]

_RECAP = re.compile(r"^(\S+) +: .*\bchanged=(\d+)\b", re.MULTILINE)


def changed_by_check_mode(provision: Provision, inventory: str) -> dict[str, int]:
    """Run site.yml in check mode, which must succeed; return how many tasks would change something on each node."""
    programs = Path(sys.executable).parent
    done = subprocess.run(
        [programs / "ansible-playbook", "-i", inventory, "site.yml", "--check", "--diff"],
        cwd=ROOT / "playbooks",
        env={**provision.environment, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    sys.stdout.write(done.stdout)  # shown where the test fails
    return {name: int(changed) for name, changed in _RECAP.findall(done.stdout)}
