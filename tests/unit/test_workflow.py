"""What verbs take from the workflow is there when they ask for it."""

from __future__ import annotations

import inspect

import pytest

from provision import workflow


def test_the_package_exports_each_step_by_name():
    """And what there is not is an ordinary error."""
    steps = [getattr(workflow, name) for name in workflow.__all__]

    assert [item for item in steps if not inspect.isfunction(item) and not inspect.isclass(item)] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = workflow.nothing
