"""Which packages of a run differ from the lock, and apt's preferences that hold all of them."""

from __future__ import annotations

from provision.commands.package_holds import HOLDS, deviating_packages, hold_files, hold_text, locked_versions

LOCKED = {"docker_engine": {"docker.io": "2", "runc": "1"}, "nvidia_driver": {"libcuda1": "3"}}


def test_only_installed_packages_of_the_roles_of_a_run_deviate():
    """The packages of a step that waits stay as they are; missing ones are installed by the role's own list."""
    installed = {"docker.io": "1", "runc": "1", "libcuda1": "2"}

    assert deviating_packages(LOCKED, ["docker_engine", "platform"], installed) == ["docker.io"]
    assert deviating_packages(LOCKED, ["docker_engine", "nvidia_driver"], installed) == ["docker.io", "libcuda1"]
    assert deviating_packages(LOCKED, ["docker_engine"], {}) == []


def test_apt_holds_exactly_the_locked_versions():
    """Above 1000, apt also replaces a newer version and never the locked one."""
    versions = locked_versions(LOCKED)

    assert hold_text(versions).split("\n\n")[1:] == [
        "Package: docker.io\nPin: version 2\nPin-Priority: 1001",
        "Package: libcuda1\nPin: version 3\nPin-Priority: 1001",
        "Package: runc\nPin: version 1\nPin-Priority: 1001\n",
    ]


def test_without_a_lock_the_hold_is_removed():
    """A node without it has no task more than before."""
    assert hold_files({}, {"repository_files": []}) == []
    assert hold_files({}, {"repository_files": [HOLDS]}) == [{"path": HOLDS, "state": "absent"}]
    assert [item["path"] for item in hold_files({"runc": "1"}, {})] == [HOLDS]
