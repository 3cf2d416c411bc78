from pathlib import Path

import pytest
import yaml

from provision.errors import InventoryError
from provision.inventory.write import HostEntry, group_vars_text, hosts_text, with_hosts, without_hosts, without_keys

FILE = Path("hosts.yml")
EDITED = """\
---
# my comment
gpu_nodes:
    hosts:
        a:            # the first
            ansible_host: 10.0.0.1
            # about the slots
            cluster_slots: 4
        b:

        # before c
        c: {cluster_rack: r2}
    # after the hosts
    vars:
        x: "{{ y }}"
rack:
  hosts:
    b:
    c:
"""


def test_a_written_inventory_is_read_back_unchanged():
    """Names and values that YAML would take for something else survive."""
    entries = [HostEntry("gpu1", {"ansible_host": "10.0.0.1", "ansible_port": 2222}), HostEntry("007"), HostEntry("no")]

    assert yaml.safe_load(hosts_text(entries)) == {
        "gpu_nodes": {"hosts": {"gpu1": {"ansible_host": "10.0.0.1", "ansible_port": 2222}, "007": None, "no": None}}
    }
    variables = {"cluster_name": "on", "ansible_user": "a b", "ansible_become": True, "n": ["10.0.0.0/8"], "v": "1.5"}
    assert yaml.safe_load(group_vars_text(variables)) == variables


def test_adding_hosts_changes_no_other_line():
    """--add inserts lines after the last host, with the file's own indentation, and changes no other line."""
    text = with_hosts(EDITED, [HostEntry("d", {"ansible_host": "10.0.0.4"})], FILE)

    new = "        d:\n            ansible_host: 10.0.0.4\n"
    assert text == EDITED.replace("{cluster_rack: r2}\n", "{cluster_rack: r2}\n" + new)


def test_hosts_can_be_added_to_a_file_without_a_final_newline():
    """The first added line does not end up on the last line of the file."""
    text = with_hosts("gpu_nodes:\n  hosts:\n    a:", [HostEntry("b")], FILE)

    assert yaml.safe_load(text) == {"gpu_nodes": {"hosts": {"a": None, "b": None}}}


def test_removing_hosts_changes_no_other_line():
    """--remove takes a host's lines out of every group and keeps comments of others."""
    text = without_hosts(EDITED, ["a", "c"], FILE)

    assert yaml.safe_load(text) == {
        "gpu_nodes": {"hosts": {"b": None}, "vars": {"x": "{{ y }}"}},
        "rack": {"hosts": {"b": None}},
    }
    assert "# my comment" in text
    assert "# after the hosts" in text
    assert "about the slots" not in text


@pytest.mark.parametrize("text", ["gpu_nodes:\n  hosts: {a: }\n", "gpu_nodes:\n  hosts:\n", "[gpu]\na\n"])
def test_a_file_that_cannot_be_edited_is_refused_with_the_lines_to_add(text):
    """Instead of rewriting a file in its own way, --add names the lines to add by hand."""
    with pytest.raises(InventoryError) as caught:
        with_hosts(text, [HostEntry("b")], FILE)

    assert "hosts.yml" in caught.value.message
    assert "b:" in (caught.value.remedy or "")


def test_removing_a_host_removes_only_its_own_keys():
    """Keys are matched by the host's name in the comment or by an address that no other host has."""
    text = "10.0.0.1 t AAA gpu1\n10.0.0.2,x t BBB gpu2\n# note\n10.0.0.3 t CCC\n10.0.0.4 t DDD\n"

    assert without_keys(text, ["gpu1"], {"10.0.0.3"}) == "10.0.0.2,x t BBB gpu2\n# note\n10.0.0.4 t DDD\n"
