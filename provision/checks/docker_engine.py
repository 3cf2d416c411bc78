"""The docker engine: runs, answers, and is configured as the inventory wants."""

from __future__ import annotations

from typing import Any

from provision.checks.base import check
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown

__all__: list[str] = []

_LOW_MIB = 2048
_FULL_MIB = 256
_LEGACY_DRIVERS = frozenset({"vfs", "devicemapper", "aufs", "btrfs", "zfs"})


@check("docker_engine.service")
def _service(scene: Scene) -> Verdict:
    service = known(scene.facts.docker_service)
    if not service.loaded:
        return fail("the docker engine is not installed", scene.apply)
    if service.active != "active":
        return fail(f"docker.service is {service.active}", f"See why: journalctl -u docker -n 50. Then: {scene.apply}")
    if isinstance(scene.facts.docker_info, Unknown):
        return fail(
            f"docker.service is active, but the engine does not answer: {scene.facts.docker_info.reason}",
            "See why: journalctl -u docker -n 50",
        )
    if service.enabled not in {"enabled", "static", "enabled-runtime", "alias"}:
        return fail(f"docker runs, but will not start at boot (it is {service.enabled})", scene.apply)
    return passed("docker.service is active, starts at boot, and answers")


@check("docker_engine.version", after="docker_engine.service")
def _version(scene: Scene) -> Verdict:
    info = known(scene.facts.docker_info)
    return passed(f"engine {info.version}, cgroup v{info.cgroup_version or '?'} by {info.cgroup_driver or '?'}")


@check("docker_engine.daemon_json")
def _daemon_json(scene: Scene) -> Verdict:
    config = known(scene.facts.docker_config)
    if not config.exists and _not_installed(scene):
        return skip("waits for docker_engine.service")
    if config.options is None:
        return fail(
            f"/etc/docker/daemon.json cannot be used: {config.error}",
            f"Correct the file, or remove it if nothing in it is needed. {scene.apply}",
        )
    wanted = _wanted_options(scene)
    wrong = [
        f"{key} is {_shown(config.options.get(key))}" for key in wanted if not _agrees(config.options, key, wanted)
    ]
    if wrong:
        return fail(f"/etc/docker/daemon.json is not as wanted: {'; '.join(wrong)}", scene.apply)
    if not config.exists:
        return passed("there is no daemon.json, and none is needed")
    return passed(f"valid, {len(config.options)} options, all that the inventory wants among them")


def _not_installed(scene: Scene) -> bool:
    """A file that is wrong may be why the engine is down; one that is missing before there is an engine is not."""
    service = scene.facts.docker_service
    return not isinstance(service, Unknown) and not service.loaded


def _wanted_options(scene: Scene) -> dict[str, Any]:
    wanted: dict[str, Any] = dict(scene.want("docker_engine_daemon_options", default={}))
    mirrors: list[Any] = scene.want("docker_engine_registry_mirrors", default=[])
    pools: list[Any] = scene.want("docker_engine_address_pools", default=[])
    root = scene.want("docker_engine_data_root", default="")
    if "docker_engine_live_restore_enabled" in scene.node.variables:
        wanted.setdefault("live-restore", scene.want("docker_engine_live_restore_enabled", default=True))
    if mirrors:
        wanted["registry-mirrors"] = mirrors
    if pools:
        wanted["default-address-pools"] = pools
    if root and root != "/var/lib/docker":
        wanted["data-root"] = root
    return wanted


def _agrees(options: Any, key: str, wanted: dict[str, Any]) -> bool:
    """Lists and objects are merged into what was there before, so having more than is wanted is no difference.

    Docker has no live-restore where the file does not say so.
    """
    have, want = options.get(key), wanted[key]
    if isinstance(want, list):
        return isinstance(have, list) and all(item in have for item in want)
    if isinstance(want, dict):
        return isinstance(have, dict) and all(item in have and _agrees(have, item, want) for item in want)
    return bool(have == want) or (key == "live-restore" and want is False and have is None)


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)[:60]


@check("docker_engine.registry_ca")
def _registry_ca(scene: Scene) -> Verdict:
    wanted: list[Any] = scene.want("docker_engine_registry_ca", default=[])
    if not wanted:
        return skip("the inventory names no registry with a CA of its own")
    if _not_installed(scene):
        return skip("waits for docker_engine.service")
    found = known(scene.facts.docker_config).certificates
    pairs = {str(item.get("registry")): str(item.get("certificate")) for item in wanted if isinstance(item, dict)}
    missing = [registry for registry in pairs if registry not in found]
    other = [r for r, text in pairs.items() if r in found and "".join(text.split()) not in "".join(found[r].split())]
    if missing or other:
        reason = [f"{name} has none" for name in missing] + [f"{name} has another" for name in other]
        return fail(f"CA certificates under /etc/docker/certs.d: {'; '.join(reason)}", scene.apply)
    return passed(f"the CA of {', '.join(pairs)} is trusted")


@check("docker_engine.storage", after="docker_engine.service")
def _storage(scene: Scene) -> Verdict:
    info = known(scene.facts.docker_info)
    disks = () if isinstance(scene.facts.disks, Unknown) else scene.facts.disks
    disk = next((d for d in disks if d.path == info.data_root), None)
    free = f", {disk.free_mib // 1024} GiB free at {info.data_root}" if disk else ""
    if disk and disk.free_mib < _FULL_MIB:
        return fail(
            f"the disk is full: {disk.free_mib} MiB free at {disk.path}",
            "Make room: docker system df shows what is used.",
        )
    if disk and disk.free_mib < _LOW_MIB:
        return warn(
            f"little room: {disk.free_mib} MiB free at {disk.path}", "Make room: docker system df shows what is used."
        )
    if info.storage_driver in _LEGACY_DRIVERS:
        return warn(
            f"the storage driver is {info.storage_driver}, which is slow or no longer supported{free}",
            "Put docker's data root on ext4 or xfs (ftype=1), where overlay2 works.",
        )
    return passed(f"storage driver {info.storage_driver}{free}")
