"""The modules of the roles training_container and container_ssh: what they decide, without a node."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROLES = Path(__file__).resolve().parents[2] / "roles"
ENTRYPOINT = "/bin/sh /usr/local/lib/provision/container-entrypoint"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA"


def load(role: str, name: str) -> ModuleType:
    """Load a role's module as Python."""
    spec = importlib.util.spec_from_file_location(name, ROLES / role / "library" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


node = load("training_container", "training_container_node")
keys = load("container_ssh", "container_ssh_keys")

IDLE = {
    100: (1, "docker-init", "S", "/sbin/docker-init -- /usr/local/lib/provision/container-entrypoint"),
    101: (100, "container-entry", "S", ENTRYPOINT),
    102: (101, "sshd", "S", "sshd: /usr/sbin/sshd -D [listener]"),
    103: (102, "sshd", "S", "sshd: root@notty"),
    104: (102, "sshd-session", "S", "sshd-session: root [priv]"),
    105: (100, "sleep", "Z", ""),
}


def test_a_container_with_idle_logins_has_no_job() -> None:
    """Init, the entrypoint, sshd, logins without a command and the dead are nobody's work."""
    found = node.jobs(IDLE, 100, ours=True)

    assert found == []


def test_what_a_login_or_an_exec_started_is_a_job() -> None:
    """Jobs are below a login, came by docker exec, or were left to init. They are named without their arguments."""
    started = {
        110: (103, "python3", "R", "python3 train.py"),
        111: (1, "orted", "S", "orted -mca ess env"),
        112: (100, "rank", "D", "./rank"),
    }

    found = node.jobs(IDLE | started, 100, ours=True)

    assert found == [
        {"pid": 110, "command": "python3"},
        {"pid": 111, "command": "orted"},
        {"pid": 112, "command": "rank"},
    ]


def test_the_first_process_of_a_container_made_by_hand_is_a_job() -> None:
    """A container that this role did not make is not taken for idle."""
    found = node.jobs({7: (1, "python3", "S", "python3 train.py")}, 7, ours=False)

    assert found == [{"pid": 7, "command": "python3"}]


def rdma(folder: Path, cards: dict[str, bytes], *, devices: list[str]) -> tuple[str, str]:
    """Lay out a /sys and a /dev with these cards and device files."""
    sys, dev = folder / "sys", folder / "dev"
    dev.mkdir(parents=True)
    for number, (card, data) in enumerate(cards.items()):
        place = sys / "class" / "infiniband_verbs" / f"uverbs{number}"
        (place / "device").mkdir(parents=True)
        (place / "ibdev").write_text(card + "\n")
        (place / "device" / "vpd").write_bytes(data)
    for name in devices:
        (dev / name).symlink_to("/dev/null")
    return str(sys), str(dev)


def test_the_container_gets_the_compute_cards_and_the_connection_manager(tmp_path: Path) -> None:
    """The uverbs devices and rdma_cm are handed in; umad and issm, the subnet manager's, are not."""
    sys, dev = rdma(
        tmp_path, {"mlx5_0": b"", "mlx5_1": b""}, devices=["uverbs0", "uverbs1", "rdma_cm", "umad0", "issm0"]
    )

    found, left_out = node.rdma_devices([], sys, dev)

    assert (found, left_out) == ([f"{dev}/uverbs0", f"{dev}/uverbs1", f"{dev}/rdma_cm"], [])


def test_what_is_left_out_of_the_container_is_said(tmp_path: Path) -> None:
    """NVSwitch management ports, excluded cards and missing device files are left out, each with its reason."""
    cards = {"mlx5_0": b"", "mlx5_1": b"\0SW_MNG\0", "mlx5_2": b"", "mlx5_3": b""}
    sys, dev = rdma(tmp_path, cards, devices=["uverbs0", "uverbs1", "uverbs2"])

    found, left_out = node.rdma_devices(["mlx5_2"], sys, dev)

    assert found == [f"{dev}/uverbs0"]
    assert [line.split(":")[0] for line in left_out] == ["mlx5_1", "mlx5_2", "mlx5_3", "rdma_cm"]


def test_known_lines_are_kept_by_the_node_they_name(tmp_path: Path) -> None:
    """Lines of known_hosts and authorized_keys are found again by their comment; anything else is dropped."""
    file = tmp_path / "known_hosts"
    file.write_text(f"# comment\n[gpu1]:2222,[10.0.0.1]:2222 {KEY} gpu1\n{KEY} gpu2\ncommand=x y {KEY} gpu3\n\n")

    found = keys.lines_by_node(file)

    assert found == {"gpu1": f"[gpu1]:2222,[10.0.0.1]:2222 {KEY} gpu1", "gpu2": f"{KEY} gpu2"}


def test_a_link_planted_in_the_container_is_not_followed(tmp_path: Path) -> None:
    """The folder is writable from inside the container: reading it never leads out of it."""
    (tmp_path / "target").write_text(f"{KEY} gpu1\n")
    (tmp_path / "link").symlink_to("target")

    assert keys.lines_by_node(tmp_path / "link") == {}


def test_a_login_gets_the_environment_but_no_secrets() -> None:
    """Variables of the image reach logins, except secrets, what a login sets itself and what sshd could misread."""
    found = keys.environment(
        ["PATH=/opt/mpi/bin:/bin", "A=b=c", "HOME=/x", "WANDB_API_KEY=1", "my_token=2", 'Q=a"b', "N=a\nb", "E="]
    )

    assert found == {"PATH": "/opt/mpi/bin:/bin", "A": "b=c"}


def test_only_a_whole_public_key_is_handed_on() -> None:
    """What a container calls its public key is one key and nothing that could add a line or an option."""
    assert [keys.public(f"{KEY} root@gpu1"), keys.public("ssh-rsa AAAA"), keys.public("")] == [KEY, "", ""]
