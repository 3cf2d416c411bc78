"""What the README and the page for new users promise about the machine on which one types, and about the nodes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from provision.inventory.role_files import systems
from provision.resources import roles_folder

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
    """All that the roles support, and that are tested."""
    text = (ROOT / page).read_text(encoding="utf-8")
    [sentence] = re.findall(r", and (Debian .+) on the nodes\.", text.replace("\n", " "))
    versions: dict[str, list[str]] = {}
    tested = (one for one in systems(roles_folder()).values() if one["__platform_support"] == "tested")
    for variables in sorted(tested, key=lambda one: float(one["__platform_title"].removesuffix(" LTS").split()[-1])):
        name, version = re.fullmatch(r"(\D+) (\d.*)", variables["__platform_title"]).groups()
        versions.setdefault(name, []).append(version)

    shown = (" or ".join([*(one.removesuffix(" LTS") for one in all_[:-1]), all_[-1]]) for all_ in versions.values())
    lists = sorted(f"{name} {numbers}" for name, numbers in zip(versions, shown, strict=True))
    assert sentence == ", ".join(lists)
