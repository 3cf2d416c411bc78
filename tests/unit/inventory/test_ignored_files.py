"""Our loader and Ansible ignore the same backups and editor files in an inventory folder."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
from pathlib import Path

import pytest

from provision.inventory.ignored_files import BACKUPS, ignore_patterns, is_ignored
from provision.inventory.listing import ansible_program, list_inventory
from provision.inventory.load import load
from provision.inventory.resolve import candidates
from provision.inventory.sources import inventory_files, variable_files

KEYS = "10.0.0.1 ssh-ed25519 AAAA gpu1\n"
HOSTS = "gpu_nodes:\n  hosts:\n    gpu1:\n      ansible_host: 10.0.0.1\n"
LEFT_BEHIND = [
    "known_hosts.txt.old",
    "known_hosts.txt~",
    "known_hosts.txt.bak",
    "known_hosts.txt.bak2",
    "hosts.orig",
    "hosts.yml.save",
    "hosts.yml.rej",
    "hosts.yml.tmp",
    "hosts.yml.part",
    "hosts.yml.backup",
    "hosts.yml.dpkg-old",
    "hosts.yml.rpmsave",
    "hosts.yml.ucf-dist",
    "hosts.yml.~1~",
    "#hosts.yml#",
    "hosts.yml.swp",
    "hosts.yml.swo",
    ".hosts.yml.swp",
    ".#hosts.yml",
]
PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"


@pytest.fixture
def folder(tmp_path):
    """An inventory of one node, and everything that editors and ssh-keygen leave beside it."""
    made = tmp_path / "cluster"
    (made / "group_vars" / "all").mkdir(parents=True)
    (made / "hosts.yml").write_text(HOSTS)
    (made / "group_vars" / "all" / "main.yml").write_text("cluster_name: good\n")
    for name in LEFT_BEHIND:
        (made / name).write_text(KEYS)
        (made / "group_vars" / "all" / name).write_text("cluster_name: wrong\n")
        (made / "group_vars" / name).write_text("cluster_name: wrong\n")
    return made


def test_backup_files_of_ssh_keygen_and_editors_are_ignored(folder):
    """`ssh-keygen -R` writes known_hosts.txt.old; its lines are not hosts, and no warning is made of them."""
    cluster = load(folder)

    assert [node.name for node in cluster.nodes] == ["gpu1"]
    assert cluster.name == "good"
    assert cluster.warnings == ()


def test_the_loader_reads_the_same_files_as_ansible(folder):
    """A message never points into a file that Ansible did not read."""
    assert [file.name for file in inventory_files(folder)] == ["hosts.yml"]
    assert [file.name for _, _, file in variable_files(folder)] == ["main.yml"]


def test_plain_ansible_with_the_settings_of_the_playbooks_reads_the_same_hosts(folder):
    """`ansible-playbook` without our command gives the same hosts."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment |= {"ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "1"}
    argv = [ansible_program("ansible-inventory"), "-i", str(folder), "--list"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)

    assert list(json.loads(done.stdout)["_meta"]["hostvars"]) == ["gpu1"]


def test_the_settings_of_the_playbooks_have_the_same_pattern():
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=(";",))
    parser.read(PLAYBOOKS / "ansible.cfg")

    assert parser.get("inventory", "ignore_patterns") == BACKUPS


def test_patterns_of_the_operator_are_preserved(folder, tmp_path, monkeypatch):
    """Files that the operator's ansible.cfg ignores are ignored beside the backups."""
    (folder / "notes").write_text("remember: this\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ansible.cfg").write_text("[inventory]\nignore_patterns = ^notes$\n")

    assert list(list_inventory(folder).hosts) == ["gpu1"]
    monkeypatch.setenv("ANSIBLE_INVENTORY_IGNORE_REGEX", "^other$")
    assert ignore_patterns() == f"^other$,{BACKUPS}"


@pytest.mark.parametrize(
    "name", ["hosts.yml", "hosts", "hosts.ini", "old.yml", "gpu.example.com.yml", "backup", "cluster-tmp"]
)
def test_other_files_are_read(name):
    assert not is_ignored(name)


def test_a_backup_of_an_inventory_is_not_another_inventory(tmp_path):
    """`cp -r inventories/prod inventories/prod.old` does not make the choice ambiguous."""
    for name in ("prod", "prod.old", "prod~", "example", "README.md"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hosts.yml").touch()

    assert [path.name for path in candidates(tmp_path)] == ["prod"]
