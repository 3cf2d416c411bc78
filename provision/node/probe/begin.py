"""Starts probe.py: loads the code that an earlier probe compiled, or compiles the text that was sent and caches it.

Arguments: the text, the cache file (its name contains the hash of the text; only root can write it), and the arguments
of probe. The process sets its own name, from which the waiting shell knows that Python has started.
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
    names["write_cache"](path, marshal.dumps(code))
    names["remove_other_caches"](path)
names["probe"](*arguments)
