"""Evaluate expressions of a script for one process of a job, as far as possible without running it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.advisor.source import Assigned, Condition, Place, Script

__all__ = ["JOB", "MANUAL", "SINGLE", "UNKNOWN", "Process", "evaluate", "is_reached"]


class _Unknown:
    """An unknown value; equal only to itself."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
_DEPTH, _STEPS = 40, 5_000
"""Limits of an evaluation, after which the value is UNKNOWN."""
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


@dataclass(frozen=True)
class Process:
    """One process of a job, with the environment from its launcher."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launched: bool = True
    """Whether a launcher sets variables; false for `python3 train.py` in a shell."""
    initialized: bool | None = None
    """Whether the process group exists when the script asks; None if unknown."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables that torchrun, an operator, Slurm and mpirun set."""
        if not self.launched:
            return {}
        node = {"GROUP_RANK": self.rank // self.local_size, "NODE_RANK": self.rank // self.local_size}
        own = {**node, "LOCAL_WORLD_SIZE": self.local_size, "MASTER_PORT": 23456}
        own.update(dict.fromkeys(_RANKS, self.rank))
        own.update(dict.fromkeys(_SIZES, self.size))
        own.update(dict.fromkeys(_LOCAL_RANKS, self.local_rank))
        return {"MASTER_ADDR": "10.0.0.1", **{name: str(value) for name, value in own.items()}}


MANUAL = Process(launched=False)
"""Started in a shell, without a launcher."""
SINGLE = Process()
"""The only process of a launcher."""
JOB = tuple(Process(rank, 4, rank % 2, 2) for rank in range(4))
"""All processes of a job with two nodes and two processes on each."""

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "str": str, "bool": bool, "float": float}
_SPAWN = ("spawn", "start_processes")


def evaluate(script: Script, node: ast.expr | None, place: Place, process: Process) -> Any:
    """Return the value of an expression in one process; UNKNOWN if it cannot be evaluated."""
    return _Evaluation(script, process).value(node, place)


def is_reached(script: Script, place: Place, process: Process) -> bool | None:
    """Return whether a process reaches a place, from the conditions around it and around the calls of its function.

    None if that depends on an unknown condition about processes. Other conditions (backend, GPU present) are assumed to
    be true.
    """
    return _Evaluation(script, process).is_reached(place)


@dataclass
class _Evaluation:
    script: Script
    process: Process
    open: list[int] = field(default_factory=list)
    """Ids of nodes in evaluation, to detect cycles."""
    steps: int = 0

    def is_reached(self, place: Place) -> bool | None:
        own = self.all_of(place.conditions, place)
        self.steps += 1
        if own is False or place.function is None:
            return own
        if id(place.function) in self.open or len(self.open) > _DEPTH or self.steps > _STEPS:
            return None
        self.open.append(id(place.function))
        answers: set[bool | None] = set()
        try:
            for caller in self.callers(place.function):
                answers.add(self.is_reached(caller))
                if True in answers:
                    return own
        finally:
            self.open.pop()
        return own if not answers else None if None in answers else False

    def callers(self, function: ast.AST) -> list[Place]:
        """Return where a function is mentioned; a function without mentions is called by a framework."""
        name = getattr(function, "name", "")
        return [place for _, place in self.script.mentions.get(name, ()) if place.function is not function]

    def all_of(self, conditions: Iterable[Condition], place: Place) -> bool | None:
        answers = []
        for condition in conditions:
            value = self.value(condition.test, place)
            if value is UNKNOWN:
                answers.append(None if _concerns_processes(condition.test) else True)
            else:
                answers.append(bool(value) is condition.expected)
        return False if False in answers else None if None in answers else True

    def value(self, node: ast.expr | None, place: Place) -> Any:
        """Evaluate a node; errors give UNKNOWN."""
        self.steps += 1
        if node is None or len(self.open) > _DEPTH or id(node) in self.open or self.steps > _STEPS:
            return UNKNOWN
        self.open.append(id(node))
        try:
            result = getattr(self, f"_{type(node).__name__.lower()}", self._other)(node, place)
        except (TypeError, ValueError, KeyError, IndexError, ZeroDivisionError, OverflowError, MemoryError):
            return UNKNOWN
        finally:
            self.open.pop()
        return UNKNOWN if isinstance(result, str | bytes | list) and len(result) > 1000 else result  # noqa: PLR2004

    def _other(self, _node: ast.expr, _place: Place) -> Any:
        return UNKNOWN

    def _constant(self, node: ast.Constant, _place: Place) -> Any:
        return node.value

    def _name(self, node: ast.Name, place: Place) -> Any:
        if node.id == "__name__":
            return "__main__"
        values = self.script.values(node.id, place)
        parameter = self._parameter(node.id, place)
        if parameter is not None:
            values = [*values, *parameter] if values else parameter
        return self._common_value(values)

    def _attribute(self, node: ast.Attribute, place: Place) -> Any:
        if self.script.full(node, place.file) == "os.environ":
            return self.process.environment()
        values = list(self.script.attributes.get(node.attr, ()))
        return self._common_value(values or self._option(node.attr))

    def _option(self, name: str) -> list[Assigned]:
        """Return the default of an option, unless it is a constant, which the user may change."""
        options = []
        for site in self.script.find("add_argument"):
            words = [word.value for word in site.call.args if isinstance(word, ast.Constant)]
            if name in [str(word).lstrip("-").replace("-", "_") for word in words]:
                default = site.argument("default")
                given = default if default is not None and not isinstance(default, ast.Constant) else None
                options.append(Assigned(given, site.place, site.line))
        return options

    def _common_value(self, values: Sequence[Assigned]) -> Any:
        """Return the value that all reached assignments share."""
        common: list[Any] = []
        for item in values:
            reach = self.all_of(item.place.conditions, item.place)
            if reach is False:
                continue
            value = UNKNOWN if reach is None else self.value(item.value, item.place)
            if value is UNKNOWN or (common and (type(value) is not type(common[0]) or value != common[0])):
                return UNKNOWN
            common = [value]
        return common[0] if common else UNKNOWN

    def _parameter(self, name: str, place: Place) -> list[Assigned] | None:
        """Return the arguments that callers pass for a parameter of the function at `place`; None for other names."""
        function = place.function
        if function is None:
            return None
        plain = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        if name not in plain + [arg.arg for arg in function.args.kwonlyargs]:
            return None
        at = plain.index(name) if name in plain else None
        own = getattr(function, "name", "")
        shift = 1 if plain[:1] == ["self"] else 0
        arguments = [
            Assigned(site.argument(name, None if at is None else at - shift), site.place, site.line)
            for site in self.script.called(own)
        ]
        arguments += [
            self._spawn_argument(site.argument("args", 1), at, site.place, site.line)
            for word in _SPAWN
            for site in self.script.called(word)
            if _names(site.argument("fn", 0), own)
        ]
        return arguments or [Assigned(None, place, 0)]

    def _spawn_argument(self, words: ast.expr | None, at: int | None, place: Place, line: int) -> Assigned:
        """Return an argument of a function that torch.multiprocessing starts; the first is the local process number."""
        if at == 0:
            return Assigned(ast.Constant(self.process.local_rank), place, line)
        given = words.elts if isinstance(words, ast.Tuple | ast.List) else []
        return Assigned(given[at - 1] if at is not None and at <= len(given) else None, place, line)

    def _subscript(self, node: ast.Subscript, place: Place) -> Any:
        return self.value(node.value, place)[self.value(node.slice, place)]

    def _call(self, node: ast.Call, place: Place) -> Any:  # noqa: PLR0911 - one answer for each kind of call
        name = self.script.full(node.func, place.file)
        last = name.rpartition(".")[2]
        known = name in {"os.environ.get", "os.getenv", "os.environ.setdefault"} or name in _CASTS
        words = [self.value(word, place) for word in node.args] if known else []
        if name in {"os.environ.get", "os.getenv", "os.environ.setdefault"}:
            default = words[1] if len(words) > 1 else next((self.value(k.value, place) for k in node.keywords), None)
            return UNKNOWN if words[0] is UNKNOWN else self.process.environment().get(words[0], default)
        if name in _CASTS and words and words[0] is not UNKNOWN:
            return _CASTS[name](words[0])
        if last in {"is_available", "is_torchelastic_launched"}:
            return True
        if last == "is_initialized":
            return UNKNOWN if self.process.initialized is None else self.process.initialized
        if last in {"get_rank", "get_world_size"} and last not in self.script.functions:
            return self.process.rank if last == "get_rank" else self.process.size
        functions = self.script.functions.get(last, [])
        if len(functions) != 1:
            return UNKNOWN
        returns = self.script.returns.get(functions[0])
        return self._common_value(returns) if returns else None

    def _compare(self, node: ast.Compare, place: Place) -> Any:
        left = self.value(node.left, place)
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node, place)
            if left is UNKNOWN or right is UNKNOWN:
                return UNKNOWN
            if not _COMPARE[type(kind)](left, right):
                return False
            left = right
        return True

    def _boolop(self, node: ast.BoolOp, place: Place) -> Any:
        """Return the value if one operand decides it, or all operands are known."""
        values = [self.value(operand, place) for operand in node.values]
        decides = isinstance(node.op, ast.Or)
        known = [bool(value) for value in values if value is not UNKNOWN]
        if decides in known:
            return decides
        return UNKNOWN if len(known) < len(values) else not decides

    def _unaryop(self, node: ast.UnaryOp, place: Place) -> Any:
        value = self.value(node.operand, place)
        if value is UNKNOWN:
            return UNKNOWN
        return not value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else UNKNOWN

    def _binop(self, node: ast.BinOp, place: Place) -> Any:
        left, right = self.value(node.left, place), self.value(node.right, place)
        if UNKNOWN in (left, right) or type(node.op) not in _ARITHMETIC:
            return UNKNOWN
        if isinstance(node.op, ast.Mult) and not (isinstance(left, int | float) and isinstance(right, int | float)):
            return UNKNOWN
        return _ARITHMETIC[type(node.op)](left, right)

    def _ifexp(self, node: ast.IfExp, place: Place) -> Any:
        test = self.value(node.test, place)
        if test is UNKNOWN:
            body, orelse = self.value(node.body, place), self.value(node.orelse, place)
            return body if body == orelse else UNKNOWN
        return self.value(node.body if test else node.orelse, place)


_WORDS = (
    "world",
    "rank",
    "dist",
    "ddp",
    "multi",
    "parallel",
    "nproc",
    "num_proc",
    "gpus",
    "launch",
    "cluster",
    "nodes",
)


def _concerns_processes(test: ast.expr) -> bool:
    """Return whether an unknown condition may depend on the number of processes."""
    texts = [getattr(node, name, None) for node in ast.walk(test) for name in ("id", "attr", "value")]
    words = [text.lower() for text in texts if isinstance(text, str)]
    return any(part in word for word in words for part in _WORDS)


def _names(node: ast.expr | None, name: str | None) -> bool:
    return node is not None and name in {getattr(node, "id", None), getattr(node, "attr", None)}
