"""Options of a verb in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from provision.cli.option_groups import with_option_groups


@dataclass(frozen=True, kw_only=True)
class Where:
    """The nodes."""

    limit: Annotated[str | None, typer.Option("--limit", "-l", help="Only these.")] = None


@dataclass(frozen=True, kw_only=True)
class How:
    """The size."""

    gpus: Annotated[int, typer.Option("--gpus", "-g", min=1)]
    tags: Annotated[list[str] | None, typer.Option("--tag")] = None


def command(seen: list[object]) -> typer.Typer:
    @with_option_groups
    def verb(word: Annotated[str, typer.Argument()], where: Where, how: How, *, yes: bool = False) -> None:
        """Do it."""
        seen.append((word, where, how, yes))

    app = typer.Typer()
    app.command()(verb)
    return app


@pytest.mark.parametrize(
    ("words", "parsed"),
    [
        (["x", "-g", "2"], ("x", Where(), How(gpus=2), False)),
        (
            ["x", "-l", "a", "--gpus", "1", "--tag", "b", "--tag", "c", "--yes"],
            ("x", Where(limit="a"), How(gpus=1, tags=["b", "c"]), True),
        ),
    ],
)
def test_fields_are_options(words: list[str], parsed: object) -> None:
    """Each field has its names, type and default; the verb gets whole groups."""
    seen: list[object] = []

    assert CliRunner().invoke(command(seen), words).exit_code == 0
    assert seen == [parsed]


@pytest.mark.parametrize("words", [["x"], ["x", "-g", "0"], ["x", "-g", "many"]])
def test_missing_and_invalid_options_are_refused(words: list[str]) -> None:
    """A field without a default is required; limits of an option hold."""
    seen: list[object] = []

    assert CliRunner().invoke(command(seen), words).exit_code == 2
    assert seen == []


def test_help_lists_all_options() -> None:
    """The help text and the options of all groups are those of the verb."""
    output = CliRunner().invoke(command([]), ["--help"]).stdout

    assert "Do it." in output
    assert all(word in output for word in ("--limit", "--gpus", "--tag", "--yes", "Only these."))
