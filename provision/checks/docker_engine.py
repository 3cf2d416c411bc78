"""The Docker engine: it runs, answers and has the settings of the inventory."""

from __future__ import annotations

from typing import Any

from provision.checks.base import check
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown
from provision.model.reason import reason

_LOW_MIB = 2048
_FULL_MIB = 256
_CONTAINERD_ROOT = "/var/lib/containerd"
_LEGACY_DRIVERS = frozenset({"vfs", "devicemapper", "aufs", "btrfs", "zfs"})


@check("docker_engine.service")
def _service(scene: Scene) -> Verdict:
    service = known(scene.facts.docker_service)
    if not service.loaded:
        return fail("docker_engine.service.not_installed")
    if service.active != "active":
        return fail("docker_engine.service.not_active", state=service.active)
    if isinstance(scene.facts.docker_info, Unknown):
        return fail("docker_engine.service.no_answer", cause=scene.facts.docker_info.reason)
    if service.enabled not in {"enabled", "static", "enabled-runtime", "alias"}:
        return fail("docker_engine.service.not_enabled", state=service.enabled)
    return passed("docker_engine.service.ok")


@check("docker_engine.version", after="docker_engine.service")
def _version(scene: Scene) -> Verdict:
    info = known(scene.facts.docker_info)
    return passed(
        "docker_engine.version.ok",
        version=info.version,
        cgroup_version=info.cgroup_version or "?",
        cgroup_driver=info.cgroup_driver or "?",
    )


@check("docker_engine.cgroup", after="docker_engine.service")
def _cgroup(scene: Scene) -> Verdict:
    version = known(scene.facts.docker_info).cgroup_version
    if version != "1":
        return passed("docker_engine.cgroup.ok", version=version or "?")
    return skip("docker_engine.cgroup.container") if scene.container else warn("docker_engine.cgroup.v1")


@check("docker_engine.daemon_json")
def _daemon_json(scene: Scene) -> Verdict:
    config = known(scene.facts.docker_config)
    if not config.exists and _not_installed(scene):
        return skip("check.waits", check="docker_engine.service")
    if config.options is None:
        return fail("docker_engine.daemon_json.invalid", cause=config.error)
    wanted = _wanted_options(scene)
    wrong = [
        reason("docker_engine.daemon_json.setting", name=key, current=_shown(config.options.get(key)))
        for key in wanted
        if not _agrees(config.options, key, wanted)
    ]
    if wrong:
        return fail("docker_engine.daemon_json.differs", settings=wrong)
    if not config.exists:
        return passed("docker_engine.daemon_json.not_needed")
    return passed("docker_engine.daemon_json.ok", count=len(config.options))


def _not_installed(scene: Scene) -> bool:
    """An invalid file can be the cause of a stopped engine; a missing one before the installation is not."""
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
    """Lists and objects are merged into the file, so additional entries are no difference.

    Docker's default for live-restore is false.
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
        return skip("docker_engine.registry_ca.none")
    if _not_installed(scene):
        return skip("check.waits", check="docker_engine.service")
    present = known(scene.facts.docker_config).certificates
    pairs = {str(item.get("registry")): str(item.get("certificate")) for item in wanted if isinstance(item, dict)}
    missing = [registry for registry in pairs if registry not in present]
    other = [
        registry
        for registry, text in pairs.items()
        if registry in present and "".join(text.split()) not in "".join(present[registry].split())
    ]
    if missing or other:
        problems = [reason("docker_engine.registry_ca.missing", registry=name) for name in missing]
        problems += [reason("docker_engine.registry_ca.other", registry=name) for name in other]
        return fail("docker_engine.registry_ca.differs", registries=problems)
    return passed("docker_engine.registry_ca.ok", registries=pairs)


@check("docker_engine.storage", after="docker_engine.service")
def _storage(scene: Scene) -> Verdict:
    info = known(scene.facts.docker_info)
    disks = () if isinstance(scene.facts.disks, Unknown) else scene.facts.disks
    paths = {info.data_root, _CONTAINERD_ROOT} if info.containerd_store else {info.data_root}
    disk = min((d for d in disks if d.path in paths), key=lambda disk: disk.free_mib, default=None)
    free, path = (disk.free_mib // 1024, disk.path) if disk else (None, info.data_root)
    if disk and disk.free_mib < _FULL_MIB:
        return fail("docker_engine.storage.full", free_mib=disk.free_mib, path=disk.path)
    if disk and disk.free_mib < _LOW_MIB:
        return warn("docker_engine.storage.low", free_mib=disk.free_mib, path=disk.path)
    if info.storage_driver in _LEGACY_DRIVERS:
        return warn("docker_engine.storage.legacy_driver", driver=info.storage_driver, free_gib=free, path=path)
    return passed("docker_engine.storage.ok", driver=info.storage_driver, free_gib=free, path=path)
