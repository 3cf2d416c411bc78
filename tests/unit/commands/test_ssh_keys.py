"""SSH public keys that nodes send: what enters known_hosts and authorized_keys of other nodes."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from provision.batch import mpi
from provision.commands.ssh_keys import public_key_problem, recorded_lines, refused_nodes
from provision.documents import convert
from provision.documents.jobs import Prepared
from provision.errors import NodeError
from provision.jobs import attempt_start


def key(number: int) -> str:
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'ABCDEFGHIJKLMNOP'[number]}{'x' * 42}"


GOOD = key(0)
HOSTILE = {
    "a second line": f"{GOOD}\n* {key(1)}",
    "a line break at the end": f"{GOOD}\n",
    "a carriage return": f"{GOOD}\r* {key(1)}",
    "a line separator": f"{GOOD}\u2028* {key(1)}",
    "options": f'command="reboot" {GOOD}',
    "a marker": f"@cert-authority * {GOOD}",
    "host names": f"gpu1,10.0.0.1 {GOOD}",
    "a comment": f"{GOOD} gpu1",
    "a tab": GOOD.replace(" ", "\t"),
    "two spaces": GOOD.replace(" ", "  "),
    "a space at the end": f"{GOOD} ",
    "another algorithm": f"ssh-rsa {GOOD.split()[1]}",
    "an algorithm inside that differs": "ssh-ed25519 " + "AAAAC3NzaC1kc3M" + "A" * 53,
    "a key that is too short": GOOD[:-4],
    "a key that is too long": f"{GOOD}AAAA",
    "a length inside that differs": GOOD.replace("AAAAI", "AAAAJ"),
    "unused bits inside": GOOD.replace("AAAAIA", "AAAAIQ"),
    "padding": f"{GOOD[:-1]}=",
    "not base64": f"{GOOD[:-1]}!",
    "base64 of URLs": f"{GOOD[:-1]}_",
    "other digits": f"{GOOD[:-1]}\u0664",
    "a megabyte": "ssh-ed25519 " + "A" * (1 << 20),
    "nothing": "",
    "a number": 1,
    "a list": [GOOD],
    "null": None,
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_only_a_single_valid_ed25519_key_is_accepted(value: object) -> None:
    """Everything else that a node may send is refused, and the reason repeats nothing of it."""
    reason = public_key_problem(value)

    assert reason
    assert "\n" not in reason
    assert "AAAA" not in reason


def test_a_key_of_ssh_keygen_is_accepted(tmp_path) -> None:
    """What the node's own ssh-keygen makes passes, whichever key it is."""
    for number in range(8):
        path = tmp_path / str(number)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], check=True)
        assert public_key_problem(path.with_suffix(".pub").read_text().strip()) == ""


def offer(number: int, **changes: object) -> dict[str, object]:
    return {"host_key": key(number), "client_key": key(number + 8), "address": f"10.0.0.{number}", **changes}


def test_only_the_node_with_an_invalid_key_is_refused() -> None:
    """The other nodes' keys are exchanged; the reason names the key."""
    offers = {
        "gpu1": offer(1),
        "gpu2": offer(2, client_key=HOSTILE["options"]),
        "gpu3": offer(3),
        "gpu4": offer(4, address=""),
    }

    refused = refused_nodes(offers)  # type: ignore[arg-type]

    assert sorted(refused) == ["gpu2", "gpu4"]
    assert refused["gpu2"].startswith("its public client key is invalid")
    assert "address" in refused["gpu4"]


@pytest.mark.parametrize("kind", ["host_key", "client_key"])
def test_two_nodes_with_the_same_key_are_both_refused(kind: str) -> None:
    """Neither of the two gets its key into the files of others, and both are named."""
    offers = {"gpu1": offer(1), "gpu2": offer(2, **{kind: offer(1)[kind]}), "gpu3": offer(3)}

    refused = refused_nodes(offers)  # type: ignore[arg-type]

    assert sorted(refused) == ["gpu1", "gpu2"]
    assert refused["gpu1"] == refused["gpu2"]
    assert "gpu1 and gpu2 send the same public" in refused["gpu1"]


def test_recorded_lines_of_earlier_versions_are_checked() -> None:
    """A recorded line stays only if it is one key of its own node: no options, nor names and addresses of others."""
    lines = {
        "gpu1": f"[gpu1]:2222,[10.0.0.1]:2222 {key(1)} gpu1",
        "gpu2": f"[gpu2]:2222,[10.0.0.1]:2222 {key(2)} gpu2",
        "gpu3": f"[gpu3]:2222,[gpu1]:2222 {key(3)} gpu3",
        "gpu4": f"* {key(4)} gpu4",
        "gpu5": f"gpu5,fd00::5 {key(5)} gpu5",
        "gpu6": f"@cert-authority gpu6 {key(6)} gpu6",
    }
    admitted = {"gpu1": f"{key(1)} gpu1", "gpu2": f'command="x" {key(2)} gpu2', "gpu3": f"{key(3)} gpu1"}

    recorded = recorded_lines(lines, list(lines), {"gpu1": "10.0.0.1"}, hosts=True)

    assert sorted(recorded) == ["gpu1", "gpu5"]
    assert recorded_lines(admitted, list(lines), {}, hosts=False) == {"gpu1": f"{key(1)} gpu1"}


ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2"}
PORTS = {"a": 20001, "b": 20002}
KEYS = {"a": {"client": key(1), "host": key(2)}, "b": {"client": key(3), "host": key(4)}}


def test_the_keys_of_a_job_are_exchanged() -> None:
    """Each container knows the host keys of all, by address and port, and admits all."""
    files = mpi.login_files(mpi.logins_of(ADDRESSES, PORTS, KEYS))

    assert files["known_hosts"] == f"[10.0.0.1]:20001 {key(2)}\n[10.0.0.2]:20002 {key(4)}\n"
    assert files["authorized_keys"] == f"restrict,pty {key(1)}\nrestrict,pty {key(3)}\n"


@pytest.mark.parametrize("kind", ["client", "host"])
@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_a_job_does_not_start_with_a_node_whose_key_is_invalid(kind: str, value: object) -> None:
    """The node is named, and nothing that it sent is written."""
    with pytest.raises(NodeError, match=f"public {kind} key of the job is invalid") as caught:
        mpi.logins_of(ADDRESSES, PORTS, {**KEYS, "b": {**KEYS["b"], kind: value}})

    assert caught.value.node == "b"


def test_the_start_of_a_job_checks_what_prepare_returned() -> None:
    """A node answers `prepare` with options before its host key: the start fails and names the node."""
    attempt = SimpleNamespace(
        nodes=list(ADDRESSES), assignments=[SimpleNamespace(node=name, address=ADDRESSES[name]) for name in ADDRESSES]
    )
    answers = {**KEYS, "b": {**KEYS["b"], "host": HOSTILE["options"]}}
    prepared = {name: convert({"keys": keys}, Prepared, node=name, what="answer") for name, keys in answers.items()}

    with pytest.raises(NodeError, match="host key of the job is invalid") as caught:
        attempt_start._logins(attempt, prepared, {name: [port] for name, port in PORTS.items()})  # type: ignore[arg-type]

    assert caught.value.node == "b"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keys": {**KEYS, "b": {**KEYS["b"], "host": KEYS["a"]["host"]}}}, "a and b send the same public host key"),
        (
            {"keys": {**KEYS, "b": {**KEYS["b"], "client": KEYS["a"]["client"]}}},
            "a and b send the same public client key",
        ),
        ({"addresses": {"a": "10.0.0.1", "b": "10.0.0.1"}, "ports": {"a": 22, "b": 22}}, "same address and port"),
        ({"ports": {"a": 22, "b": 0}}, "port for sshd is invalid: 0"),
        ({"ports": {"a": 22, "b": 65536}}, "port for sshd is invalid: 65536"),
    ],
)
def test_nodes_of_a_job_cannot_impersonate_each_other(changes: dict, words: str) -> None:
    """Two nodes with one key, or one address and port, are named and the job does not start."""
    with pytest.raises(NodeError, match=words):
        mpi.logins_of(**{"addresses": ADDRESSES, "ports": PORTS, "keys": KEYS, **changes})
