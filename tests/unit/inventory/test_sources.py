import pytest

from provision.inventory.sources import SourceIndex, syntax_problems

HOSTS = """\
gpu_nodes:
  hosts:
    a:
      cluster_slots: x
    b: {cluster_slots: y}
  vars:
    docker_engine_source: z
"""


@pytest.mark.parametrize(
    ("key", "host", "groups", "place"),
    [
        ("cluster_slots", "a", ["gpu_nodes"], "hosts.yml:4"),
        ("cluster_slots", "b", ["gpu_nodes"], "hosts.yml:5"),
        ("docker_engine_source", "a", ["gpu_nodes"], "hosts.yml:7"),
        ("cluster_name", "a", [], "group_vars/all.yml:2"),
        ("cluster_rack", "a", [], "host_vars/a.yml:1"),
        ("cluster_rack", "b", [], None),
        ("nothing", "a", [], None),
    ],
)
def test_a_variable_is_located_in_its_file(write, key, host, groups, place):
    """Messages say the file and the line of the value that counts."""
    folder = write(hosts_yml=HOSTS, group_vars__all_yml="---\ncluster_name: c\n", host_vars__a_yml="cluster_rack: r\n")

    location = SourceIndex(folder).find(key, host, groups)

    assert location == (None if place is None else f"{folder}/{place}")


def test_variables_of_ini_inventories_have_lines(write):
    """Host lines and [group:vars] of an INI file are found."""
    file = write(hosts="# nodes\n[gpu_nodes]\na cluster_slots=x\n\n[gpu_nodes:vars]\ncluster_name = c\n") / "hosts"

    index = SourceIndex(file)

    assert index.find("cluster_slots", "a") == f"{file}:3"
    assert index.find("cluster_name", "a", ["gpu_nodes"]) == f"{file}:6"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"hosts_yml": "gpu_nodes:\n  hosts:\n    a: 1\n   b: 2\n"}, "hosts.yml:4: not valid YAML"),
        ({"hosts": "[gpu]\na b\n"}, "hosts:2: 'b' is not of the form key=value"),
        ({"hosts": "[gpu\na\n"}, "hosts:1: '[gpu' is not a section header"),
        ({"hosts_yml": "all:\n", "group_vars__all_yml": "x: 1\n y: [\n"}, "group_vars/all.yml:2: not valid YAML"),
    ],
)
def test_syntax_errors_have_file_and_line(write, files, says):
    """An inventory that cannot be parsed is answered with the place of the error."""
    problems = syntax_problems(write(**files))

    assert len(problems) == 1
    assert says in problems[0]
