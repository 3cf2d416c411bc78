"""Loads the peer memory module again, unless a job runs: unloads it, and restarts its unit.

systemd runs the load, so that it ends a load that hangs, as at boot, and knows the unit's state. A restart continues if
the module cannot be unloaded, so it is unloaded first. The answer is one line of JSON.
"""

import json
import os
import signal
import subprocess
from typing import Dict, List, Tuple, Union

from provision.node.probe.busy import running_jobs

PROGRAM = "/usr/local/lib/provision/peer-memory"
UNIT = "provision-peer-memory.service"
UNITS = "/etc/systemd/system"
UNLOAD_SECONDS = 75
RESTART_SECONDS = 150
"""The unit's TimeoutStartSec, and a margin."""
END_SECONDS = 5
"""How long to wait for the end of a killed program."""
MOST_CHARACTERS = 2000

Answer = Dict[str, Union[str, int]]


def main() -> int:
    """Print the answer."""
    print(json.dumps(reload()))
    return 0


def reload() -> Answer:
    """Reload the module; return ``step``, ``output`` and ``exit_code``.

    The step is absent, busy, unknown (whether a job runs), refused (the module cannot be unloaded) or done.
    """
    if not os.access(PROGRAM, os.X_OK) or not os.path.exists(os.path.join(UNITS, UNIT)):
        return answer("absent")
    try:
        jobs = list(running_jobs())  # type: List[str]
    except Exception as problem:  # noqa: BLE001 - if it is unknown whether a job runs, the module stays
        return answer("unknown", "{}: {}".format(type(problem).__name__, problem))
    if jobs:
        return answer("busy", "; ".join(jobs))
    code, output = run([PROGRAM, "unload"], UNLOAD_SECONDS)
    if code:
        return answer("refused", output, code)
    run(["systemctl", "reset-failed", UNIT], UNLOAD_SECONDS)
    code, output = run(["systemctl", "restart", UNIT], RESTART_SECONDS)
    return answer("done", output.partition("\n")[0], code)


def answer(step: str, output: str = "", exit_code: int = 0) -> Answer:
    """Return an answer of limited size."""
    return {"step": step, "output": output[:MOST_CHARACTERS], "exit_code": exit_code}


def run(command: List[str], seconds: int) -> Tuple[int, str]:
    """Run a program with a time limit; return its exit code and its output.

    After the limit the exit code is 124, and the program and its children are killed.
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as problem:
        return 127, str(problem)
    try:
        text = process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # it hangs in the kernel (state D), and no signal ends it
        return 124, ""
    return process.returncode, text.decode(errors="replace").strip()
