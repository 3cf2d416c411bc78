"""``provision schema``: print the JSON Schema of a command's documents."""

from __future__ import annotations

from typing import Annotated

import typer

from provision.cli.common import show
from provision.errors import UsageError

_ERROR = "error"


def _complete_verb(incomplete: str) -> list[str]:
    """Return the words of verbs with this prefix."""
    from provision.report.json_documents.verbs import DOCUMENTS

    words = dict.fromkeys(word for verb in (*DOCUMENTS, _ERROR) for word in verb.split())
    return [word for word in words if word.startswith(incomplete)]


def schema(
    words: Annotated[
        list[str],
        typer.Argument(metavar="VERB...", help="A command that has --json, or error.", autocompletion=_complete_verb),
    ],
) -> None:
    """Print the JSON Schema of a command's --json.

    The schema is for this version. Later versions add keys, and neither rename nor remove any. `error` is the document
    of a command that fails before it has a result.

    \b
    Examples:
      provision schema plan
      provision schema bench table > table.schema.json
      provision schema error
    """
    import json

    from provision.report.json_documents.schema import error_schema, schema_of
    from provision.report.json_documents.verbs import DOCUMENTS

    verb = " ".join(words)
    if verb not in {*DOCUMENTS, _ERROR}:
        raise UsageError(
            f"{verb}: not a command with a JSON document", remedy=f"Choose {', '.join(DOCUMENTS)} or {_ERROR}."
        )
    show(json.dumps(error_schema() if verb == _ERROR else schema_of(verb), indent=2))
