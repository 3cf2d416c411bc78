"""The phases of a kernel upgrade on a node. Programs of the boot loader are stand-ins that keep GRUB's environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.kernel_machines import ENTRIES, GRUB_CFG, NEW, OLD, REQUEST, Machine, kernel_node

STATE, Loader, Refused, Upgrade, menu_entry = (
    getattr(kernel_node, name) for name in ("STATE", "Loader", "Refused", "Upgrade", "menu_entry")
)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path)
    monkeypatch.setattr(kernel_node, "ORDERLY_SECONDS", 0.0)
    monkeypatch.setattr(kernel_node.time, "sleep", lambda seconds: made.uptime(made.up + max(1, int(seconds))))
    return made


def test_the_entry_of_a_kernel_is_the_one_that_names_it():
    """The first entry starts whichever kernel is the newest, and the recovery entry starts no network."""
    assert {release: menu_entry(GRUB_CFG, release) for release in (OLD, NEW)} == ENTRIES
    assert menu_entry(GRUB_CFG, "6.1.0-5-amd64") == ""


def test_a_confirmed_kernel_becomes_the_default(machine):
    """Until then, the previous one is the default."""
    machine.upgrade.reboot(REQUEST)
    assert machine.environment == {"saved_entry": ENTRIES[OLD], "next_entry": ENTRIES[NEW]}
    assert (machine.phase, machine.reboots) == ("rebooting", 1)
    machine.upgrade.watch({})  # the unit of the boot before
    assert machine.phase == "rebooting"

    machine.boot()
    assert machine.release == NEW
    watched = machine.upgrade
    confirmed = []
    kernel_node.time.sleep = lambda _: confirmed or confirmed.append(machine.upgrade.confirm({}))
    watched.watch({})

    assert (machine.phase, machine.environment) == ("confirmed", {"saved_entry": ENTRIES[NEW]})
    assert machine.reboots == 1
    machine.boot()
    machine.upgrade.watch({})
    assert (machine.release, machine.phase) == (NEW, "confirmed")


def test_only_a_kernel_on_trial_is_confirmed(machine):
    """Not before the reboot, nor after a rejection; also before the watchdog has started."""
    with pytest.raises(Refused, match="not on trial"):
        machine.upgrade.confirm({})
    machine.upgrade.reboot(REQUEST)
    with pytest.raises(Refused, match="not on trial"):
        machine.upgrade.confirm({})
    machine.boot()
    machine.upgrade.confirm({})
    machine.upgrade.watch({})
    assert (machine.phase, machine.reboots) == ("confirmed", 1)


def test_a_kernel_that_nobody_confirms_is_left_at_its_time_limit(machine):
    """The node reboots by itself, into the previous kernel."""
    machine.upgrade.reboot(REQUEST)
    machine.boot()
    machine.upgrade.watch({})

    assert (machine.phase, machine.up, machine.reboots) == ("expired", 300, 3)
    machine.boot()
    machine.upgrade.watch({})
    assert (machine.release, machine.phase) == (OLD, "expired")
    machine.upgrade.reject({"cause": "kernel.fallback.no_contact"})
    assert (machine.phase, machine.reboots) == ("rejected", 3)


def test_a_node_that_cannot_write_its_record_leaves_the_kernel_too(machine, monkeypatch):
    """A kernel that mounts the file system read-only is no good either."""
    machine.upgrade.reboot(REQUEST)
    machine.boot()

    def read_only(path, mode="r", **options):
        if mode != "r":
            raise OSError(30, "Read-only file system", path)
        return Path(path).open(mode, **options)

    monkeypatch.setattr(kernel_node, "open", read_only, raising=False)
    machine.upgrade.watch({})

    assert machine.reboots == 3


@pytest.mark.parametrize(("trial", "cause"), [(False, "kernel.fallback.not_booted"), (True, "kernel.fallback.lost")])
def test_a_panic_is_recorded_by_the_next_boot(machine, monkeypatch, trial, cause):
    """Before or after the watchdog has started."""
    machine.upgrade.reboot(REQUEST)
    machine.boot()
    if trial:

        def power_cut(_seconds):
            raise KeyboardInterrupt

        monkeypatch.setattr(kernel_node.time, "sleep", power_cut)
        with pytest.raises(KeyboardInterrupt):
            machine.upgrade.watch({})
        assert machine.phase == "trial"
    machine.boot()
    machine.upgrade.watch({})

    record = machine.upgrade.read()
    assert (machine.release, record["phase"], record["cause"]) == (OLD, "fell_back", cause)


def test_a_rejected_kernel_is_left_at_once(machine):
    """The record has the cause."""
    machine.upgrade.reboot(REQUEST)
    machine.boot()
    machine.upgrade.reject({"cause": "kernel.fallback.worse"})

    assert (machine.phase, machine.reboots) == ("rejected", 2)
    assert machine.upgrade.read()["cause"] == "kernel.fallback.worse"


def test_a_reboot_that_systemd_refuses_leaves_no_trial_for_a_later_boot(machine, monkeypatch):
    """For example while another program inhibits it."""
    real = machine.run
    monkeypatch.setattr(
        machine, "run", lambda argv, seconds=0: (1, "Access denied") if argv[0] == "systemctl" else real(argv, seconds)
    )
    with pytest.raises(Refused) as refused:
        machine.upgrade.reboot(REQUEST)

    assert refused.value.code == "kernel.reboot.failed"
    assert machine.environment == {"saved_entry": ENTRIES[OLD]}
    machine.boot()
    machine.upgrade.watch({})
    assert (machine.release, machine.phase) == (OLD, "fell_back")


@pytest.mark.parametrize(("abstraction", "system"), [("lvm", "ext2"), ("diskfilter mdraid1x", "ext2"), ("", "btrfs")])
def test_a_boot_loader_that_cannot_write_is_refused(machine, abstraction, system):
    """It would start the new kernel at every boot."""
    machine.abstraction, machine.system = abstraction, system
    with pytest.raises(Refused) as refused:
        machine.upgrade.reboot(REQUEST)

    assert refused.value.code == "kernel.loader.read_only"
    assert (machine.phase, machine.environment) == (None, {})


@pytest.mark.parametrize(
    "change",
    [
        {"to": OLD},
        {"to": "../6.1"},
        {"to": 6},
        {"to": "6.1.0-51-amd64"},
        {"seconds": 5},
        {"seconds": True},
        {"checks": ["a b"]},
        {"checks": ["a"] * 1000},
        {"checks": "a"},
    ],
)
def test_invalid_requests_change_nothing(machine, change):
    """Neither the record nor GRUB."""
    with pytest.raises(Refused):
        machine.upgrade.reboot({**REQUEST, **change})

    assert (machine.phase, machine.environment, machine.reboots) == (None, {}, 0)


def test_entry_files_of_enterprise_linux_name_the_kernel(tmp_path):
    """The entry has the name of its file; the rescue entry is none."""
    (tmp_path / "boot/grub2").mkdir(parents=True)
    (tmp_path / "boot/grub2/grub.cfg").write_text("next_entry\nblscfg\n")
    entries = tmp_path / "boot/loader/entries"
    entries.mkdir(parents=True)
    for name, version in (("id-5.14.0-1.el9.x86_64", "5.14.0-1.el9.x86_64"), ("id-0-rescue", "0-rescue")):
        (entries / f"{name}.conf").write_text(f"title Rocky\nversion {version}\nlinux /vmlinuz-{version}\n")
    loader = Loader(str(tmp_path), lambda _argv, _seconds=0: (0, ""))

    assert loader.entry("5.14.0-1.el9.x86_64") == "id-5.14.0-1.el9.x86_64"
    assert loader.entry("5.14.0-2.el9.x86_64") == ""


def test_a_damaged_record_counts_as_none(machine):
    """A node with such a record is not rebooted."""
    path = machine.root / STATE.lstrip("/")
    path.parent.mkdir(parents=True)
    for text in ("", "[]", '{"phase": "trial"', json.dumps({"phase": "other"})):
        path.write_text(text)
        machine.upgrade.watch({})

    assert machine.reboots == 0
