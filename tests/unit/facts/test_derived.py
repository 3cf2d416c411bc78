"""Values derived from facts and inventory."""

from __future__ import annotations

import pytest

from provision.facts import (
    NodeFacts,
    Unknown,
    as_data,
    data_address,
    data_interface,
    data_network,
    gpu_count,
    parameters,
    plain,
)
from provision.facts.gpu import Gpu
from provision.facts.network import Address, Route

FACTS = NodeFacts(
    addresses=(
        Address("lo", "127.0.0.1", 8, "host"),
        Address("ens3", "10.0.2.15", 24, "global"),
        Address("ens4", "10.77.0.1", 24, "global"),
    ),
    routes=(Route("default", "ens3", ""), Route("10.77.0.0/24", "ens4", "10.77.0.1")),
)


@pytest.mark.parametrize(
    ("variables", "address", "interface"),
    [
        ({"cluster_data_address": "10.77.0.1", "cluster_data_networks": ["10.0.2.0/24"]}, "10.77.0.1", "ens4"),
        ({"cluster_data_networks": ["192.0.2.0/24", "10.77.0.0/24"]}, "10.77.0.1", "ens4"),
        ({"cluster_data_networks": ["192.0.2.0/24"]}, None, None),
        ({"cluster_data_address": "", "cluster_data_networks": []}, "10.0.2.15", "ens3"),
        ({"cluster_data_address": "{{ other }}"}, "10.0.2.15", "ens3"),
    ],
)
def test_the_data_address(variables, address, interface):
    """The host's own address first, then the data networks, then the default route."""
    assert data_address(variables, FACTS) == address
    assert data_interface(variables, FACTS) == interface


@pytest.mark.parametrize(
    ("variables", "prefix", "network"),
    [
        ({}, 24, "10.77.0.0/24"),
        ({}, 31, "10.77.0.0/31"),
        ({}, 32, "10.77.0.0/31"),
        ({"cluster_data_networks": ["192.0.2.0/24", "10.77.0.0/16"]}, 24, "10.77.0.0/16"),
        ({"cluster_data_networks": ["{{ other }}", "10.0.0.0/8"]}, 24, None),
        ({"cluster_data_address": "10.99.0.1"}, 24, None),
    ],
)
def test_the_data_network(variables, prefix, network):
    """The inventory's network that contains the data address, else that of the interface, never a single address."""
    facts = NodeFacts(addresses=(Address("ens4", "10.77.0.1", prefix, "global"),), routes=())
    given = {"cluster_data_address": "10.77.0.1", **variables}
    if "cluster_data_networks" in variables:
        del given["cluster_data_address"]

    assert data_network(given, facts) == network


def test_a_missing_gpu_makes_the_count_unknown():
    """Slots never count GPUs that may be missing, nor fall back to CPUs."""
    gpu = Gpu(0, "A100", "", "550", 81920, "")

    assert gpu_count(NodeFacts(gpus=(gpu,), gpu_pci=("a",))) == 1
    assert gpu_count(NodeFacts(gpus=(gpu,), gpu_pci=("a", "b"))) is None
    assert gpu_count(NodeFacts(gpus=Unknown("hung"), gpu_pci=())) is None
    assert gpu_count(NodeFacts(gpus=(), gpu_pci=())) == 0


def test_plain_detects_jinja_at_any_depth():
    assert plain({"a": ["b", 1, None]})
    assert not plain({"a": [{"b": "{{ c }}"}]})


@pytest.mark.parametrize(
    ("reference", "digest", "images"),
    [
        ("10.0.2.2:5000/training:1", "", ("10.0.2.2:5000/training:1",)),
        ("r:5000/t:1", "sha256:a", ("r:5000/t@sha256:a", "r:5000/t:1")),
        ("r:5000/t", "sha256:a", ("r:5000/t@sha256:a", "r:5000/t")),
        ("{{ x }}", "sha256:a", ()),
    ],
)
def test_the_image_is_searched_by_digest_first(reference, digest, images):
    """A registry's port is not a tag."""
    variables = {"training_image_reference": reference, "training_image_digest": digest}

    assert parameters(variables, ()).images == images


def test_facts_convert_to_json():
    data = as_data(NodeFacts(modules=frozenset({"b", "a"}), gpus=Unknown("hung: nvidia-smi")))

    assert data["modules"] == ["a", "b"]
    assert data["gpus"] == {"unknown": "hung: nvidia-smi"}
    assert "raw" not in data
