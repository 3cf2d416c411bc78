"""The program that probes a node, and modules that the roles share with it."""

import time

STARTED = time.monotonic()
"""When the program began to load; its modules are imported after this line."""
GIVEN_UP = 75
"""Exit status of a probe that was cut off, or that cannot store outputs."""
NO_PROCESS = 76
"""Exit status of a probe for which the kernel starts no process."""
