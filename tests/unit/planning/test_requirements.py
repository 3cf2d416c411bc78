"""What roles require and write, in one table."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from provision.commands.signing_keys import nvidia_key
from provision.components import COMPONENTS, ROLES, SHARED
from provision.facts.selinux import Selinux
from provision.facts.system import Kind, NodeKind
from provision.inventory.role_files import defaults, systems
from provision.inventory.specs import read_specs
from provision.model import PreflightCode
from provision.model.image_reference import is_image_reference
from provision.planning.requirements import packages_of, repositories_of, setting_problems
from provision.resources import roles_folder
from tests.unit.planning.conftest import cluster_of, facts_of

FACTS = facts_of(cluster_of())
DEFAULTS = defaults(roles_folder())
DEBIAN = systems(roles_folder())["debian_12"]
KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDM=\n-----END PGP PUBLIC KEY BLOCK-----\n"
EXTRA = {"name": "site", "uris": "https://m/x", "suites": "/", "key": KEY}
GOOD = {"training_image_reference": "r:5000/t:1"}
WRONG = [
    ("training_image", {"training_image_reference": ""}, "training_image_reference", PreflightCode.VARIABLE_MISSING),
    ("training_image", {"training_image_reference": "https://r/T"}, "training_image_reference", "variable.invalid"),
    ("training_image", GOOD | {"training_image_digest": "sha256:1"}, "training_image_digest", "variable.invalid"),
    (
        "training_container",
        GOOD | {"training_container_image": ""},
        "training_container_image",
        "variable.missing",
    ),
    (
        "training_container",
        GOOD | {"training_container_mounts": ["data:/data"]},
        "training_container_mounts",
        "variable.invalid",
    ),
    (
        "nvidia_container",
        {"nvidia_container_repository_uri": "https://m/x"},
        "nvidia_container_repository_key",
        "variable.missing",
    ),
    (
        "nvidia_container",
        {"nvidia_container_repository_uri": "https://m/x", "nvidia_container_repository_key": "AAAA"},
        "nvidia_container_repository_key",
        "variable.invalid",
    ),
    (
        "nvidia_container",
        {
            "nvidia_container_repository_uri": "https://nvidia.github.io/libnvidia-container/stable/deb/amd64",
            "nvidia_container_repository_key": KEY,
        },
        "nvidia_container_repository_key",
        "variable.invalid",
    ),
    ("docker_engine", {"docker_engine_source": "docker"}, "docker_engine_repository_key", "variable.missing"),
    (
        "docker_engine",
        {"docker_engine_registry_ca": [{"registry": "r", "certificate": "MIIB"}]},
        "docker_engine_registry_ca",
        "variable.invalid",
    ),
    ("platform", {"platform_extra_repositories": [EXTRA | {"key": ""}]}, "platform_extra_repositories, entry 1, key",
     "variable.missing"),
    ("peer_memory", {"peer_memory_signing_key": "/k"}, "peer_memory_signing_certificate", "variable.missing"),
]  # fmt: skip


def problems(role, **variables):
    return setting_problems(role, {**DEFAULTS, **variables}, FACTS)


@pytest.mark.parametrize(("role", "variables", "name", "code"), WRONG)
def test_a_missing_required_setting_is_reported_with_a_remedy(role, variables, name, code):
    """Before anything has changed."""
    planned = problems(role, **variables)

    assert [(item.object, item.code, item.role) for item in planned] == [(name, code, role)]
    assert planned[0].remedy


@pytest.mark.parametrize("role", ROLES)
def test_defaults_and_an_image_are_sufficient(role):
    """No role asks for more than that."""
    assert problems(role, **GOOD) == ()


def test_values_with_templates_are_not_checked():
    """They are rendered first."""
    jinja = "{{ registry }}/t:1"
    assert problems("training_image", training_image_reference=jinja, training_image_digest="{{ d }}") == ()
    assert problems("docker_engine", docker_engine_registry_ca=[{"registry": "r", "certificate": "{{ c }}"}]) == ()


@pytest.mark.parametrize("source", ["distribution", "docker", "present"])
def test_docker_as_a_snap_is_refused(source):
    """A second engine would not see its images and containers. It has neither daemon.json nor docker.service."""
    snap = dataclasses.replace(FACTS.docker_service, snap=True)
    variables = {**DEFAULTS, "docker_engine_source": source, "docker_engine_repository_key": KEY}
    (problem,) = setting_problems("docker_engine", variables, dataclasses.replace(FACTS, docker_service=snap))

    assert (problem.code, problem.object) == (PreflightCode.PACKAGE_CONFLICT, "docker (snap)")
    assert "snap remove docker" in problem.remedy


def test_docker_of_podman_is_refused():
    """Its engine is podman, which has neither daemon.json nor docker.service."""
    podman = dataclasses.replace(FACTS.docker_service, podman=True)
    (problem,) = setting_problems("docker_engine", DEFAULTS, dataclasses.replace(FACTS, docker_service=podman))

    assert (problem.code, problem.object) == (PreflightCode.PACKAGE_CONFLICT, "docker (podman-docker)")
    assert "Remove the package podman-docker" in problem.remedy


@pytest.mark.parametrize(
    ("selinux", "refused"),
    [
        (Selinux("enforcing"), True),
        (Selinux("enforcing", types={"/data/docker": "default_t"}), True),
        (Selinux("enforcing", types={"/data/docker": "container_var_lib_t"}), False),
        (Selinux("enforcing", equivalents={"/data": "/var/lib/docker"}), False),
        (Selinux("enforcing", equivalents={"/dat": "/var/lib/docker", "/data": "/home"}), True),
        (Selinux("permissive"), False),
        (Selinux("disabled"), False),
    ],
)
def test_a_moved_data_root_without_labels_is_refused(selinux, refused):
    """Before Docker fills it; the remedy is the command that gives it the labels."""
    variables = {**DEFAULTS, "docker_engine_data_root": "/data/docker"}
    facts = dataclasses.replace(FACTS, selinux=selinux)
    problems = setting_problems("docker_engine", variables, facts)

    assert [one.object for one in problems] == ["docker_engine_data_root"] * refused
    assert all("semanage fcontext -a -e /var/lib/docker /data/docker" in one.remedy for one in problems)
    assert setting_problems("docker_engine", DEFAULTS, facts) == ()


def test_the_key_of_nvidia_is_valid_only_for_its_own_repository():
    """And only that one."""
    url = "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)"
    key = nvidia_key().text
    assert problems("nvidia_container", nvidia_container_repository_uri=url, nvidia_container_repository_key=key) == ()


def test_packages_follow_choices_and_the_inventory():
    """As the role platform decides."""
    assert packages_of("docker_engine", DEFAULTS, DEBIAN, FACTS)[0] == "docker.io"
    assert "docker-ce" in packages_of("docker_engine", {**DEFAULTS, "docker_engine_source": "docker"}, DEBIAN, FACTS)
    own = {**DEFAULTS, "platform_package_sets": {"docker_engine": ["podman"]}}
    assert packages_of("docker_engine", own, DEBIAN, FACTS) == ("podman",)
    assert packages_of("nvidia_container", DEFAULTS, DEBIAN, FACTS) == ("nvidia-container-toolkit",)
    assert packages_of("nvidia_container", DEFAULTS, DEBIAN, without_gpus()) == ()
    assert packages_of("docker_engine", {**DEFAULTS, "platform_enabled": False}, DEBIAN, FACTS) == ()


def without_gpus():
    return dataclasses.replace(FACTS, gpus=(), gpu_pci=())


def test_repositories_are_those_of_the_site_and_of_the_roles():
    """As the role platform writes them."""
    variables = {
        **DEFAULTS,
        "platform_extra_repositories": [EXTRA],
        "nvidia_container_repository_uri": "https://m/nvidia",
        "nvidia_container_repository_key": KEY,
        "docker_engine_source": "docker",
        "docker_engine_repository_key": KEY,
    }
    planned = repositories_of(ROLES, variables, DEBIAN)

    assert [(item.name, item.suites, item.role) for item in planned] == [
        ("site", ("/",), "platform"),
        ("nvidia-container", ("/",), "nvidia_container"),
        ("docker", ("bookworm",), "docker_engine"),
    ]


def test_a_container_node_has_fewer_files():
    """It has no kernel of its own."""
    inside = dataclasses.replace(FACTS, kind=Kind(NodeKind.CONTAINER, "docker", sysctls_writable=False))
    assert list(COMPONENTS["rdma_stack"].files(DEFAULTS, FACTS))
    assert list(COMPONENTS["rdma_stack"].files(DEFAULTS, inside)) == []
    assert not COMPONENTS["peer_memory"].applies(inside)


def test_every_variable_in_a_remedy_exists():
    """A remedy names only what a role knows."""
    known = read_specs(roles_folder()).options
    text = "".join(path.read_text(encoding="utf-8") for path in Path("provision/components").glob("*.py"))
    prefixes = "|".join((*ROLES, "cluster"))
    for name in set(re.findall(rf'"((?:{prefixes})_[a-z_]+)"', text)):
        assert name in known or name in ROLES or name in SHARED.derived_variables, name


def test_image_references_are_validated_as_in_the_role():
    """Two places, one rule."""
    role = yaml.safe_load((roles_folder() / "training_image/vars/main.yml").read_text(encoding="utf-8"))
    form = re.compile(role["_training_image_reference_form"])
    for text in (
        "a",
        "r:5000/a/b:1",
        "r.x/a@sha256:" + "0" * 64,
        "[::1]:5000/a",
        "A",
        "a/",
        "a:",
        "https://r/a",
        "a b",
    ):
        assert is_image_reference(text) == bool(form.search(text)), text
