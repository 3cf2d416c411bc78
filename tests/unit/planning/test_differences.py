"""Every difference between a receipt and the node has its own words; odd receipts have none and do no harm."""

from __future__ import annotations

import itertools

import pytest

from provision.planning.differences import differences
from tests.unit.planning.conftest import CONTAINER, FILE, UNIT

PATH = "/etc/x"
BLOCK = {"type": "file", "block": "provision", "sum": "bb"}
KEYS = {"type": "file", "mode": "0644", "owner": "root:root", "keys": {"log-opts": "1", "runtimes": "2", "mtu": "3"}}
OTHER = "sha256:" + "a" * 64
IMAGE = "sha256:" + "b" * 64


def told(section, name, before, now, booted=""):
    return tuple(cause.reason for cause in differences({section: {name: before}}, {section: {name: now}}, booted))


CASES = {
    "gone": ("files", PATH, FILE, {"type": "missing"}, "/etc/x is gone"),
    "link": ("files", PATH, FILE, {**FILE, "type": "link"}, "/etc/x is a link, not a file"),
    "back": ("files", PATH, {"type": "missing"}, FILE, "/etc/x is there, and was not when the role ended"),
    "mode": ("files", PATH, FILE, {**FILE, "mode": "0666"}, "the mode of /etc/x is 0666, not 0644"),
    "owner": ("files", PATH, FILE, {**FILE, "owner": "bob:bob"}, "the owner of /etc/x is bob:bob, not root:root"),
    "content": ("files", PATH, FILE, {**FILE, "sum": "cc"}, "/etc/x was edited by other hands"),
    "block": ("files", PATH, BLOCK, {**BLOCK, "sum": "cc"}, "our block in /etc/x was edited by other hands"),
    "no block": ("files", PATH, BLOCK, {**BLOCK, "sum": None}, "our block in /etc/x is gone"),
    "key": (
        "files", PATH, KEYS, {**KEYS, "keys": {**KEYS["keys"], "log-opts": "9"}},
        "/etc/x was edited by other hands: log-opts differs",
    ),
    "keys": (
        "files", PATH, KEYS, {**KEYS, "keys": {"log-opts": "9", "runtimes": "9", "mtu": None}},
        "/etc/x was edited by other hands: log-opts and runtimes differ; mtu is gone",
    ),
    "invalid": (
        "files", PATH, KEYS, {**KEYS, "invalid": True, "keys": dict.fromkeys(KEYS["keys"])},
        "/etc/x is not a valid JSON object, so that none of its settings can be used",
    ),
    "no package": ("packages", "docker.io", "1.2", None, "package docker.io is not installed any more"),
    "older": ("packages", "x", "1.2", "1.0", "package x is 1.0, older than the 1.2 that was recorded"),
    "newer": ("packages", "x", "1.2", "1.10", "package x is 1.10, newer than the 1.2 that was recorded"),
    "masked": (
        "units", "docker.service", UNIT, {"load": "masked", "active": "inactive", "enabled": "masked"},
        "docker.service is masked",
    ),
    "no unit": (
        "units", "x.service", UNIT, {"load": "not-found", "active": "inactive", "enabled": ""}, "x.service is gone",
    ),
    "stopped": ("units", "docker.service", UNIT, {**UNIT, "active": "inactive"}, "docker.service is stopped"),
    "failed": ("units", "docker.service", UNIT, {**UNIT, "active": "failed"}, "docker.service has failed"),
    "disabled": (
        "units", "docker.service", UNIT, {**UNIT, "enabled": "disabled"}, "docker.service is disabled, not enabled",
    ),
    "module": ("modules", "ib_uverbs", True, False, "module ib_uverbs is not loaded any more"),
    "no image": ("images", "r/t:1", IMAGE, None, "image r/t:1 is not on the node any more"),
    "image": ("images", "r:1", IMAGE, OTHER, "image r:1 is sha256:aaaaaaaaaaaa…, recorded was sha256:bbbbbbbbbbbb…"),
    "no container": ("containers", "t", CONTAINER, None, "container t is gone"),
    "anew": ("containers", "t", CONTAINER, {**CONTAINER, "id": "c2"}, "container t was made anew by other hands"),
    "interrupted": (
        "containers", "t", CONTAINER, {**CONTAINER, "id": "c2", "ours": True},
        "container t was recreated by an apply that did not finish",
    ),
    "exited": ("containers", "t", CONTAINER, {**CONTAINER, "status": "exited"}, "container t is stopped"),
    "paused": ("containers", "t", CONTAINER, {**CONTAINER, "status": "paused"}, "container t is paused"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_difference_is_told_in_its_own_words(case):
    section, name, before, now, words = CASES[case]

    assert told(section, name, before, now) == (words,)
    assert told(section, name, before, before) == ()


def test_a_module_that_a_boot_took_away_is_told_with_the_boot():
    assert told("modules", "ib_uverbs", True, False, "10:12") == (  # noqa: FBT003
        "module ib_uverbs is not loaded since the boot of 10:12",
    )


def test_a_unit_on_its_way_up_is_no_difference():
    assert told("units", "x.service", UNIT, {**UNIT, "active": "activating"}) == ()
    assert told("units", "x.service", {**UNIT, "active": "activating"}, UNIT) == ()


def test_settings_of_others_in_a_merged_file_are_theirs():
    assert told("files", PATH, KEYS, {**KEYS, "keys": {**KEYS["keys"], "debug": "9"}}) == ()


def test_what_could_not_be_looked_at_is_no_difference():
    recorded = {"units": {"x": UNIT}, "images": {"i": IMAGE}, "containers": {"c": CONTAINER}}

    assert differences(recorded, {}) == ()
    assert differences(recorded, {"units": {}, "images": {"hung": "docker"}, "containers": None}) == ()


ODD = (None, True, 7, 1.5, "text", "\x1b[2J\n" * 99, [], [1, {}], {}, {"type": []}, {"id": {}}, {"keys": [1]},
       {"keys": {"a": {"b": []}}}, {"type": "file", "mode": [], "sum": {}}, {"load": [], "active": 3, "enabled": None},
       {"type": "file", "keys": {"a": "1"}}, {"status": None}, "9" * 5000)  # fmt: skip
SECTIONS = ("files", "packages", "units", "modules", "images", "containers")


@pytest.mark.parametrize("section", SECTIONS)
def test_odd_receipts_do_no_harm_and_every_reason_is_one_printable_line(section):
    for before, now in itertools.product(ODD, ODD):
        for cause in differences({section: {"\x1b]0;x\x07": before}}, {section: {"\x1b]0;x\x07": now}}):
            assert cause.reason.isprintable()
            assert len(cause.reason) < 500


@pytest.mark.parametrize("odd", ODD)
def test_odd_sections_do_no_harm(odd):
    for section in SECTIONS:
        assert differences({section: odd}, {section: odd}) == ()
        for causes in (
            differences({section: odd}, {section: {"a": 1}}),
            differences({section: {"a": 1}}, {section: odd}),
        ):
            assert all(cause.reason.isprintable() for cause in causes)
