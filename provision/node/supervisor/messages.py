"""The messages between job supervisors, validated before use: a compromised node of the job may send anything.

A supervisor ignores every other message. One that a message could crash would hold the GPUs of its node.
"""

from typing import Any, Callable, Dict, Sequence

TEXT = 1 << 16
PARAMS = 16
STATUS = ("SUCCEEDED", "STOPPED", "FAILED")
GRACE_SECONDS = 7 * 24 * 3600

Validator = Callable[[object], bool]
Message = Dict[str, Any]
"""A JSON object that one of the validators below has accepted."""


def is_flag(value: object) -> bool:
    """Return whether a value is a boolean."""
    return isinstance(value, bool)


def is_text(value: object) -> bool:
    """Return whether a value is a text of limited length."""
    return isinstance(value, str) and len(value) <= TEXT


def is_number(value: object) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15


def is_grace(value: object) -> bool:
    """Return whether a value is a valid grace time."""
    return isinstance(value, (int, float)) and is_number(value) and 0 <= value <= GRACE_SECONDS


def is_status(value: object) -> bool:
    """Return whether a value is the status of a completed job."""
    return value in STATUS


def is_texts(value: object) -> bool:
    """Return whether a value is a list of texts."""
    return isinstance(value, list) and all(is_text(one) for one in value)


def is_params(value: object) -> bool:
    """Return whether a value has the form of the parameters of a reason: texts, numbers and lists of texts."""
    return (
        isinstance(value, dict)
        and len(value) <= PARAMS
        and all(is_text(name) and _is_param(one) for name, one in value.items())
    )


def _is_param(value: object) -> bool:
    return value is None or is_text(value) or is_number(value) or is_texts(value)


def object_of(fields: Dict[str, Validator], required: Sequence[str] = ()) -> Validator:
    """Return the validator of an object: only these fields, each valid or null, and the required ones not null."""

    def validate(value: object) -> bool:
        return (
            isinstance(value, dict)
            and set(value) <= set(fields)
            and all(value[name] is None or fields[name](value[name]) for name in value)
            and all(value.get(name) is not None for name in required)
        )

    return validate


def mapping_of(validator: Validator) -> Validator:
    """Return the validator of an object with arbitrary names."""

    def validate(value: object) -> bool:
        return isinstance(value, dict) and all(is_text(name) and validator(one) for name, one in value.items())

    return validate


CONTAINER_END: Dict[str, Validator] = {
    "code": is_number,
    "signal": is_number,
    "reason": is_text,
    "time": is_number,
    "stopped": is_flag,
    "removed": is_flag,
}
STOP: Dict[str, Validator] = {"reason": is_text, "grace": is_grace, "time": is_number}
JOB_END: Dict[str, Validator] = {
    "status": is_status,
    "reason": is_text,
    "code": is_text,
    "params": is_params,
    "exit_code": is_number,
    "first_failure": is_text,
    "first_rank": is_number,
    "grace": is_grace,
    "begun": is_number,
    "broken_off": is_flag,
    "signal": is_number,
    "rank_code": is_number,
    "why": is_text,
    "lines": is_texts,
}

is_node_report = object_of(
    {
        "up": is_flag,
        "doing": is_text,
        "ended": mapping_of(object_of(CONTAINER_END)),
        "over": is_flag,
        "trouble": is_text,
        "stop": object_of(STOP, ("reason",)),
        "done": is_flag,
        "asked": is_number,
        "now": is_number,
    }
)
"""Validates what a node reports to the leader."""
is_leader_order = object_of(
    {
        "go": is_flag,
        "end": object_of(JOB_END, ("status", "reason", "first_failure")),
        "done": is_texts,
        "asks": is_number,
        "now": is_number,
    }
)
"""Validates what the leader sends to the other nodes."""
