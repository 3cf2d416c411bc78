"""Store the records of role modules in a folder of the test."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.support.modules import provide_utils


@pytest.fixture(autouse=True)
def origins(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the notes, as /var/lib/provision/origins on a node."""
    provide_utils()
    folder = tmp_path_factory.mktemp("state") / "origins"
    monkeypatch.setattr(importlib.import_module("ansible.module_utils.platform_origin"), "FOLDER", str(folder))
    return folder
