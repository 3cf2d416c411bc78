"""A package of parts gives what they have, and imports the one that is asked for."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_a_module_is_imported_when_one_of_its_names_is_used(tmp_path, monkeypatch):
    """The others stay where they are; a name that no part has is an AttributeError, as with any module."""
    folder = tmp_path / "parted"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from provision.lazy_import import parts\n__getattr__ = parts(__name__, {'one': ('a',), 'two': ('b',)})\n"
    )
    (folder / "one.py").write_text("a = [1]\n")
    (folder / "two.py").write_text("b = [2]\n")
    monkeypatch.syspath_prepend(tmp_path)
    package = importlib.import_module("parted")

    assert package.a is package.a
    assert package.a == [1]
    assert "parted.two" not in sys.modules
    with pytest.raises(AttributeError, match="module 'parted' has no attribute 'c'"):
        _ = package.c
