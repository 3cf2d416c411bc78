"""For all tests."""

from __future__ import annotations

import gc
import signal

# A shell starts what it puts into the background deaf to Ctrl-C, `nohup` makes deaf to a closed terminal, and every
# program that a test starts would inherit that. A handler is not inherited; the tests themselves stay as they are.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda _number, _frame: None)

# Nearly all that thousands of tests leave lives to the end: looking for rubbish as often as usual only costs time.
gc.set_threshold(100_000, 50, 100)
