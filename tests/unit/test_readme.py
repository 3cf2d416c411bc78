"""What the README and the page for new users promise about the machine on which one types, and about the nodes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from provision import workflow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_the_requirements_of_the_controller_are_listed(page):
    """Python by the version that the package requires, and the programs that are not Python's."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (paragraph,) = (one for one in text.split("\n\n") if "The controller " in one and " needs " in one)
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]

    assert f"Python {required.removeprefix('>=')} or newer" in paragraph
    assert {"`python3-venv`", "`openssh-client`", "`git`"} <= set(re.findall(r"`[^`]+`", paragraph))
    assert "neither root nor Docker" in paragraph


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/set-up-nodes.md"])
def test_the_operating_systems_of_nodes_are_listed(page):
    """All that the roles support."""
    text = (ROOT / page).read_text(encoding="utf-8")
    [sentence] = re.findall(r"and (\S[^.]+) on the nodes\.", text)
    versions: dict[str, list[str]] = {}
    for system in workflow.supported_systems():
        name, version = system.split(" ", 1)
        versions.setdefault(name.capitalize(), []).append(version)

    assert sentence == ", ".join(f"{name} {' or '.join(numbers)}" for name, numbers in versions.items())
