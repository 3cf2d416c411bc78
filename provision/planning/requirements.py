"""What each role requires before its first task, and what it puts on a node: one entry of `REQUIREMENTS` for each role.

A role's preflight tasks check the same again on the node; here it is known before anything has changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.commands.signing_keys import NVIDIA_FINGERPRINT, parse_key
from provision.errors import UsageError
from provision.facts import NodeFacts, Unknown, is_container, plain
from provision.gdr.observed import has_gpus, verdict_of
from provision.model import PreflightCode, PreflightProblem
from provision.model.image_reference import is_image_reference

__all__ = ["REQUIREMENTS", "Repository", "RoleRequirements", "packages_of", "repositories_of", "setting_problems"]

Variables = Mapping[str, Any]

_SOURCES = "/etc/apt/sources.list.d/provision-{}.sources"
_ARMOR = "BEGIN PGP PUBLIC KEY BLOCK"
_NVIDIA_HOST = "https://nvidia.github.io/"
_DIGEST = re.compile(r"(sha256:[0-9a-f]{64})?")
_MOUNT = re.compile(r"/[^:]*:/[^:]*(:(ro|rw))?")
_INVENTORY = "Set it in the inventory's group_vars/all.yml"
_IMAGE_REMEDY = (
    f"{_INVENTORY}, e.g. training_image_reference: registry.example.com/team/train:1. Clusters whose jobs bring "
    "their own images set training_image_enabled, training_container_enabled and container_ssh_enabled to false."
)


@dataclass(frozen=True)
class Repository:
    """A package repository that an apply configures on a node."""

    name: str
    uris: tuple[str, ...]
    suites: tuple[str, ...]
    components: tuple[str, ...]
    key: str
    variable: str
    """The inventory variable that names it."""
    role: str


@dataclass(frozen=True)
class RoleRequirements:
    """What one role requires and writes."""

    settings: Callable[[Variables, NodeFacts], Iterable[tuple[PreflightCode, str, str, str]]] = lambda _v, _f: ()
    """Yields code, variable, problem and remedy."""
    files: Callable[[Variables, NodeFacts], Iterable[str]] = lambda _v, _f: ()
    """Yields the paths that it writes."""
    repositories: Callable[[Variables, Variables], Iterable[Repository]] = lambda _v, _s: ()
    """Yields what it configures; the second argument is the system's file in roles/platform/vars."""
    packages: Callable[[Variables, Variables, NodeFacts], Iterable[str]] = field(default=lambda _v, _s, _f: ())
    """Yields packages beyond those of the system's file."""
    applies: Callable[[NodeFacts], bool] = lambda _facts: True
    """Whether the role does anything on such a node."""


def setting_problems(role: str, variables: Variables, facts: NodeFacts) -> tuple[PreflightProblem, ...]:
    """Return what of the inventory would make the role fail on the node; values with Jinja are not judged here."""
    required = REQUIREMENTS[role]
    if not required.applies(facts):
        return ()
    return tuple(
        PreflightProblem(code, role, variable, problem, remedy)
        for code, variable, problem, remedy in required.settings(variables, facts)
    )


def packages_of(role: str, variables: Variables, system: Variables, facts: NodeFacts) -> tuple[str, ...]:
    """Return the packages that the role needs on the node, installed or not.

    Args:
        role: one of `ROLES`.
        variables: of the node, with the roles' defaults.
        system: the system's file in roles/platform/vars.
        facts: of the node.
    """
    required = REQUIREMENTS[role]
    if not required.applies(facts) or variables.get("platform_enabled") is False:
        return ()
    own = variables.get("platform_package_sets")
    sets = {**system.get("__platform_package_sets", {}), **(own if isinstance(own, Mapping) else {})}
    packages = sets.get(role, [])
    if isinstance(packages, Mapping):
        choice = variables.get(system.get("__platform_package_choices", {}).get(role, ""))
        packages = packages.get(choice, []) if choice is not None else next(iter(packages.values()), [])
    names = [*(packages if isinstance(packages, list) else []), *required.packages(variables, system, facts)]
    return tuple(dict.fromkeys(str(name) for name in names if plain(name)))


def repositories_of(roles: Sequence[str], variables: Variables, system: Variables) -> tuple[Repository, ...]:
    """Return the repositories that a run of `roles` configures; those of the site always."""
    if variables.get("platform_enabled") is False:
        return ()
    names = dict.fromkeys(("platform", *roles))
    found = [item for role in names for item in REQUIREMENTS[role].repositories(variables, system)]
    return tuple(item for item in found if plain([*item.uris, *item.suites, *item.components, item.key]))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in ([value] if isinstance(value, str) else _list(value)) if item)


def _text(variables: Variables, name: str) -> str:
    value = variables.get(name)
    return value if isinstance(value, str) else ""


def _is_on(variables: Variables, name: str) -> bool:
    return str(variables.get(name, True)).strip().lower() not in {"false", "no", "off", "0", "n", "f"}


def _key_problem(key: str) -> str:
    """Return what is wrong with an armored key; empty: nothing, or only Ansible can tell."""
    if not plain(key):
        return ""
    if _ARMOR not in key:
        return "is not set" if not key.strip() else "is not an armored OpenPGP public key"
    return ""


def _of_key(variable: str, key: str, owner: str) -> Iterator[tuple[PreflightCode, str, str, str]]:
    problem = _key_problem(key)
    if problem:
        code = PreflightCode.VARIABLE_INVALID if key.strip() else PreflightCode.VARIABLE_MISSING
        remedy = f"Put the armored public key of {owner} there; `gpg --armor --export FINGERPRINT` prints it."
        yield code, variable, problem, remedy


def _platform_settings(variables: Variables, _: NodeFacts) -> Iterator[tuple[PreflightCode, str, str, str]]:
    for number, item in enumerate(_list(variables.get("platform_extra_repositories")), start=1):
        if isinstance(item, Mapping):
            where = f"platform_extra_repositories, entry {number}, key"
            yield from _of_key(where, str(item.get("key") or ""), f"the repository {item.get('name')}")


def _platform_repositories(variables: Variables, _: Variables) -> Iterator[Repository]:
    for item in _list(variables.get("platform_extra_repositories")):
        if isinstance(item, Mapping):
            yield Repository(
                str(item.get("name")),
                _words(item.get("uris")),
                _words(item.get("suites")),
                _words(item.get("components")),
                str(item.get("key") or ""),
                "platform_extra_repositories",
                "platform",
            )


def _platform_files(variables: Variables, _: NodeFacts) -> Iterator[str]:
    for item in _list(variables.get("platform_extra_repositories")):
        if isinstance(item, Mapping):
            yield _SOURCES.format(item.get("name"))
            if any("@" in uri.partition("//")[2].partition("/")[0] for uri in _words(item.get("uris"))):
                yield f"/etc/apt/auth.conf.d/provision-{item.get('name')}.conf"


def _base_system_files(variables: Variables, facts: NodeFacts) -> Iterator[str]:
    yield "/etc/security/limits.d/90-provision.conf"
    yield "/etc/systemd/system.conf.d/90-provision.conf"
    yield "/etc/systemd/logind.conf.d/90-provision.conf"
    if _is_on(variables, "base_system_hosts_enabled"):
        yield "/etc/hosts"
    if isinstance(facts.kind, Unknown) or facts.kind.sysctls_writable:
        yield "/etc/sysctl.d/90-provision.conf"
    if variables.get("cluster_operators") or variables.get("cluster_submitters"):
        yield from ("/usr/local/lib/provision/job-agent", "/etc/provision/job-agent.json")
        yield from ("/etc/sudoers.d/provision-jobs", "/var/lib/provision-jobs/.ssh/authorized_keys")


def _base_system_packages(variables: Variables, _s: Variables, _f: NodeFacts) -> Iterator[str]:
    if variables.get("cluster_operators") or variables.get("cluster_submitters"):
        yield "sudo"


def _rdma_files(_: Variables, __: NodeFacts) -> Iterator[str]:
    yield "/etc/modules-load.d/provision-rdma.conf"
    yield "/usr/local/lib/provision/rdma-setup"
    yield "/etc/systemd/system/provision-rdma.service"


def _peer_provider(variables: Variables, facts: NodeFacts) -> str:
    wanted = variables.get("peer_memory_provider", "auto")
    return verdict_of(facts).path.value if wanted == "auto" or not plain(wanted) else str(wanted)


def _peer_settings(variables: Variables, _: NodeFacts) -> Iterator[tuple[PreflightCode, str, str, str]]:
    key, certificate = _text(variables, "peer_memory_signing_key"), _text(variables, "peer_memory_signing_certificate")
    if bool(key) != bool(certificate):
        missing = "peer_memory_signing_certificate" if key else "peer_memory_signing_key"
        remedy = "Set both peer_memory_signing_key and peer_memory_signing_certificate, or neither."
        yield PreflightCode.VARIABLE_MISSING, missing, "is not set, and its counterpart is", remedy


def _peer_files(variables: Variables, facts: NodeFacts) -> Iterator[str]:
    provider = _peer_provider(variables, facts)
    if provider == "none":
        return
    for name in ("peer_memory_elf.py", "peer_memory_look.py", "peer_memory_node.py", "peer-memory"):
        yield f"/usr/local/lib/provision/{name}"
    yield "/usr/local/lib/provision/platform_kernel_module_failures.py"
    yield "/etc/provision/peer_memory.json"
    yield "/etc/systemd/system/provision-peer-memory.service"
    if provider in {"nv_peer_mem", "nvidia_peermem"}:
        for folder in ("postinst.d", "header_postinst.d"):
            yield f"/etc/kernel/{folder}/zz-provision-peer-memory"
        if _text(variables, "peer_memory_signing_key"):
            yield "/etc/dkms/framework.conf.d/provision-peer-memory.conf"


def _peer_packages(variables: Variables, system: Variables, facts: NodeFacts) -> Iterator[str]:
    if _peer_provider(variables, facts) == "nv_peer_mem" and not variables.get("peer_memory_prebuilt"):
        yield from map(str, system.get("__platform_module_build_packages", ()))


def _other_than_nvidia(key: str) -> str:
    """Return why a key is not the one with which NVIDIA signs; empty where it is."""
    try:
        fingerprint = parse_key(key, "the key").fingerprint
    except UsageError as error:
        return error.message.partition(": ")[2]
    if fingerprint == NVIDIA_FINGERPRINT:
        return ""
    return f"has the fingerprint {fingerprint}; NVIDIA's key has {NVIDIA_FINGERPRINT}"


def _nvidia_settings(variables: Variables, _: NodeFacts) -> Iterator[tuple[PreflightCode, str, str, str]]:
    url, key = _text(variables, "nvidia_container_repository_uri"), _text(variables, "nvidia_container_repository_key")
    if not url:
        return
    variable = "nvidia_container_repository_key"
    problems = list(_of_key(variable, key, f"the repository {url}"))
    yield from problems
    if not problems and plain(key) and url.startswith(_NVIDIA_HOST):
        problem = _other_than_nvidia(key)
        if problem:
            remedy = f"Put NVIDIA's key there; `provision init` writes it. Never use another key for {url}."
            yield PreflightCode.VARIABLE_INVALID, variable, problem, remedy


def _nvidia_repositories(variables: Variables, _: Variables) -> Iterator[Repository]:
    url = _text(variables, "nvidia_container_repository_uri")
    if url:
        key = _text(variables, "nvidia_container_repository_key")
        variable, role = "nvidia_container_repository_uri", "nvidia_container"
        yield Repository("nvidia-container", (url,), ("/",), (), key, variable, role)


def _nvidia_files(variables: Variables, _: NodeFacts) -> Iterator[str]:
    if variables.get("nvidia_container_repository_uri"):
        yield _SOURCES.format("nvidia-container")
    if _is_on(variables, "nvidia_container_cdi_enabled"):
        yield "/etc/cdi/nvidia.yaml"


def _docker_settings(variables: Variables, _: NodeFacts) -> Iterator[tuple[PreflightCode, str, str, str]]:
    if variables.get("docker_engine_source") == "docker":
        key = _text(variables, "docker_engine_repository_key")
        yield from _of_key("docker_engine_repository_key", key, "Docker's repository")
    for item in _list(variables.get("docker_engine_registry_ca")):
        certificate = item.get("certificate") if isinstance(item, Mapping) else ""
        if isinstance(certificate, str) and plain(certificate) and "-----BEGIN CERTIFICATE-----" not in certificate:
            problem = f"the certificate for {item.get('registry')} is not PEM text"
            remedy = "Put the CA's certificate there, from -----BEGIN CERTIFICATE----- on."
            yield PreflightCode.VARIABLE_INVALID, "docker_engine_registry_ca", problem, remedy


def _docker_repositories(variables: Variables, system: Variables) -> Iterator[Repository]:
    url = _text(variables, "docker_engine_repository_uri")
    if variables.get("docker_engine_source") == "docker" and url:
        suite = str(system.get("__platform_repository_suite", ""))
        key = _text(variables, "docker_engine_repository_key")
        yield Repository("docker", (url,), (suite,), ("stable",), key, "docker_engine_repository_uri", "docker_engine")


def _docker_files(variables: Variables, _: NodeFacts) -> Iterator[str]:
    if variables.get("docker_engine_source") == "docker":
        yield _SOURCES.format("docker")
    yield "/etc/docker/daemon.json"
    for item in _list(variables.get("docker_engine_registry_ca")):
        if isinstance(item, Mapping):
            yield f"/etc/docker/certs.d/{item.get('registry')}/ca.crt"
    if variables.get("cluster_http_proxy") or variables.get("cluster_https_proxy"):
        yield "/etc/systemd/system/docker.service.d/90-provision-proxy.conf"
    if variables.get("docker_engine_registry_logins"):
        yield "/root/.docker/config.json"


def _image_settings(variables: Variables, _: NodeFacts) -> Iterator[tuple[PreflightCode, str, str, str]]:
    reference, digest = _text(variables, "training_image_reference"), variables.get("training_image_digest") or ""
    if not reference:
        yield PreflightCode.VARIABLE_MISSING, "training_image_reference", "is not set", _IMAGE_REMEDY
    elif plain(reference) and not is_image_reference(reference):
        remedy = "Write it as REGISTRY[:PORT]/PATH:TAG, the path in lower case and without https://."
        problem = f"'{reference}' is not the name of an image"
        yield PreflightCode.VARIABLE_INVALID, "training_image_reference", problem, remedy
    if plain(digest) and not _DIGEST.fullmatch(str(digest)):
        remedy = "Write sha256: and 64 hexadecimal digits, or remove the variable."
        yield PreflightCode.VARIABLE_INVALID, "training_image_digest", f"'{digest}' is not a digest", remedy


def _container_settings(variables: Variables, facts: NodeFacts) -> Iterator[tuple[PreflightCode, str, str, str]]:
    image = variables.get("training_container_image")
    switched_off = not _is_on(variables, "training_image_enabled")
    if image == "" or (switched_off and not plain(image) and not variables.get("training_image_reference")):
        yield PreflightCode.VARIABLE_MISSING, "training_container_image", "is not set", _IMAGE_REMEDY
    for mount in _list(variables.get("training_container_mounts")):
        if plain(mount) and not _MOUNT.fullmatch(str(mount)):
            problem, remedy = f"'{mount}' is not a mount", "Write /source:/destination or /source:/destination:ro."
            yield PreflightCode.VARIABLE_INVALID, "training_container_mounts", problem, remedy
    if variables.get("training_container_profile") == "privileged" and is_container(facts):
        problem = "'privileged' is not possible on a node that is a container itself"
        remedy = "Set training_container_profile: default for this node."
        yield PreflightCode.VARIABLE_INVALID, "training_container_profile", problem, remedy


def _container_files(_: Variables, __: NodeFacts) -> Iterator[str]:
    yield from ("/usr/local/lib/provision/container-entrypoint", "/usr/local/lib/provision/container-hosts")
    for kind in ("service", "path"):
        yield f"/etc/systemd/system/provision-container-hosts.{kind}"


def _ssh_files(_: Variables, __: NodeFacts) -> Iterator[str]:
    names = ("authorized_keys", "known_hosts", "ssh_config", "sshd_config")
    for name in (*names, "keys/ssh_host_ed25519_key", "keys/id_ed25519"):
        yield f"/var/lib/provision/container_ssh/{name}"


def _loads_modules(facts: NodeFacts) -> bool:
    return not is_container(facts)


REQUIREMENTS: Mapping[str, RoleRequirements] = {
    "platform": RoleRequirements(_platform_settings, _platform_files, _platform_repositories),
    "base_system": RoleRequirements(files=_base_system_files, packages=_base_system_packages),
    "rdma_stack": RoleRequirements(
        files=lambda variables, facts: _rdma_files(variables, facts) if _loads_modules(facts) else (),
    ),
    "peer_memory": RoleRequirements(
        _peer_settings,
        _peer_files,
        packages=_peer_packages,
        applies=lambda facts: has_gpus(facts) and _loads_modules(facts),
    ),
    "nvidia_container": RoleRequirements(_nvidia_settings, _nvidia_files, _nvidia_repositories, applies=has_gpus),
    "docker_engine": RoleRequirements(_docker_settings, _docker_files, _docker_repositories),
    "training_image": RoleRequirements(_image_settings),
    "training_container": RoleRequirements(_container_settings, _container_files),
    "container_ssh": RoleRequirements(files=_ssh_files),
}
"""One entry for each of `ROLES`; a test holds the two together."""
