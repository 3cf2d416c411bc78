"""What the README promises about the machine on which one types."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_readme_lists_the_requirements_of_the_controller():
    """Python by the version that the package requires, and the programs that are not Python's."""
    paragraphs = (ROOT / "README.md").read_text().split("\n\n")
    (paragraph,) = (one for one in paragraphs if "The controller " in one and " needs " in one)
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]

    assert f"Python {required.removeprefix('>=')} or newer" in paragraph
    assert {"`python3-venv`", "`openssh-client`", "`git`"} <= set(re.findall(r"`[^`]+`", paragraph))
    assert "neither root nor Docker" in paragraph
