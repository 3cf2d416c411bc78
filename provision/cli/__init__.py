"""The command line: one module per verb."""

import gc

OBJECTS_BEFORE_A_SEARCH = 50_000
"""Objects of a command live until its end, so a garbage collection after every 700 objects would waste time."""

gc.set_threshold(OBJECTS_BEFORE_A_SEARCH)  # before the imports, which create no garbage
