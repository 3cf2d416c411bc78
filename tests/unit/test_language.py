"""Identifiers, comments, Markdown and help use standard terms."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from provision.cli.main import build_app

ROOT = Path(__file__).parents[2]
KEYS_OF_JSON = "provision/report/json_documents/"
"""Modules with the types of published documents."""
FORBIDDEN = frozenset(
    {"told", "found", "kept", "standing", "mended", "looks", "seat", "seats", "chief", "keeper", "keepers"}
    | {"handed", "lazily", "wish", "wishes", "eyes", "ways"}
)
"""Words that no identifier contains; `FileNotFoundError` and the like are exempt."""

TERMS = {
    r"told|tells?": "report, log, print",
    r"mend(s|ed|ing)?": "fix",
    r"keepers?": "node agent, job supervisor, lock holder",
    r"seats?": "placement, slot assignment",
    r"chiefs?": "queue host, rank 0, leader, launcher",
    r"as (wanted|it was|they were|it stands|they stand)": "converged, up to date, unchanged",
    r"(what )?is wanted": "desired state",
    r"hand(s|ed|ing)? in": "submit a job",
    r"others? set up|other hands": "pre-existing configuration, changed manually",
    r"(has|have|had) a look|a look|looks? at|looked at": "probe",
    r"came? to (its|their|an) end|(is|are) over(?! [0-9])": "finished, completed, ended",
    r"with the boot": "at boot",
    r"not yours|of theirs": "owned by another user",
    r"goes by|go by": "use",
    r"nobody|whoever": "name the subject",
    r"hurts?": "disruptive, requires an idle node",
    r"never fits|no room": "insufficient resources",
}
"""Regular expression -> the term to use instead in comments, docstrings, messages and Markdown."""

_TERM = re.compile(rf"\b(?:{'|'.join(TERMS)})\b", re.IGNORECASE)


def sources(pattern: str) -> list[str]:
    """Return the files of a pattern below the repository's folders of sources, relative to the repository."""
    folders = [ROOT / name for name in ("docs", "provision", "roles", "tests", "tools")]
    paths = [*ROOT.glob(pattern), *(path for folder in folders for path in folder.rglob(pattern))]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name():
                yield node.id, node.lineno
            case ast.Attribute():
                yield node.attr, node.lineno
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.keyword(arg=str()):
                yield node.arg or "", node.value.lineno
            case ast.ImportFrom():
                yield from ((word, node.lineno) for word in (node.module or "").split("."))
            case ast.alias():
                yield from ((word, node.lineno) for word in node.name.split("."))
                if node.asname:
                    yield node.asname, node.lineno


def words_of(name: str) -> set[str]:
    """Return the lower-case words of a snake_case or CamelCase name."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}


def forbidden(file: str) -> Iterator[tuple[str, int]]:
    """Yield the forbidden identifiers of a Python file with their lines; keys of JSON are exempt, they never change."""
    if words_of(Path(file).stem) & FORBIDDEN:
        yield Path(file).stem, 0
    tree = ast.parse((ROOT / file).read_text())
    keys = set(typed_keys(tree)) if file.startswith(KEYS_OF_JSON) else set()
    for name, line in identifiers(tree):
        if name in keys:
            continue
        if words_of(name) & FORBIDDEN and not name.endswith(("NotFound", "NotFoundError")):
            yield name, line


def typed_keys(tree: ast.AST) -> Iterator[str]:
    """Yield the keys of the types of a module."""
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=key)):
                yield key


def prose(file: str) -> Iterator[tuple[str, int]]:
    """Yield comments, docstrings and messages of a Python file with their lines."""
    with (ROOT / file).open("rb") as stream:
        for token in tokenize.tokenize(stream.readline):
            if token.type in {tokenize.COMMENT, tokenize.STRING} and " " in token.string:
                yield token.string, token.start[0]


def documentation(file: str) -> Iterator[tuple[str, int]]:
    """Yield comments and docstrings of a Python file with their lines; strings of tests may quote other programs."""
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield text, node.lineno
    yield from ((text, line) for text, line in prose(file) if text.startswith("#"))


def role_texts(file: str) -> Iterator[tuple[str, int]]:
    """Yield task names, comments and other lines of a YAML file, template or script of a role that are not code."""
    for number, line in enumerate((ROOT / file).read_text().splitlines(), 1):
        yield re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "", line), number


def wrong_terms(text: str) -> list[str]:
    """Return the matches of `TERMS` in a text, without code in Markdown."""
    return [match[0] for match in _TERM.finditer(re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL))]


def test_modules_have_no_forbidden_identifiers():
    wrong = [f"{file}:{line}: {name}" for file in sources("*.py") for name, line in forbidden(file)]

    assert wrong == []


def test_modules_use_standard_terms():
    """In comments, docstrings and messages of `provision`."""
    files = [file for file in sources("*.py") if file.startswith("provision/")]
    wrong = [f"{file}:{line}: {words}" for file in files for text, line in prose(file) if (words := wrong_terms(text))]

    assert wrong == []


def test_modules_of_roles_use_standard_terms():
    """In comments, documentation and messages."""
    files = [file for file in sources("*.py") if file.startswith("roles/")]
    wrong = [f"{file}:{line}: {words}" for file in files for text, line in prose(file) if (words := wrong_terms(text))]

    assert wrong == []


def test_tasks_templates_and_scripts_of_roles_use_standard_terms():
    """In names of tasks and handlers, comments, messages and descriptions of variables; names and Jinja are exempt."""
    folders = (
        "roles/*/tasks",
        "roles/*/handlers",
        "roles/*/vars",
        "roles/*/meta",
        "roles/*/templates",
        "roles/*/files",
    )
    patterns = [f"{folder}/*" for folder in (*folders, "roles/*/molecule/*/tasks", "playbooks")]
    paths = [path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()]
    files = sorted(path.relative_to(ROOT).as_posix() for path in paths)
    wrong = [
        f"{file}:{line}: {words}" for file in files for text, line in role_texts(file) if (words := wrong_terms(text))
    ]

    assert len(files) > 80
    assert wrong == []


def test_comments_and_docstrings_of_tests_use_standard_terms():
    files = [file for file in sources("*.py") if file.startswith("tests/")]
    wrong = [
        f"{file}:{line}: {words}"
        for file in files
        for text, line in documentation(file)
        if (words := wrong_terms(text))
    ]

    assert wrong == []


def test_pages_use_standard_terms():
    pages = {page: wrong_terms((ROOT / page).read_text()) for page in sources("*.md")}

    assert {page: words for page, words in pages.items() if words} == {}


def test_summaries_of_commands_use_standard_terms_and_are_complete():
    def summaries(command: Any) -> Iterator[str]:
        for below in getattr(command, "commands", {}).values():
            yield below.get_short_help_str(limit=50)
            yield from summaries(below)

    wrong = [
        text
        for text in summaries(typer.main.get_command(build_app(None)))
        if wrong_terms(text) or text.endswith("...") or not text.endswith(".")
    ]

    assert wrong == []
