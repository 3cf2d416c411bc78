import pytest

from provision.inventory.connection import connection_of
from provision.inventory.listing import Listing
from provision.inventory.specs import read_specs
from provision.inventory.validate import cluster_problems, doubtful_names, variable_problems


def listing(hosts, empty=()):
    """An inventory whose hosts are all in gpu_nodes."""
    return Listing(hosts, {"all": tuple(hosts), "gpu_nodes": tuple(hosts)}, empty_groups=empty)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("cluster_slots", "many", "must be a whole number, not 'many'"),
        ("cluster_slots", True, "must be a whole number, not True"),
        ("cluster_name", ["a"], "must be text, not ['a']"),
        ("docker_engine_enabled", "perhaps", "must be true or false, not 'perhaps'"),
        ("docker_engine_source", "dokcer", "must be one of distribution, docker, not 'dokcer'"),
        ("docker_engine_registry_mirrors", "https://m", "must be a list, not 'https://m'"),
        ("docker_engine_registry_mirrors", [{}], "entry 1: must be text, not {}"),
        (
            "docker_engine_address_pools",
            [{"base": "10.0.0.0/8", "sise": 1}],
            "'sise' is an unknown key; did you mean size?",
        ),
        ("docker_engine_address_pools", [{"size": 1}], "entry 1: 'base' is missing"),
        ("docker_engine_registry_mirrors", None, "has no value; set one or remove the line"),
        ("docker_engine_sources", "docker", "unknown variable: no role has it; did you mean docker_engine_source?"),
        ("cluster_slot", 3, "unknown variable: no role has it; did you mean cluster_slots?"),
        ("platform_zzz", 3, "unknown variable: no role has it"),
    ],
)
def test_invalid_values_and_unknown_variables_of_provision_are_refused(roles, key, value, says):
    """A value of the wrong type, or an unknown name with one of our prefixes, never reaches a node."""
    problems = list(variable_problems(listing({"a": {key: value}}), read_specs(roles)))

    assert [(p.host, p.key) for p in problems] == [("a", key)]
    assert says in problems[0].text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cluster_slots", "8"),
        ("cluster_slots", "{{ 4 * 2 }}"),
        ("cluster_name", 7),
        ("docker_engine_enabled", "yes"),
        ("docker_engine_registry_mirrors", "{{ mirrors }}"),
        ("cluster_name", {"__ansible_vault": "..."}),
        ("docker_engine_address_pools", [{"base": "{{ x }}", "size": 24}]),
        ("my_own_variable", object()),
    ],
)
def test_valid_values_templates_and_other_variables_are_accepted(roles, key, value):
    """What Ansible would convert is fine, what is not known yet is not judged, and other names are the user's."""
    assert list(variable_problems(listing({"a": {key: value}}), read_specs(roles))) == []


@pytest.mark.parametrize(
    ("key", "close"),
    [
        ("docker_engin_source", "docker_engine_source"),
        ("ansible_hsot", "ansible_host"),
        ("clusterslots", "cluster_slots"),
    ],
)
def test_a_misspelt_variable_is_a_warning(roles, key, close):
    """A name close to a known one is pointed at, and nothing more."""
    doubts = list(doubtful_names(listing({"a": {key: 1}}), read_specs(roles)))

    assert [close in doubt.text for doubt in doubts] == [True]


@pytest.mark.parametrize("key", ["ansible_python_interpreter", "ansible_ssh_pipelining", "rack", "docker_version"])
def test_unrelated_variables_have_no_warning(roles, key):
    """Variables of Ansible and of the user that resemble none of ours are left alone."""
    assert list(doubtful_names(listing({"a": {key: 1}}), read_specs(roles))) == []


@pytest.mark.parametrize(
    ("hosts", "empty", "says"),
    [
        ({}, (), "the inventory has no hosts"),
        ({"a": {}}, ("rack9",), "the group rack9 has no hosts"),
        ({"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.1"}}, (), "a and b have the same address"),
        ({"a": {"ansible_host": "fd00::1"}, "b": {"ansible_host": "fd00:0::1"}}, (), "a and b have the same address"),
        (
            {"a": {"cluster_data_address": "10.1.0.1"}, "b": {"cluster_data_address": "10.1.0.1"}},
            (),
            "same data address",
        ),
        ({"a": {"cluster_data_address": "ten"}}, (), "'ten' is not an IP address"),
        ({"a": {"cluster_data_networks": ["10.1.0.5/24"]}}, (), "'10.1.0.5/24' is not a network"),
        ({"a": {"cluster_head": "aa"}}, (), "'aa' is not a node"),
    ],
)
def test_an_inconsistent_cluster_is_refused(hosts, empty, says):
    """Addresses given twice, empty groups and networks that are none are found before anything connects."""
    connections = {name: connection_of(name, variables) for name, variables in hosts.items()}

    problems = [p.text for p in cluster_problems(listing(hosts, empty), connections)]

    assert len(problems) == 1
    assert says in problems[0]


def test_one_address_with_two_ports_or_behind_two_jump_hosts_is_two_nodes():
    """Forwarded ports, and private networks that look alike, are not mistaken for a slip."""
    hosts = {
        "a": {"ansible_host": "127.0.0.1", "ansible_port": 2201},
        "b": {"ansible_host": "127.0.0.1", "ansible_port": 2202},
        "c": {"ansible_host": "10.0.0.1", "ansible_ssh_common_args": "-J j1"},
        "d": {"ansible_host": "10.0.0.1", "ansible_ssh_common_args": "-J j2"},
    }
    connections = {name: connection_of(name, variables) for name, variables in hosts.items()}

    assert list(cluster_problems(listing(hosts), connections)) == []


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "a/b", ".hidden", "gpu\n1", "gpu\x1b[2J", "g" * 300])
def test_a_node_name_with_a_path_is_refused(name):
    """Answers of nodes are stored in files of their names; a cloud's owners of machines may choose the names."""
    problems = list(cluster_problems(listing({name: {}, "gpu-1.example.org": {}}), {}))

    assert len(problems) == 1
    assert "is not a valid name of a node" in problems[0].text
    assert problems[0].text.isprintable()
