"""The modules of the roles training_container and container_ssh, without a node."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.modules import load

ROLES = Path(__file__).resolve().parents[2] / "roles"
ENTRYPOINT = "/bin/sh /usr/local/lib/provision/container-entrypoint"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA"


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
    """Init, the entrypoint, sshd, logins without a command and zombies are no jobs."""
    jobs = node.jobs(IDLE, 100, managed=True)

    assert jobs == []


def test_processes_of_logins_and_docker_exec_are_jobs() -> None:
    """Jobs are processes of a login or of docker exec, or were adopted by init. Their arguments are not reported."""
    started = {
        110: (103, "python3", "R", "python3 train.py"),
        111: (1, "orted", "S", "orted -mca ess env"),
        112: (100, "rank", "D", "./rank"),
    }

    jobs = node.jobs(IDLE | started, 100, managed=True)

    assert jobs == [
        {"pid": 110, "command": "python3"},
        {"pid": 111, "command": "orted"},
        {"pid": 112, "command": "rank"},
    ]


def test_the_first_process_of_a_manually_created_container_is_a_job() -> None:
    """A container that this role did not make is not taken for idle."""
    jobs = node.jobs({7: (1, "python3", "S", "python3 train.py")}, 7, managed=False)

    assert jobs == [{"pid": 7, "command": "python3"}]


def test_a_manually_created_container_that_idles_has_no_job() -> None:
    """Its idle main process is not a job; every other process is."""
    up = {
        7: (1, "docker-init", "S", "docker-init -- sh -c 'sleep infinity'"),
        8: (7, "sh", "S", "sh -c sleep infinity; true"),
        9: (8, "sleep", "S", "sleep infinity"),
    }
    execs = {20: (1, "bash", "S", "bash"), 21: (20, "sleep", "S", "sleep 60")}

    assert node.jobs(up, 7, managed=False) == []
    assert [job["pid"] for job in node.jobs(up | execs, 7, managed=False)] == [20, 21]


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
    """The uverbs devices and rdma_cm are mounted; umad and issm, which subnet managers use, are not."""
    sys, dev = rdma(
        tmp_path, {"mlx5_0": b"", "mlx5_1": b""}, devices=["uverbs0", "uverbs1", "rdma_cm", "umad0", "issm0"]
    )

    devices, reductions = node.rdma_devices([], sys, dev)

    assert (devices, reductions) == ([f"{dev}/uverbs0", f"{dev}/uverbs1", f"{dev}/rdma_cm"], [])


def test_devices_excluded_from_the_container_are_reported(tmp_path: Path) -> None:
    """NVSwitch management ports, excluded cards and missing device files are excluded, each with its reason."""
    cards = {"mlx5_0": b"", "mlx5_1": b"\0SW_MNG\0", "mlx5_2": b"", "mlx5_3": b""}
    sys, dev = rdma(tmp_path, cards, devices=["uverbs0", "uverbs1", "uverbs2"])

    devices, reductions = node.rdma_devices(["mlx5_2"], sys, dev)

    assert devices == [f"{dev}/uverbs0"]
    assert [line.split(":")[0] for line in reductions] == ["mlx5_1", "mlx5_2", "mlx5_3", "rdma_cm"]


def test_known_lines_are_assigned_to_nodes_by_their_comment(tmp_path: Path) -> None:
    """Lines of known_hosts and authorized_keys are found again by their comment; anything else is dropped."""
    file = tmp_path / "known_hosts"
    file.write_text(f"# comment\n[gpu1]:2222,[10.0.0.1]:2222 {KEY} gpu1\n{KEY} gpu2\ncommand=x y {KEY} gpu3\n\n")

    lines = keys.lines_by_node(file)

    assert lines == {"gpu1": f"[gpu1]:2222,[10.0.0.1]:2222 {KEY} gpu1", "gpu2": f"{KEY} gpu2"}


def test_links_and_pipes_in_place_of_key_files_are_not_read(tmp_path: Path) -> None:
    """Reading the key files follows no link and waits for no pipe."""
    (tmp_path / "target").write_text(f"{KEY} gpu1\n")
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")

    assert keys.lines_by_node(tmp_path / "link") == {}
    assert keys.lines_by_node(tmp_path / "pipe") == {}


HOSTILE = [
    "sshd=/usr/sbin/sshd;reboot",
    "sshd=sshd -t; reboot",
    "ssh=alias ssh='x'",
    "user=*",
    "user=root\u2028PermitRootLogin",
    "uid=0 --privileged",
    "gid=$(id)",
    "loaded=../../x",
]


@pytest.mark.parametrize("line", HOSTILE)
def test_invalid_values_reported_by_a_container_are_dropped(line: str) -> None:
    """A value that is no path, name, number or hash is as good as none."""
    assert keys.valid_output(line) == {}


def test_valid_values_reported_by_a_container_are_accepted() -> None:
    """Paths, account, ids and settings of an ordinary container are taken as they are."""
    good = (
        "user=train.er-1\nuid=1000\ngid=100\nsshd=/usr/sbin/sshd\nssh-keygen=/opt/x.y/ssh-keygen\nloaded=00aa11bb22cc\n"
    )

    assert "\n".join(f"{key}={value}" for key, value in keys.valid_output(good).items() if key) + "\n" == good


def container(*mounts: tuple[str, bool]) -> dict[str, Any]:
    """Return the description by docker of a running container with these mounts."""
    return {
        "State": {"Running": True},
        "Mounts": [{"Destination": place, "RW": writable} for place, writable in mounts],
    }


def test_a_container_with_writable_files_outside_its_key_folder_is_refused() -> None:
    """Only the folder of the keys may be the container's own: one of the older layout is to be replaced."""
    right = container(("/etc/provision/ssh", False), ("/etc/provision/ssh/keys", True))

    assert keys.obstacle(right, "x") == ""
    assert "Apply that role" in keys.obstacle(container(("/etc/provision/ssh", True)), "x")


class FakeModule:
    """A node outside of check mode."""

    check_mode = False


def test_keys_of_the_older_layout_are_moved(tmp_path: Path) -> None:
    """They move to the folder of the keys, once, and a link among them stays where it is."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "id_ed25519").write_text("old")
    (tmp_path / "ssh_host_ed25519_key").symlink_to("/etc/shadow")

    assert keys.move_older_keys(FakeModule(), tmp_path)
    assert (tmp_path / "keys" / "id_ed25519").read_text() == "old"
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["id_ed25519"]
    assert not keys.move_older_keys(FakeModule(), tmp_path)


def run_as_account(folder: Path, mode: str) -> dict[str, str]:
    """Run the account's script on a folder of this machine instead of a container's."""
    script = keys.ACCOUNT_SCRIPT.replace("/etc/provision/ssh/keys", str(folder))
    done = subprocess.run(
        ["sh", "-s", "--", mode], input=script, capture_output=True, text=True, timeout=60, check=True
    )
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())


def test_keys_are_created_once_and_links_are_not_followed(tmp_path: Path) -> None:
    """Links and pipes in place of keys are replaced by new keys; the target of a link keeps its content and mode."""
    folder, other = tmp_path / "keys", tmp_path / "other"
    folder.mkdir()
    other.write_text("mine")
    other.chmod(0o644)
    (folder / "id_ed25519").symlink_to(other)
    os.mkfifo(folder / "ssh_host_ed25519_key")
    os.mkfifo(folder / "sshd-000000000000.pid")

    looked = run_as_account(folder, "check")
    made = run_as_account(folder, "generate")
    again = run_as_account(folder, "generate")

    assert looked == {"changed": "id_ed25519"}
    assert "changed" in made
    assert "changed" not in again
    assert all(made[name] == again[name] and keys.public_key(again[name]) for name in keys.PAIRS)
    assert (other.read_text(), stat.S_IMODE(other.stat().st_mode)) == ("mine", 0o644)
    assert stat.S_IMODE((folder / "id_ed25519").lstat().st_mode) == 0o600


def test_the_settings_file_of_the_running_sshd_is_reported(tmp_path: Path) -> None:
    """The PID file of a running sshd names its settings; a stale one does not count."""
    program = tmp_path / "sshd"
    program.symlink_to("/bin/sleep")
    (tmp_path / "sshd-000000000001.pid").write_text("99999999\n")
    with subprocess.Popen([program, "60"]) as process:
        (tmp_path / "sshd-00000000000a.pid").write_text(f"{process.pid}\n")
        try:
            result = run_as_account(tmp_path, "check")
        finally:
            process.kill()

    assert result["loaded"] == "00000000000a"


def test_values_reported_by_a_container_reach_no_shell_of_the_node() -> None:
    """The check of sshd_config is a constant command; only the container's own shell runs it."""
    files = yaml.safe_load((ROLES / "container_ssh" / "vars" / "main.yml").read_text())["__container_ssh_files"]
    [command] = [item["validate"] for item in files if "validate" in item]

    words = shlex.split(command.replace("{{ container_ssh_container | quote }}", "NAME"))
    assert words[:5] == ["docker", "exec", "NAME", "sh", "-c"]
    assert "__container_ssh_keys" not in command


def test_a_login_gets_the_environment_without_secrets() -> None:
    """Logins get the variables of the image, except secrets, login variables and values that sshd could misread."""
    exported = keys.login_environment(
        [
            "PATH=/opt/mpi/bin:/bin",
            "A=b=c",
            "HOME=/x",
            "WANDB_API_KEY=1",
            "my_token=2",
            'Q=a"b',
            "N=a\nb",
            "L=a\n",
            "E=",
        ]
    )

    assert exported == {"PATH": "/opt/mpi/bin:/bin", "A": "b=c"}


@pytest.mark.parametrize(
    "pair",
    [
        "DB_PASS=1", "MYSQL_PWD=1", "WANDB_KEY=1", "BASIC_AUTH=1", "APIKEY=1", "SSH_KEYS=1", "SENTRY_DSN=1",
        "MY_PASSPHRASE=1", "HTTP_PROXY=http://user:pw@proxy:3128", "STORE=s3+https://:pw@host/x", "XAUTHORITY=1",
        "HF_TOKEN=1",
    ],
)  # fmt: skip
def test_variables_with_secret_names_are_not_exported_to_logins(pair: str) -> None:
    """Names of keys, passwords and credentials in their usual spellings, and addresses with a password."""
    assert keys.login_environment([pair]) == {}


@pytest.mark.parametrize(
    "pair",
    [
        "TOKENIZERS_PARALLELISM=false",
        "GIT_AUTHOR_NAME=a",
        "KEYBOARD=us",
        "HTTP_PROXY=http://proxy:3128/a@b",
        "BYPASSED=1",
    ],
)
def test_variables_without_secrets_are_exported_to_logins(pair: str) -> None:
    """An address with a port is no password, and an author no authorisation."""
    assert list(keys.login_environment([pair])) == [pair.partition("=")[0]]


def container_tasks() -> list[dict[str, Any]]:
    """The tasks that hand the environment to docker."""
    text = (ROLES / "training_container" / "tasks" / "service.yml").read_text()
    return [task for task in yaml.safe_load(text) if "training_container" in task]


def test_tasks_that_use_the_environment_have_no_log() -> None:
    """Whatever a variable is called, its value is in no output."""
    assert [task.get("no_log") for task in container_tasks()] == [True, True]


def test_the_default_profile_drops_unneeded_capabilities() -> None:
    """Raw packets on the node's network and device nodes of its own making are not for jobs."""
    role = ROLES / "training_container"
    profiles = yaml.safe_load((role / "vars" / "main.yml").read_text())["__training_container_profiles"]
    dropped = yaml.safe_load((role / "defaults" / "main.yml").read_text())["training_container_dropped_capabilities"]

    assert dropped == ["MKNOD", "NET_RAW"]
    assert profiles["default"]["devices"].endswith(":rw') }}")
    assert profiles["privileged"]["dropped_capabilities"] == []
    assert all(
        "dropped_capabilities" in task["training_container"]["dropped_capabilities"] for task in container_tasks()
    )


def test_a_receipt_contains_no_environment_values() -> None:
    """It has names of the environment, neither values nor their hash."""
    tasks = yaml.safe_load((ROLES / "training_container" / "tasks" / "main.yml").read_text())
    inputs = tasks[-1]["vars"]["platform_receipt_inputs"]

    assert [name for name, value in inputs.items() if "training_container_env" in value] == ["env"]
    assert inputs["env"] == "{{ training_container_env | list | sort }}"


def test_only_a_single_public_key_is_exchanged() -> None:
    """A public key of a container is one key, without text that could add a line or an option."""
    assert [keys.public_key(f"{KEY} root@gpu1"), keys.public_key("ssh-rsa AAAA"), keys.public_key("")] == [KEY, "", ""]
