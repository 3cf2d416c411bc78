"""LightCC: its variables, refused values, and default settings."""

from __future__ import annotations

import pytest

from provision.errors import UsageError
from provision.profiles import LIGHT, check_light, lightcc_settings, lossy_ones


@pytest.mark.row(54)
def test_all_seven_variables_have_their_defaults():
    assert {name: variable.default for name, variable in LIGHT.items()} == {
        "LIGHT_2D_ALLREDUCE": "0",
        "LIGHT_INTRA_SIZE": "8",
        "LIGHT_HIERARCHICAL_THRESHOLD": "1073741824",
        "LIGHT_TOPK_ALLREDUCE": "0",
        "LIGHT_TOPK_RATIO": "0.01",
        "LIGHT_TOPK_THRESHOLD": "1048576",
        "LIGHT_TOPK_FP16": "0",
    }
    check_light({name: variable.default for name, variable in LIGHT.items()})


@pytest.mark.row(54)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LIGHT_2D_ALLREDUCE", "yes"),
        ("LIGHT_INTRA_SIZE", "0"),
        ("LIGHT_INTRA_SIZE", "8.0"),
        ("LIGHT_TOPK_THRESHOLD", "1M"),
        ("LIGHT_TOPK_THRESHOLD", "-1"),
        ("LIGHT_TOPK_RATIO", "0"),
        ("LIGHT_TOPK_RATIO", "nan"),
        ("LIGHT_TOPK_RATIO", "0.0_1"),
        ("LIGHT_TOPK_RATIO", "."),
        ("LIGHT_TOPK_RATIO", "1%"),
        ("LIGHT_TOPK_FP16", "\u0661"),
        ("LIGHT_TOPK_FP16", ""),
        ("LIGHT_INTRASIZE", "8"),
        ("LIGHT_INTRASIZE", None),
    ],
)
def test_invalid_values_are_refused(name, value):
    """LightCC itself ignores them silently."""
    with pytest.raises(UsageError) as caught:
        check_light({name: value})

    assert name in caught.value.message
    assert caught.value.remedy


def test_variables_of_other_programs_are_ignored():
    assert check_light({"LIGHTNING": "x", "PATH": "", "LIGHT_TOPK_RATIO": None}) is None


@pytest.mark.row(53, 54)
@pytest.mark.parametrize("gpus", [4, 0])
def test_lossy_settings_are_used_only_on_request(gpus):
    """Groups have the size of a node's GPUs, or LightCC's default if that is unknown."""
    settings = lightcc_settings(gpus, "preset", lossy=False)

    assert {setting.name: setting.value for setting in settings} == {
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_CYCLE_TIME": "0",
        "LIGHT_INTRA_SIZE": str(gpus or 8),
        "LIGHT_2D_ALLREDUCE": "1",
    }
    assert lossy_ones(settings) == []
    assert lossy_ones(lightcc_settings(8, "preset", lossy=True)) == ["LIGHT_TOPK_ALLREDUCE"]
