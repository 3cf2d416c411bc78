"""What a docker engine holds, asked of the engine that a lab really used."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from provision.connectors.container import answers


def engine_host(lab_folder: Path) -> str:
    """The address of the engine that the lab in `lab_folder` runs on."""
    return str(json.loads((lab_folder / "engine.json").read_text(encoding="utf-8"))["host"])


def held(host: str, *words: str) -> list[str]:
    """What ``docker WORDS`` prints, word by word; a private engine may have been stopped after the last lab."""
    if not answers(host):
        socket = Path(host.removeprefix("unix://"))
        assert "provision-engine-" in host, f"the docker engine {host} does not answer"
        assert not socket.exists(), f"{socket} was left behind"
        return []
    done = subprocess.run(["docker", "-H", host, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
