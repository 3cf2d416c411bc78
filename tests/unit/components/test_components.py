"""Everything about a role is in its component: the other modules name no role."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import provision
from provision.checks import CHECKS
from provision.components import COMPONENTS, JOB_ROLES, ROLES, SHARED
from provision.components.base import Component, in_order
from provision.resources import roles_folder

PACKAGE = Path(provision.__file__).parent
GENERIC = [
    path
    for name in ("planning", "checks", "inventory", "workflow", "cli", "report", "lab", "jobs", "batch", "launchers")
    for path in (PACKAGE / name).rglob("*.py")
    if "files" not in path.parts
]
OWN = {
    "checks/reasons.py": {"peer_memory", "platform"},  # remedies and descriptions of these roles' checks
    "jobs/preflight.py": {"base_system", "container_ssh"},  # remedies
    "lab/systems.py": {"platform"},  # PLATFORM_ID of os-release
    "workflow/probe_snapshot.py": {"container_ssh", "nvidia_container", "nvidia_driver"},  # facts
    "slurm/bundle.py": {"platform"},  # an option of pip, and a module of Python
}
WORDS = {"kernel", "slurm"}
"""Roles whose names say nothing in a text: Slurm is also a scheduler, a launcher and a job engine."""
NAME = re.compile(rf"(?<![\w./])({'|'.join(role for role in ROLES if role not in WORDS)})(?:_enabled)?(?![\w.-])")
"""A role in a text. Codes and ids of checks begin with one and a dot, variables with one and an underscore."""


def names(tree: ast.Module) -> Iterator[str]:
    """Yield every text, imported module and attribute of a module of components, without docstrings."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("provision.components"):
            yield from ((node.module or "").rpartition(".")[2], *(alias.name for alias in node.names))


@pytest.mark.parametrize("path", GENERIC, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_only_components_contain_role_names(path: Path) -> None:
    """A new role needs no change there."""
    texts = names(ast.parse(path.read_text(encoding="utf-8")))
    named = {match[1] for text in texts for match in NAME.finditer(text)}

    assert named == OWN.get(f"{path.parent.name}/{path.name}", set())


def test_each_role_has_one_folder_and_one_module() -> None:
    """Nothing else lists the roles."""
    folders = {path.parent.parent.name for path in roles_folder().glob("*/tasks/main.yml")}
    modules = {path.stem for path in (PACKAGE / "components").glob("*.py") if "COMPONENT = " in path.read_text("utf-8")}

    assert folders == modules == set(ROLES)
    assert {role: component.role for role, component in COMPONENTS.items()} == {role: role for role in ROLES}


def test_components_name_only_roles_and_checks_that_exist() -> None:
    """A misspelt name would change nothing."""
    for role, component in COMPONENTS.items():
        checks = {*component.never_fixes, *component.fixes_if, *component.fixes_warnings}
        assert {*component.after, *component.waits_with} <= set(ROLES) - {role}
        assert checks <= {check for check in CHECKS if check.partition(".")[0] == role}
        assert not component.never_fixes & component.fixes_if.keys()


def test_the_shared_role_comes_first() -> None:
    """It runs before every other role."""
    assert SHARED.role == ROLES[0]
    assert set(JOB_ROLES) < set(ROLES)


def test_the_order_of_components_is_that_of_their_dependencies() -> None:
    """Where they leave a choice, names decide."""
    made = [Component(role="c", after=("a",)), Component(role="b", after=("c",)), Component(role="a")]

    assert [component.role for component in in_order(made)] == ["a", "c", "b"]


@pytest.mark.parametrize("after", ["a", "missing"])
def test_components_without_an_order_are_refused(after: str) -> None:
    """A cycle, or a role that does not exist."""
    with pytest.raises(ValueError, match="cannot be ordered"):
        list(in_order([Component(role="a", after=(after,))]))
