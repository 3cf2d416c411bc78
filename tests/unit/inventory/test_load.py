"""This runs ansible-inventory itself, which takes its time: what needs more runs is in tests/integration."""

from pathlib import Path

import pytest

from provision.errors import InventoryError, UsageError
from provision.inventory import load, resolve

BAD = """\
gpu_nodes:
  hosts:
    b: {ansible_host: 10.0.0.1, cluster_slots: x}
    a: {ansible_host: 10.0.0.1}
empty: {hosts: {}}
"""


def test_all_problems_are_reported_with_file_and_line(roles, write):
    """One run shows all errors, so that an inventory is not fixed error by error."""
    folder = write(hosts_yml=BAD, group_vars__all_yml="docker_engine_enabeld: true\n")

    with pytest.raises(InventoryError) as caught:
        load(folder, roles=roles)

    unknown = "unknown variable: no role has it; did you mean docker_engine_enabled?"
    lines = [line.strip() for line in caught.value.message.splitlines()]
    assert caught.value.exit_code == 2
    assert lines == [
        f"{folder} has 4 problems:",
        "the group empty has no hosts",
        f"{folder}/hosts.yml:4: ansible_host: b and a have the same address, 10.0.0.1",
        f"{folder}/hosts.yml:3: cluster_slots: must be a whole number, not 'x'",
        f"{folder}/group_vars/all.yml:1: docker_engine_enabeld: {unknown}",
    ]


def test_variable_files_that_ansible_never_reads_are_reported(roles, write):
    """Otherwise a misplaced vault looks like an undefined variable, and hidden settings like an unknown host key."""
    folder = write(
        hosts_yml="gpu_nodes: {hosts: {a: {}}}\n",
        group_vars__vault_yml="a: 1\n",
        group_vars__gpu_nodes_yml="cluster_slots: 2\n",
        group_vars__all_yml="cluster_slots: 3\n",
        group_vars__all__vault_yml="cluster_name: prod\n",
    )

    cluster = load(folder, roles=roles)

    assert [warning.removeprefix(f"{folder}/group_vars/") for warning in cluster.warnings] == [
        "all.yml: Ansible reads the folder all beside this file instead, so the file has no effect",
        "vault.yml: no group is named vault, so this file has no effect; there are all, gpu_nodes",
    ]


def test_a_missing_inventory_has_a_remedy(tmp_path):
    """The remedy is the command that makes an inventory."""
    with pytest.raises(InventoryError) as caught:
        load(tmp_path / "none")

    assert "provision init" in (caught.value.remedy or "")


def test_the_only_inventory_is_the_default(tmp_path, monkeypatch):
    """Without -i the one inventory under ./inventories is used; example does not count, and two are a question."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROVISION_INVENTORY", raising=False)
    for name in ("example", "prod"):
        (tmp_path / "inventories" / name).mkdir(parents=True)
        (tmp_path / "inventories" / name / "hosts.yml").touch()

    assert resolve(None, None) == Path("inventories/prod")
    assert resolve("other.ini", None) == Path("other.ini")
    monkeypatch.setenv("PROVISION_INVENTORY", "from/env")
    assert resolve(None, None) == Path("from/env")
    monkeypatch.delenv("PROVISION_INVENTORY")
    (tmp_path / "inventories" / "second").touch()
    with pytest.raises(UsageError, match="prod, second"):
        resolve(None, None)
