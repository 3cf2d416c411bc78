"""Validate the JSON documents of commands against the JSON Schemas of their verbs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema

from provision.cli.main import _own, normalise
from provision.report.json_documents.schema import error_schema, schema_of
from provision.report.json_documents.verbs import DOCUMENTS


def verb_of(words: Sequence[str]) -> str:
    """Return the verb of a command line that prints a JSON document."""
    _, verbs = _own(normalise(words))
    return next(verb for verb in (" ".join(verbs[:2]), verbs[0]) if verb in DOCUMENTS)


def require_valid(document: Any, words: Sequence[str]) -> None:
    """Check a document that a command line printed.

    Raises:
        jsonschema.ValidationError: The document is neither one of its verb nor an error.
    """
    is_error = isinstance(document, dict) and document.keys() == {"ok", "error"}
    _validator("" if is_error else verb_of(words)).validate(document)


@cache
def _validator(verb: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(verb) if verb else error_schema())
