"""Begins probe.py: takes its code as compiled by an earlier look, else compiles the text that was sent and keeps that.

Arguments: the text, the file for what is compiled (its name tells the text; root alone may write there), and probe's
own. The process gets a name of its own, by which the shell that waits for it sees that Python has begun.
"""

import gc
import marshal
import sys

gc.disable()
source, path, *arguments = sys.argv[1:]
path += f".{sys.hexversion:x}"
try:
    with open("/proc/self/comm", "w") as stream:
        stream.write("provision-probe")
except OSError:
    pass
try:
    with open(path, "rb") as stream:
        code, new = marshal.load(stream), False  # nosec B302 # only root writes in the folder
except (OSError, ValueError, EOFError, TypeError):
    code, new = compile(source, "provision-probe", "exec"), True
names = {"__name__": "provision_probe"}
exec(code, names)  # nosec B102 # the probe's own code
if new:
    names["leave"](path, marshal.dumps(code))
    names["forget"](path)
names["probe"](*arguments)
