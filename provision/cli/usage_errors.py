"""Convert errors of the command-line parser to our errors, with the wrong word and a correct example."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from provision.errors import UsageError

_VALUES = (
    (r"Input should be a valid integer.*", "not a whole number"),
    (r"Input should be a valid number.*", "not a number"),
    (r"Input should be greater than or equal to (\S+)", r"must be at least \1"),
    (r"Input should be less than or equal to (\S+)", r"must be at most \1"),
    (r"Input should be greater than (\S+)", r"must be more than \1"),
    (r"Value error, '.*' is not one of (.*?)\.?", r"not one of \1"),
    (r"Value error, (.*)", r"\1"),
)
"""Message of the parser -> our message."""


def is_missing_verb(error: Exception) -> bool:
    """Return whether a group of verbs was called without one; then the message is the group's help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def usage_error(error: Any, words: Sequence[str]) -> UsageError:
    """Return the error for the user."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else _path(words)
    every = f"All options: {path} --help"
    text, remedy = _parsed(error, words, path, context) or (error.format_message(), "")
    return UsageError(f"{path}: {text}", remedy=remedy or every)


def _parsed(error: Any, words: Sequence[str], path: str, context: Any) -> tuple[str, str] | None:
    """Return the problem and its own remedy; None for other errors."""
    kind, message = type(error).__name__, str(error.format_message())
    param = getattr(error, "param", None)
    description: tuple[str, str] | None = None
    if kind == "MissingParameter" and param is not None:
        what = _metavar(message) if param.param_type_name == "argument" else _option(param)
        example = _example(context, path)
        description = f"{what} is missing", f"For example: {example}" if example else ""
    elif kind == "NoSuchOption":
        description = f"unknown option {error.option_name}", _similar(error.possibilities or (), f"{path} --help")
    elif kind == "BadOptionUsage":
        description = f"{error.option_name} requires a value", ""
    elif kind == "BadParameter" and param is not None:
        description = f"{_named_value(param, message, words)}: {_problem(error.message)}", ""
    elif match := re.fullmatch(r"No such command '(.*?)'\..*", message):
        commands = sorted(getattr(context.command, "commands", {})) if context is not None else []
        close = difflib.get_close_matches(match[1], commands, 3, 0.6)
        every = f"{path} --help"
        description = f"unknown command {match[1]}", _similar(close, every) or f"All commands: {every}"
    elif match := re.fullmatch(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", message):
        description = f"unexpected argument: {match[1]}", f"Omit it. All options: {path} --help"
    return description


def _similar(names: Sequence[str], every: str) -> str:
    return f"Similar: {', '.join(sorted(names))}. All: {every}" if names else ""


def _path(words: Sequence[str]) -> str:
    """Return the command with its first verb."""
    return " ".join(["provision", *(word for word in words[:1] if not word.startswith("-"))])


def _option(param: Any) -> str:
    return str(max(param.opts, key=len))


def _metavar(message: str) -> str:
    """Return the name of the argument in a message."""
    match = re.search(r"(?:Missing argument|Invalid value for) '(.*?)'(?:\.|:|$)", message)
    return match[1].removeprefix("[--] ").removeprefix("-- ").removesuffix("...") if match else "an argument"


def _named_value(param: Any, message: str, words: Sequence[str]) -> str:
    """Return the option with its value."""
    if param.param_type_name == "argument":
        return _metavar(message)
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in param.opts:
            return f"{name} {value if equals else words[at + 1] if at + 1 < len(words) else ''}".rstrip()
    return _option(param)


def _problem(text: str) -> str:
    for pattern, replacement in _VALUES:
        if match := re.fullmatch(pattern, text):
            return match.expand(replacement)
    return text


def _example(context: Any, path: str) -> str:
    """Return the first example in the help of the command."""
    text = str(getattr(context.command, "help", "") or "") if context is not None else ""
    description = re.search(rf"^\s+({re.escape(path)} .*?)(?:\s{{2,}}.*)?$", text, re.MULTILINE)
    return description[1] if description else ""
