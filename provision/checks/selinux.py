"""SELinux: labels of the roles' files and of what containers use, and what was denied to containers.

No role changes the mode of SELinux, a boolean or a rule of its policy.
"""

from __future__ import annotations

from provision.checks.base import check
from provision.components.check import Scene, Verdict, fail, known, passed, skip, warn
from provision.facts import Unknown, mounts
from provision.facts.selinux import DATA_ROOT, DATA_ROOT_TYPE, Selinux
from provision.model.reason import reason

_RECENT_SECONDS = 24 * 3600
_SHOWN = 4
_POLICY = "container-selinux"
_OWN_FOLDER = "/var/lib/provision"
"""Below it are files that containers mount: keys, code, outputs of jobs."""
_FOR_CONTAINERS = frozenset(
    {"container_file_t", "container_ro_file_t", "svirt_sandbox_file_t"}
    | {"nfs_t", "cephfs_t", "fusefs_t", "cifs_t", "glusterd_t"}
)
"""Types that confined containers may use: their own, and those of network file systems, which booleans rule."""


@check("node.selinux")
def _selinux(scene: Scene) -> Verdict:
    selinux = known(scene.facts.selinux)
    if not selinux.enabled:
        return passed("node.selinux.off", configured=_other_mode(selinux))
    denials, clock = known(scene.facts.selinux_denials), known(scene.facts.clock)
    recent = [denial for denial in denials if 0 <= clock - denial.seconds <= _RECENT_SECONDS]
    if recent:
        parts = {
            reason(
                "node.selinux.denial",
                command=denial.command,
                permissions=denial.permissions,
                kind=denial.kind,
                name=denial.name or None,
                type=denial.target,
            )
            for denial in recent
        }
        shown = sorted(parts, key=str)[:_SHOWN]
        return warn("node.selinux.denied", count=len(recent), denials=shown)
    if selinux.wrong:
        files = [
            reason("node.selinux.label", path=item.path, current=item.current, desired=item.desired)
            for item in selinux.wrong[:_SHOWN]
        ]
        paths = " ".join(item.path for item in selinux.wrong[:_SHOWN])
        return warn("node.selinux.labels", files=files, count=len(selinux.wrong), paths=paths)
    return passed("node.selinux.ok", mode=selinux.mode, configured=_other_mode(selinux))


def _other_mode(selinux: Selinux) -> str | None:
    """Return the mode after the next boot, if it is another one."""
    return selinux.configured if selinux.configured not in {"", selinux.mode} else None


@check("docker_engine.selinux", after="docker_engine.service")
def _engine(scene: Scene) -> Verdict:
    selinux = known(scene.facts.selinux)
    if not selinux.enabled:
        return passed("docker_engine.selinux.off")
    if _POLICY not in known(scene.facts.packages):
        return fail("docker_engine.selinux.no_policy", package=_POLICY)
    info = scene.facts.docker_info
    root = DATA_ROOT if isinstance(info, Unknown) else info.data_root
    current = selinux.types.get(root)
    if current and current != DATA_ROOT_TYPE:
        commands = selinux.relabel_commands(root)
        judge = fail if selinux.mode == "enforcing" else warn
        return judge(
            "docker_engine.selinux.data_root", path=root, current=current, desired=DATA_ROOT_TYPE, commands=commands
        )
    return _mounts(scene, selinux) or passed("docker_engine.selinux.ok", type=current)


def _mounts(scene: Scene, selinux: Selinux) -> Verdict | None:
    """Judge the mounts of jobs, which matter only if the engine confines containers (``selinux-enabled``)."""
    config = scene.facts.docker_config
    if isinstance(config, Unknown):
        return skip("check.waits", check="docker_engine.daemon_json")
    if (config.options or {}).get("selinux-enabled") is not True:
        return None
    wrong = [
        reason("docker_engine.selinux.mount", path=path, type=selinux.types[path])
        for path in (_OWN_FOLDER, *mounts(scene.node.variables))
        if path in selinux.types and selinux.types[path] not in _FOR_CONTAINERS
    ]
    return warn("docker_engine.selinux.mounts", mounts=wrong) if wrong else None
