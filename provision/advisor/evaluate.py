"""Evaluate expressions of a script for one process of a job, as far as possible without running it."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from provision.advisor.source import Assignment, Script, argument, dotted, last_name

UNKNOWN = type("Unknown", (), {})()
"""An unknown value; equal only to itself."""
_DEPTH, _STEPS, _LENGTH = 40, 5_000, 1_000
"""Limits of an evaluation, after which the value is UNKNOWN."""
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_CONCERNS = re.compile("(?i)world|rank|dist|ddp|multi|parallel|nproc|num_proc|gpus|launch|cluster|nodes")
"""Parts of conditions that may depend on the number of processes."""


class Process(NamedTuple):
    """One process of a job, with the environment from its launcher."""

    rank: int
    size: int
    local_rank: int
    environment: Mapping[str, str]
    initialized: bool | None = None
    """Whether the process group exists when the script asks; None if unknown."""


def _launched(rank: int, size: int, per_node: int) -> Process:
    numbers = dict.fromkeys(_RANKS, rank) | dict.fromkeys(_SIZES, size) | dict.fromkeys(_LOCAL_RANKS, rank % per_node)
    numbers |= {"NODE_RANK": rank // per_node, "GROUP_RANK": rank // per_node, "LOCAL_WORLD_SIZE": per_node}
    environment = {name: str(number) for name, number in numbers.items()}
    return Process(rank, size, rank % per_node, {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "23456", **environment})


MANUAL = Process(0, 1, 0, {})
"""Started in a shell, without a launcher."""
SINGLE = _launched(0, 1, 1)
"""The only process of a launcher."""
JOB = tuple(_launched(rank, 4, 2) for rank in range(4))
"""All processes of a job with two nodes and two processes on each."""
_NAMES = "Eq eq NotEq ne Lt lt LtE le Gt gt GtE ge Is is_ IsNot is_not Add add Sub sub Mod mod Not not_ USub neg"
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    **{getattr(ast, kind): getattr(operator, name) for kind, name in zip(*[iter(_NAMES.split())] * 2, strict=True)},
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Mult: lambda a, b: float(a) * b,
    ast.FloorDiv: operator.floordiv,
}
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "str": str, "bool": bool, "float": float}


def evaluate(script: Script, node: ast.expr | None, process: Process) -> Any:
    """Return the value of an expression in one process; UNKNOWN if it cannot be evaluated."""
    return _Evaluation(script, process).value(node)


def is_reached(script: Script, node: ast.AST, process: Process) -> bool | None:
    """Return whether a process reaches a node, from the conditions around it and around the calls of its function.

    None if that depends on an unknown condition about processes. Other conditions (backend, GPU present) are assumed to
    be true.
    """
    return _Evaluation(script, process).is_reached(node)


class _Evaluation:
    def __init__(self, script: Script, process: Process) -> None:
        self.script, self.process, self.steps = script, process, 0
        self.open: list[ast.AST] = []
        """Nodes in evaluation, to detect cycles."""

    def _may_open(self, node: ast.AST) -> bool:
        self.steps += 1
        return node not in self.open and len(self.open) <= _DEPTH and self.steps <= _STEPS

    def is_reached(self, node: ast.AST) -> bool | None:
        own, function = self._conditions_hold(node), self.script.function(node)
        callers = self.script.callers(node) if own is not False else []
        if function is None or not callers:  # a library calls a function that the script does not mention
            return own
        if not self._may_open(function):
            return None
        self.open.append(function)
        answers = set()
        for caller in callers:
            answers.add(self.is_reached(caller))
            if True in answers:
                break
        self.open.pop()
        return own if True in answers else None if None in answers else False

    def _conditions_hold(self, node: ast.AST) -> bool | None:
        answers = {answer for child, parent in self.script.around(node) for answer in self._conditions(child, parent)}
        return False if False in answers else None if None in answers else True

    def _conditions(self, child: ast.AST, parent: ast.AST) -> Iterator[bool | None]:
        """Yield whether the conditions hold under which control gets from a node to one of its children."""
        if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
            is_body = child in parent.body if isinstance(parent, ast.If) else child is parent.body
            yield self._is(parent.test, expected=is_body)
        if isinstance(parent, ast.BoolOp):
            for value in parent.values[: parent.values.index(child)]:  # type: ignore[arg-type]
                yield self._is(value, expected=isinstance(parent.op, ast.And))
        for block in (value for _, value in ast.iter_fields(parent) if isinstance(value, list) and child in value):
            yield from (self._continues(before) for before in block[: block.index(child)] if isinstance(before, ast.If))

    def _continues(self, node: ast.If) -> bool | None:
        """Return whether control continues after an ``if``, i.e. takes no branch that exits."""
        ends = [self._continues_after(block) for block in (node.body, node.orelse)]
        if ends[0] is ends[1]:
            return ends[0]
        value = self.value(node.test)
        return self._is(node.test, expected=True) if value is UNKNOWN else ends[not value]

    def _continues_after(self, block: Sequence[ast.stmt]) -> bool | None:
        match block[-1] if block else None:
            case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
                return False
            case ast.Expr(value=ast.Call(func=func)):
                return dotted(func) not in {"sys.exit", "exit", "quit", "os._exit"}
            case ast.If() as last:
                return self._continues(last)
        return True

    def _is(self, test: ast.expr, *, expected: bool) -> bool | None:
        value = self.value(test)
        if value is not UNKNOWN:
            return bool(value) is expected
        return None if _CONCERNS.search(ast.unparse(test)) else True

    def value(self, node: ast.expr | None) -> Any:
        """Evaluate a node; errors give UNKNOWN."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if node is None or method is None or not self._may_open(node):
            return UNKNOWN
        self.open.append(node)
        try:
            result = method(node)
        except (TypeError, ValueError, LookupError, ArithmeticError):
            result = UNKNOWN
        self.open.pop()
        return UNKNOWN if isinstance(result, str | bytes) and len(result) > _LENGTH else result

    def _apply(self, function: Callable[..., Any], *nodes: ast.expr) -> Any:
        values = [self.value(node) for node in nodes]
        return UNKNOWN if any(value is UNKNOWN for value in values) else function(*values)

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        values = [*self.script.values(node.id, node), *self._arguments(node)]
        return "__main__" if node.id == "__name__" else self._common_value(values)

    def _attribute(self, node: ast.Attribute) -> Any:
        if self.script.full(node) == "os.environ":
            return self.process.environment
        return self._common_value(self.script.attributes.get(node.attr) or self._defaults(node.attr))

    def _subscript(self, node: ast.Subscript) -> Any:
        return self._apply(operator.getitem, node.value, node.slice)

    def _compare(self, node: ast.Compare) -> Any:
        (kind,), (right,) = node.ops, node.comparators
        return self._apply(_OPERATORS[type(kind)], node.left, right)

    def _binop(self, node: ast.BinOp) -> Any:
        return self._apply(_OPERATORS[type(node.op)], node.left, node.right)

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        return self._apply(_OPERATORS[type(node.op)], node.operand)

    def _boolop(self, node: ast.BoolOp) -> Any:
        values, decides = [self.value(operand) for operand in node.values], isinstance(node.op, ast.Or)
        known = [bool(value) for value in values if value is not UNKNOWN]
        return decides if decides in known else not decides if len(known) == len(values) else UNKNOWN

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self._apply(lambda test: self.value(node.body if test else node.orelse), node.test)

    def _call(self, node: ast.Call) -> Any:
        name = self.script.full(node.func)
        last, variables = name.rpartition(".")[2], self.process.environment
        if name in {"os.environ.get", "os.getenv", "os.environ.setdefault"}:
            default = argument(node, "default", 1)
            other = self.value(default) if default else None
            return self._apply(lambda key: variables.get(key, other), node.args[0])
        if name in _CASTS:
            return self._apply(_CASTS[name], node.args[0])
        functions = self.script.functions.get(last, [])
        initialized = UNKNOWN if self.process.initialized is None else self.process.initialized
        known = {"is_available": True, "is_torchelastic_launched": True, "is_initialized": initialized}
        known |= {"get_rank": self.process.rank, "get_world_size": self.process.size}
        if last in known and not functions:
            return known[last]
        returns = self.script.returns.get(functions[0]) if len(functions) == 1 else [Assignment(None, node)]
        return self._common_value(returns) if returns else None

    def _common_value(self, items: Sequence[Assignment]) -> Any:
        """Return the value that all reached assignments share."""
        reached = [(reach, item) for item in items if (reach := self._conditions_hold(item.node)) is not False]
        values = [self.value(item.value) if reach else UNKNOWN for reach, item in reached]
        same = values and all(type(value) is type(values[0]) and value == values[0] for value in values)
        return values[0] if same else UNKNOWN

    def _defaults(self, name: str) -> list[Assignment]:
        """Return the default of an option, unless it is a constant, which the user may change."""
        words = {f"{dashes}{name.replace('_', between)}" for dashes in ("", "-", "--") for between in ("_", "-")}
        calls = [call for call in self.script.find("add_argument") if words & {_text(word) for word in call.args}]
        defaults = [(argument(call, "default"), call) for call in calls]
        return [Assignment(None if isinstance(default, ast.Constant) else default, call) for default, call in defaults]

    def _arguments(self, node: ast.Name) -> list[Assignment]:
        """Return what callers pass for a parameter of the function around a node; nothing for other names."""
        function = self.script.function(node)
        plain = [arg.arg for arg in function.args.args] if function else []
        if function is None or node.id not in plain + [arg.arg for arg in function.args.kwonlyargs]:
            return []
        at = plain.index(node.id) - (plain[0] == "self") if node.id in plain else None
        passed = []
        for call in self.script.calls:
            last = last_name(call)
            if last == function.name:
                passed.append(Assignment(argument(call, node.id, at), call))
            elif last in {"spawn", "start_processes"} and dotted(argument(call, "fn", 0)) == function.name:
                given = getattr(argument(call, "args", 1), "elts", [])  # torch.multiprocessing passes its number first
                words = [ast.Constant(self.process.local_rank), *given]
                passed.append(Assignment(words[at] if at is not None and at < len(words) else None, call))
        return passed or [Assignment(None, node)]


def _text(node: ast.AST) -> str:
    return str(getattr(node, "value", ""))
