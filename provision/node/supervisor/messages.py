"""What keepers tell each other, checked before it counts: a node of the job may send anything.

What is not of this form is not heard. A keeper that could be made to fail by a message would keep the GPUs of its node.
"""

TEXT = 1 << 16
PARAMS = 16
STATUS = ("SUCCEEDED", "STOPPED", "FAILED")
GRACE_SECONDS = 7 * 24 * 3600


def flag(value):
    """Return whether this is true or false."""
    return isinstance(value, bool)


def text(value):
    """Return whether this is a text that may be written down."""
    return isinstance(value, str) and len(value) <= TEXT


def number(value):
    """Return whether this is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15


def grace(value):
    """Return whether this is a time that a container may have to end."""
    return number(value) and 0 <= value <= GRACE_SECONDS


def texts(value):
    """Return whether this is a list of texts."""
    return isinstance(value, list) and all(text(one) for one in value)


def form(fields, needed=()):
    """Return a check of a mapping: only these fields, each of its kind or null, and those that are needed."""

    def check(value):
        return (
            isinstance(value, dict)
            and set(value) <= set(fields)
            and all(value[name] is None or fields[name](value[name]) for name in value)
            and all(value.get(name) is not None for name in needed)
        )

    return check


def each(check):
    """Return a check of a mapping with any names."""
    return lambda value: isinstance(value, dict) and all(text(name) and check(one) for name, one in value.items())


def params(value):
    """Return whether these are parameters of a reason: texts, numbers and lists of texts."""
    return (
        isinstance(value, dict)
        and len(value) <= PARAMS
        and all(text(name) and (one is None or text(one) or number(one) or texts(one)) for name, one in value.items())
    )


ENDED = {"code": number, "signal": number, "reason": text, "time": number, "stopped": flag, "removed": flag}
STOP = {"reason": text, "grace": grace, "time": number}
JOB_END = {
    "status": lambda value: value in STATUS,
    "reason": text,
    "code": text,
    "params": params,
    "exit_code": number,
    "first_failure": text,
    "first_rank": number,
    "grace": grace,
    "begun": number,
    "broken_off": flag,
    "signal": number,
    "rank_code": number,
    "why": text,
    "lines": texts,
}

from_node = form(
    {
        "up": flag,
        "doing": text,
        "ended": each(form(ENDED)),
        "over": flag,
        "trouble": text,
        "stop": form(STOP, ("reason",)),
        "done": flag,
        "asked": number,
        "now": number,
    }
)
from_chief = form(
    {
        "go": flag,
        "end": form(JOB_END, ("status", "reason", "first_failure")),
        "done": texts,
        "asks": number,
        "now": number,
    }
)
