"""Parse a training script into calls, assignments and functions, with the conditions under which each is reached.

The script is never executed or imported; only `ast` reads it.
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
    """A condition for the code that follows it."""

    test: ast.expr
    expected: bool


@dataclass(frozen=True)
class Place:
    """A position in the source."""

    file: str
    function: Function | None = None
    conditions: tuple[Condition, ...] = ()
    loops: tuple[ast.AST, ...] = ()
    """The loops around it within its function, innermost last."""


@dataclass(frozen=True)
class Site:
    """One call."""

    call: ast.Call
    place: Place
    targets: tuple[str, ...] = ()
    """The names that its statement assigns to."""
    dropped: bool = False
    """Whether the call is an expression statement, so that its value is lost."""

    @property
    def line(self) -> int:
        """The line in its file, from 1."""
        return self.call.lineno

    def argument(self, name: str, position: int | None = None) -> ast.expr | None:
        """Return an argument by name, else by position from 0; None if it is not passed."""
        for keyword in self.call.keywords:
            if keyword.arg == name:
                return keyword.value
        plain = self.call.args
        if position is not None and position < len(plain) and not any(isinstance(arg, ast.Starred) for arg in plain):
            return plain[position]
        return None

    def spread(self) -> bool:
        """Return whether the call unpacks a dictionary of arguments."""
        return any(keyword.arg is None for keyword in self.call.keywords)


@dataclass(frozen=True)
class Assigned:
    """An assignment to a name; the value is None if the statement does not show it."""

    value: ast.expr | None
    place: Place
    line: int


@dataclass
class Script:
    """The content of the script and the modules beside it."""

    calls: list[Site] = field(default_factory=list)
    names: dict[tuple[str, Function | None, str], list[Assigned]] = field(default_factory=lambda: defaultdict(list))
    attributes: dict[str, list[Assigned]] = field(default_factory=lambda: defaultdict(list))
    """By attribute name, for any object: ``args.world_size`` and ``self.world_size`` are the same."""
    environment: dict[str, list[Assigned]] = field(default_factory=lambda: defaultdict(list))
    """Environment variables that the script sets."""
    required: list[tuple[str, Place, int]] = field(default_factory=list)
    """Environment variables that are read without a default, with the line."""
    aliases: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """File -> local name -> imported name."""
    imports: dict[str, int] = field(default_factory=dict)
    """Full names of all imports -> line."""
    functions: dict[str, list[Function]] = field(default_factory=lambda: defaultdict(list))
    returns: dict[Function, list[Assigned]] = field(default_factory=lambda: defaultdict(list))
    mentions: dict[str, list[tuple[ast.expr, Place]]] = field(default_factory=lambda: defaultdict(list))
    """Reads of names, including calls."""
    defined: dict[Function, Place] = field(default_factory=dict)
    by_meaning: dict[str, list[Site]] = field(default_factory=lambda: defaultdict(list))
    by_word: dict[str, list[Site]] = field(default_factory=lambda: defaultdict(list))
    """Calls by name, built on first use."""
    bases: set[str] = field(default_factory=set)
    """Base classes of the script's classes."""

    def full(self, node: ast.expr, file: str) -> str:
        """Return a dotted name with its imported part expanded; empty for other expressions."""
        name = dotted(node)
        first, dot, rest = name.partition(".")
        return self.aliases[file].get(first, first) + dot + rest if name else ""

    def meanings(self, node: ast.expr, place: Place, depth: int = 4) -> set[str]:
        """Return all full names that an expression may have, through variables and ``A if x else B``."""
        if isinstance(node, ast.IfExp):
            return self.meanings(node.body, place, depth) | self.meanings(node.orelse, place, depth)
        if isinstance(node, ast.Call) and self.full(node.func, place.file).endswith("partial") and node.args:
            return self.meanings(node.args[0], place, depth)
        name = self.full(node, place.file)
        names = {name} if name else set()
        if depth and isinstance(node, ast.Name):
            for item in self.values(node.id, place):
                if item.value is not None:
                    names |= self.meanings(item.value, item.place, depth - 1)
        return names

    def unread(self, pattern: re.Pattern[str]) -> list[Site]:
        """Return calls of functions that match `pattern` and belong neither to the script nor to PyTorch."""
        sites = []
        for site in self.calls:
            full = self.full(site.call.func, site.place.file)
            root, last = full.partition(".")[0], full.rpartition(".")[2]
            if pattern.search(last) and last not in self.functions and root not in {"torch", "os", "sys"}:
                sites.append(site)
        return sites

    def values(self, name: str, place: Place) -> list[Assigned]:
        """Return the assignments to a name that is read at `place`: in its function, else in its file or module."""
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
        """Return the calls of names with one of these last parts, e.g. ``nn.DataParallel`` for ``DataParallel``."""
        if not self.by_meaning:
            for site in self.calls:
                for last in {name.rpartition(".")[2] for name in self.meanings(site.call.func, site.place)}:
                    self.by_meaning[last].append(site)
        matches = {id(site): site for ending in endings for site in self.by_meaning.get(ending, ())}
        return [site for site in self.calls if id(site) in matches] if len(endings) > 1 else list(matches.values())

    def called(self, name: str) -> list[Site]:
        """Return the calls that are written with this name as the last part."""
        if not self.by_word:
            for site in self.calls:
                self.by_word[dotted(site.call.func).rpartition(".")[2]].append(site)
        return self.by_word.get(name, [])


def dotted(node: ast.AST) -> str:
    """Return ``a.b.c`` for names and attributes, ``.c`` for an attribute of another expression, else an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def read_script(sources: Mapping[str, bytes]) -> Script:
    """Parse the script and the modules beside it.

    Args:
        sources: File name -> content; the first is the script itself.

    Raises:
        UsageError: A file is not valid Python; the line is named.
    """
    script = Script()
    for name, source in sources.items():
        module = name.rpartition("/")[2].removesuffix(".py")
        _Reader(script, name, module).block(_parse(name, source).body, Place(name))
    return script


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


class _Reader:
    """Visits one file from top to bottom."""

    def __init__(self, script: Script, file: str, module: str) -> None:
        self.script, self.file, self.module = script, file, module

    def block(self, statements: Sequence[ast.stmt], place: Place) -> None:
        """Visit statements in order; code after an early exit is reached under the opposite condition."""
        for statement in statements:
            self.statement(statement, place)
            if isinstance(statement, ast.If):
                for test, expected in _conditions_after(statement):
                    place = _under(place, test, expected=expected)

    def statement(self, node: ast.stmt, place: Place) -> None:
        """Visit one statement with its content."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.function(node, place)
        elif isinstance(node, ast.ClassDef):
            self.script.bases.update(self.script.full(base, self.file).rpartition(".")[2] for base in node.bases)
            self.block(node.body, place)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.import_statement(node)
        elif isinstance(node, ast.If):
            self.expression(node.test, place)
            self.block(node.body, _under(place, node.test, expected=True))
            self.block(node.orelse, _under(place, node.test, expected=False))
        elif isinstance(node, _LOOPS):
            self.loop(node, place)
        else:
            self.simple(node, place)

    def loop(self, node: ast.For | ast.AsyncFor | ast.While, place: Place) -> None:
        """Visit a loop; names that it assigns change in each iteration."""
        inside = Place(place.file, place.function, place.conditions, (*place.loops, node))
        if isinstance(node, ast.While):
            self.expression(node.test, place)
        else:
            self.expression(node.iter, place)
            self.assign(node.target, None, inside)
        self.block(node.body, inside)
        self.block(node.orelse, place)

    def simple(self, node: ast.stmt, place: Place) -> None:
        """Visit other statements; blocks of try, with and match are always reached."""
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
        """Visit the parts of a statement: blocks, expressions, handlers and cases."""
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
        """Visit a function; the conditions around its definition also apply inside it."""
        self.script.functions[node.name].append(node)
        self.script.defined[node] = place
        for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults):
            if part is not None:
                self.expression(part, place)
        self.block(node.body, Place(self.file, node, place.conditions))

    def import_statement(self, node: ast.Import | ast.ImportFrom) -> None:
        """Record the imported names."""
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
        """Visit an expression with its parts."""
        script = self.script
        if isinstance(node, ast.IfExp):
            self.expression(node.test, place)
            self.expression(node.body, _under(place, node.test, expected=True), names)
            self.expression(node.orelse, _under(place, node.test, expected=False), names)
            return
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self.expression(value, place, names)
                place = _under(place, value, expected=isinstance(node.op, ast.And))
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
        """Record variables set by ``os.environ.update(...)`` and ``os.putenv``; not ``setdefault``."""
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
        """Record an assignment to a name, an attribute or an environment variable."""
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


def _under(place: Place, test: ast.expr, *, expected: bool) -> Place:
    return Place(place.file, place.function, (*place.conditions, Condition(test, expected)), place.loops)


def _conditions_after(statement: ast.If) -> list[tuple[ast.expr, bool]]:
    """Return the conditions after an ``if``: no branch that exits was taken."""
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
    """Return whether control never continues after the block."""
    last = statements[-1] if statements else None
    if isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break):
        return True
    return isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and dotted(last.value.func) in _EXITS


def _target_names(target: ast.expr) -> list[str]:
    if isinstance(target, ast.Tuple | ast.List):
        return [name for part in target.elts for name in _target_names(part)]
    return [target.id] if isinstance(target, ast.Name) else [target.attr] if isinstance(target, ast.Attribute) else []
