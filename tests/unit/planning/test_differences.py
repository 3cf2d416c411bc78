"""Every difference between a receipt and the node has its own words; odd receipts have none and do no harm."""

from __future__ import annotations

import itertools

import pytest

from provision.planning.differences import differences
from provision.report.reasons import message
from tests.support.reasons import shown
from tests.unit.planning.conftest import CONTAINER, FILE, UNIT

PATH = "/etc/x"
BLOCK = {"type": "file", "block": "provision", "sum": "bb"}
KEYS = {"type": "file", "mode": "0644", "owner": "root:root", "keys": {"log-opts": "1", "runtimes": "2", "mtu": "3"}}
OTHER = "sha256:" + "a" * 64
IMAGE = "sha256:" + "b" * 64


def shown_differences(section, name, before, now, booted=""):
    return tuple(
        shown(cause.reason) for cause in differences({section: {name: before}}, {section: {name: now}}, booted)
    )


CASES = {
    "gone": ("files", PATH, FILE, {"type": "missing"}, "file.missing: /etc/x"),
    "link": ("files", PATH, FILE, {**FILE, "type": "link"}, "file.type: /etc/x a link a file"),
    "back": ("files", PATH, {"type": "missing"}, FILE, "file.added: /etc/x"),
    "mode": ("files", PATH, FILE, {**FILE, "mode": "0666"}, "file.attribute: /etc/x mode 0666 0644"),
    "owner": ("files", PATH, FILE, {**FILE, "owner": "bob:bob"}, "file.attribute: /etc/x owner bob:bob root:root"),
    "content": ("files", PATH, FILE, {**FILE, "sum": "cc"}, "file.edited: /etc/x"),
    "block": ("files", PATH, BLOCK, {**BLOCK, "sum": "cc"}, "file.block_edited: /etc/x"),
    "no block": ("files", PATH, BLOCK, {**BLOCK, "sum": None}, "file.block_missing: /etc/x"),
    "key": (
        "files", PATH, KEYS, {**KEYS, "keys": {**KEYS["keys"], "log-opts": "9"}},
        "file.json_edited: /etc/x file.keys_differ log-opts",
    ),
    "keys": (
        "files", PATH, KEYS, {**KEYS, "keys": {"log-opts": "9", "runtimes": "9", "mtu": None}},
        "file.json_edited: /etc/x file.keys_differ log-opts runtimes file.keys_missing mtu",
    ),
    "invalid": (
        "files", PATH, KEYS, {**KEYS, "invalid": True, "keys": dict.fromkeys(KEYS["keys"])},
        "file.invalid_json: /etc/x",
    ),
    "no package": ("packages", "docker.io", "1.2", None, "package.missing: docker.io"),
    "older": ("packages", "x", "1.2", "1.0", "package.older: x 1.0 1.2"),
    "newer": ("packages", "x", "1.2", "1.10", "package.newer: x 1.10 1.2"),
    "masked": (
        "units", "docker.service", UNIT, {"load": "masked", "active": "inactive", "enabled": "masked"},
        "unit.masked: docker.service",
    ),
    "no unit": (
        "units", "x.service", UNIT, {"load": "not-found", "active": "inactive", "enabled": ""},
        "unit.missing: x.service",
    ),
    "stopped": ("units", "docker.service", UNIT, {**UNIT, "active": "inactive"}, "unit.stopped: docker.service"),
    "failed": ("units", "docker.service", UNIT, {**UNIT, "active": "failed"}, "unit.failed: docker.service"),
    "disabled": (
        "units", "docker.service", UNIT, {**UNIT, "enabled": "disabled"},
        "unit.enabled: docker.service disabled enabled",
    ),
    "module": ("modules", "ib_uverbs", True, False, "module.missing: ib_uverbs"),
    "no image": ("images", "r/t:1", IMAGE, None, "image.missing: r/t:1"),
    "image": ("images", "r:1", IMAGE, OTHER, "image.differs: r:1 sha256:aaaaaaaaaaaa… sha256:bbbbbbbbbbbb…"),
    "no container": ("containers", "t", CONTAINER, None, "container.missing: t"),
    "anew": ("containers", "t", CONTAINER, {**CONTAINER, "id": "c2"}, "container.recreated: t"),
    "interrupted": (
        "containers", "t", CONTAINER, {**CONTAINER, "id": "c2", "ours": True},
        "container.recreated_by_apply: t",
    ),
    "exited": ("containers", "t", CONTAINER, {**CONTAINER, "status": "exited"}, "container.state: t stopped"),
    "paused": ("containers", "t", CONTAINER, {**CONTAINER, "status": "paused"}, "container.state: t paused"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_kind_of_difference_has_its_own_reason(case):
    section, name, before, now, words = CASES[case]

    assert shown_differences(section, name, before, now) == (words,)
    assert shown_differences(section, name, before, before) == ()


def test_a_module_missing_since_a_boot_is_reported_with_the_boot():
    assert shown_differences("modules", "ib_uverbs", True, False, "10:12") == (  # noqa: FBT003
        "module.missing: ib_uverbs 10:12",
    )


def test_a_starting_unit_is_no_difference():
    assert shown_differences("units", "x.service", UNIT, {**UNIT, "active": "activating"}) == ()
    assert shown_differences("units", "x.service", {**UNIT, "active": "activating"}, UNIT) == ()


def test_settings_of_others_in_a_shared_file_are_no_difference():
    assert shown_differences("files", PATH, KEYS, {**KEYS, "keys": {**KEYS["keys"], "debug": "9"}}) == ()


def test_unknown_facts_are_no_difference():
    recorded = {"units": {"x": UNIT}, "images": {"i": IMAGE}, "containers": {"c": CONTAINER}}

    assert differences(recorded, {}) == ()
    assert differences(recorded, {"units": {}, "images": {"hung": "docker"}, "containers": None}) == ()


ODD = (None, True, 7, 1.5, "text", "\x1b[2J\n" * 99, [], [1, {}], {}, {"type": []}, {"id": {}}, {"keys": [1]},
       {"keys": {"a": {"b": []}}}, {"type": "file", "mode": [], "sum": {}}, {"load": [], "active": 3, "enabled": None},
       {"type": "file", "keys": {"a": "1"}}, {"status": None}, "9" * 5000)  # fmt: skip
SECTIONS = ("files", "packages", "units", "modules", "images", "containers")


@pytest.mark.parametrize("section", SECTIONS)
def test_malformed_receipts_give_reasons_of_one_printable_line(section):
    for before, now in itertools.product(ODD, ODD):
        for cause in differences({section: {"\x1b]0;x\x07": before}}, {section: {"\x1b]0;x\x07": now}}):
            assert message(cause.reason).isprintable()
            assert len(message(cause.reason)) < 500


@pytest.mark.parametrize("odd", ODD)
def test_malformed_sections_are_ignored(odd):
    for section in SECTIONS:
        assert differences({section: odd}, {section: odd}) == ()
        for causes in (
            differences({section: odd}, {section: {"a": 1}}),
            differences({section: {"a": 1}}, {section: odd}),
        ):
            assert all(message(cause.reason).isprintable() for cause in causes)
