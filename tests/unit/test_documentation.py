"""The documentation: generated pages are current, commands exist, reference pages are complete, the README is short."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from provision.batch.submission import read_words
from provision.cli.main import build_app, normalise
from provision.errors import ProvisionError
from provision.inventory.specs import read_specs
from provision.model import NodePlan, Plan, Step, StepClass
from provision.model.reason import reason
from provision.report.plan_report import as_document
from provision.report.reasons import message
from provision.resources import roles_folder
from tests.support.matrices import rendered
from tools import (
    advise_page,
    command_pages,
    export_page,
    json_page,
    performance_page,
    ports_page,
    site_hooks,
    systems_page,
    terminal_picture,
    topology_picture,
    variables_page,
)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
GENERATED = {
    **{f"reference/commands/{name}": text for name, text in command_pages.pages().items()},
    "reference/variables.md": variables_page.page(read_specs(roles_folder())),
    "reference/json.md": json_page.page(),
    "reference/ports.md": ports_page.page(),
    "reference/systems.md": systems_page.page(),
    "reference/advise.md": advise_page.page(),
    **performance_page.generated(),
    "assets/terminal.svg": terminal_picture.drawn(terminal_picture.RECORDING.read_text(encoding="utf-8")),
    "assets/topology.svg": topology_picture.drawn(),
    "how-to/gdr-verdicts.md": export_page.rewritten((DOCS / "how-to/gdr-verdicts.md").read_text(encoding="utf-8")),
}
"""File below docs/ -> the text that its generator makes of the program as it is."""
APP = typer.main.get_command(build_app(None))
MOST_LINES = 120
_ENDS = re.compile(r"[|<>&;]+")
"""Operators of the shell after which another command begins, or a file."""


@pytest.mark.parametrize("name", GENERATED)
def test_generated_files_are_current(name):
    """`make docs` writes them."""
    assert (DOCS / name).read_text(encoding="utf-8") == GENERATED[name], "out of date: run make docs"


def test_the_picture_of_a_topology_shows_what_the_lab_prints():
    """The matrix is the output of the lab's `nvidia-smi`, not written by hand."""
    assert topology_picture.MATRIX.read_text(encoding="utf-8") == rendered("dgx1v")


def test_code_in_tables_has_no_backslashes_on_the_site():
    """GitHub needs them before pipes in tables; MkDocs would print them, also in commands to copy."""
    page = "| `a\\|b` and `` `x\\|y` `` | c \\| d |\n`e\\|f`"

    assert site_hooks.on_page_markdown(page) == "| `a|b` and `` `x|y` `` | c \\| d |\n`e\\|f`"


def test_every_command_has_a_section():
    """With an anchor, for links."""
    text = "".join(content for name, content in GENERATED.items() if name.startswith("reference/commands/"))

    assert [name for name, _ in walk(APP) if f"{{ #{'-'.join(['provision', *name])} }}" not in text] == []


def walk(command, name=()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the words and the command of each verb, and of those below it."""
    for word, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield (*name, word), below
            yield from walk(below, (*name, word))


def documented() -> Iterator[tuple[str, list[str]]]:
    """Yield the page and the words of each command in a block of code."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^ *```(?:sh|bash|console)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
        indented = re.findall(r"^    provision .*$", text, re.MULTILINE)
        lines = [line for block in blocks for line in re.sub(r"\\\n\s*", "", block).splitlines()]
        for line in [*lines, *indented]:
            words = shell_words(re.split(r"\s{2,}", line.strip().removeprefix("$ "))[0])
            if words[:1] == ["provision"] and "..." not in words:
                yield page.relative_to(ROOT).as_posix(), words[1:]


def shell_words(line: str) -> list[str]:
    """Return the words of the first command of a line."""
    reader = shlex.shlex(line, posix=True, punctuation_chars="|<>&;")
    reader.whitespace_split, reader.commenters = True, "#"
    words: list[str] = []
    try:
        for word in reader:
            if _ENDS.fullmatch(word):
                break
            words.append(word)
    except ValueError:  # a string that goes on in the next line
        return []
    return words


def parse(words: list[str]) -> int:
    """Parse a command line as the program does, without running it; return the exit code.

    An unknown verb, option or choice is an error.
    """
    without_engine = [word for word in words if word not in {"-q", "--quiet"}]
    for name in ("--engine", "--loglevel"):
        if name in without_engine:
            at = without_engine.index(name)
            del without_engine[at : at + 2]
    command, rest, context = APP, normalise(without_engine), None
    try:
        while True:
            context = command.make_context("provision", rest, parent=context)
            if not hasattr(command, "commands") or not (rest := [*context._protected_args, *context.args]):
                break
            _, command, rest = command.resolve_command(context, rest)
    except typer.Exit as end:  # of --help and --version
        return end.exit_code
    if command.name == "submit":  # it parses its own flags
        read_words(context.args)
    return 0


COMMANDS = [pytest.param(words, id=f"{page}: {shlex.join(words)[:80]}") for page, words in documented()]


@pytest.mark.parametrize("words", COMMANDS)
def test_every_documented_command_can_be_parsed(words, tmp_path, monkeypatch):
    """Its verb, options and choices exist."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yml").touch()
    assert parse(words) == 0


def test_many_commands_are_documented():
    """The test above has read them."""
    assert len(COMMANDS) > 200


def test_the_readme_is_one_screen():
    """All else is in the documentation."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < MOST_LINES


def test_links_of_the_readme_lead_to_files():
    """The site's own links are checked by mkdocs."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text(encoding="utf-8"))

    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_page_about_exit_codes_has_those_of_all_errors():
    """Each is the first cell of a row."""
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "reference/exit-codes.md").read_text(encoding="utf-8"), re.MULTILINE)
    errors = [ProvisionError, *below(ProvisionError)]

    assert {str(error.exit_code) for error in errors} - set(rows) == set()


def below(error: type[ProvisionError]) -> Iterator[type[ProvisionError]]:
    """Yield the kinds of an error."""
    for kind in error.__subclasses__():
        yield kind
        yield from below(kind)


def test_the_page_about_files_has_those_of_all_roles():
    """Each path that a component names."""
    page = (DOCS / "reference/files-on-nodes.md").read_text(encoding="utf-8")
    listed = [path.rstrip("*/") for path in re.findall(r"`(/[^` ]+)`", page)]
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "provision/components").glob("*.py")]
    named = {path for text in texts for path in re.findall(r'"(/(?:etc|usr|var)/[A-Za-z0-9_./-]+[^/"])"', text)}

    assert len(named) > 20
    assert sorted(path for path in named if not any(path.startswith(one) for one in listed)) == []


def test_the_site_loads_nothing_from_the_network():
    """No font, and none of Material's own addresses."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")

    assert "font: false" in settings
    assert "polyfills: [assets/iframe-worker.js]" in settings


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_comment_of_a_merge_request_lists_changes_and_errors():
    """The documented filter prints nodes that change or do not answer, and no others."""
    text = (DOCS / "how-to/ci-gitops.md").read_text(encoding="utf-8")
    program = re.search(r"^jq -r '(.*?)' plan\.json", text, re.MULTILINE | re.DOTALL)
    step = Step("docker_engine", StepClass.NEEDS_IDLE, (reason("plan.role_changed"), reason("plan.forced")))
    nodes = (NodePlan("gpu1", (step,)), NodePlan("gpu2", ()), NodePlan("gpu3", (), reachable=False, error="no route"))

    def printed(document):
        words = ["jq", "-r", program[1]]
        done = subprocess.run(words, input=json.dumps(document), capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    changes = "; ".join(message(each) for each in step.reasons)
    listed = [f"- gpu1: docker_engine (needs-idle): {changes}", "- gpu3: no route"]
    plan = as_document(Plan(nodes))
    problem = {"object": "image r/t:1", "problem": "does not exist", "remedy": "Push it."}
    error = {"message": "the vault cannot be read", "remedy": None}
    assert printed(plan) == listed
    assert printed({**plan, "problems": [problem]}) == ["- image r/t:1: does not exist. Push it.", *listed]
    assert printed({"ok": False, "error": error}) == ["- the vault cannot be read. "]
