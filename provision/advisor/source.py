"""A training script as data: its calls, assignments and functions, and under which conditions each is reached.

Nothing of it is ever executed or imported; `ast` alone reads it.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from provision.errors import UsageError

__all__ = ["Assigned", "Condition", "Place", "Script", "Site", "dotted", "imported_modules", "read_script"]

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_EXITS = {"sys.exit", "exit", "quit", "os._exit"}


@dataclass(frozen=True)
class Condition:
    """What has to be true, or false, for what stands behind it to be reached."""

    test: ast.expr
    wanted: bool


@dataclass(frozen=True)
class Place:
    """Where in the source something stands."""

    file: str
    function: Function | None = None
    conditions: tuple[Condition, ...] = ()
    loops: tuple[ast.AST, ...] = ()
    """The loops around it, within its function; the innermost is the last."""


@dataclass(frozen=True)
class Site:
    """One call."""

    call: ast.Call
    place: Place
    targets: tuple[str, ...] = ()
    """The names that its statement assigns to."""
    dropped: bool = False
    """Whether the call is a statement of its own, so that its value is lost."""

    @property
    def line(self) -> int:
        """The line in its file, from 1."""
        return self.call.lineno

    def argument(self, name: str, position: int | None = None) -> ast.expr | None:
        """Return an argument by name, else by position from 0; None where it is not given."""
        for keyword in self.call.keywords:
            if keyword.arg == name:
                return keyword.value
        plain = self.call.args
        if position is not None and position < len(plain) and not any(isinstance(arg, ast.Starred) for arg in plain):
            return plain[position]
        return None

    def spread(self) -> bool:
        """Whether arguments come out of a dictionary that is not seen here."""
        return any(keyword.arg is None for keyword in self.call.keywords)


@dataclass(frozen=True)
class Assigned:
    """One value of a name; None where it cannot be told from the statement alone."""

    value: ast.expr | None
    place: Place
    line: int


@dataclass
class Script:
    """All that was read, over the script and the modules beside it."""

    calls: list[Site] = field(default_factory=list)
    names: dict[tuple[str, Function | None, str], list[Assigned]] = field(default_factory=lambda: defaultdict(list))
    attributes: dict[str, list[Assigned]] = field(default_factory=lambda: defaultdict(list))
    """By the attribute's own name, whatever it is of: ``args.world_size`` and ``self.world_size`` are one."""
    environment: dict[str, list[Assigned]] = field(default_factory=lambda: defaultdict(list))
    """Variables of the environment that the script sets."""
    required: list[tuple[str, Place, int]] = field(default_factory=list)
    """Variables that are read without a default, with the line."""
    aliases: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """File -> name there -> what was imported under it."""
    imports: dict[str, int] = field(default_factory=dict)
    """Full names of what is imported anywhere -> line."""
    functions: dict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))
    returns: dict[Function, list[Assigned]] = field(default_factory=lambda: defaultdict(list))
    mentions: dict[str, list[tuple[ast.expr, Place]]] = field(default_factory=lambda: defaultdict(list))
    """Where names are read, calls included."""
    defined: dict[Function, Place] = field(default_factory=dict)
    by_meaning: dict[str, list[Site]] = field(default_factory=lambda: defaultdict(list))
    by_word: dict[str, list[Site]] = field(default_factory=lambda: defaultdict(list))
    """Calls by name, made when they are first asked for."""
    bases: set[str] = field(default_factory=set)
    """Classes that classes of the script derive from."""

    def full(self, node: ast.expr, file: str) -> str:
        """Return a dotted name with its imported part written out; empty for what is no plain name."""
        name = dotted(node)
        first, dot, rest = name.partition(".")
        return self.aliases[file].get(first, first) + dot + rest if name else ""

    def meanings(self, node: ast.expr, place: Place, depth: int = 4) -> set[str]:
        """Return all full names that an expression may stand for, through variables and ``A if x else B``."""
        if isinstance(node, ast.IfExp):
            return self.meanings(node.body, place, depth) | self.meanings(node.orelse, place, depth)
        if isinstance(node, ast.Call) and self.full(node.func, place.file).endswith("partial") and node.args:
            return self.meanings(node.args[0], place, depth)
        name = self.full(node, place.file)
        found = {name} if name else set()
        if depth and isinstance(node, ast.Name):
            for item in self.values(node.id, place):
                if item.value is not None:
                    found |= self.meanings(item.value, item.place, depth - 1)
        return found

    def unread(self, pattern: re.Pattern[str]) -> list[Site]:
        """Return calls of functions that are neither the script's own nor PyTorch's and that are called like this."""
        found = []
        for site in self.calls:
            full = self.full(site.call.func, site.place.file)
            root, last = full.partition(".")[0], full.rpartition(".")[2]
            if pattern.search(last) and last not in self.functions and root not in {"torch", "os", "sys"}:
                found.append(site)
        return found

    def values(self, name: str, place: Place) -> list[Assigned]:
        """Return what is assigned to a name that is read at `place`: in its function, else in its file or module."""
        function = place.function
        while True:
            if (place.file, function, name) in self.names:
                return self.names[place.file, function, name]
            if function is None:
                break
            function = self.defined[function].function if function in self.defined else None
        origin = self.aliases[place.file].get(name, "")
        module, _, own = origin.rpartition(".")
        return self.names.get((module.rpartition(".")[2], None, own), []) if own else []

    def find(self, *endings: str) -> list[Site]:
        """Return the calls of what ends with one of these names, e.g. ``nn.DataParallel`` for ``DataParallel``."""
        if not self.by_meaning:
            for site in self.calls:
                for last in {name.rpartition(".")[2] for name in self.meanings(site.call.func, site.place)}:
                    self.by_meaning[last].append(site)
        found = {id(site): site for ending in endings for site in self.by_meaning.get(ending, ())}
        return [site for site in self.calls if id(site) in found] if len(endings) > 1 else list(found.values())

    def called(self, name: str) -> list[Site]:
        """Return the calls whose function is written with this name at its end."""
        if not self.by_word:
            for site in self.calls:
                self.by_word[dotted(site.call.func).rpartition(".")[2]].append(site)
        return self.by_word.get(name, [])


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` of names and attributes; empty for anything else, ``.c`` for an attribute of something else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def read_script(sources: Mapping[str, bytes]) -> Script:
    """Read the script and the modules beside it.

    Args:
        sources: file name -> text as it is in the file; the first is the script itself.

    Raises:
        UsageError: a file is no Python; the line is named.
    """
    script = Script()
    for name, source in sources.items():
        module = name.rpartition("/")[2].removesuffix(".py")
        _Reader(script, name, module).block(_parse(name, source).body, Place(name))
    return script


def imported_modules(name: str, source: bytes) -> list[str]:
    """Return the full names that a file imports; those relative to its own package begin with a dot.

    Raises:
        UsageError: it is no Python.
    """
    found: dict[str, None] = {}
    for node in ast.walk(_parse(name, source)):
        if isinstance(node, ast.Import):
            found.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (f"{node.module}." if node.module else "")
            found.update(dict.fromkeys(origin + alias.name for alias in node.names if alias.name != "*"))
            found.update({origin.rstrip("."): None} if node.module else {})
    return list(found)


def _parse(name: str, source: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the script's own string literals
            return ast.parse(source, filename=name)
    except SyntaxError as error:
        where = f"{name}, line {error.lineno}" if error.lineno else name
        raise UsageError(
            f"{where}: this is no Python: {error.msg}",
            remedy="Give the training script itself; it has to be one that python3 can read (python3 -m py_compile).",
            output=(error.text or "").rstrip(),
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{name}: this is no Python: {error}", remedy="Give the training script itself.") from None


class _Reader:
    """Goes through one file from top to bottom."""

    def __init__(self, script: Script, file: str, module: str) -> None:
        self.script, self.file, self.module = script, file, module

    def block(self, statements: Sequence[ast.stmt], place: Place) -> None:
        """Read statements one after the other; what follows an early exit is reached under the opposite condition."""
        for statement in statements:
            self.statement(statement, place)
            if isinstance(statement, ast.If):
                for test, wanted in _passed(statement):
                    place = _under(place, test, wanted=wanted)

    def statement(self, node: ast.stmt, place: Place) -> None:
        """Read one statement with all that is in it."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.function(node, place)
        elif isinstance(node, ast.ClassDef):
            self.script.bases.update(self.script.full(base, self.file).rpartition(".")[2] for base in node.bases)
            self.block(node.body, place)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.imported(node)
        elif isinstance(node, ast.If):
            self.expression(node.test, place)
            self.block(node.body, _under(place, node.test, wanted=True))
            self.block(node.orelse, _under(place, node.test, wanted=False))
        elif isinstance(node, _LOOPS):
            self.loop(node, place)
        else:
            self.simple(node, place)

    def loop(self, node: ast.For | ast.AsyncFor | ast.While, place: Place) -> None:
        """Read a loop; what it assigns changes from round to round."""
        inside = Place(place.file, place.function, place.conditions, (*place.loops, node))
        if isinstance(node, ast.While):
            self.expression(node.test, place)
        else:
            self.expression(node.iter, place)
            self.assign(node.target, None, inside)
        self.block(node.body, inside)
        self.block(node.orelse, place)

    def simple(self, node: ast.stmt, place: Place) -> None:
        """Read a statement that is no branch, loop or definition; blocks of try, with and match are always reached."""
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for target in targets:
            self.assign(target, value, place)
        if isinstance(node, ast.Return) and place.function is not None:
            self.script.returns[place.function].append(Assigned(node.value, place, node.lineno))
        names = tuple(name for target in targets for name in _target_names(target))
        self.parts(node, place, names, dropped=isinstance(node, ast.Expr))

    def parts(self, node: ast.AST, place: Place, names: tuple[str, ...], *, dropped: bool = False) -> None:
        """Read what a statement is made of: blocks, expressions, and what holds more of them (handlers, cases)."""
        for _, value in ast.iter_fields(node):
            inner = value if isinstance(value, list) else [value]
            if inner and isinstance(inner[0], ast.stmt):
                self.block(inner, place)
                continue
            for part in inner:
                if isinstance(part, ast.expr):
                    self.expression(part, place, names, dropped=dropped)
                elif isinstance(part, ast.AST):
                    if isinstance(part, ast.withitem) and part.optional_vars is not None:
                        self.assign(part.optional_vars, None, place)
                    self.parts(part, place, names)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> None:
        """Read a function; the conditions around its definition hold inside it too."""
        self.script.functions[node.name].append(node)
        self.script.defined[node] = place
        for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if part is not None:
                self.expression(part, place)
        self.block(node.body, Place(self.file, node, place.conditions))

    def imported(self, node: ast.Import | ast.ImportFrom) -> None:
        """Note under which name what is known here."""
        aliases = self.script.aliases[self.file]
        origin = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            full = f"{origin}{alias.name}".strip(".")
            self.script.imports.setdefault(full, node.lineno)
            if alias.name == "*":
                continue
            if alias.asname or origin:
                aliases[alias.asname or alias.name] = full

    def expression(self, node: ast.AST, place: Place, names: tuple[str, ...] = (), *, dropped: bool = False) -> None:
        """Read an expression and all in it."""
        script = self.script
        if isinstance(node, ast.IfExp):
            self.expression(node.test, place)
            self.expression(node.body, _under(place, node.test, wanted=True), names)
            self.expression(node.orelse, _under(place, node.test, wanted=False), names)
            return
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self.expression(value, place, names)
                place = _under(place, value, wanted=isinstance(node.op, ast.And))
            return
        if isinstance(node, ast.NamedExpr):
            self.assign(node.target, node.value, place)
        elif isinstance(node, ast.Call):
            script.calls.append(Site(node, place, names, dropped))
            self.environment_call(node, place)
        elif isinstance(node, ast.Subscript) and script.full(node.value, self.file) == "os.environ":
            if isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant):
                script.required.append((str(node.slice.value), place, node.lineno))
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            script.mentions[node.id if isinstance(node, ast.Name) else node.attr].append((node, place))
        for part in ast.iter_child_nodes(node):
            self.expression(part, place, names)

    def environment_call(self, node: ast.Call, place: Place) -> None:
        """``os.environ.update(...)`` and ``os.putenv`` set variables; ``setdefault`` sets only what nobody has set."""
        name = self.script.full(node.func, self.file)
        pairs: Iterable[tuple[ast.expr | None, ast.expr]] = ()
        if name == "os.putenv" and len(node.args) > 1:
            pairs = [(node.args[0], node.args[1])]
        elif name == "os.environ.update" and node.args and isinstance(node.args[0], ast.Dict):
            pairs = zip(node.args[0].keys, node.args[0].values, strict=True)
        elif name == "os.environ.update":
            pairs = [(ast.Constant(keyword.arg), keyword.value) for keyword in node.keywords]
        for key, value in pairs:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.script.environment[key.value].append(Assigned(value, place, node.lineno))

    def assign(self, target: ast.expr, value: ast.expr | None, place: Place) -> None:
        """Note what a name, an attribute or a variable of the environment is set to."""
        item = Assigned(value, place, target.lineno)
        if isinstance(target, ast.Tuple | ast.List):
            parts: Sequence[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                parts = value.elts
            for inner, own in zip(target.elts, parts, strict=True):
                self.assign(inner, own, place)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, None, place)
        elif isinstance(target, ast.Name):
            self.script.names[self.file, place.function, target.id].append(item)
            if place.function is None:
                self.script.names[self.module, None, target.id].append(item)
        elif isinstance(target, ast.Attribute):
            self.script.attributes[target.attr].append(item)
        elif isinstance(target, ast.Subscript) and self.script.full(target.value, self.file) == "os.environ":
            key = target.slice
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.script.environment[key.value].append(item)


def _under(place: Place, test: ast.expr, *, wanted: bool) -> Place:
    return Place(place.file, place.function, (*place.conditions, Condition(test, wanted)), place.loops)


def _passed(statement: ast.If) -> list[tuple[ast.expr, bool]]:
    """Return what is known behind an ``if``: that none of its branches was taken from which one does not come back."""
    known: list[tuple[ast.expr, bool]] = []
    before: list[ast.expr] = []
    chain: ast.If | None = statement
    while chain is not None:
        if _leaves(chain.body):
            known.append(_none_of(before, chain.test))
        before.append(ast.UnaryOp(ast.Not(), chain.test))
        rest = chain.orelse
        if _leaves(rest):
            known.append((statement.test, True) if len(before) == 1 else (ast.BoolOp(ast.And(), list(before)), False))
        chain = rest[0] if len(rest) == 1 and isinstance(rest[0], ast.If) else None
    return known


def _none_of(before: list[ast.expr], test: ast.expr) -> tuple[ast.expr, bool]:
    return (ast.BoolOp(ast.And(), [*before, test]), False) if before else (test, False)


def _leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether what follows the block is not reached from it."""
    last = statements[-1] if statements else None
    if isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break):
        return True
    return isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and dotted(last.value.func) in _EXITS


def _target_names(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Tuple | ast.List):
        return [name for part in target.elts for name in _target_names(part)]
    return [target.id] if isinstance(target, ast.Name) else [target.attr] if isinstance(target, ast.Attribute) else []
