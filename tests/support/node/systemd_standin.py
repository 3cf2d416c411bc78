"""A STAND-IN for systemd-run and systemctl: a unit is a process in a session of its own.

It is started anew when it fails, where that is one of its settings. What it knows is in the folder
STANDIN_UNITS: a file for each unit with the pid of its program.
"""

import os
import sys
import time

UNITS = os.environ["STANDIN_UNITS"]


def run(words):
    unit, environment, restarts = "", dict(os.environ), False
    while words[0] != "--":
        option, _, value = words.pop(0).partition("=")
        if option in ("--unit", "--description", "--slice"):
            value = words.pop(0)
        restarts = restarts or value == "Restart=on-failure"
        if option == "--unit":
            unit = value
        elif option == "--setenv":
            name, _, text = value.partition("=")
            environment[name] = text
    if os.fork():
        return 0
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    path = os.path.join(UNITS, unit)
    for _ in range(20):
        child = os.fork()
        if not child:
            os.execve(words[1], words[1:], environment)
        with open(path + ".new", "w") as stream:
            stream.write(str(child))
        os.rename(path + ".new", path)
        _, status = os.waitpid(child, 0)
        if status == 0 or not restarts:
            break
        time.sleep(0.2)
    os.unlink(path)
    os._exit(0)


def control(words):
    if words[0] == "show":
        for unit in words[words.index("--") + 1 :]:
            there = os.path.exists(os.path.join(UNITS, unit))
            print(f"Id={unit}\nActiveState={'active' if there else 'inactive'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:]) if sys.argv[1] == "run" else control(sys.argv[2:]))
