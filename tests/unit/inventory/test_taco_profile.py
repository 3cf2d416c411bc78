"""The inventory of TACO Train's guide, and the page that maps each step of the guide to a role and its variables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from provision.components import COMPONENTS
from provision.inventory import load
from provision.inventory.role_files import defaults, systems
from provision.inventory.specs import read_specs
from provision.planning.requirements import setting_problems
from provision.resources import roles_folder
from tests.unit.checks.conftest import healthy

ROOT = Path(__file__).parents[3]
PROFILE = ROOT / "inventories" / "taco-2021"
PAGE = ROOT / "docs" / "how-to" / "taco-2021.md"
STEPS = (
    "a system disk of 50 GB, CentOS 7.6",
    "the drivers of RDMA cards and GPUs",
    "git clone https://github.com/Mellanox/nv_peer_memory.git",
    "git checkout 1.0-9",
    "insmod ./nv_peer_mem.ko",
    "`insmod` again after each reboot",
    "get-docker.sh",
    "get-nvidia-docker2.sh",
    "docker pull ccr.ccs.tencentyun.com/qcloud/taco-train:torch111-cu113-bm-0.4.1",
    "docker run -itd --rm",
    "--gpus all",
    "--shm-size=32g",
    "--ulimit memlock=-1 --ulimit stack=67108864",
    "--net=host --privileged",
    "without a password",
    "mpirun -np 1`",
    "mpirun -np 8`",
    "mpirun -np 16 -H gpu1:8,gpu2:8` with LightCC",
    "without `LIGHT_` variables",
    "NCCL_NET_GDR_LEVEL=2",
    "images per second on 1, 8 and 16 GPUs",
)
"""The steps of the guide, in its order."""
KEYS = {"docker_engine_repository_key", "nvidia_container_repository_key"}


def rows() -> list[list[str]]:
    """Return the columns of the page's table of steps."""
    section = PAGE.read_text(encoding="utf-8").partition("## Steps")[2].partition("\n\nWhat differs")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [[column.strip() for column in line.strip("|").split(" | ")] for line in lines]


def variables() -> dict[str, object]:
    """Return the variables of the profile."""
    content: dict[str, object] = yaml.safe_load((PROFILE / "group_vars" / "all.yml").read_text(encoding="utf-8"))
    return content


def test_each_step_of_the_guide_is_on_the_page_in_its_order() -> None:
    """With a role, or with the command that replaces the step."""
    places = [next((number for number, row in enumerate(rows()) if step in row[0]), step) for step in STEPS]

    assert places == list(range(len(STEPS)))
    for _, how, *_ in rows():
        roles = re.findall(r"`(\w+)`", how.partition(":")[0])
        assert "`provision " in how or (roles and {*roles} <= {*COMPONENTS}), how


def test_each_variable_of_the_page_exists_and_has_the_value_of_the_profile() -> None:
    """The page never shows a variable that no role has, nor another value than the inventory."""
    options, profile = read_specs(roles_folder()).options, variables()
    shown = [item for *_, last in rows() for item in re.findall(r"`(\w+)(?:: ([^`]+))?`", last)]

    assert {name for name, _ in shown} <= {*options}
    assert {name: yaml.safe_load(value) for name, value in shown if value}.items() <= profile.items()
    assert {*profile} <= {name for name, _ in shown}


def test_the_profile_loads_without_warnings() -> None:
    """All names and types are those of the roles."""
    cluster = load(PROFILE)

    assert [node.name for node in cluster.nodes] == ["gpu1", "gpu2"]
    assert cluster.warnings == ()


@pytest.mark.parametrize("system", ["el_7", "el_9", "ubuntu_24.04"])
def test_only_keys_of_repositories_are_missing(system: str) -> None:
    """On CentOS 7.6 as on a current system; the keys come from `provision init` and from Docker."""
    every = {**defaults(roles_folder()), **variables(), "nvidia_container_repository_uri": "https://mirror.example/rpm"}
    content = systems(roles_folder())[system]
    roles = [role for role, component in COMPONENTS.items() if component.serves(every)]
    problems = [item for role in roles for item in setting_problems(role, every, healthy(), content)]

    assert {item.object for item in problems} == KEYS
