"""Hooks of MkDocs, named in mkdocs.yml."""

from __future__ import annotations

import re
from typing import Any

_ROW = re.compile(r"^\|.*", re.MULTILINE)
_CODE = re.compile(r"(`+).+?\1(?!`)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    r"""Return a page without `\|` in the code of tables: GitHub requires it, Python-Markdown prints the backslash."""
    return _ROW.sub(lambda row: _CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)
