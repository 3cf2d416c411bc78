"""For all unit tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from provision import node_archive
from provision.inventory import listing
from provision.report import layout
from tests.support import ansible_inventory


@pytest.fixture(autouse=True, scope="session")
def _ansible_has_begun() -> Iterator[None]:
    """Inventories are listed by a program that need not be started anew each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "subprocess", SimpleNamespace(**{**vars(subprocess), "run": ansible_inventory.run}))
        yield


@pytest.fixture(autouse=True, scope="session")
def _programs_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that tests run on this machine are stored in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_archive, "FOLDER", f"{tmp_path_factory.mktemp('node')}/provision/programs")
        yield


@pytest.fixture(autouse=True)
def _default_layout() -> Iterator[None]:
    """Reset the width and the colours of reports after each test."""
    yield
    layout.choose()
