"""The JSON Schemas of the documents that commands print."""

from __future__ import annotations

import json

import jsonschema
import pytest
import typer

from provision.cli.main import build_app, main
from provision.model import NodePlan, Plan, Step, StepClass
from provision.report.json_documents.schema import error_schema, schema_of
from provision.report.json_documents.verbs import DOCUMENTS
from provision.report.plan_report import as_document
from tests.support.json_documents import require_valid, verb_of
from tests.support.reasons import plain

SCHEMAS = {verb: schema_of(verb) for verb in DOCUMENTS} | {"error": error_schema()}
NOT_PARSED = {"submit"}
"""Verbs whose options click does not know."""


def verbs_with_json(command, *words):
    if any("--json" in parameter.opts for parameter in command.params):
        yield " ".join(words)
    for word, below in getattr(command, "commands", {}).items():
        yield from verbs_with_json(below, *words, word)


def test_every_verb_with_a_json_document_has_a_schema():
    """No verb is missing, and none is described that prints no document."""
    assert {*verbs_with_json(typer.main.get_command(build_app(None)))} | NOT_PARSED == {*DOCUMENTS}


@pytest.mark.parametrize("verb", SCHEMAS)
def test_a_schema_is_valid_and_describes_every_key(verb):
    """It is a JSON Schema, and allows no key that it does not describe."""
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[verb])
    objects = [part for part in SCHEMAS[verb]["$defs"].values() if "properties" in part]

    assert objects
    assert all(part["additionalProperties"] is False for part in objects)
    assert [key for part in objects for key, value in part["properties"].items() if not value.get("description")] == []


def test_each_kind_of_wrong_document_is_refused():
    """An unknown key, a missing key, and a value of another type."""
    plan = Plan((NodePlan("gpu1", (Step("base_system", StepClass.SAFE, (plain("/etc/x was changed"),)),)),))
    document = json.loads(json.dumps(as_document(plan)))
    node = document["nodes"][0]
    missing = {key: value for key, value in node.items() if key != "steps"}

    require_valid(document, ["plan", "--json"])
    for wrong in (node | {"unknown": 1}, missing, node | {"reachable": "yes"}, node | {"steps": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            require_valid(document | {"nodes": [wrong]}, ["plan", "--json"])


def test_a_document_of_another_verb_is_refused():
    with pytest.raises(jsonschema.ValidationError):
        require_valid({"deleted": ["job"]}, ["plan", "--json"])


def test_an_error_is_valid_for_every_verb_and_has_its_own_schema():
    error = {"code": None, "params": {}, "node": None, "message": "wrong", "remedy": None, "output": ""}

    require_valid({"ok": False, "error": error}, ["plan", "--json"])
    with pytest.raises(jsonschema.ValidationError):
        require_valid({"ok": False, "error": {**error, "node": 1}}, ["plan", "--json"])


@pytest.mark.parametrize(
    ("line", "verb"),
    [
        ("--json -i hosts.yml top job train", "top job"),
        ("ls -o json", "list"),
        ("describe train -o json", "get"),
        ("queue --json", "queue"),
        ("-o json exec -- uname -r", "exec"),
    ],
)
def test_the_verb_of_a_command_line(line, verb):
    """Its schema is the one that a document has to match."""
    assert verb_of(line.split()) == verb


def test_the_command_prints_the_schema_of_a_verb(capsys):
    """Of a verb with two words, and of the error; another word is refused with the verbs."""
    for words in (["bench", "table"], ["error"]):
        with pytest.raises(SystemExit) as stopped:
            main(["schema", *words])
        assert (stopped.value.code, json.loads(capsys.readouterr().out)) == (0, SCHEMAS[" ".join(words)])
    with pytest.raises(SystemExit) as stopped:
        main(["schema", "tables"])
    assert stopped.value.code == 2
    assert "bench table" in capsys.readouterr().err
