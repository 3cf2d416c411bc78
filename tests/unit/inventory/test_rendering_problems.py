"""Inventory values whose Jinja cannot be rendered are found without a node."""

from __future__ import annotations

import json

from provision.inventory.templates import rendering_problems

KNOWN = {"training_image_reference", "docker_engine_data_root", "cluster_name", "platform_package_sets"}


def problems_of(write, **variables):
    """Ask Ansible about variables of one host beside another one."""
    hosts = {"a": variables, "b": {"cluster_name": "plain"}}
    path = write(hosts_yml=json.dumps({"all": {"hosts": hosts}}))
    return rendering_problems(path, hosts, KNOWN)


def test_every_value_that_cannot_be_rendered_is_reported_with_its_reason(write):
    """All of them at once; those that can be are rendered."""
    values, problems = problems_of(
        write,
        training_image_reference="{{ registyr }}/train:1",
        docker_engine_data_root="{{ '/data' | nosuchfilter }}",
        platform_package_sets={"platform": ["{{ 1 + }}"]},
        cluster_name="{{ inventory_hostname }}-x",
    )

    assert set(problems) == {"a"}
    assert "'registyr' is undefined" in problems["a"]["training_image_reference"]
    assert "nosuchfilter" in problems["a"]["docker_engine_data_root"]
    assert problems["a"]["platform_package_sets"].startswith("Syntax error")
    assert "cluster_name" not in problems["a"]
    assert values.get("a", {}).get("cluster_name", "a-x") == "a-x"


def test_a_value_that_references_an_invalid_one_is_invalid(write):
    """By way of a variable of the site's own."""
    _, problems = problems_of(
        write, site_registry="{{ undefined_thing }}", training_image_reference="{{ site_registry }}/t:1"
    )

    assert "undefined_thing" in problems["a"]["training_image_reference"]


def test_valid_values_are_rendered(write):
    """Site variables that no role uses are not judged."""
    values, problems = problems_of(
        write, site_registry="r:5000", training_image_reference="{{ site_registry }}/t:1", unused="{{ nothing }}"
    )

    assert problems == {}
    assert values == {"a": {"training_image_reference": "r:5000/t:1"}}


def test_values_that_need_a_play_are_not_checked(write):
    """Facts, other nodes and lookups."""
    values, problems = problems_of(
        write,
        training_image_reference="{{ ansible_facts.hostname }}/t:1",
        docker_engine_data_root="{{ lookup('file', '/no/such') }}",
        cluster_name="{{ hostvars['zzz'].x }}",
    )

    assert (values, problems) == ({}, {})
