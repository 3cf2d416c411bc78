import pytest

from provision.errors import UsageError
from provision.inventory.init import InitRequest, create
from tests.support.person import BLOB, Person


def test_a_refused_init_leaves_no_files(tmp_path):
    """A refusal leaves no folder behind, not even an empty one."""

    class Refuses(Person):
        def approve(self, _pinned):
            """Refuse."""
            raise UsageError("no")

    keys = tmp_path / "keys"
    keys.write_text(f"10.0.0.1 ssh-ed25519 {BLOB}\n")

    with pytest.raises(UsageError, match="no"):
        create(InitRequest(("a=10.0.0.1",), known_hosts=keys, folder=tmp_path / "inventories"), Refuses())

    assert not (tmp_path / "inventories").exists()


def test_an_existing_inventory_is_not_overwritten(tmp_path):
    """init points at --add and --remove instead."""
    (tmp_path / "cluster").mkdir()

    with pytest.raises(UsageError, match="already exists"):
        create(InitRequest(("a",), folder=tmp_path), Person())


def test_an_inventory_contains_pinned_keys_and_login_settings(tmp_path):
    """The output of init is loaded unchanged: user, sudo, addresses, and the folder's own known_hosts file."""
    keys = tmp_path / "keys"
    keys.write_text(f"10.0.0.1 ssh-ed25519 {BLOB}\n[10.0.0.2]:2222 ssh-ed25519 {BLOB}\n")
    folder = tmp_path / "inventories"
    request = InitRequest(("a=10.0.0.1", "b=10.0.0.2:2222"), name="n", user="op", known_hosts=keys, folder=folder)

    cluster = create(request, Person()).cluster

    first, second = (node.connection for node in cluster.nodes)
    assert (cluster.name, cluster.inventory) == ("n", folder / "n")
    assert (first.host, first.port, first.user, first.become) == ("10.0.0.1", None, "op", True)
    assert second.port == 2222
    assert first.known_hosts == folder / "n" / "known_hosts.txt"
    assert [line.split()[0] for line in first.known_hosts.read_text().splitlines()] == ["10.0.0.1", "[10.0.0.2]:2222"]
    assert [path.name for path in folder.iterdir()] == ["n"]
