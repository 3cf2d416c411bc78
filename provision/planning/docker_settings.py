"""What the role docker_engine writes into daemon.json, and whether docker would have to be restarted for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from provision.facts import Unknown, is_container, plain
from provision.gdr.observed import has_gpus
from provision.planning.scene import PlanScene

__all__ = ["REREAD", "restart_reasons", "settings_of"]

REREAD = frozenset(
    {
        "authorization-plugins", "debug", "default-runtime", "features", "insecure-registries", "labels",
        "live-restore", "max-concurrent-downloads", "max-concurrent-uploads", "max-download-attempts",
        "registry-mirrors", "runtimes", "shutdown-timeout",
    }
)  # fmt: skip
"""Settings that a running dockerd takes over; the role has the same list."""
_NVIDIA = {"nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}
_PACKAGES = {"distribution": "docker.io", "docker": "docker-ce"}
"""By docker_engine_source."""


def restart_reasons(scene: PlanScene) -> tuple[str, ...]:
    """Return why a whole run of docker_engine restarts a docker that runs, as far as one can tell; empty: not."""
    variables, facts = scene.node.variables, scene.facts
    if isinstance(facts.packages, Unknown) or isinstance(facts.docker_config, Unknown):
        return ("what docker runs with cannot be told, so that it may have to be restarted",)
    nvidia, reasons = has_gpus(facts) and scene.enabled("nvidia_container"), []
    package = _PACKAGES.get(str(variables.get("docker_engine_source", "distribution")))
    if package is not None and package not in facts.packages:
        reasons.append(f"docker is to come from the package {package}, which is not installed")
    if nvidia and _toolkit(variables) not in facts.packages:
        reasons.append(f"docker has to be restarted for {_toolkit(variables)}")
    if variables.get("cluster_http_proxy") or variables.get("cluster_https_proxy"):
        reasons.append("docker may have to be restarted for its proxy")
    settings, options = settings_of(variables, nvidia=nvidia), facts.docker_config.options
    if settings is None or options is None:
        return (*reasons, "docker's settings cannot be compared, so that it may have to be restarted")
    other = _different(options, settings, container=is_container(facts)) - REREAD
    if other:
        reasons.append(f"docker has to be restarted for other settings: {', '.join(sorted(other))}")
    return tuple(reasons)


def _toolkit(variables: Mapping[str, Any]) -> str:
    legacy = variables.get("nvidia_container_flavor") == "nvidia-docker2"
    return "nvidia-docker2" if legacy else "nvidia-container-toolkit"


def settings_of(variables: Mapping[str, Any], *, nvidia: bool) -> dict[str, Any] | None:
    """Return what the role would have in daemon.json; None where only Ansible can tell (Jinja).

    Args:
        variables: of the node; what is not among them is not wanted.
        nvidia: whether docker is to know the NVIDIA runtime.
    """
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
    found = {key: value for key, value in settings.items() if value}
    if "docker_engine_live_restore_enabled" in given:
        found["live-restore"] = given["docker_engine_live_restore_enabled"]
    return {**found, **(given.get("docker_engine_daemon_options") or {})}


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) else value


def _different(there: Mapping[str, Any], wanted: Mapping[str, Any], *, container: bool) -> set[str]:
    """Return the settings that the file does not have as they are wanted; more than is wanted is no difference.

    In a container node limits are cut to the node's own, which are lower than those that are wanted.
    """
    limits = {"default-ulimits"} if container and "default-ulimits" in there else set()
    return {key for key in wanted.keys() - limits if not _has(there.get(key), wanted[key], key)}


def _has(there: Any, wanted: Any, key: str = "") -> bool:
    if key == "live-restore" and there is None:
        return wanted is False
    if key == "runtimes" and isinstance(there, Mapping):
        return all(_same_runtime(there.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, Mapping):
        return isinstance(there, Mapping) and all(_has(there.get(name), value) for name, value in wanted.items())
    return bool(there == wanted)


def _same_runtime(there: Any, wanted: Any) -> bool:
    if not isinstance(there, Mapping) or not isinstance(wanted, Mapping):
        return False
    programs = {str(one.get("path") or "").rsplit("/", 1)[-1] for one in (there, wanted)}
    return (len(programs) == 1 and not wanted.get("runtimeArgs")) or _has(there, wanted)
