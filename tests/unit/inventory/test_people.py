"""``cluster_operators`` and ``cluster_submitters``."""

import base64
import json
import struct
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.errors import InventoryError
from provision.inventory import load
from provision.inventory.people import people
from provision.inventory.people_entries import people as entries
from provision.inventory.people_entries import public_key
from provision.model.people import Person


def blob(kind, *parts):
    """Return the base64 of an SSH key blob."""
    data = b"".join(struct.pack(">I", len(part)) + part for part in (kind.encode(), *parts))
    return base64.b64encode(data).decode()


ALICE = f"ssh-ed25519 {blob('ssh-ed25519', b'a' * 32)}"
BOB = f"ssh-ed25519 {blob('ssh-ed25519', b'b' * 32)}"
SHORT_RSA = "ssh-rsa " + blob("ssh-rsa", b"\x01\x00\x01", b"\x00" + b"\xff" * 128)


def inventory(write, operators=(), submitters=(), host=None):
    """An inventory with two nodes and people."""
    hosts = {"a": {"ansible_host": "192.0.2.1"}, "b": {"ansible_host": "192.0.2.2", **(host or {})}}
    return write(
        hosts_yml=json.dumps({"all": {"hosts": hosts}}),
        group_vars__all_yml=json.dumps({"cluster_operators": operators, "cluster_submitters": submitters}),
    )


def test_users_are_read_from_the_inventory(write):
    """Operators and submitters come with their keys, without comments, and submitters with their accounts."""
    operators = [{"name": "alice", "key": f"{ALICE} alice@home office"}]
    path = inventory(write, operators, [{"name": "bob", "key": BOB, "user": "1001:1001,44"}])

    assert people(load(path)) == {
        "alice": Person("alice", ALICE, "operator"),
        "bob": Person("bob", BOB, "submitter", "1001:1001,44"),
    }


@pytest.mark.parametrize(
    ("operators", "submitters", "says"),
    [
        ([{"name": "Alice", "key": ALICE}], [], "cluster_operators: entry 1: name: 'Alice' is not a name"),
        ([{"name": "a b", "key": ALICE}], [], "entry 1: name: 'a b' is not a name"),
        ([{"name": "a\n", "key": ALICE}], [], r"entry 1: name: 'a\n' is not a name"),
        ([{"name": "a", "key": "nothing"}], [], "'nothing' is not a supported type of SSH public key"),
        ([{"name": "a", "key": "ssh-dss AAAA"}], [], "'ssh-dss' is not a supported type"),
        ([{"name": "a", "key": "ssh-ed25519 AA!A"}], [], "the ssh-ed25519 key is not valid base64"),
        ([{"name": "a", "key": "ssh-ed25519 AAAA"}], [], "the ssh-ed25519 key is incomplete"),
        ([{"name": "a", "key": "ssh-rsa " + ALICE.split()[1]}], [], "contains a key of another type"),
        ([{"name": "a", "key": SHORT_RSA}], [], "fewer than 2048 bits"),
        ([{"name": "a", "key": f'command="sh" {ALICE}'}], [], "is not a supported type"),
        ([{"name": "a", "key": f"{ALICE}\n{BOB}"}], [], "must be one line"),
        ([{"name": "a", "key": ALICE}], [{"name": "a", "key": BOB, "user": "1:1"}], "name: 'a' is also the name of"),
        ([{"name": "a", "key": ALICE}], [{"name": "b", "key": ALICE, "user": "1:1"}], "key: it is also the key of"),
        ([], [{"name": "b", "key": BOB, "user": "0:0"}], "user: '0:0' is not UID:GID"),
        ([], [{"name": "b", "key": BOB, "user": "1000:0"}], "user: '1000:0' is not UID:GID"),
        ([], [{"name": "b", "key": BOB, "user": "4294967295:1"}], "is not UID:GID"),
        ([], [{"name": "b", "key": BOB, "user": "bob"}], "user: 'bob' is not UID:GID"),
        ([], [{"name": "b", "key": BOB}], "'user' is missing"),
        ([{"name": "a", "key": ALICE, "user": "root"}], [], "'user' is an unknown key"),
        (["alice"], [], "entry 1: must be a mapping"),
        ("alice", [], "must be a list"),
        ([{"name": "a", "key": "{{ nothing_there }}"}], [], "its Jinja cannot be rendered"),
    ],
)
def test_an_invalid_user_is_refused_with_variable_and_entry(write, operators, submitters, says):
    """A name, key or account that could mean something else in a file of a node never gets there."""
    with pytest.raises(InventoryError) as failed:
        load(inventory(write, operators, submitters))

    assert says in str(failed.value)


def test_different_users_on_nodes_are_refused(write):
    """A node that knows other people than the rest is a mistake."""
    path = inventory(write, [{"name": "alice", "key": ALICE}], host={"cluster_operators": []})

    with pytest.raises(InventoryError, match="cluster_operators: differs from a"):
        load(path)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_keys_of_ssh_keygen_are_accepted(tmp_path, kind):
    """Every kind of key that OpenSSH makes today is accepted, and its comment is dropped."""
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "a comment", "-f", path], check=True)
    text = path.with_suffix(".pub").read_text()

    assert public_key(text) == " ".join(text.split()[:2])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.text() | st.integers(),
    lambda one: st.lists(one) | st.dictionaries(st.sampled_from(["name", "key", "user", "x"]), one),
)


@settings(deadline=None)
@given(ANYTHING)
def test_any_value_is_a_user_or_refused(value):
    """Nothing but ValueError comes of any value."""
    for variable in ("cluster_operators", "cluster_submitters"):
        try:
            entries({variable: value})
        except ValueError:
            continue
        assert not value
