"""The command line: one verb per file."""

import gc

OBJECTS_BEFORE_A_SEARCH = 50_000
"""What a command imports and learns lives to its end; Python by itself looks for rubbish after every 700 objects."""

gc.set_threshold(OBJECTS_BEFORE_A_SEARCH)  # before the imports, which leave none
