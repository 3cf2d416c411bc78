"""No regular expression takes more than linear time for what a node may send."""

from __future__ import annotations

import ast
import importlib
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

import provision
from provision.commands import perftest

ROOT = Path(provision.__file__).parent
SIZE = 30_000
"""Characters of an attack: linear matching takes less than a millisecond, quadratic matching seconds."""
CPU_SECONDS = 0.7
_FUNCTIONS = {"compile", "search", "match", "fullmatch", "findall", "finditer", "sub", "split"}
_ANYWHERE = {"search", "findall", "finditer", "sub", "split", "subn"}
LEFT_OUT = {
    "report/redaction.py": "its rules have tests of their own, with attacks for each",
    "report/secret_names.py": "likewise",
    "inventory": "read what the operator has written",
    "lab": "reads what programs of this machine print",
    "cli": "reads words of the command line",
    "node": "runs on nodes, on what their own programs print",
    "commands/files": "likewise",
    "advisor/script": "reads the operator's own program",
}
"""Files and folders whose expressions see nothing of a node -> why."""
_JOB, _NODE = SimpleNamespace(name="gpu1"), SimpleNamespace(node="gpu1")
LOCAL_NAMES: dict[str, Callable[[Any], Iterable[dict[str, Any]]]] = {
    "batch/code.py": lambda module: ({"pattern": pattern} for _, pattern, *_ in module._CAUSES),
    "batch/data.py": lambda _: (),  # the operator's inventory
    "benchmarks/configurations.py": lambda _: (),  # names of the operator's files
    "commands/mpirun_words.py": lambda _: ({"flag": "map-by"}, {"flag": "npernode"}),
    "commands/ssh.py": lambda module: (
        {"pattern": one, "text": text}
        for (_, one), text in zip(cycle(module._KINDS), [*module._SUDO.values()] * 2, strict=False)
    ),
    "components/common.py": lambda module: (
        {"pattern": pattern}
        for file in sorted(Path(module.__file__).parent.glob("*.py"))
        for pattern in re.findall(r'matches\(r?"([^"]+)"\)', file.read_text(encoding="utf-8"))
    ),
    "documents/jobs.py": lambda _: ({"job": _JOB},),
    "facts/gpu_health.py": lambda _: ({"word": "state"},),
    "report/apply_report.py": lambda _: ({"names": ["gpu1"]},),
    "facts/kernel_module_failures.py": lambda _: (),  # lines are cut at _LOOKED_AT
    "facts/perftest.py": lambda module: ({"pattern": pattern} for pattern, _ in module._MEANINGS),
    "facts/records.py": lambda _: ({"title": "gpus"},),
    "gdr/assume.py": lambda _: (),  # words of the command line
    "jobs/engines/direct/scheduling.py": lambda _: ({"assignment": _NODE},),
    "jobs/output.py": lambda _: ({"space": True}, {"space": False}),
    "model/gpu_products.py": lambda module: ({"one": one} for one in module._PRODUCTS),
    "planning/steps.py": lambda _: ({"scene": SimpleNamespace(node=_JOB)},),
    "report/remedies.py": lambda module: ({"pattern": pattern} for pattern, _ in module._REMEDIES),
    "report/secret_shapes.py": lambda _: (),  # its rules have tests of their own, with attacks for each
    "workflow/bandwidth.py": lambda _: ({"READY": perftest.READY, "END": perftest.END},),
}
"""File -> values of the local names in its expressions, such as rows of a table; none where no node's text comes."""


@dataclass(frozen=True)
class Use:
    """A regular expression and how it is applied."""

    where: str
    pattern: re.Pattern[Any]
    anywhere: bool
    """Whether it is looked for from every place of a text, and not only from its beginning."""


def uses() -> Iterator[Use]:
    """Yield all expressions in the sources, with the names that their modules have."""
    for file in sorted(ROOT.rglob("*.py")):
        name = str(file.relative_to(ROOT))
        if any(name.startswith(out) for out in LEFT_OUT):
            continue
        text = file.read_text()
        if "import re\n" in text:
            yield from _of_module(name, text)


def _of_module(name: str, text: str) -> Iterator[Use]:
    module = importlib.import_module(
        "provision." + name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    )
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        if ast.unparse(node.func.value) != "re" or node.func.attr not in _FUNCTIONS:
            continue
        flags = [item.value for item in node.keywords if item.arg == "flags"]
        flags += [item for item in node.args[1:] if ast.unparse(item).startswith("re.")]
        try:
            values = {(_value(node.args[0], module), *(_value(flag, module) for flag in flags))}
        except (NameError, AttributeError) as error:
            if name not in LOCAL_NAMES:
                raise AssertionError(f"{name}:{node.lineno}: add the values of its names to LOCAL_NAMES") from error
            values = {
                (_value(node.args[0], module, names), *(_value(flag, module) for flag in flags))
                for names in LOCAL_NAMES[name](module)
            }
        for source, *flag in values:
            if isinstance(source, str | bytes):
                yield Use(f"{name}:{node.lineno}", re.compile(source, *flag), _anywhere(node, text))


def _value(expression: ast.expr, module: Any, names: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Return what an expression of one of our modules is, with a node's name where it holds one."""
    return eval(ast.unparse(expression), {**vars(module), "name": "gpu1", **names})  # noqa: S307 - our own source


def _anywhere(node: ast.Call, text: str) -> bool:
    assert isinstance(node.func, ast.Attribute)
    if ast.unparse(node.args[0]).startswith("f'{_BEFORE}"):
        return False  # benchmarks/parse.py has these in a table, and applies them by match alone
    if node.func.attr != "compile":
        return node.func.attr in _ANYWHERE
    line = text.splitlines()[node.lineno - 1]
    name = re.match(r"\s*(\w+)(?:: [^=]+)? = re\.compile", line)
    if name is None:
        return True
    methods = set(re.findall(rf"\b{name[1]}\.(\w+)\(", text))
    return not methods or bool(methods & _ANYWHERE)


def attacks(pattern: re.Pattern[Any]) -> Iterator[str]:
    """Yield long texts that nearly match: pieces of the expression, and what its classes accept, again and again."""
    source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    plain = re.sub(r"\(\?P<\w+>|\(\?[:!=<]+|\\b|[\^$]", "", source)
    plain = plain.replace(r"\s", " ").replace(r"\S", "x").replace(r"\d", "1").replace(r"\w", "a").replace("\\", "")
    words = {word for word in re.split(r"[()|*+?{}]", re.sub(r"\[[^\]]*\]", "|", plain)) if word}
    letters = {
        "0",
        "a",
        "A",
        " ",
        ".",
        "-",
        "_",
        ":",
        "/",
        "[",
        "(",
        "\x1b[",
        "1.",
        "1 ",
        "a ",
        "a1",
        ": ",
        "=",
        ",",
        "'",
        "0x",
    }
    pieces = [*words, *(f"{word}{letter}" for word in list(words)[:12] for letter in ("0", "a", " ", ".", "1."))]
    for piece in [*letters, *pieces]:
        repeated = (piece * (SIZE // len(piece) + 1))[:SIZE]
        yield repeated + "!"
        yield repeated + "\n"
    for word in list(words)[:12]:
        for letter in ("0", "a", " ", ".", "A"):
            yield word + letter * SIZE + "!"
            yield word + f"{letter}{word}" * (SIZE // (len(word) + 1))


def test_no_expression_takes_more_than_linear_time() -> None:
    """Each is tried with texts that are made to keep it busy, under a limit of CPU time."""
    expressions = list(uses())
    assert len(expressions) > 80
    slow = [f"{use.where}: {use.pattern.pattern!r}" for use in expressions if not _is_fast(use)]
    assert slow == []


def _is_fast(use: Use) -> bool:
    class LateError(Exception):
        pass

    def late(_number: int, _frame: object) -> None:
        raise LateError

    before = signal.signal(signal.SIGPROF, late)
    try:
        for text in attacks(use.pattern):
            data: Any = text.encode() if isinstance(use.pattern.pattern, bytes) else text
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            for method in ("finditer",) if use.anywhere else ("match", "fullmatch"):
                result = getattr(use.pattern, method)(data)
                if method == "finditer":
                    for _ in result:
                        pass
            signal.setitimer(signal.ITIMER_PROF, 0)
    except LateError:
        return False
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return True


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"\s*x\s*$", r"\[(.+)\]", r"a.*b.*c"])
def test_the_attack_texts_detect_expressions_that_are_not_linear(pattern: str) -> None:
    """Else the test above would prove nothing."""
    assert not _is_fast(Use("here", re.compile(pattern), anywhere=True))
