"""What the README promises about the machine on which one types."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from provision import workflow

ROOT = Path(__file__).parents[2]


def test_the_readme_lists_the_requirements_of_the_controller():
    """Python by the version that the package requires, and the programs that are not Python's."""
    paragraphs = (ROOT / "README.md").read_text().split("\n\n")
    (paragraph,) = (one for one in paragraphs if "The controller " in one and " needs " in one)
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]

    assert f"Python {required.removeprefix('>=')} or newer" in paragraph
    assert {"`python3-venv`", "`openssh-client`", "`git`"} <= set(re.findall(r"`[^`]+`", paragraph))
    assert "neither root nor Docker" in paragraph


def test_the_readme_lists_the_operating_systems_of_nodes():
    """All that the roles support."""
    [sentence] = re.findall(r"and (\S[^.]+) on the nodes\.", (ROOT / "README.md").read_text())
    versions: dict[str, list[str]] = {}
    for system in workflow.supported_systems():
        name, version = system.split(" ", 1)
        versions.setdefault(name.capitalize(), []).append(version)

    assert sentence == ", ".join(f"{name} {' or '.join(numbers)}" for name, numbers in versions.items())
