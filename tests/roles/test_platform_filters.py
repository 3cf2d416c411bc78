"""The filters of platform and docker_engine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible.template import trust_as_template

from provision.components import COMPONENTS, JOB_ROLES
from provision.planning.requirements import setting_problems
from tests.support.expressions import ROLES, Role
from tests.support.modules import load
from tests.unit.planning.conftest import cluster_of, facts_of

RUN: dict[str, Any] = {
    "fabric_host_enabled": True,
    "ansible_play_role_names": list(COMPONENTS),
    "ansible_run_tags": ["all"],
    "inventory_hostname": "gpu1",
    "platform_node": {"gpus_present": True, "other_sources": [], "packages": {}, "downgraded": []},
}
SETTINGS = load("docker_engine", "docker_engine_settings", part="filter_plugins")
TEXTS = load("training_container", "training_container_texts", part="filter_plugins")
VALUES = load("platform", "platform_values", part="filter_plugins")


def platform(**variables: Any) -> Role:
    """The role platform in a run of all roles."""
    return Role("platform", **(RUN | variables))


def test_roles_and_components_agree() -> None:
    """A play without the command leaves out the same roles on the same nodes."""
    facts = dataclasses.replace(facts_of(cluster_of()), gpus=(), gpu_pci=())
    for_gpus = [role for role, component in COMPONENTS.items() if not component.applies(facts)]

    assert platform().value("__platform_job_roles") == list(JOB_ROLES)
    assert platform().value("__platform_gpu_roles") == for_gpus


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        ({}, set()),
        ({"docker_engine_enabled": "no"}, {"docker_engine"}),
        ({"docker_engine_enabled": trust_as_template("{{ off }}"), "off": False}, {"docker_engine"}),
        ({"platform_node": RUN["platform_node"] | {"gpus_present": False}}, {"nvidia_container", "peer_memory"}),
        ({"cluster_takes_jobs": "no"}, set(JOB_ROLES)),
        ({"ansible_run_tags": ["docker_engine_install"]}, set(COMPONENTS) - {"docker_engine"}),
    ],
)
def test_a_role_runs_where_it_is_enabled_tagged_and_needed(variables: dict[str, Any], missing: set[str]) -> None:
    """INI files and Jinja say `no` as well."""
    role = platform(**variables)

    of_engines = {name for name, component in COMPONENTS.items() if component.engine}
    assert set(COMPONENTS) - set(role.value("__platform_selected_roles")) == missing | of_engines


def test_packages_follow_the_choice_variable() -> None:
    """The value of the variable in __platform_package_choices decides; without one the first choice."""
    sets = {"platform": ["a"], "docker_engine": {"distribution": ["b"], "docker": ["c"]}, "none": None}
    names = {
        "__platform_package_sets": sets,
        "__platform_package_choices": {"docker_engine": "docker_engine_source"},
        "ansible_play_role_names": ["docker_engine", "none"],
        "docker_engine_repository_key": "x",
    }

    packages = platform(**names, docker_engine_source="docker").value("__platform_role_packages")
    own = platform(**names, platform_package_sets={"docker_engine": ["d"]}).value("__platform_role_packages")

    assert packages == {"platform": ["a"], "docker_engine": ["c"], "none": []}
    assert own["docker_engine"] == ["d"]


def test_repositories_are_those_of_the_roles_that_run() -> None:
    """The key is that of the inventory."""
    asked = {
        "docker_engine_source": "docker",
        "docker_engine_repository_key": "KEY",
        "__platform_docker_repository": "https://docker.example/acme",
        "__platform_repository_suite": "x",
    }

    [repository] = platform(**asked).value("__platform_repositories")
    assert (repository["name"], repository["suites"], repository["components"], repository["key"]) == (
        "docker",
        "x",
        "stable",
        "KEY",
    )
    assert platform(**asked, docker_engine_enabled=False).value("__platform_repositories") == []


@pytest.mark.parametrize(
    ("wanted", "most", "limit", "cut"),
    [(-1, -1, -1, False), (-1, 64, 64, True), ("1024", 64, 64, True), (32, 64, 32, False), (32, -1, 32, False)],
)
def test_docker_limits_do_not_exceed_the_limits_of_the_node(wanted: Any, most: int, limit: int, cut: bool) -> None:  # noqa: FBT001
    """-1 is unlimited on both sides."""
    limits = VALUES.platform_node_limits({"memlock": wanted}, {"memlock": most})

    assert limits == {"memlock": limit}
    assert SETTINGS.docker_engine_ulimits(limits) == {"memlock": {"Name": "memlock", "Soft": limit, "Hard": limit}}
    assert bool(SETTINGS.docker_engine_reductions({"memlock": wanted}, limits)) is cut
    assert bool(TEXTS.training_container_reductions({"memlock": wanted}, limits)) is cut
    assert VALUES.platform_node_limits({"memlock": wanted}, {}) == {"memlock": int(wanted)}


def test_a_failure_is_explained_by_the_first_entry_that_matches() -> None:
    """Upper and lower case are the same."""
    entries = [{"pattern": "no space"}, {"pattern": "space|denied"}]

    assert VALUES.platform_first_match(entries, "NO SPACE left", {}) == entries[0]
    assert VALUES.platform_first_match(entries, "denied", {}) == entries[1]
    assert VALUES.platform_first_match(entries, "", {}) == {}


def test_the_reason_of_a_failure_contains_no_variable_values() -> None:
    """The longest value is replaced first; short values stay."""
    env = {"A": "secret", "B": "secret-long", "C": "on", "D": 12345}

    text = TEXTS.training_container_reason(" secret-long secret on 12345\n", env)

    assert "secret" not in text
    assert "12345" not in text
    assert " on " in text
    assert TEXTS.training_container_reason(None, {}) == "no reason given"


def test_credentials_that_apt_cannot_use_fail_the_preflight() -> None:
    """The preflight names the entry; the role would stop in the middle of a run."""
    entry = {"name": "site", "uris": "https://me:a%20b@m/deb", "suites": "/", "key": "BEGIN PGP PUBLIC KEY BLOCK"}
    facts = facts_of(cluster_of())

    [problem] = setting_problems("platform", {"platform_extra_repositories": [entry]}, facts)

    assert (problem.code, problem.object) == ("variable.invalid", "platform_extra_repositories, entry 1, uris")
    assert "a b" not in problem.problem


@pytest.mark.parametrize(
    ("mirror", "uri"), [("", "https://docker.example/acme"), ("https://m/docker", "https://m/docker")]
)
def test_the_repository_of_docker_is_that_of_the_system_or_a_mirror(mirror: str, uri: str) -> None:
    """The role and the preflight use the same one."""
    system = {"__platform_docker_repository": "https://docker.example/acme", "__platform_repository_suite": "acme"}
    variables = {"docker_engine_source": "docker", "docker_engine_repository_uri": mirror}

    [planned] = COMPONENTS["docker_engine"].repositories(variables, system)
    [written] = Role("docker_engine", **variables, **system).value("__docker_engine_own_repositories")

    assert (planned.uris, written["uris"]) == ((uri,), uri)


def test_role_and_preflight_write_the_same_repository_files() -> None:
    """Both use one file."""
    link = ROLES / "platform/filter_plugins/platform_package_repositories.py"

    assert link.is_symlink()
    assert link.resolve() == ROLES.parent / "provision/commands/package_repositories.py"
