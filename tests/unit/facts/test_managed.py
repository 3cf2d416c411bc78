"""What is there of what the receipts name: the program that the probe sends, run for real on files of the test."""

from __future__ import annotations

import ast
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

from provision.facts import RawOutput, Unknown, managed, parse, script
from provision.facts.managed import Managed, ManagedFact
from provision.facts.program import command
from tests.unit.facts.conftest import KEY, Node


def sha(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_files_are_seen_as_they_are(node: Node) -> None:
    """Type, mode, owner and hash tell what other hands did; a private file's hash cannot be tested without the key."""
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
    """Owners are told by the node's own files, never by a directory service that may hang."""
    path = node.file("some", "")
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 54321, 54322)

    assert node.seen("files", files={path: {}})[path]["owner"] == "54321:54322"


@pytest.mark.parametrize(("before", "after"), [(0o644, 0o600), (0o600, 0o644)])
def test_a_changed_mode_is_no_changed_content(node: Node, before: int, after: int) -> None:
    """A file that is opened or closed to others keeps the hash that was recorded, until its content changes."""
    path = node.file("some", "text", after)
    recorded = sha(b"text") if before == 0o644 else sha(KEY, b"text")

    same = node.seen("files", files={path: {"sum": recorded}})[path]["sum"]
    node.file("some", "other", after)
    other = node.seen("files", files={path: {"sum": recorded}})[path]["sum"]

    assert (same, other) == (recorded, sha(b"other") if after == 0o644 else sha(KEY, b"other"))


def test_nothing_is_said_of_a_private_file_without_a_key(node: Node) -> None:
    """A key that was lost makes no hash that guesses could be tested with."""
    (node.folder / "key").unlink()
    path = node.file("closed", "text", 0o600)

    assert node.seen("files", files={path: {"sum": "old"}})[path]["sum"] is None


def test_only_our_block_of_a_file_counts(node: Node) -> None:
    """What others write around the block is theirs, mode and owner too; a block that is gone or changed is seen."""
    block = "# BEGIN provision\n10.0.0.1 one\n# END provision\n"
    path = node.file("hosts", f"127.0.0.1 localhost\n{block}")
    (node.root / "etc-hosts").symlink_to("hosts")
    wanted = {str(node.root / "etc-hosts"): {"block": "provision"}}

    def seen() -> object:
        (found,) = node.seen("files", files=wanted).values()
        return found

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
def test_only_our_keys_of_a_json_file_count(node: Node, listed: object) -> None:
    """Of daemon.json, which others write too, each of our settings has a hash of its own."""
    path = node.file("daemon.json", '{"theirs": 1, "log-opts": {"b": "2", "a": "1"}}')
    wanted = {path: {"keys": listed}}

    found = node.seen("files", files=wanted)[path]
    node.file("daemon.json", "{ broken")
    broken = node.seen("files", files=wanted)[path]

    assert found["keys"] == {"log-opts": sha(b'{"a": "1", "b": "2"}'), "gone": None}
    assert "sum" not in found
    assert broken["keys"] == {"log-opts": None, "gone": None}


def test_a_file_that_is_no_json_object_is_told_from_one_without_our_keys(node: Node) -> None:
    """An empty file has no keys and is as good as none for docker."""
    path = str(node.root / "daemon.json")
    texts = {"{ broken": True, "[1]": True, "{}": None, " \n": None}
    found = {}
    for text in texts:
        node.file("daemon.json", text)
        found[text] = node.seen("files", files={path: {"keys": ["log-opts"]}})[path].get("invalid")

    assert found == texts


def test_packages_and_modules(node: Node) -> None:
    """A package that is removed or half installed counts as missing; a dash in a module's name is an underscore."""
    node.program("dpkg-query", "printf 'kmod installed 30-1\\nprocps config-files 4\\n'; exit 1")
    content = {"packages": {"kmod": "29", "procps": "4", "pigz": None}, "modules": {"ib-uverbs": True, "x": True}}
    node.receipt("some", **content)
    (node.root / "modules/ib_uverbs").mkdir(parents=True)

    found = node.look(f's,^SYS_MODULES = .*,SYS_MODULES = "{node.root}/modules",').observed["some"]

    assert found["packages"] == {"kmod": "30-1", "procps": None, "pigz": None}
    assert found["modules"] == {"ib-uverbs": True, "x": False}


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


def test_units(node: Node) -> None:
    """Whether a unit that does something and ends is at it right now is no state; that it failed is one.

    Whether it starts at boot is told by the links that are there, for systemd tells what it last read of them.
    """
    node.program("systemctl", UNITS)
    etc = node.root / "system"
    (etc / "multi-user.target.wants").mkdir(parents=True)
    (etc / "multi-user.target.wants" / "b.service").symlink_to("/nowhere/b.service")
    (etc / "a.service").symlink_to("/dev/null")
    node.receipt("some", units={"a.service": {}, "b.service": {}, "c.service": {}, "d.socket": {}})

    found = node.look(f's,"/etc/systemd/system","{etc}",')

    assert found.observed["some"]["units"] == {
        "a.service": {"load": "masked", "active": "active", "enabled": "masked"},
        "b.service": {"load": "loaded", "active": "inactive", "enabled": "enabled"},
        "c.service": {"load": "loaded", "active": "failed", "enabled": "disabled"},
        "d.socket": {"load": "loaded", "active": "active", "enabled": "static"},
    }


def test_a_systemd_that_says_nothing_is_not_taken_for_units_that_are_gone(node: Node) -> None:
    """What cannot be looked at is left out, so that nobody takes it for changed."""
    node.program("systemctl", "echo 'Failed to connect to bus' >&2; exit 1")

    assert node.seen("units", units={"a.service": {}}) is None


def test_a_program_that_hangs_costs_its_section_and_its_limit(node: Node) -> None:
    """It is killed with all that it started, named, and holds up nothing else."""
    node.program("systemctl", f"trap '' TERM; echo $$ >{node.root}/pid; sleep 60 & sleep 60")
    path = node.file("open", "text")
    node.receipt("some", files={path: {}}, units={"docker.service": {}}, packages={}, containers={"c": {}})

    found = node.look("s,^LIMIT_SECONDS = .*,LIMIT_SECONDS = 0.5,")

    assert found.hung == ("systemctl show",)
    assert set(found.observed["some"]) == {"files", "packages", "modules", "images"}
    with pytest.raises(ProcessLookupError):
        _gone(int((node.root / "pid").read_text()))


def _gone(group: int) -> None:
    """Raise ProcessLookupError as soon as nobody is left in a process group."""
    for _ in range(500):
        os.killpg(group, 0)
        time.sleep(0.01)


RUNNING = "echo LoadState=loaded; echo ActiveState=active"


def docker(node: Node, **content: object) -> Managed:
    """Look at images and containers, with the test's engine."""
    node.receipt("some", **content)
    change = f's,^DOCKER_SOCKET = .*,DOCKER_SOCKET = "{node.root}/docker.sock",'
    return node.look(f"{change};s/^LIMIT_SECONDS = .*/LIMIT_SECONDS = 0.5/")


def test_images_and_containers(node: Node, engine: dict[str, object]) -> None:
    """An image is its ID, a container its own and its image's; what the engine does not have is gone."""
    node.program("systemctl", RUNNING)
    engine["/images/r.example.org:5000/training:1/json"] = {"Id": "sha256:aa"}
    engine["/containers/provision-training/json"] = {"Id": "c1", "Image": "sha256:aa", "State": {"Status": "exited"}}

    found = docker(
        node,
        images={"r.example.org:5000/training:1": None, "other:1": None},
        containers={"provision-training": None, "other": None},
    )

    assert found.observed["some"]["images"] == {"r.example.org:5000/training:1": "sha256:aa", "other:1": None}
    assert found.observed["some"]["containers"] == {
        "provision-training": {"id": "c1", "image": "sha256:aa", "status": "exited"},
        "other": None,
    }


def test_a_container_of_the_role_is_told_from_one_of_other_hands(node: Node, engine: dict[str, object]) -> None:
    """By the label that the role gives it: after an interrupted apply nobody else is blamed."""
    node.program("systemctl", RUNNING)
    plain = {"Id": "c1", "Image": "sha256:aa", "State": {"Status": "running"}}
    for name, labels in (("ours", {"provision.role": "training_container"}), ("theirs", {"a": "b"}), ("bare", None)):
        engine[f"/containers/{name}/json"] = {**plain, "Config": {"Labels": labels}}

    found = docker(node, containers=dict.fromkeys(("ours", "theirs", "bare")))

    seen = found.observed["some"]["containers"]
    assert {name: one.get("ours") for name, one in seen.items()} == {"ours": True, "theirs": None, "bare": None}


def test_an_engine_that_does_not_run_is_not_started(node: Node, engine: dict[str, object]) -> None:
    """Touching its socket would start it; and images of a stopped engine are not taken for gone."""
    node.program("systemctl", "echo LoadState=loaded; echo ActiveState=inactive")
    engine["/images/training:1/json"] = {"Id": "sha256:aa"}

    found = docker(node, images={"training:1": None})

    assert "images" not in found.observed["some"]
    assert found.hung == ()


def test_an_engine_that_hangs_is_named(node: Node, engine: dict[str, object]) -> None:
    """It costs the sections that it was asked for."""
    node.program("systemctl", RUNNING)
    engine["/images/training:1/json"] = b""

    found = docker(node, images={"training:1": None}, containers={"c": None})

    assert found.hung == ("docker",)
    assert set(found.observed["some"]) == {"files", "packages", "units", "modules"}


@pytest.mark.parametrize("change", ["", 's/hasattr(os, "posix_spawn")/False/'], ids=["spawn", "Python before 3.8"])
def test_programs_are_asked_and_given_up(node: Node, change: str) -> None:
    """One answers in plain English, whatever the node speaks; one that hangs is ended with what it has started."""
    nap = f"97.{os.getpid()}"
    node.program("dpkg-query", '[ "$LC_ALL" = C ] && echo pigz installed 2.8; echo noise >&2')
    node.program("systemctl", f"sleep {nap} & sleep {nap}")
    node.receipt("some", packages={"pigz": "2.8", "bash": "5"}, units={"a.service": {}})
    found = node.look(f"s/^LIMIT_SECONDS = 10/LIMIT_SECONDS = 0.3/;{change}")
    left = subprocess.run(["pgrep", "-f", f"^sleep {nap}$"], capture_output=True, check=False)

    assert found.observed["some"]["packages"] == {"pigz": "2.8", "bash": None}
    assert (found.hung, "units" in found.observed["some"]) == (("systemctl show",), False)
    assert left.returncode == 1


def test_a_receipt_of_other_hands_is_told(node: Node) -> None:
    """Each receipt has a seal that only the node's own key makes; one that cannot be read has no observations."""
    for role in ("good", "changed", "unsealed", "broken"):
        node.receipt(role)
    (node.folder / "changed.json").write_text("{}")
    (node.folder / "unsealed.seal").unlink()
    (node.folder / "broken.json").write_text("{ not JSON")

    found = node.look()

    assert found.sealed == {"good": True, "changed": False, "unsealed": False, "broken": False}
    assert set(found.observed) == {"good", "changed", "unsealed"}


@pytest.mark.parametrize("content", [{"files": 7}, {"files": {"x\0": 1, "": None}}, {"units": None, "packages": "x"}])
def test_an_odd_receipt_breaks_nothing(node: Node, content: dict[str, object]) -> None:
    """Whatever stands in a receipt, the others are looked at."""
    node.receipt("odd", **content)
    node.receipt("good", files={})

    assert "good" in node.look().observed


def test_a_node_without_receipts_or_python(node: Node) -> None:
    """A bare node has none; one without python3 is said to be so, in whole words."""
    node.folder.joinpath("key").unlink()
    node.folder.rmdir()
    bare = node.look()
    text = command("/nowhere").splitlines()[0]
    done = subprocess.run(
        ["/bin/sh", "-c", text], capture_output=True, text=True, env={"PATH": "/nowhere"}, check=False
    )

    assert bare == Managed(jobs=bare.jobs)
    assert ManagedFact().parse(RawOutput(done.stdout, done.returncode, done.stderr)) == Unknown(
        "there is no python3 on the node"
    )


def test_a_process_that_chooses_an_evil_name_stays_on_its_line() -> None:
    """Who may start processes may call them anything; it is shown on the operator's terminal."""
    said = json.dumps({"sealed": {}, "observed": {}, "jobs": ["process 7 (\x1b[2J\nall is well)"], "hung": []})
    found = ManagedFact().parse(RawOutput(said, 0, ""))

    assert isinstance(found, Managed)
    assert found.jobs == ("process 7 ( [2J all is well)",)


def test_the_probe_brings_it() -> None:
    """The whole program fits into the probe's script and prints what the parser reads."""
    done = subprocess.run(["sh"], input=script([ManagedFact()]), capture_output=True, text=True, check=True)

    assert isinstance(parse(done.stdout, [ManagedFact()]).managed, Managed)


def test_packages_that_a_transaction_of_ours_was_to_bring_are_told(node: Node) -> None:
    """Also of one that was cut short, and whatever receipts there are."""
    notes = node.root / "origins/packages"
    notes.mkdir(parents=True)
    before = {"requested": ["docker.io", "pigz"], "installed": {"pigz": "2.8", "bash": "5"}}
    (notes / "a.json").write_text(json.dumps(before))
    (notes / "a.ours").write_text('{"installed": ["docker.io"]}')
    (notes / "b.json").write_text("{ cut")

    assert node.look().brought == {"docker.io"}
    node.receipt("docker_engine")
    assert node.look().brought == {"docker.io"}


def test_a_job_is_told_by_the_device_that_it_holds(node: Node) -> None:
    """By number, program and account, never by its arguments; what a node runs for itself is no job."""
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


@pytest.mark.parametrize("name", ["busy.py", "managed.py", "engine.py", "probe.py", "begin.py"])
def test_it_runs_with_the_oldest_python_of_a_node(name: str) -> None:
    """CentOS 7 has Python 3.6: newer syntax would make such a node look as if it had no receipts."""
    source = Path(managed.__file__).with_name("files").joinpath(name).read_text()

    ast.parse(source, feature_version=(3, 6))
    assert "from __future__" not in source


def test_no_content_of_a_file_is_printed(node: Node) -> None:
    """The probe's output holds hashes only, so that nothing private reaches the controller or a support bundle."""
    path = node.file("closed", "hunter2", 0o600)
    merged = node.file("daemon.json", '{"hunter3": "hunter4"}', 0o600)
    node.receipt("some", files={path: {}, merged: {"keys": ["other"]}})
    done = subprocess.run(["sh", "-c", command(str(node.folder))], capture_output=True, text=True, check=True)

    assert "hunter" not in done.stdout
    assert KEY.decode() not in done.stdout


def answer(kind: int, value: object = None) -> bytes:
    """A message of systemd's: a property (2), an error (3) or a signal (4), as D-Bus writes it."""
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
def test_systemd_is_asked_at_its_socket_or_else_by_its_program(node: Node, said: bytes, seen: str) -> None:
    """Signals in between and properties that a unit has not do no harm; odd words let systemctl be asked."""
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
                while connection.recv(65536):  # a close before all was read would take the answers away
                    pass

    with server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        found = node.seen("units", units={"docker.service": {}, "tmp.mount": {}})
        thread.join(5)

    assert isinstance(found, dict)
    assert {state["active"] for state in found.values()} == {seen}
