"""YAML that every version of YAML reads as the same texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9./_-]*")
_RESERVED = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
_WIDTH = 1 << 20
"""Long texts stay on one line."""


class _Dumper(yaml.SafeDumper):
    """Quotes every text that some reader could take for another type."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - of PyYAML
        """Indent lists below their key, as in the documentation of Kubernetes."""
        return super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _RESERVED
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')


_Dumper.add_representer(str, _text)


def yaml_text(documents: Sequence[Any]) -> str:
    """Return documents as YAML."""
    return "---\n".join(
        yaml.dump(one, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=False)
        for one in documents
    )
