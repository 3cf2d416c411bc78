"""The lock file of a stack beside an inventory: untrusted, read strictly, and written in the same form."""

from __future__ import annotations

import stat

import pytest

from provision.documents.stack_lock import MOST_BYTES, document_of, stack_of
from provision.errors import InventoryError, NodeError
from provision.inventory import load
from provision.inventory.listing import list_inventory
from provision.inventory.stack_lock import lock_path, read_stack_lock, write_stack_lock
from provision.model.stack import Stack, StackPart

DIGEST = f"sha256:{'a' * 64}"
STACK = Stack(
    "debian_12",
    "x86_64",
    {
        "kernel": StackPart("6.1.0-28-amd64"),
        "rdma": StackPart("inbox", {"rdma-core": "44.0-2"}),
        "driver": StackPart("535.183"),
        "docker": StackPart("20.10.24+dfsg1", {"containerd": "1.6.20~ds1-1+b2", "docker.io": "20.10.24+dfsg1-1"}),
        "image": StackPart(DIGEST),
    },
    "gpu1",
    ("driver-535-kernel-6.12",),
)
TEXT = """\
format: 1
system: debian_12
architecture: x86_64
components:
  kernel: {version: 6.1.0-28-amd64}
"""
HOSTS = "gpu_nodes: {hosts: {gpu1: {}}}\n"


def test_a_written_lock_is_read_again(tmp_path):
    """Also a version that YAML would read as a number. Everybody can read it: it is versioned with the inventory."""
    path = tmp_path / "stack.lock.yml"
    write_stack_lock(path, STACK)

    assert read_stack_lock(path) == STACK
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_lock_is_in_the_folder_of_the_inventory(tmp_path):
    """For a file and for its folder."""
    (tmp_path / "hosts.yml").touch()

    assert lock_path(tmp_path) == lock_path(tmp_path / "hosts.yml") == tmp_path / "stack.lock.yml"


def test_an_inventory_has_its_lock(roles, write):
    """Ansible ignores the file; without it, there is no lock."""
    folder = write(hosts_yml=HOSTS)
    without = load(folder, roles=roles)
    (folder / "stack.lock.yml").write_text(TEXT)

    assert without.stack_lock is None
    assert list(list_inventory(folder).hosts) == ["gpu1"]
    for path in (folder, folder / "hosts.yml"):
        lock = load(path, roles=roles).stack_lock
        assert lock is not None
        assert lock.version("kernel") == "6.1.0-28-amd64"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "a: [",
        "format: 2\n" + TEXT.partition("\n")[2],
        TEXT + "more: 1\n",
        TEXT + "system: debian_13\n",
        TEXT.replace("kernel:", "kernel: &a").replace("6.1.0-28-amd64}", "6.1.0-28-amd64}\n  headers: *a"),
        TEXT + "  rdma: {version: 5.8}\n",
        TEXT + "  rdma: {version: '-o'}\n",
        TEXT + "  rdma: {version: inbox, packages: {'-o': '1'}}\n",
        TEXT + "  rdma: {version: inbox, packages: {rdma-core: '1; reboot'}}\n",
        TEXT + "  rdma: {version: inbox, packages: {rdma-core: '44.0-2-'}}\n",  # apt-get would remove it
        TEXT + "  rdma: {version: inbox, packages: {rdma-core: '44.0-2+'}}\n",
        TEXT + "  rdma: {version: inbox, packages: {rdma-core-: '44.0-2'}}\n",
        TEXT + '  rdma: {version: inbox, packages: {rdma-core: "1\\n"}}\n',
        TEXT + "  rdma: {version: inbox, packages: {rdma-core: '{{ 1 }}'}}\n",
        TEXT + "  rdma: {version: inbox, extra: 1}\n",
        TEXT + "  image: {version: latest}\n",
        TEXT + "  kernel: {version: ../6.1}\n",
        TEXT.replace("6.1.0-28-amd64", "../6.1"),
        TEXT + "  bios: {version: '1'}\n",
        TEXT.replace("debian_12", "../debian_12"),
        TEXT + "  rdma: {version: inbox, packages: {" + ", ".join(f"p{n}: '1'" for n in range(300)) + "}}\n",
        "[" * 60000,
        "{a: " * 15000,
        TEXT + "#" * MOST_BYTES,
        "format: !!python/object/apply:os.system ['true']\n",
    ],
)  # fmt: skip
def test_what_is_not_a_lock_is_refused(tmp_path, text):
    """With the file and the cause; nothing of it is used."""
    path = tmp_path / "stack.lock.yml"
    path.write_text(text)

    with pytest.raises(InventoryError) as caught:
        read_stack_lock(path)
    assert caught.value.code == "stack.lock.invalid"
    assert "stack.lock.yml" in caught.value.message
    assert "\n" not in caught.value.message


def test_bytes_that_are_no_text_are_refused(tmp_path):
    """As a folder in the place of the file is."""
    (tmp_path / "a").write_bytes(b"\xff\xfe")
    (tmp_path / "b").mkdir()

    for name in ("a", "b"):
        with pytest.raises(InventoryError):
            read_stack_lock(tmp_path / name)


def test_a_locked_combination_that_is_known_not_to_work_is_refused(tmp_path):
    """Before any node is contacted."""
    path = tmp_path / "stack.lock.yml"
    path.write_text(TEXT.replace("6.1.0-28-amd64", "6.17.13-2-pve") + "  driver: {version: 550.163.01}\n")

    with pytest.raises(InventoryError) as caught:
        read_stack_lock(path)
    assert caught.value.code == "stack.lock.conflict"
    assert "stack.lock.yml: driver 550.163.01 is known not to work" in caught.value.message
    assert "Use a newer driver, or an older kernel." in caught.value.remedy
    path.write_text(f"{path.read_text()}accepted_conflicts: [driver-550-kernel-6.17]\n")
    assert read_stack_lock(path).version("driver") == "550.163.01"


def test_a_removed_component_is_not_locked(tmp_path):
    """Also the kernel."""
    path = tmp_path / "stack.lock.yml"
    path.write_text(TEXT.replace("kernel: {version: 6.1.0-28-amd64}", "rdma: {version: inbox}"))

    lock = read_stack_lock(path)
    assert lock is not None
    assert list(lock.parts) == ["rdma"]


def test_a_version_that_no_lock_can_have_is_not_written(tmp_path):
    """A node may report anything."""
    odd = Stack("debian_12", "x86_64", {"kernel": StackPart("6.1 $(reboot)")}, "gpu1")

    with pytest.raises(NodeError) as caught:
        write_stack_lock(tmp_path / "x.yml", odd)
    assert caught.value.code == "stack.lock.value"
    assert list(tmp_path.iterdir()) == []


def test_the_document_of_a_stack_is_that_of_the_file():
    """Both directions agree."""
    assert stack_of(document_of(STACK)) == STACK
