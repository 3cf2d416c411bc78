"""A role runs again when what it sees of the inventory changed, and not for anything else."""

from __future__ import annotations

import dataclasses
import json

import pytest

from provision.model import Secret
from provision.planning.fingerprint import NODES, RoleSource, changed, fingerprint, salt_of
from provision.testing import make_cluster
from tests.support.reasons import shown

SOURCES = {
    "platform": RoleSource("p", frozenset()),
    "alone": RoleSource("a", frozenset({"seen", "top", "data_interface"})),
    "social": RoleSource("s", frozenset({"seen", "hostvars"})),
}


def of(role="alone", sources=None, salt="salt", names=("a", "b"), **variables):
    cluster = make_cluster(*names, **variables)
    return fingerprint(role, cluster.nodes[0], cluster, sources or SOURCES, salt)


def reasons(before, after):
    return [shown(cause.reason) for cause in changed(before, after)]


def test_equal_fingerprints_have_no_reason():
    assert changed(of(seen={"b": 1, "a": [2]}), of(seen={"a": [2], "b": 1})) == ()


def test_changed_added_and_removed_variables_are_reported():
    assert reasons(of(seen=1), of(seen=2)) == ["plan.variable_changed: seen"]
    assert reasons(of(), of(seen=2)) == ["plan.variable_new: seen"]
    assert reasons(of(seen=1), of()) == ["plan.variable_removed: seen"]


def test_a_number_differs_from_its_text():
    assert reasons(of(seen=1), of(seen="1")) == ["plan.variable_changed: seen"]


@pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), (1, 1.0), (0.0, -0.0), ([1], [True])])
def test_values_equal_in_python_differ_if_their_texts_differ(before, after):
    assert reasons(of(seen=before), of(seen=after)) == ["plan.variable_changed: seen"]
    assert reasons(of(seen=after), of(seen=after)) == []


def test_a_variable_that_the_role_does_not_use_is_ignored():
    assert changed(of(seen=1, motd="hello"), of(seen=1, motd="bye", ansible_port=23)) == ()


def test_variables_referenced_in_templates_count_transitively():
    chain = {"seen": "{{ middle }}/x", "middle": ["{% if last %}y{% endif %}"], "last": 1, "beside": 1}

    assert reasons(of(**chain), of(**{**chain, "last": 2})) == ["plan.variable_changed: last"]
    assert reasons(of(**chain), of(**{**chain, "beside": 2})) == []


def test_recursive_templates_terminate():
    assert set(of(seen="{{ top }}", top="{{ seen }}")["variables"]) == {"seen", "top"}


def test_words_of_a_plain_value_are_not_references():
    assert "last" not in of(seen="the last word", last=1)["variables"]


def test_addresses_count_for_roles_that_use_detected_addresses():
    assert reasons(of(cluster_data_networks=["10.0.0.0/8"]), of(cluster_data_networks=["10.1.0.0/16"])) == [
        "plan.variable_changed: cluster_data_networks"
    ]


def test_package_versions_of_the_inventory_count_for_every_role():
    assert "platform_package_sets" in of(platform_package_sets={"alone": ["x"]})["variables"]


@pytest.mark.parametrize("names", [("a", "b", "c"), ("a",), ("a", "other")])
def test_the_set_of_nodes_counts_for_roles_that_read_other_nodes(names):
    said = ["plan.nodes_changed"]

    assert reasons(of("social"), of("social", names=names)) == said
    assert reasons(of("alone"), of("alone", names=names)) == []


def test_a_value_that_reads_other_nodes_makes_its_role_read_them():
    assert NODES in of(seen="{{ groups['all'] | length }}")["variables"]


def test_a_change_of_the_role_or_of_platform_is_a_change_of_the_role():
    for role in ("alone", "platform"):
        other = {**SOURCES, role: dataclasses.replace(SOURCES[role], code="other")}
        assert reasons(of(), of(sources=other)) == ["plan.role_changed"]


def test_a_changed_role_with_other_variables_does_not_report_the_inventory():
    other = {**SOURCES, "alone": RoleSource("other", frozenset({"top"}))}

    assert reasons(of(seen=1, top=1), of(sources=other, seen=1, top=1)) == ["plan.role_changed"]


def test_a_fingerprint_contains_no_values_and_is_salted():
    first, second = of(seen=Secret("hunter2")), of(salt="other", seen=Secret("hunter2"))

    assert "hunter2" not in json.dumps(first)
    assert first["variables"]["seen"] != second["variables"]["seen"]
    assert reasons(first, of(seen=Secret("hunter3"))) == ["plan.variable_changed: seen"]
    assert changed(first, of(seen=Secret("hunter2"))) == ()


@pytest.mark.parametrize("value", [{1: "a", "b": 2}, {None: [Secret("x")]}, {"a": {"b": Secret("x")}}, object])
def test_any_value_has_a_fingerprint(value):
    assert of(seen=value) == of(seen=value)


ODD = (None, True, 7, "text", [], {}, {"salt": 1}, {"salt": "s", "code": None, "variables": {}},
       {"salt": "\ud800", "code": "c", "variables": {}}, {"salt": "s", "code": "c", "variables": []})  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_an_invalid_fingerprint_has_no_salt(odd):
    assert salt_of(odd) is None


def test_malformed_variables_in_a_receipt_are_reported_without_their_text():
    odd = {"salt": "salt", "code": of()["code"], "variables": {"\x1b[2J": [], "seen": {}}}

    assert reasons(odd, of(seen=1)) == ["plan.variable_removed: a variable", "plan.variable_changed: seen"]
