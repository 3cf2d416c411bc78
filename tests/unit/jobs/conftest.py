"""A Docker engine, and nodes that Slurm schedules, for the tests of job engines; both are STAND-INs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node.node import Engine
from tests.support.node.slurm_site import Site, slurm_site


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("docker") / "socket")
    yield made
    made.end()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: Engine) -> Iterator[Site]:
    yield from slurm_site(tmp_path, monkeypatch, docker)
