"""Parse a training script for ``advise --script``. Nothing is executed or imported; only `ast` reads it."""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from provision.errors import UsageError

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Assignment(NamedTuple):
    """A value that a name, an attribute, a variable or a caller gets."""

    value: ast.expr | None
    """None if the script does not show it."""
    node: ast.AST
    """Where it happens."""


class Script:
    """The script and the modules beside it, indexed by name.

    A node of the syntax tree stands for a place in the program; `parents` leads to the conditions around it.
    """

    def __init__(self, sources: Mapping[str, bytes]) -> None:
        """Parse files; the first is the script itself.

        Raises:
            UsageError: A file is not valid Python; the line is named.
        """
        self.parents: dict[ast.AST, ast.AST] = {}
        self.files: dict[ast.AST, str] = {}
        self.calls: list[ast.Call] = []
        self.names: dict[str, list[Assignment]] = defaultdict(list)
        self.attributes: dict[str, list[Assignment]] = defaultdict(list)
        """By attribute name, for any object: ``args.world_size`` and ``self.world_size`` are the same."""
        self.environment: dict[str, list[Assignment]] = defaultdict(list)
        """Environment variables that the script sets."""
        self.aliases: dict[tuple[ast.AST, str], str] = {}
        self.packages: set[str] = set()
        self.functions: dict[str, list[Function]] = defaultdict(list)
        self.returns: dict[ast.AST | None, list[Assignment]] = defaultdict(list)
        self.mentions: dict[str, list[ast.expr]] = defaultdict(list)
        """Reads of names and attributes, including calls."""
        self.bases: list[str] = []
        nodes: list[ast.AST] = []
        for name, source in sources.items():
            tree = _parse(name, source)
            self.files[tree] = name
            nodes += self._nodes(tree)
        for node in nodes:  # aliases first: other entries need full names
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        for node in nodes:
            self._index(node)

    def _nodes(self, tree: ast.AST) -> Iterator[ast.AST]:
        """Yield all nodes in the order of the source, and record their parents."""
        waiting = [tree]
        while waiting:
            node = waiting.pop()
            children = list(ast.iter_child_nodes(node))
            self.parents.update(dict.fromkeys(children, node))
            waiting += reversed(children)
            yield node

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        origin = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            full = f"{origin}{alias.name}".strip(".")
            self.packages.add(full.partition(".")[0])
            if alias.asname or origin:
                self.aliases[self.module(node), alias.asname or alias.name] = full

    def _index(self, node: ast.AST) -> None:
        value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) else None
        for target in _targets(node):
            self._assign(target, value)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.functions[node.name].append(node)
            case ast.ClassDef():
                self.bases += [self.full(base) for base in node.bases]
            case ast.Return():
                self.returns[self.function(node)].append(Assignment(node.value, node))
            case ast.Call():
                self.calls.append(node)
                for key, value in _pairs(node) if self.full(node.func) == "os.environ.update" else ():
                    self.environment[key].append(Assignment(value, node))
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                self.mentions[name].append(node)

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                shown = value.elts if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(parts) else ()
                for number, part in enumerate(parts):
                    self._assign(part, shown[number] if shown else None)
            case ast.Starred():
                self._assign(target.value, None)
            case ast.Name(id=name):
                self.names[name].append(Assignment(value, target))
            case ast.Attribute(attr=name):
                self.attributes[name].append(Assignment(value, target))
            case ast.Subscript(slice=ast.Constant(value=str(key))) if self.full(target.value) == "os.environ":
                self.environment[key].append(Assignment(value, target))

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield child and parent from a node up to its module."""
        while (parent := self.parents.get(node)) is not None:
            yield node, parent
            node = parent

    def function(self, node: ast.AST) -> Function | None:
        """Return the function around a node."""
        return next((parent for _, parent in self.around(node) if isinstance(parent, Function)), None)

    def module(self, node: ast.AST) -> ast.AST:
        """Return the module of a node."""
        return [node, *(parent for _, parent in self.around(node))][-1]

    def file(self, node: ast.AST) -> str:
        """Return the name of a node's file."""
        return self.files[self.module(node)]

    def targets(self, node: ast.AST) -> list[str]:
        """Return the names that the statement of an expression assigns to."""
        statement = next(parent for _, parent in self.around(node) if isinstance(parent, ast.stmt))
        parts = [part for target in _targets(statement) for part in getattr(target, "elts", [target])]
        return [dotted(part).rpartition(".")[2] for part in parts]

    def full(self, node: ast.expr) -> str:
        """Return a dotted name with its imported part expanded; empty for other expressions."""
        first, dot, rest = dotted(node).partition(".")
        return self.aliases.get((self.module(node), first), first) + dot + rest

    def values(self, name: str, node: ast.AST) -> list[Assignment]:
        """Return the assignments to a name that is read at `node`: in its functions, its file or another file."""
        items, function = self.names.get(name, []), self.function(node)
        while function is not None:
            if own := [item for item in items if self.function(item.node) is function]:
                return own
            function = self.function(function)
        items = [item for item in items if self.function(item.node) is None]
        return [item for item in items if self.module(item.node) is self.module(node)] or items

    def meanings(self, node: ast.expr, depth: int = 4) -> set[str]:
        """Return all full names that an expression may have, through variables and ``A if x else B``."""
        if isinstance(node, ast.IfExp):
            return self.meanings(node.body, depth) | self.meanings(node.orelse, depth)
        names = {self.full(node)} - {""}
        if depth and isinstance(node, ast.Name):
            for item in self.values(node.id, node):
                names |= self.meanings(item.value, depth - 1) if item.value is not None else set()
        return names

    def callers(self, node: ast.AST) -> list[ast.expr]:
        """Return where the function around a node is mentioned outside itself; none in a module."""
        function = self.function(node)
        return (
            [read for read in self.mentions[function.name] if self.function(read) is not function] if function else []
        )

    def unread(self, pattern: re.Pattern[str]) -> list[ast.Call]:
        """Return calls of functions that match `pattern` and belong neither to the script nor to PyTorch."""
        return [
            call
            for call in self.calls
            if pattern.search(name := last_name(call))
            and name not in self.functions
            and self.full(call.func).partition(".")[0] not in {"torch", "os", "sys"}
        ]

    @cached_property
    def _meanings(self) -> list[tuple[ast.Call, set[str]]]:
        return [(call, self.meanings(call.func)) for call in self.calls]

    def find(self, *endings: str, packages: Sequence[str] = ()) -> list[ast.Call]:
        """Return the calls of names with one of these last parts, e.g. ``nn.DataParallel`` for ``DataParallel``."""
        return [
            call
            for call, names in self._meanings
            if any(name.rpartition(".")[2] in endings for name in names)
            and (not packages or any(name.partition(".")[0] in packages for name in names))
        ]


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return what a statement or an expression assigns to."""
    targets = [getattr(node, "target", None), getattr(node, "optional_vars", None), *getattr(node, "targets", ())]
    return [target for target in targets if target is not None and not isinstance(node, ast.Delete | ast.comprehension)]


def argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return an argument by name, also from an unpacked literal, else by position from 0; None if it is not passed."""
    plain = [] if any(isinstance(arg, ast.Starred) for arg in call.args) else call.args
    return dict(_pairs(call)).get(name) or (plain[position] if position is not None and position < len(plain) else None)


def _pairs(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield the keywords of a call, and the entries of dictionaries that it gets."""
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value
    for part in (*call.args, *(keyword.value for keyword in call.keywords if keyword.arg is None)):
        if isinstance(part, ast.Dict):
            keys = (str(getattr(key, "value", "")) for key in part.keys)
            yield from zip(keys, part.values, strict=True)


def dotted(node: ast.AST | None) -> str:
    """Return ``a.b.c`` for names and attributes, ``.c`` for an attribute of another expression, else an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def last_name(call: ast.Call) -> str:
    """Return the last part of the name that a call is written with."""
    return dotted(call.func).rpartition(".")[2]


def imported_modules(name: str, source: bytes) -> list[str]:
    """Return the full names that a file imports; relative imports begin with a dot.

    Raises:
        UsageError: It is not valid Python.
    """
    modules: dict[str, None] = {}
    for node in ast.walk(_parse(name, source)):
        if isinstance(node, ast.Import):
            modules.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (f"{node.module}." if node.module else "")
            modules.update(dict.fromkeys(origin + alias.name for alias in node.names if alias.name != "*"))
            modules.update({origin.rstrip("."): None} if node.module else {})
    return list(modules)


def _parse(name: str, source: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the script's own string literals
            return ast.parse(source, filename=name)
    except SyntaxError as error:
        where = f"{name}, line {error.lineno}" if error.lineno else name
        raise UsageError(
            f"{where}: not valid Python ({error.msg})",
            remedy="Pass the training script itself. Check it with: python3 -m py_compile",
            output=(error.text or "").rstrip(),
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{name}: not valid Python ({error})", remedy="Pass the training script itself.") from None
