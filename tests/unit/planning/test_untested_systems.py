"""Plans for nodes with systems that no test has set up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provision.checks import judge
from provision.checks.systems import BEST_EFFORT, UNTESTED
from provision.facts.system import System
from provision.inventory.role_files import systems
from provision.planning import findings
from provision.planning.requirements import setting_problems
from provision.resources import roles_folder
from tests.unit.checks.conftest import healthy
from tests.unit.planning.conftest import scene_of

FILES = systems(roles_folder())


@pytest.mark.parametrize("name", [name for name, one in FILES.items() if one["__platform_support"] == UNTESTED])
@pytest.mark.parametrize("source", ["distribution", "docker", "present"])
def test_untested_systems_accept_only_an_engine_that_is_installed(name: str, source: str) -> None:
    """Plan and apply refuse other sources before a change, and say what to do."""
    variables = {"docker_engine_source": source, "docker_engine_repository_key": "-----BEGIN PGP PUBLIC KEY BLOCK-----"}
    problems = setting_problems("docker_engine", variables, healthy(), FILES[name])

    assert [one.object for one in problems] == ([] if source == "present" else ["docker_engine_source"])
    assert all("docker_engine_source: present" in one.remedy for one in problems)


@pytest.mark.parametrize(
    ("version", "level"), [("12", ""), ("13", BEST_EFFORT), ("14", UNTESTED)], ids=["tested", BEST_EFFORT, UNTESTED]
)
def test_plan_and_verify_warn_of_a_system_that_is_not_tested(version: str, level: str) -> None:
    """The node is planned nevertheless."""
    supported = {"debian 12": "tested", "debian 13": BEST_EFFORT, "debian 14": UNTESTED}
    scene = scene_of(system=System("debian", version, f"Debian {version}", "6.1", "x86_64", "/usr/bin/python3"))
    scene = replace(scene, supported=supported)
    [check] = [one for one in judge(scene.node, scene.facts, scene.cluster, supported=supported) if one.id == "node.os"]
    causes = [one.params["cause"] for one in findings(scene) if one.params.get("check") == "node.os"]

    assert (check.status.value, check.reason.code) == ("warn" if level else "pass", f"node.os.{level or 'ok'}")
    assert [cause.code for cause in causes] == ([f"node.os.{level}"] if level else [])
