"""The project uses public names of other libraries only; ruff's SLF001 checks attribute access."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import provision

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for folder in ("provision", "roles") for path in (ROOT / folder).rglob("*.py"))
OWN = ("provision", "ansible.module_utils.platform_", "ansible.module_utils.peer_memory_")


_CANDIDATE = re.compile(r"^\s*(import|from)\b.*\b_|modules\[.* = None", re.MULTILINE)


def test_source_files_import_public_names() -> None:
    """No private module, no private name of another library, no module that is hidden from others."""
    problems = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path in SOURCES
        if _CANDIDATE.search(text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if _is_private_import(node) or _hides_module(node)
    ]

    assert problems == []


def _is_private_import(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(_is_private(part) for alias in node.names for part in alias.name.split("."))
    if isinstance(node, ast.ImportFrom) and not node.level and not (node.module or "").startswith(OWN):
        return any(
            _is_private(part) for name in (node.module, *(a.name for a in node.names)) for part in name.split(".")
        )
    return False


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _hides_module(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant) or node.value.value is not None:
        return False
    return any(
        isinstance(one, ast.Subscript) and ast.unparse(one.value) in {"sys.modules", "modules", "_modules"}
        for one in node.targets
    )


def test_import_rule_finds_private_names() -> None:
    """The rule above reports what it forbids."""
    lines = ["import _json", "from click._compat import strip_ansi", "from ansible import _internal", "import a._b.c"]
    trees = [ast.parse(line).body[0] for line in lines]

    assert all(map(_is_private_import, trees))
    assert _hides_module(ast.parse("sys.modules['invoke'] = None").body[0])


def test_lint_rules_have_no_exceptions() -> None:
    """SLF001 (private member) and F821 (undefined name) hold in provision/ and roles/ without a waiver."""
    waivers = [path for path in SOURCES if re.search(r"noqa.*(SLF|F821)", path.read_text(encoding="utf-8"))]
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["lint"]
    ignored = {name: rules for name, rules in lint["per-file-ignores"].items() if {"SLF", "SLF001", "F821"} & {*rules}}

    assert waivers == []
    assert set(ignored) == {"tests/**"}
    assert not {"SLF", "SLF001", "F821"} & {*lint["ignore"]}


def test_no_class_replaces_a_private_member_of_a_library() -> None:
    """A subclass of a library's class overrides its public members only."""
    assert sorted(_overrides()) == []


def _overrides() -> Iterator[str]:
    for module in pkgutil.walk_packages(provision.__path__, "provision."):
        if module.name.endswith(("__main__", "probe.begin")):
            continue
        for name, class_ in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            private = {member for member in vars(class_) if _is_private(member)} - {"_abc_impl"}
            for base in class_.__mro__[1:] if class_.__module__ == module.name else ():
                library = base.__module__.partition(".")[0]
                if library != "provision" and library not in sys.stdlib_module_names:
                    yield from (f"{module.name}.{name}.{member}" for member in private & {*vars(base)})


def test_action_plugins_use_what_ansible_documents() -> None:
    """The method `run` is theirs; of Ansible's they use the task, the method that runs a module, and the connection.

    Ansible's own plugins that reset a connection (`reboot`, `wait_for_connection`) use the same attribute.
    """
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.glob("roles/*/action_plugins/*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    methods = {item.name for node in nodes if isinstance(node, ast.ClassDef) for item in node.body
               if isinstance(item, ast.FunctionDef)}  # fmt: skip
    members = {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_private(node.attr)}

    assert methods == {"run"}
    assert members == {"_connection", "_execute_module", "_task"}
