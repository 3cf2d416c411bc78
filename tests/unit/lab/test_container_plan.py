"""Names and addresses of container labs."""

from __future__ import annotations

import pytest

from provision.errors import LabError
from provision.lab.container_plan import Plan, choose_block, labels_of, load_plan, route_networks, save_plan

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
"""


def test_routes_become_networks_without_the_default_route():
    """The default route covers every address and is ignored."""
    assert route_networks(ROUTES) == ["192.0.2.0/24", "172.17.0.0/16"]


def test_the_same_name_gets_the_same_subnet():
    """A lab that is made anew has the addresses it had."""
    assert choose_block("demo", []) == choose_block("demo", ["192.168.0.0/16"])


@pytest.mark.parametrize("network", ["10.78.{}.0/24", "10.79.{}.128/25"])
def test_a_used_subnet_is_avoided(network):
    """Neither the management nor the data network of a lab overlaps what the machine has."""
    first = choose_block("demo", [])
    other = choose_block("demo", [network.format(first)])

    assert other != first
    assert 1 <= other <= 254


def test_no_free_subnet_is_an_error():
    """A controller with a route for the whole range gets an error."""
    with pytest.raises(LabError, match="no free subnet"):
        choose_block("demo", ["10.0.0.0/8"])


def test_the_plan_survives_being_written(tmp_path):
    """Later commands use the same addresses."""
    plan = Plan("demo", 7)
    save_plan(tmp_path, plan)

    assert load_plan(tmp_path) == plan
    assert plan.management.address(0) == "10.78.7.10"
    assert plan.data.address(1) == "10.79.7.11"
    assert plan.gateway == "10.78.7.1"
    assert plan.container("demo-1") == "provision-demo-demo-1"


def test_a_missing_plan_is_no_error_and_a_damaged_one_is(tmp_path):
    """A damaged file is an error with its name and a remedy."""
    assert load_plan(tmp_path) is None
    (tmp_path / "containers.json").write_text("{")
    with pytest.raises(LabError, match=r"containers\.json is damaged"):
        load_plan(tmp_path)


def test_labs_of_two_folders_have_different_labels(tmp_path):
    """Two users may call their labs the same; removing one must not remove the other."""
    assert labels_of("demo", tmp_path / "a") != labels_of("demo", tmp_path / "b")
