"""One cluster in memory for all tests of hostile nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hostile.verbs import RECORDING
from tests.support.hostile.world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Nodes whose answers were recorded from the real programs."""
    with pytest.MonkeyPatch.context() as patch:
        made = World(tmp_path_factory.mktemp("hostile"), patch)
        made.start_recording()
        try:
            for line in RECORDING:
                done = made.run(*(word.replace("\xa0", " ") for word in line.split(" ")))
                assert not done.problem, f"{line}: {done.problem}"
        finally:
            made.end_recording()
        made.skip_waiting(patch)
        yield made
