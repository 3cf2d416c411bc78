"""Tests that compare with outputs recorded on real machines and with the reference documents.

Neither is part of this repository. Only `make recorded` runs these tests. A missing folder is an error.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recorded.data import missing
from tests.unit.benchmarks.test_training_bench import bench  # noqa: F401 - a fixture
from tests.unit.checks.conftest import judged  # noqa: F401 - a fixture
from tests.unit.cli.test_run_reference import dry_run, folder, known  # noqa: F401 - fixtures


def pytest_configure() -> None:
    """Refuse to run without the recorded data."""
    if absent := missing():
        raise pytest.UsageError(
            f"the recorded data is incomplete; missing: {', '.join(map(str, absent))}. "
            "Set RECORDED_DATA to the folder that contains data/ and reference/."
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.recorded)
