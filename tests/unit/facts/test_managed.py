"""Current state of managed objects: the probe's program, run on files of the test."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from provision.facts import RawOutput, parse, request
from provision.facts.docker import DockerServiceFact
from provision.facts.managed import Managed, ManagedFact
from provision.node.probe import managed, probe
from tests.support.interpreters import NODE_PYTHON
from tests.support.node.archive import ARCHIVE
from tests.support.node.probe import managed_command, probe_output
from tests.unit.facts.conftest import KEY, Node


def sha(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_file_states_are_read(node: Node) -> None:
    paths = {
        node.file("open", "text"): {"type": "file", "mode": "0644", "sum": sha(b"text")},
        node.file("closed", "text", 0o600): {"type": "file", "mode": "0600", "sum": sha(KEY, b"text")},
        str(node.root / "gone"): {"type": "missing"},
        str(node.root / "open" / "below"): {"type": "missing"},
        str(node.root / "link"): {"type": "link", "mode": "0777"},
        str(node.root / "folder"): {"type": "directory", "mode": "0750"},
        str(node.root / "pipe"): {"type": "other", "mode": "0600"},
    }
    (node.root / "link").symlink_to("open")
    (node.root / "folder").mkdir()
    (node.root / "folder").chmod(0o750)
    os.mkfifo(node.root / "pipe", 0o600)
    mine = {"owner": f"{node.root.owner()}:{node.root.group()}"}

    assert node.seen("files", files={path: {} for path in paths}) == {
        path: {**seen, **(mine if "mode" in seen else {})} for path, seen in paths.items()
    }


def test_an_account_without_a_name_is_a_number(node: Node) -> None:
    """Names come from the node's own files, because a directory service may hang."""
    path = node.file("some", "")
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 54321, 54322)

    assert node.seen("files", files={path: {}})[path]["owner"] == "54321:54322"


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o600), (0o600, 0o644)])
def test_a_changed_mode_does_not_change_the_hash(node: Node, before: int, after: int) -> None:
    path = node.file("some", "text", after)
    recorded = sha(b"text") if before == 0o644 else sha(KEY, b"text")

    same = node.seen("files", files={path: {"sum": recorded}})[path]["sum"]
    node.file("some", "other", after)
    other = node.seen("files", files={path: {"sum": recorded}})[path]["sum"]

    assert (same, other) == (recorded, sha(b"other") if after == 0o644 else sha(KEY, b"other"))


def test_private_files_have_no_hash_without_a_key(node: Node) -> None:
    """Without the key, a hash could be used to test guesses of the content."""
    (node.folder / "key").unlink()
    path = node.file("closed", "text", 0o600)

    assert node.seen("files", files={path: {"sum": "old"}})[path]["sum"] is None


def test_only_our_block_of_a_file_is_hashed(node: Node) -> None:
    """Others may change the file around the block, its mode and owner."""
    block = "# BEGIN provision\n10.0.0.1 one\n# END provision\n"
    path = node.file("hosts", f"127.0.0.1 localhost\n{block}")
    (node.root / "etc-hosts").symlink_to("hosts")
    wanted = {str(node.root / "etc-hosts"): {"block": "provision"}}

    def seen() -> object:
        (state,) = node.seen("files", files=wanted).values()
        return state

    first = seen()
    node.file("hosts", f"127.0.0.1 localhost other\n{block}::1 more\n", 0o664)
    others = seen()
    node.file("hosts", "127.0.0.1 localhost\n")
    gone = seen()
    Path(path).unlink()

    assert first == others == {"block": "provision", "type": "file", "sum": sha(block.encode())}
    assert gone == {"block": "provision", "type": "file", "sum": None}
    assert seen() == {"block": "provision", "type": "missing"}


@pytest.mark.parametrize("listed", [{"log-opts": "old", "gone": "old"}, ["log-opts", "gone"]])
def test_only_our_keys_of_a_json_file_are_hashed(node: Node, listed: object) -> None:
    """Others also write daemon.json, so each of our settings has its own hash."""
    path = node.file("daemon.json", '{"theirs": 1, "log-opts": {"b": "2", "a": "1"}}')
    wanted = {path: {"keys": listed}}

    state = node.seen("files", files=wanted)[path]
    node.file("daemon.json", "{ broken")
    broken = node.seen("files", files=wanted)[path]

    assert state["keys"] == {"log-opts": sha(b'{"a": "1", "b": "2"}'), "gone": None}
    assert "sum" not in state
    assert broken["keys"] == {"log-opts": None, "gone": None}


def test_an_invalid_json_file_differs_from_one_without_our_keys(node: Node) -> None:
    path = str(node.root / "daemon.json")
    texts = {"{ broken": True, "[1]": True, "{}": None, " \n": None}
    state = {}
    for text in texts:
        node.file("daemon.json", text)
        state[text] = node.seen("files", files={path: {"keys": ["log-opts"]}})[path].get("invalid")

    assert state == texts


def test_packages_and_modules_are_read(node: Node) -> None:
    node.program("dpkg-query", "printf 'kmod installed 30-1\\nprocps config-files 4\\n'; exit 1")
    content = {"packages": {"kmod": "29", "procps": "4", "pigz": None}, "modules": {"ib-uverbs": True, "x": True}}
    node.receipt("some", **content)
    (node.root / "modules/ib_uverbs").mkdir(parents=True)

    state = node.look(f's,^SYS_MODULES = .*,SYS_MODULES = "{node.root}/modules",').observed["some"]

    assert state["packages"] == {"kmod": "30-1", "procps": None, "pigz": None}
    assert state["modules"] == {"ib-uverbs": True, "x": False}


UNITS = """
cat <<'END'
Type=notify
LoadState=masked
ActiveState=active
UnitFileState=masked

Type=oneshot
RemainAfterExit=no
LoadState=loaded
ActiveState=activating
UnitFileState=disabled

Type=oneshot
RemainAfterExit=no
LoadState=loaded
ActiveState=failed
UnitFileState=enabled

LoadState=loaded
ActiveState=active
UnitFileState=static
END
"""


def test_docker_as_a_snap_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the folder of the installed revision."""
    monkeypatch.setattr(probe, "systemd_properties", lambda *_: [{"Id": "docker.service", "LoadState": "not-found"}])
    monkeypatch.setattr(probe, "SNAP", str(tmp_path / "snap"))
    snaps = []
    for name in ("other", "snap"):
        (tmp_path / name).mkdir()
        assert probe.unit_states() == 0
        parsed = DockerServiceFact().parse(RawOutput(capsys.readouterr().out, 0))
        snaps.append(parsed.snap)

    assert snaps == [False, True]


@pytest.mark.parametrize(
    ("text", "podman"),
    [
        (b'#!/usr/bin/sh\n[ -e /etc/containers/nodocker ] || echo >&2\nexec /usr/bin/podman "$@"\n', True),
        (b"#!/bin/sh\nexec /opt/docker/bin/docker\n", False),
        (b"\x7fELF podman", False),
    ],
)
def test_docker_of_podman_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: bytes,
    podman: bool,  # noqa: FBT001
) -> None:
    """By the script of podman-docker; a script of the site that starts docker is none."""
    (tmp_path / "docker").write_bytes(text)
    monkeypatch.setattr(probe, "systemd_properties", lambda *_: [{"Id": "docker.service", "LoadState": "not-found"}])
    monkeypatch.setattr(probe, "program_of", lambda name: str(tmp_path / name))

    assert probe.unit_states() == 0
    assert DockerServiceFact().parse(RawOutput(capsys.readouterr().out, 0)).podman is podman


def test_docker_that_was_just_enabled_starts_at_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its link: systemd reports the state that it last read."""
    cached = {"Id": "docker.service", "LoadState": "loaded", "ActiveState": "active", "UnitFileState": "disabled"}
    monkeypatch.setattr(probe, "systemd_properties", lambda *_: [dict(cached)])
    monkeypatch.setattr(managed, "UNIT_FOLDERS", ((str(tmp_path), "enabled"),))
    link = tmp_path / "multi-user.target.wants/docker.service"
    link.parent.mkdir()
    states = []
    for _ in range(2):
        assert probe.unit_states() == 0
        states.append(DockerServiceFact().parse(RawOutput(capsys.readouterr().out, 0)).enabled)
        link.unlink(missing_ok=True)
        link.symlink_to("/lib/systemd/system/docker.service")

    assert states == ["disabled", "enabled"]


def test_unit_states_are_read(node: Node) -> None:
    """A oneshot unit is inactive unless it failed. Whether it starts at boot comes from its links."""
    node.program("systemctl", UNITS)
    etc = node.root / "system"
    (etc / "multi-user.target.wants").mkdir(parents=True)
    (etc / "multi-user.target.wants" / "b.service").symlink_to("/nowhere/b.service")
    (etc / "a.service").symlink_to("/dev/null")
    node.receipt("some", units={"a.service": {}, "b.service": {}, "c.service": {}, "d.socket": {}})

    state = node.look(f's,"/etc/systemd/system","{etc}",')

    assert state.observed["some"]["units"] == {
        "a.service": {"load": "masked", "active": "active", "enabled": "masked"},
        "b.service": {"load": "loaded", "active": "inactive", "enabled": "enabled"},
        "c.service": {"load": "loaded", "active": "failed", "enabled": "disabled"},
        "d.socket": {"load": "loaded", "active": "active", "enabled": "static"},
    }


def test_units_are_unknown_if_systemd_does_not_answer(node: Node) -> None:
    node.program("systemctl", "echo 'Failed to connect to bus' >&2; exit 1")

    assert node.seen("units", units={"a.service": {}}) is None


def test_a_hanging_program_costs_its_section_and_its_limit(node: Node) -> None:
    """It is killed with its children, and blocks nothing else."""
    node.program("systemctl", f"trap '' TERM; echo $$ >{node.root}/pid; sleep 60 & sleep 60")
    path = node.file("open", "text")
    node.receipt("some", files={path: {}}, units={"docker.service": {}}, packages={}, containers={"c": {}})

    state = node.look("s,^LIMIT_SECONDS = .*,LIMIT_SECONDS = 0.5,")

    assert state.hung == ("systemctl show",)
    assert set(state.observed["some"]) == {"files", "packages", "modules", "images"}
    with pytest.raises(ProcessLookupError):
        _gone(int((node.root / "pid").read_text()))


def _gone(group: int) -> None:
    """Raise ProcessLookupError once a process group is empty."""
    for _ in range(500):
        os.killpg(group, 0)
        time.sleep(0.01)


RUNNING = "echo LoadState=loaded; echo ActiveState=active"


def docker(node: Node, **content: object) -> Managed:
    """Return the state of images and containers, from the test's engine."""
    node.receipt("some", **content)
    change = f's,^DOCKER_SOCKET = .*,DOCKER_SOCKET = "{node.root}/docker.sock",'
    return node.look(f"{change};s/^LIMIT_SECONDS = .*/LIMIT_SECONDS = 0.5/")


def test_images_and_containers_are_read(node: Node, engine: dict[str, object]) -> None:
    node.program("systemctl", RUNNING)
    engine["/images/r.example.org:5000/training:1/json"] = {"Id": "sha256:aa"}
    engine["/containers/provision-training/json"] = {"Id": "c1", "Image": "sha256:aa", "State": {"Status": "exited"}}

    state = docker(
        node,
        images={"r.example.org:5000/training:1": None, "other:1": None},
        containers={"provision-training": None, "other": None},
    )

    assert state.observed["some"]["images"] == {"r.example.org:5000/training:1": "sha256:aa", "other:1": None}
    assert state.observed["some"]["containers"] == {
        "provision-training": {"id": "c1", "image": "sha256:aa", "status": "exited"},
        "other": None,
    }


def test_containers_of_the_role_are_distinguished_by_their_label(node: Node, engine: dict[str, object]) -> None:
    node.program("systemctl", RUNNING)
    plain = {"Id": "c1", "Image": "sha256:aa", "State": {"Status": "running"}}
    for name, labels in (("ours", {"provision.role": "training_container"}), ("theirs", {"a": "b"}), ("bare", None)):
        engine[f"/containers/{name}/json"] = {**plain, "Config": {"Labels": labels}}

    state = docker(node, containers=dict.fromkeys(("ours", "theirs", "bare")))

    seen = state.observed["some"]["containers"]
    assert {name: one.get("ours") for name, one in seen.items()} == {"ours": True, "theirs": None, "bare": None}


def test_a_stopped_engine_is_not_started(node: Node, engine: dict[str, object]) -> None:
    """Opening its socket would start it; its images count as unknown, not as removed."""
    node.program("systemctl", "echo LoadState=loaded; echo ActiveState=inactive")
    engine["/images/training:1/json"] = {"Id": "sha256:aa"}

    state = docker(node, images={"training:1": None})

    assert "images" not in state.observed["some"]
    assert state.hung == ()


def test_a_hanging_engine_is_reported(node: Node, engine: dict[str, object]) -> None:
    node.program("systemctl", RUNNING)
    engine["/images/training:1/json"] = b""

    state = docker(node, images={"training:1": None}, containers={"c": None})

    assert state.hung == ("docker",)
    assert set(state.observed["some"]) == {"files", "packages", "units", "modules"}


@pytest.mark.parametrize("change", ["", 's/hasattr(os, "posix_spawn")/False/'], ids=["spawn", "Python before 3.8"])
def test_programs_are_started_and_killed_after_their_limit(node: Node, change: str) -> None:
    nap = f"97.{os.getpid()}"
    node.program("dpkg-query", '[ "$LC_ALL" = C ] && echo pigz installed 2.8; echo noise >&2')
    node.program("systemctl", f"sleep {nap} & sleep {nap}")
    node.receipt("some", packages={"pigz": "2.8", "bash": "5"}, units={"a.service": {}})
    state = node.look(f"s/^LIMIT_SECONDS = 10/LIMIT_SECONDS = 0.3/;{change}")
    left = subprocess.run(["pgrep", "-f", f"^sleep {nap}$"], capture_output=True, check=False)

    assert state.observed["some"]["packages"] == {"pigz": "2.8", "bash": None}
    assert (state.hung, "units" in state.observed["some"]) == (("systemctl show",), False)
    assert left.returncode == 1


def test_a_receipt_changed_by_others_is_reported(node: Node) -> None:
    for role in ("good", "changed", "unsealed", "broken"):
        node.receipt(role)
    (node.folder / "changed.json").write_text("{}")
    (node.folder / "unsealed.seal").unlink()
    (node.folder / "broken.json").write_text("{ not JSON")

    state = node.look()

    assert state.sealed == {"good": True, "changed": False, "unsealed": False, "broken": False}
    assert set(state.observed) == {"good", "changed", "unsealed"}


@pytest.mark.parametrize("content", [{"files": 7}, {"files": {"x\0": 1, "": None}}, {"units": None, "packages": "x"}])
def test_an_invalid_receipt_is_ignored(node: Node, content: dict[str, object]) -> None:
    node.receipt("odd", **content)
    node.receipt("good", files={})

    assert "good" in node.look().observed


def test_a_node_without_receipts_is_probed(node: Node) -> None:
    node.folder.joinpath("key").unlink()
    node.folder.rmdir()
    bare = node.look()

    assert bare == Managed(jobs=bare.jobs)


def test_a_process_name_with_control_characters_stays_on_its_line() -> None:
    said = json.dumps({"sealed": {}, "observed": {}, "jobs": ["process 7 (\x1b[2J\nall is well)"], "hung": []})
    state = ManagedFact().parse(RawOutput(said, 0, ""))

    assert isinstance(state, Managed)
    assert state.jobs == ("process 7 ( [2J all is well)",)


def test_the_probe_includes_the_managed_state() -> None:
    asked = request([ManagedFact()], read_only=True)
    text = probe_output([NODE_PYTHON, "-I", "-S", str(ARCHIVE), "probe"], asked)

    assert isinstance(parse(text, [ManagedFact()]).managed, Managed)


def test_packages_of_our_transactions_are_reported(node: Node) -> None:
    """Also of an interrupted transaction, and whatever receipts there are."""
    notes = node.root / "origins/packages"
    notes.mkdir(parents=True)
    before = {"requested": ["docker.io", "pigz"], "installed": {"pigz": "2.8", "bash": "5"}}
    (notes / "a.json").write_text(json.dumps(before))
    (notes / "a.ours").write_text('{"installed": ["docker.io"]}')
    (notes / "b.json").write_text("{ cut")

    assert node.look().brought == {"docker.io"}
    node.receipt("docker_engine")
    assert node.look().brought == {"docker.io"}


def test_a_job_is_detected_by_its_open_device(node: Node) -> None:
    device = node.file("nvidia0", "")
    Path(device).unlink()
    os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    hold = ["dash", "-c", f"exec 3<{device}; echo held; read -r line", "--password=hunter2"]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        child.stdout.readline()
        # other jobs may be on this machine
        change = f's|^DEVICES = .*|DEVICES = ("{device[:-1]}",)|;s/\\[:5\\]/[:500]/'
        jobs = node.look(change).jobs
        of_a_service = node.look(f'{change};s/^SERVICES = .*/SERVICES = ("dash",)/').jobs
        child.communicate("\n")

    ours = f"process {child.pid} "
    assert [job for job in jobs if job.startswith(ours)] == [
        f"{ours}(dash of {node.root.owner()}) holds /dev/{device[5:]}"
    ]
    assert [job for job in of_a_service if job.startswith(ours)] == []
    assert "hunter2" not in "".join(jobs)


def test_no_file_content_is_printed(node: Node) -> None:
    path = node.file("closed", "hunter2", 0o600)
    merged = node.file("daemon.json", '{"hunter3": "hunter4"}', 0o600)
    node.receipt("some", files={path: {}, merged: {"keys": ["other"]}})
    command = managed_command(node.root / "program", node.folder)
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "hunter" not in done.stdout
    assert KEY.decode() not in done.stdout


def answer(kind: int, value: object = None) -> bytes:
    """Return a D-Bus message of systemd: a property (2), an error (3) or a signal (4)."""
    body = b""
    if isinstance(value, str):
        body = b"\1s\0\0" + len(value).to_bytes(4, "little") + value.encode() + b"\0"
    elif value is not None:
        body = b"\1b\0\0" + int(bool(value)).to_bytes(4, "little")
    fields = b"\x05\x01u\0\1\0\0\0"
    return b"l" + bytes((kind, 0, 1)) + len(body).to_bytes(4, "little") + bytes(4) + b"\x08\0\0\0" + fields + body


DOCKER = [answer(2, value) for value in ("docker.service", "loaded", "active", "enabled", "notify", False)]
MOUNT = [*(answer(2, value) for value in ("tmp.mount", "loaded", "active", "")), answer(3), answer(3)]


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (b"OK 1234\r\n" + b"".join([*DOCKER[:2], answer(4, "JobNew"), *DOCKER[2:], *MOUNT]), "active"),
        (b"REJECTED EXTERNAL\r\n", "inactive"),
        (b"OK 1234\r\n" + b"".join(DOCKER), "inactive"),
        (b"OK 1234\r\nwhat?", "inactive"),
        (b"", "inactive"),
    ],
)
def test_unit_states_come_from_the_systemd_socket_or_from_systemctl(node: Node, said: bytes, seen: str) -> None:
    """Signals and missing properties are ignored; invalid messages make it use systemctl."""
    node.program("systemctl", "for unit in 1 2; do echo LoadState=loaded; echo ActiveState=inactive; echo; done")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(node.root / "systemd"))
    server.listen()

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            head, mark, rest = said.partition(b"\r\n")
            connection.recv(4096)
            connection.sendall(head + mark)
            if rest:
                connection.recv(65536)
                connection.sendall(rest[:70])
                connection.sendall(rest[70:])
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # closing earlier would discard the answers
                    pass

    with server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        state = node.seen("units", units={"docker.service": {}, "tmp.mount": {}})
        thread.join(5)

    assert isinstance(state, dict)
    assert {state["active"] for state in state.values()} == {seen}
