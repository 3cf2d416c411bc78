"""The role docker_engine: docker, its daemon.json, registries, proxy and data root."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.commands.package_repositories import repository_paths
from provision.components.base import Component, NodeState, PreservedSettings, Repository, RoleNeed, Setting, Variables
from provision.components.common import (
    brought,
    docker_is_absent,
    docker_is_unused,
    is_whole_run,
    items,
    key_problems,
    matches,
    other_containers,
    package_manager,
    package_versions,
    text,
    toolkit_package,
)
from provision.facts import NodeFacts, Unknown, is_container, plain
from provision.facts.docker import DockerService
from provision.facts.selinux import DATA_ROOT, DATA_ROOT_TYPE
from provision.gdr.observed import has_gpus
from provision.model import CheckResult, Node, PreflightCode
from provision.model.cause import NODES, Cause, CauseKind
from provision.model.reason import Reason, Wording, reason

REREAD = frozenset(
    {
        "authorization-plugins", "debug", "default-runtime", "insecure-registries", "labels",
        "live-restore", "max-concurrent-downloads", "max-concurrent-uploads", "max-download-attempts",
        "registry-mirrors", "runtimes", "shutdown-timeout",
    }
)  # fmt: skip
"""Settings that a running dockerd rereads; the role has the same list."""
_NVIDIA = {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}
_PACKAGES = {"distribution": "docker.io", "docker": "docker-ce"}
"""By docker_engine_source."""
_ENGINES = ("docker.io", "docker-ce", "docker-engine", "moby-engine")
_CERTIFICATES = "/etc/docker/certs.d/"


def _is_disruptive(causes: Sequence[Cause], state: NodeState) -> bool:
    """Return whether the step can restart a Docker that jobs use.

    - Without Docker on the node: no, there is no job to disrupt.
    - Without a valid receipt, so that the whole role runs: only if the differences require a restart (or are unknown),
      and a container or a job runs.
    - With a receipt: yes, unless all causes are certificates, logins or other objects that Docker rereads by itself.
      Settings that a reload would apply, such as mirrors, count as disruptive: the role chooses between reload and
      restart when it runs.
    """
    if docker_is_absent(state.facts):
        return False
    if is_whole_run(causes):
        return bool(_restart_reasons(state)) and not docker_is_unused(state.facts)
    return not all(map(_is_harmless, causes))


def _is_harmless(cause: Cause) -> bool:
    """Return whether Docker rereads by itself what differs."""
    if cause.kind is CauseKind.VARIABLE:
        return COMPONENT.is_harmless(cause)
    if cause.kind is CauseKind.FILE:
        return cause.name.startswith(_CERTIFICATES)
    return cause.name == "docker_engine.registry_ca"


def _restart_reasons(state: NodeState) -> tuple[Reason, ...]:
    """Return why a whole run of the role restarts a running Docker, as far as known; empty if it does not."""
    variables, facts = state.node.variables, state.facts
    if isinstance(facts.packages, Unknown) or isinstance(facts.docker_config, Unknown):
        return (reason("docker_engine.settings_unknown"),)
    nvidia = has_gpus(facts) and state.enabled("nvidia_container")
    reasons: list[Reason] = []
    package, toolkit = _PACKAGES.get(str(variables.get("docker_engine_source", "distribution"))), None
    if package is not None and package not in facts.packages:
        reasons.append(reason("docker_engine.other_package", package=package))
    if nvidia and (toolkit := toolkit_package(variables)) not in facts.packages:
        reasons.append(reason("docker_engine.restart_toolkit", package=toolkit))
    if variables.get("cluster_http_proxy") or variables.get("cluster_https_proxy"):
        reasons.append(reason("docker_engine.restart_proxy"))
    settings, options = settings_of(variables, nvidia=nvidia), facts.docker_config.options
    if settings is None or options is None:
        return (*reasons, reason("docker_engine.settings_not_compared"))
    other = _different(options, settings, container=is_container(facts)) - REREAD
    if other:
        reasons.append(reason("docker_engine.restart_settings", settings=sorted(other)))
    return tuple(reasons)


def settings_of(variables: Mapping[str, Any], *, nvidia: bool) -> dict[str, Any] | None:
    """Return the role's settings in daemon.json; None where only Ansible can evaluate them (Jinja)."""
    given = {name: value for name, value in variables.items() if name.startswith("docker_engine_")}
    runtimes = variables.get("cluster_container_runtimes") or {}
    if not plain(given) or not plain(runtimes):
        return None
    limits = {
        name: {"Name": name, "Soft": _number(most), "Hard": _number(most)}
        for name, most in (given.get("docker_engine_default_ulimits") or {}).items()
    }
    logs = {
        "max-size": given.get("docker_engine_log_max_size"),
        "max-file": str(given.get("docker_engine_log_max_files") or ""),
    }
    root = given.get("docker_engine_data_root")
    settings: dict[str, Any] = {
        "default-address-pools": given.get("docker_engine_address_pools"),
        "default-ulimits": limits,
        "log-driver": given.get("docker_engine_log_driver"),
        "log-opts": {name: value for name, value in logs.items() if value},
        "data-root": root if root != "/var/lib/docker" else None,
        "registry-mirrors": given.get("docker_engine_registry_mirrors"),
        "runtimes": {**(_NVIDIA if nvidia else {}), **runtimes},
    }
    settings = {key: value for key, value in settings.items() if value}
    if "docker_engine_live_restore_enabled" in given:
        settings["live-restore"] = given["docker_engine_live_restore_enabled"]
    return {**settings, **(given.get("docker_engine_daemon_options") or {})}


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) else value


def _different(current: Mapping[str, Any], desired: Mapping[str, Any], *, container: bool) -> set[str]:
    """Return the settings of the file that differ from the desired ones; additional settings are no difference.

    In a container node the role cuts limits to the node's own.
    """
    limits = {"default-ulimits"} if container and "default-ulimits" in current else set()
    return {key for key in desired.keys() - limits if not _has(current.get(key), desired[key], key)}


def _has(current: Any, desired: Any, key: str = "") -> bool:
    if key == "live-restore" and current is None:
        return desired is False
    if key == "runtimes" and isinstance(current, Mapping):
        return all(_same_runtime(current.get(name), value) for name, value in desired.items())
    if isinstance(desired, Mapping):
        return isinstance(current, Mapping) and all(_has(current.get(name), value) for name, value in desired.items())
    return bool(current == desired)


def _same_runtime(current: Any, desired: Any) -> bool:
    if not isinstance(current, Mapping) or not isinstance(desired, Mapping):
        return False
    programs = {str(one.get("path") or "").rsplit("/", 1)[-1] for one in (current, desired)}
    return (len(programs) == 1 and not desired.get("runtimeArgs")) or _has(current, desired)


def _needs(causes: Sequence[Cause], state: NodeState) -> Iterator[RoleNeed]:
    if has_gpus(state.facts):  # alone, the role would remove the NVIDIA runtime from daemon.json
        yield RoleNeed("nvidia_container", reason("docker_engine.runtime_role"), only_alone=True)
    why: Reason | None = None
    if any(cause.name == "docker_engine_data_root" for cause in causes):
        why = reason("docker_engine.new_data_root")
    elif docker_is_absent(state.facts):
        why = reason("docker_engine.new_engine")
    elif _has_other_store(state):
        why = reason("docker_engine.new_store")
    if why is not None:
        yield RoleNeed("training_image", reason("docker_engine.image_missing", cause=why))
        yield RoleNeed("training_container", reason("docker_engine.container_missing", cause=why))


def _has_other_store(state: NodeState) -> bool:
    """Return whether the settings choose the image store that Docker does not use now; it has other containers, too."""
    options, info = state.node.variables.get("docker_engine_daemon_options"), state.facts.docker_info
    features = options.get("features") if isinstance(options, Mapping) else None
    chosen = features.get("containerd-snapshotter") if isinstance(features, Mapping) else None
    return isinstance(chosen, bool) and not isinstance(info, Unknown) and info.containerd_store != chosen


def _engine_is_down(state: NodeState, _: CheckResult) -> bool:
    """An engine that runs and does not answer hangs, and the role would hang with it."""
    service = state.facts.docker_service
    answers = not isinstance(state.facts.docker_info, Unknown)
    return isinstance(service, Unknown) or answers or service.active != "active" or not service.loaded


def _preserved(_: Node, facts: NodeFacts) -> dict[str, Any]:
    service, config = facts.docker_service, facts.docker_config
    if isinstance(service, Unknown) or not service.loaded or brought(facts, _ENGINES):
        return {}
    preserved: dict[str, Any] = {"docker_engine_source": "present"}
    if isinstance(config, Unknown) or config.options is None:
        return preserved
    options = config.options
    logs = options.get("log-opts")
    logs = logs if isinstance(logs, Mapping) else {}
    preserved |= {
        "docker_engine_live_restore_enabled": options.get("live-restore") is True,
        "docker_engine_address_pools": _valid("docker_engine_address_pools", options.get("default-address-pools"), []),
        "docker_engine_default_ulimits": {} if is_container(facts) else _limits(options.get("default-ulimits")),
        "docker_engine_log_driver": _valid("docker_engine_log_driver", options.get("log-driver"), ""),
        "docker_engine_log_max_size": _valid("docker_engine_log_max_size", logs.get("max-size"), ""),
        "docker_engine_log_max_files": _count(logs.get("max-file")),
    }
    if "data-root" in options:
        preserved["docker_engine_data_root"] = options["data-root"]
    if options.get("registry-mirrors"):
        preserved["docker_engine_registry_mirrors"] = options["registry-mirrors"]
    return preserved


def _valid(name: str, value: Any, otherwise: Any) -> Any:
    return value if _FORMS[name](value) else otherwise


def _limits(value: Any) -> dict[str, int]:
    """Return limits whose soft and hard values are equal; any others stay in the file unchanged."""
    entries = value if isinstance(value, Mapping) else {}
    limits: dict[str, Any] = {
        str(name): entry.get("Hard")
        for name, entry in entries.items()
        if isinstance(entry, Mapping) and entry.get("Name") == name and entry.get("Soft") == entry.get("Hard")
    }
    return limits if len(limits) == len(entries) and _numbers(limits) else {}


def _count(value: Any) -> int:
    return int(value) if re.fullmatch(r"[0-9]{1,4}", str(value)) else 0


def _describe(facts: NodeFacts) -> str:
    info, config = facts.docker_info, facts.docker_config
    version = "docker" if isinstance(info, Unknown) else f"docker {info.version}"
    options = {} if isinstance(config, Unknown) else config.options or {}
    settings = (
        f", with these settings: {', '.join(sorted(map(str, options)))}" if options else ", without settings of its own"
    )
    return f"{version} ({package_versions(facts, _ENGINES) or 'of no package'}){settings}"


def _pools(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pool, Mapping)
        and pool.keys() == {"base", "size"}
        and _network(pool["base"])
        and type(pool["size"]) is int
        and 0 < pool["size"] <= 128  # noqa: PLR2004 - bits of an address
        for pool in value
    )


def _network(value: Any) -> bool:
    try:  # an IPv6 address may have any text after a %
        return matches(r"[0-9A-Fa-f:.]{2,45}/[0-9]{1,3}")(value) and bool(ipaddress.ip_network(value, strict=False))
    except ValueError:
        return False


def _numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        re.fullmatch("[a-z]{1,20}", str(name)) and type(most) is int for name, most in value.items()
    )


def _mirrors(value: Any) -> bool:
    address = matches(r"https?://[A-Za-z0-9._:/-]{1,200}")
    return isinstance(value, list) and all(map(address, value))


_FORMS = {
    "docker_engine_source": matches("present"),
    "docker_engine_live_restore_enabled": lambda value: isinstance(value, bool),
    "docker_engine_address_pools": _pools,
    "docker_engine_default_ulimits": _numbers,
    "docker_engine_log_driver": matches(r"[A-Za-z0-9._:/-]{0,100}"),
    "docker_engine_log_max_size": matches(r"([0-9]{1,12}[a-zA-Z]{0,2})?"),
    "docker_engine_log_max_files": lambda value: type(value) is int and value >= 0,
    "docker_engine_data_root": matches(r"/[A-Za-z0-9._/+@-]{1,200}"),
    "docker_engine_registry_mirrors": _mirrors,
}


def _selinux_settings(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    """Yield a moved data root that would have labels by which SELinux denies containers their own files."""
    selinux, root = facts.selinux, text(variables, "docker_engine_data_root").rstrip("/") or DATA_ROOT
    if isinstance(selinux, Unknown) or selinux.mode != "enforcing" or not plain(root):
        return
    if not selinux.has_docker_labels(root) and selinux.types.get(root) != DATA_ROOT_TYPE:
        problem = f"SELinux is enforcing, and its policy has no labels of Docker's data for {root}"
        remedy = f"Run on the node (semanage is in policycoreutils-python-utils): mkdir -p {root} && "
        yield (
            PreflightCode.VARIABLE_INVALID,
            "docker_engine_data_root",
            problem,
            remedy + selinux.relabel_commands(root),
        )


def _settings(variables: Variables, facts: NodeFacts) -> Iterator[Setting]:
    yield from _selinux_settings(variables, facts)
    if isinstance(facts.docker_service, DockerService) and facts.docker_service.snap:
        problem = "Docker is installed as a snap, whose configuration, data and service are elsewhere"
        remedy = "Save what its containers need, then run on the node: snap remove docker"
        yield PreflightCode.PACKAGE_CONFLICT, "docker (snap)", problem, remedy
    if isinstance(facts.docker_service, DockerService) and facts.docker_service.podman:
        problem = "the program docker is that of podman-docker, which runs podman"
        remedy = "Remove the package podman-docker from the node; podman itself can stay."
        yield PreflightCode.PACKAGE_CONFLICT, "docker (podman-docker)", problem, remedy
    if variables.get("docker_engine_source") == "docker":
        key = text(variables, "docker_engine_repository_key")
        yield from key_problems("docker_engine_repository_key", key, "Docker's repository")
    for item in items(variables, "docker_engine_registry_ca"):
        certificate = item.get("certificate")
        if isinstance(certificate, str) and plain(certificate) and "-----BEGIN CERTIFICATE-----" not in certificate:
            problem = f"the certificate for {item.get('registry')} is not PEM text"
            remedy = "Put the CA's certificate there, from -----BEGIN CERTIFICATE----- on."
            yield PreflightCode.VARIABLE_INVALID, "docker_engine_registry_ca", problem, remedy


def _repositories(variables: Variables, system: Variables) -> Iterator[Repository]:
    url = text(variables, "docker_engine_repository_uri") or str(system.get("__platform_docker_repository", ""))
    if variables.get("docker_engine_source") == "docker" and url:
        suite = str(system.get("__platform_repository_suite", ""))
        key = text(variables, "docker_engine_repository_key")
        yield Repository("docker", (url,), (suite,), ("stable",), key, "docker_engine_repository_uri", "docker_engine")


def _files(variables: Variables, facts: NodeFacts) -> Iterator[str]:
    if variables.get("docker_engine_source") == "docker":
        yield from repository_paths("docker", package_manager(facts))
    yield "/etc/docker/daemon.json"
    for item in items(variables, "docker_engine_registry_ca"):
        yield f"{_CERTIFICATES}{item.get('registry')}/ca.crt"
    if variables.get("cluster_http_proxy") or variables.get("cluster_https_proxy"):
        yield "/etc/systemd/system/docker.service.d/90-provision-proxy.conf"
    if variables.get("docker_engine_registry_logins"):
        yield "/root/.docker/config.json"


COMPONENT = Component(
    role="docker_engine",
    stack_components=("docker",),
    after=("nvidia_container",),
    waits_with=("nvidia_container",),  # both change daemon.json
    for_jobs=True,
    read_variables=("docker_engine_data_root",),
    reasons={
        "docker_engine.runtime_role": Wording("docker_engine runs, and gets the NVIDIA runtime from this role"),
        "docker_engine.new_data_root": Wording("Docker's data root changes"),
        "docker_engine.new_engine": Wording("Docker is newly installed"),
        "docker_engine.new_store": Wording("Docker's image store changes"),
        "docker_engine.image_missing": Wording("{cause}, and the image may be missing"),
        "docker_engine.container_missing": Wording("{cause}, and the container may be missing"),
        "docker_engine.settings_unknown": Wording(
            "the settings that Docker runs with are unknown, so it may have to be restarted"
        ),
        "docker_engine.other_package": Wording("Docker's package is {package}, which is not installed"),
        "docker_engine.restart_toolkit": Wording("Docker has to be restarted for {package}"),
        "docker_engine.restart_proxy": Wording("Docker may have to be restarted for its proxy"),
        "docker_engine.settings_not_compared": Wording(
            "Docker's settings cannot be compared, so it may have to be restarted"
        ),
        "docker_engine.restart_settings": Wording("Docker has to be restarted for other settings: {settings}"),
    },
    harmless_variables=frozenset(
        {
            NODES,  # docker's address pools are compared with the nodes' addresses
            "cluster_data_address",
            "cluster_data_networks",
            "docker_engine_registry_ca",
            "docker_engine_registry_logins",
            "docker_engine_repository_key",  # a new repository alone replaces no installed package
            "docker_engine_repository_uri",
            "docker_engine_restart_allowed",
        }
    ),
    is_disruptive=_is_disruptive,
    also_disrupts=other_containers,
    disruptions=_restart_reasons,
    needs=_needs,
    never_fixes=frozenset(
        {
            "docker_engine.version",  # fails only where the engine does not answer: docker_engine.service judges that
            "docker_engine.cgroup",  # a kernel argument, and a reboot
            "docker_engine.storage",  # free disk space needs manual action
        }
    ),
    fixes_if={
        "docker_engine.service": _engine_is_down,
        "docker_engine.selinux": lambda _, result: result.reason.code == "docker_engine.selinux.no_policy",
    },
    preserves=PreservedSettings(
        facts=("docker_service", "docker_config"), variables=_preserved, describe=_describe, forms=_FORMS
    ),
    settings=_settings,
    files=_files,
    missing_package_remedy=(
        "Set docker_engine_source: docker with docker_engine_repository_key for Docker's own packages, or "
        "add a repository to platform_extra_repositories."
    ),
    repositories=_repositories,
)
