"""Job supervisors as real processes on nodes in folders; docker and systemd are STAND-INS."""

import contextlib
import io
import json
import os
import re
import signal
import socket
import stat
import tarfile
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from provision.node import docker as node_docker
from provision.node import files, output
from provision.node.supervisor import account, network
from tests.support.node.node import Engine, FakeNode, assignment, container, prepare, run, start, until

SECRET = "5e" * 32
HOSTS = {"a": "127.0.0.2", "b": "127.0.0.3", "c": "127.0.0.4"}


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    made = [Engine(tmp_path_factory.mktemp("engine") / "socket") for _ in range(2)]
    yield made
    for engine in made:
        engine.end()


@pytest.fixture
def node(tmp_path, engines):
    with FakeNode(tmp_path) as made:
        yield made.with_docker(engines[0])
    engines[0].reset()


@pytest.fixture
def nodes(tmp_path, engines):
    with FakeNode(tmp_path / "a", "a") as a, FakeNode(tmp_path / "b", "b") as b:
        yield a.with_docker(engines[0]), b.with_docker(engines[1])
    for engine in engines:
        engine.reset()


def log(node, instance="j-worker-0", job="j"):
    return [line[28:] for line in (node.attempt(job) / f"{instance}.log").read_text(errors="replace").splitlines()]


def events(node):
    return [json.loads(line)["message"] for line in (node.root / "j/events.jsonl").read_text().splitlines()]


def together(nodes, *commands, **changes):
    """Run a job of one instance on each node."""
    assignments = [
        assignment(f"j-worker-{rank}", node.name, rank, address=HOSTS[node.name]) for rank, node in enumerate(nodes)
    ]
    port = 0
    for node in nodes:
        answer = prepare(node, assignments, ports=1)
        port = port or answer["ports"][0]
    each = changes.pop("each", {})
    for node, one, command in zip(nodes, assignments, commands, strict=True):
        shared = {
            "nodes": [node.name for node in nodes],
            "chief_address": HOSTS["a"],
            "control_port": port,
            "secret": SECRET,
        }
        box = container(one["instance"], "sh", "-c", command)
        start(node, [box], is_leader=node is nodes[0], **{**shared, **changes, **each.get(node.name, {})})
    return port


@pytest.mark.row(39)
def test_a_successful_job_leaves_its_record_and_output_without_secrets(node):
    assignments = [assignment("j-worker-0", "a", 0)]
    node.ok(
        "reserve", name="j", job={"id": "t1", "spec": {}}, queue={"retry": 1}, secrets={"env": {"TOKEN": "hunter2"}}
    )
    ports = prepare(node, assignments, mpi=True, ports=1)["ports"]
    assert node.ok("lease", job="j", id="t1", attempt=1, leases={"GPU-a": "j-worker-0"}) == {"taken": {}}
    line = 'echo "$TOKEN" | tr a-z A-Z; echo "$LINES"'
    env = {"TOKEN": "hunter2", "LINES": "one\ntwo"}
    box = container("j-worker-0", "sh", "-c", line, env=env)
    start(node, [box], leases=["GPU-a", f"port-{ports[0]}"])
    assert node.result() == {
        **node.record("result"),
        "status": "SUCCEEDED",
        "exit_code": 0,
        "reason": "",
        "first_failure": "",
        "first_rank": None,
        "chief": True,
    }
    assert log(node) == ["o HUNTER2", "o one", "o two"]
    assert node.record("j-worker-0")["status"] == "Completed"
    assert node.ok("secrets", name="j") == {}
    answer = node.ok("look")
    assert (answer["leases"], answer["ports"], answer["jobs"][0]["keeper"]) == ({}, {}, "gone")
    left = {path for path in node.attempt().rglob("*") if path.is_file()}
    assert not [path for path in left if b"hunter2" in path.read_bytes() or b"PRIVATE" in path.read_bytes()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in left} == {0o600}


@pytest.mark.long
def test_no_secret_is_on_a_command_line_while_the_job_runs(node):
    run_with_secret = container("j-worker-0", "sleep", "30", env={"TOKEN": "hunter2" * 3})
    prepare(node, [assignment("j-worker-0", "a", 0)])
    start(node, [run_with_secret])
    until(lambda: node.record("j-worker-0").get("status") == "Running", "running")
    lines = list(map(_content, Path("/proc").glob("[0-9]*/cmdline")))
    assert not [line for line in lines if b"hunter2hunter2" in line]
    assert stat.S_IMODE((node.attempt() / "keeper.json").stat().st_mode) == 0o600
    assert not list(node.attempt().glob("env-*"))
    assert "hunter2" not in json.dumps(node.ok("report", names=["j"], brief=False))
    node.ok("stop", name="j", reason="stopped by ann@h", grace=1)
    assert node.result()["status"] == "STOPPED"


def _content(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "code", "number", "reason"),
    [
        ("echo why; exit 3", 3, None, "exit code 3"),
        ("kill -SEGV $$", 139, 11, "killed by signal 11 (SIGSEGV)"),
        ("no-such-program", 127, None, "exit code 127"),
    ],
)
def test_a_failure_is_reported_with_code_signal_and_last_lines(node, command, code, number, reason):
    run(node, "sh", "-c", command)
    result = node.result()
    assert (result["status"], result["exit_code"], result["first_failure"], result["first_rank"]) == (
        "FAILED",
        code,
        "j-worker-0",
        0,
    )
    assert result["reason"] == f"j-worker-0 on a failed: {reason}"
    record = node.record("j-worker-0")
    assert (record["status"], record["exit_code"], record["signal"]) == ("Error", code, number)
    assert record["last_lines"] or code == 139


@pytest.mark.long
def test_an_out_of_memory_kill_that_docker_reports_is_the_reason(node):
    prepare(node, [assignment("j-worker-0", "a", 0)])
    start(node, [container("j-worker-0", "sh", "-c", "kill -9 $$", env={"STANDIN_OOM": "1"})])
    assert node.result()["reason"].endswith("out of memory: killed by signal 9 (SIGKILL)")


def _file_in(engine, path):
    status, body = engine.ask("GET", f"/containers/j-worker-0/archive?path={path}")
    assert status == 200, body
    with tarfile.open(fileobj=io.BytesIO(body)) as packed:
        return packed.extractfile(packed.next()).read().decode()


def test_the_account_of_a_job_has_a_name_and_a_home_in_the_image_which_knows_neither(node, engines):
    """Without them ssh fails with "No user exists for uid 2000", and a program's caches have no folder."""
    prepare(node, [assignment("j-worker-0", "a", 0)])
    start(node, [container("j-worker-0", "true", account="2000:3000")])
    assert node.result()["status"] == "SUCCEEDED"
    passwd = _file_in(engines[0], "/etc/passwd").splitlines()
    assert passwd == ["root:x:0:0:root:/root:/bin/bash", "provision-2000:x:2000:3000::/provision-home:/bin/sh"]
    assert [_file_in(engines[0], path) for path in ("/provision-home", "/root")] == ["2000:3000"] * 2


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts of an account are root's to make")
def test_mounts_at_the_paths_of_an_account_are_not_changed(node, engines):
    prepare(node, [assignment("j-worker-0", "a", 0)])
    mounts = [word for path in ("/etc/passwd", "/root") for word in ("--volume", f"/usr:{path}")]
    start(node, [container("j-worker-0", "true", create=[*mounts, "image", "true"], account="2000:3000")])
    assert node.result()["status"] == "SUCCEEDED"
    assert _file_in(engines[0], "/etc/passwd") == "root:x:0:0:root:/root:/bin/bash\n"
    assert engines[0].ask("GET", "/containers/j-worker-0/archive?path=/root")[0] == 404


@pytest.mark.parametrize(("text", "uid", "named"), [
    ("bob:x:2000:1::/home/bob:/bin/sh\n", 2000, None),
    ("bob:x:200:2000::/home/bob:/bin/sh", 2000, 1),
    ("", 2000, 0),
    ("# odd\n::\n", 2000, 2),
    (None, 2000, None),
])  # fmt: skip
def test_an_account_is_added_as_a_line_of_its_own_where_it_is_missing(text, uid, named):
    whole = account.with_account(text, uid, 5)
    if named is None:
        assert whole is None
    else:
        assert whole.startswith(text)
        assert whole.splitlines()[named].startswith(f"provision-{uid}:x:{uid}:5:")


def test_an_engine_that_leaves_content_unread_has_answered(tmp_path, monkeypatch):
    """As docker's does with the zeros after an archive; then the kernel ends the answer with a reset."""
    monkeypatch.setattr(node_docker, "DOCKER_SOCKET", str(tmp_path / "s"))

    def answer(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(10)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n{}")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        server = threading.Thread(target=answer, args=(listener,))
        server.start()
        assert node_docker.engine("PUT", "/containers/x/archive?path=/", content=b"x" * 20_000) == (200, b"{}")
        server.join()


@pytest.mark.long
def test_a_container_that_cannot_be_created_ends_the_job_with_dockers_message(node):
    prepare(node, [assignment("j-worker-0", "a", 0)])
    start(node, [container("j-worker-0", "true", create=["missing:1", "true"])])
    assert "No such image: missing:1" in node.result()["reason"]
    assert node.record("j-worker-0")["status"] == "Error"
    assert "creating j-worker-0 failed" in node.record("j-worker-0")["reason"]


@pytest.mark.long
def test_a_container_removed_by_another_program_is_the_failure(node, engines):
    run(node, "sleep", "60")
    until(lambda: node.record("j-worker-0").get("status") == "Running", "running")
    engines[0].ask("DELETE", "/containers/j-worker-0?force=1")
    result = node.result()
    assert (result["status"], result["first_failure"]) == ("FAILED", "j-worker-0")
    assert "its container was removed" in result["reason"]


@pytest.mark.long
def test_output_is_logged_in_order_with_long_binary_and_unfinished_lines(node):
    program = (
        "import os,sys\n"
        "for n in range(300): os.write(1, b'line %d\\n' % n)\n"
        "os.write(1, b'x' * 150000 + b'\\n'); os.write(1, b'\\xff\\x00\\x1b[0m\\n\\n'); os.write(1, b'no end')"
    )
    run(node, "python3", "-I", "-S", "-c", program)
    node.result()
    lines = (node.attempt() / "j-worker-0.log").read_bytes().split(b"\n")[:-1]
    assert all(re.match(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z o ", line) for line in lines)
    texts = [line[30:] for line in lines]
    assert texts[:300] == [b"line %d" % number for number in range(300)]
    assert [len(text) for text in texts[300:303]] == [65536, 65536, 150000 - 2 * 65536]
    assert texts[303:] == [b"\xff\x00\x1b[0m", b"", b"no end"]


def test_a_killed_supervisor_is_replaced_and_no_line_is_lost_or_doubled(node):
    program = "import time\nfor n in range(60): print(n, flush=True); time.sleep(0.02)"
    run(node, "python3", "-I", "-S", "-c", program)
    for lines in (5, 30):
        until(
            lambda lines=lines: len(log(node) if (node.attempt() / "j-worker-0.log").exists() else []) > lines, "output"
        )
        os.kill(node.supervisor(), signal.SIGKILL)
    with (node.attempt() / "j-worker-0.log").open("ab") as stream:
        stream.write(b"2026-01-31T12:00:00.0")  # as an interrupted write
    assert node.result()["status"] == "SUCCEEDED"
    assert log(node) == [f"o {number}" for number in range(60)]
    assert events(node).count("ready to start") == 1


def frame(when, text, stream=1):
    message = f"2026-01-31T12:{when}.000000000Z ".encode() + text
    return bytes([stream, 0, 0, 0]) + len(message).to_bytes(4, "big") + message


@pytest.mark.parametrize("cut", range(1, 7))
def test_output_continues_at_any_line_without_loss_or_repetition(tmp_path, cut):
    """Although the clock is set back, and a progress bar never ends its line."""
    frames = [
        frame("10:00", b"one\n"),
        frame("10:01", b"0%\r", 2),
        frame("20:00", b"two\n"),
        frame("20:00", b"two\n"),
        frame("05:00", b"put back\n"),
        frame("05:01", b"after\n"),
        frame("10:01", b"100%\r\n", 2),
    ]
    path = str(tmp_path / "log")
    first = output.Pump("c", path, None, None)
    first.log.open()
    first._take(b"".join(frames[:cut]), output.Known(path))
    os.write(first.log.handle, b"2026-01-31T12:0")
    known = output.Known(path, files.read_text(path + output.FLOOR))
    asked = [one for one in frames if one[8:34] + b"Z" >= known.since.encode()]
    again = output.Pump("c", path, None, None)
    again.log.open()
    again._take(b"".join(asked), known)
    again.log.close()
    first.log.close()
    texts = [line[30:] for line in (tmp_path / "log").read_bytes().split(b"\n")[:-1]]
    if cut < 5:  # docker's own answer begins too late where the clock was set back while no supervisor ran
        texts += [b"put back", b"after"] if b"after" not in texts else []
    assert sorted(texts) == sorted([b"one", b"two", b"two", b"put back", b"after", b"0%\r100%\r"])


def test_a_long_log_is_continued_with_little_time_and_memory(tmp_path):
    line = b"2026-01-31T12:00:00.%06dZ o " + b"x" * 970 + b"\n"
    (tmp_path / "log").write_bytes(b"".join(line % number for number in range(60000)))
    tracemalloc.start()
    begun = time.process_time()
    known = output.Known(str(tmp_path / "log"))
    spent, peak = time.process_time() - begun, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (spent < 2, peak < 30 << 20) == (True, True)
    assert known.has(line[:28] % 59999 + b"o")
    assert known.has(line[:28] % 5 + b"o"), "old lines are never written twice"
    assert not known.has(b"2026-01-31T12:00:01.000000Z o new")


def test_a_log_at_its_size_limit_is_cut_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "LOG_LIMIT", 100)
    path = str(tmp_path / "log")
    pump = output.Pump("c", path, None, None)
    pump.log.open()
    for number in range(20):
        pump._take(frame(f"00:{number:02d}", b"line\n"), output.Known(os.devnull))
    pump.log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0].endswith("o line")
    assert "cut here" in lines[-1]
    assert len(lines) == 4 or len(lines) == 5


@pytest.mark.long
def test_an_end_while_no_supervisor_runs_is_reported_by_the_next_one(node):
    run(node, "sh", "-c", "sleep 0.4; echo bye; exit 4")
    until(lambda: node.record("j-worker-0").get("status") == "Running", "running")
    pid = node.supervisor()
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGSTOP)  # so that it is not restarted yet
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.8)
    os.kill(parent, signal.SIGCONT)
    result = node.result()
    assert (result["exit_code"], result["first_failure"], log(node)) == (4, "j-worker-0", ["o bye"])


@pytest.mark.long
def test_stop_lets_a_program_below_a_shell_end_by_itself(node):
    program = (
        "import signal,time,sys\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))\n"
        "print('on', flush=True)\nwhile 1: time.sleep(0.02)"
    )
    run(node, "sh", "-c", f'python3 -I -S -c "{program}"; echo after')
    until(lambda: (node.attempt() / "j-worker-0.log").exists() and "o on" in log(node), "output")
    assert node.ok("stop", name="j", reason="stopped by ann@h") == {"asked": True}
    result = node.result()
    assert (result["status"], result["reason"], result["exit_code"]) == ("STOPPED", "stopped by ann@h", None)
    assert log(node) == ["o on", "o saved", "o after"]
    assert node.record("j-worker-0")["status"] == "Stopped"


@pytest.mark.long
def test_a_shell_that_survives_its_program_gets_sigterm_too(node):
    run(node, "sh", "-c", "while :; do echo on; sleep 30; done", grace_seconds=8)
    until(lambda: (node.attempt() / "j-worker-0.log").exists() and "o on" in log(node), "output")
    node.ok("stop", name="j", reason="r")
    assert node.result()["status"] == "STOPPED"


@pytest.mark.long
def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_time(node, engines):
    run(node, "sh", "-c", "trap '' TERM; echo on; while :; do sleep 0.05; done", clean="All")
    until(lambda: (node.attempt() / "j-worker-0.log").exists() and "o on" in log(node), "output")
    node.ok("stop", name="j", reason="r", grace=2)
    ending = until(lambda: node.ok("report", names=["j"])["jobs"][0]["ending"], "the decided end in the report")
    assert (ending["status"], node.record("result")) == ("STOPPED", {})
    assert node.result()["status"] == "STOPPED"
    assert engines[0].ask("GET", "/containers/j-worker-0/json")[0] == 404


def test_with_a_full_disk_files_are_written_later_and_stop_works(node):
    """A folder in place of a file simulates a full disk."""
    run(node, "sleep", "60")
    until(lambda: node.record("j-worker-0").get("status") == "Running", "running")
    pid, places = node.supervisor(), [node.attempt() / name for name in ("state.json", "stop.json")]
    places[0].unlink()
    for place in places:
        place.mkdir()
    assert node.ok("stop", name="j", reason="r", grace=0) == {"asked": True}
    time.sleep(0.5)
    assert node.supervisor() == pid
    assert node.record("result") == {}
    for place in places:
        place.rmdir()
    assert node.result()["status"] == "STOPPED"
    assert [text for text in events(node) if "nothing could be written for a while" in text]


@pytest.mark.long
def test_a_supervisor_restarted_without_docker_holds_the_gpus_and_ends_the_job_later(node, engines, monkeypatch):
    monkeypatch.setitem(node.environment, "PROVISION_DOCKER_AWAY_SECONDS", "0.1")
    prepare(node, [assignment("j-worker-0", "a", 0)])
    assert node.ok("lease", job="j", id="t1", attempt=1, leases={"GPU-a": "j-worker-0"}) == {"taken": {}}
    start(node, [container("j-worker-0", "sleep", "60")], leases=["GPU-a"])
    until(lambda: node.record("j-worker-0").get("status") == "Running", "running")
    away = engines[0].socket.with_suffix(".away")
    engines[0].socket.rename(away)
    try:
        pid = node.supervisor()
        os.kill(pid, signal.SIGKILL)
        until(lambda: node.supervisor() != pid, "another supervisor")
        time.sleep(1.5)
        assert node.record("result") == {}
        node.ok("stop", name="j", reason="r", grace=0)
        time.sleep(0.5)
        assert (node.run / "leases/GPU-a").exists()
    finally:
        away.rename(engines[0].socket)
    assert node.result()["status"] == "STOPPED"
    assert not (node.run / "leases/GPU-a").exists()
    assert json.loads(engines[0].ask("GET", "/containers/j-worker-0/json")[1])["State"]["Running"] is False


@pytest.mark.long
def test_a_job_that_runs_too_long_ends(node):
    run(node, "sleep", "60", running_timeout=0.5)
    assert "longer than 0 s (running_timeout)" in node.result()["reason"].replace("0.5", "0")


@pytest.mark.long
def test_after_a_reboot_the_report_has_the_reason_and_secrets_are_removed(node, engines):
    run(node, "sleep", "60")
    until(lambda: node.record("j-worker-0").get("status") == "Running", "running")
    pid = node.supervisor()
    os.kill(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    for unit in node.units.iterdir():
        unit.unlink()
    engines[0].reset()
    proc = node.folder / "proc"
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("another\n")
    (proc / "stat").write_text("btime 1769860803\n")
    node.environment["PROVISION_PROC"] = str(proc)
    reported = node.ok("report", names=["j"], brief=True)["jobs"][0]
    assert reported["result"]["reason"] == "node a rebooted at 2026-01-31T12:00:03Z during the job"
    assert (reported["result"]["status"], reported["instances"]["j-worker-0"]["status"]) == ("FAILED", "Lost")
    assert reported["boot_id"] != reported["attempt_record"]["boot_id"]
    assert not (node.attempt() / "keeper.json").exists()


# Several nodes


def test_the_first_failure_ends_all_and_their_ends_do_not_hide_it(nodes):
    together(nodes, "sleep 60", "echo broken >&2; exit 5", clean="None")
    results = [node.result() for node in nodes]
    assert [(one["status"], one["exit_code"], one["first_failure"], one["first_rank"]) for one in results] == [
        ("FAILED", 5, "j-worker-1", 1)
    ] * 2
    assert results[0]["reason"] == "j-worker-1 on b failed: exit code 5"
    assert nodes[0].record("j-worker-0")["status"] == "Stopped"
    assert nodes[1].record("j-worker-1")["last_lines"] == ["broken"]
    for node in nodes:
        assert node.ok("look")["ports"] == {}


@pytest.mark.long
def test_the_earlier_of_two_failures_counts_in_any_order_of_reports(nodes):
    together(nodes, "sleep 0.35; exit 6", "sleep 0.2; exit 5")
    assert nodes[0].result()["first_failure"] == "j-worker-1"


@pytest.mark.long
def test_all_instances_have_to_succeed_and_start_when_all_nodes_are_ready(nodes):
    together(nodes, "date +%s.%N", "sleep 0.3; date +%s.%N")
    assert [node.result()["status"] for node in nodes] == ["SUCCEEDED"] * 2
    ready = max(
        json.loads(line)["time"]
        for node in nodes
        for line in (node.root / "j/events.jsonl").read_text().splitlines()
        if "ready" in line
    )
    assert all(float(log(node, f"j-worker-{rank}")[0][2:]) > ready for rank, node in enumerate(nodes))


@pytest.mark.long
def test_supervisors_of_a_running_job_use_little_processor_time(nodes):
    together(nodes, "sleep 60", "sleep 60")
    until(lambda: nodes[1].record("j-worker-1").get("status") == "Running", "running")
    supervisors = [node.supervisor() for node in nodes]
    before = [_ticks(pid) for pid in supervisors]
    time.sleep(2)
    assert max(_ticks(pid) - ticks for pid, ticks in zip(supervisors, before, strict=True)) < 20, "of 200"
    nodes[0].ok("stop", name="j", reason="r")
    nodes[0].result()


def _ticks(pid):
    return sum(int(word) for word in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])


@pytest.mark.long
def test_stop_on_any_node_reaches_all(nodes):
    together(nodes, "sleep 60", "sleep 60")
    until(lambda: nodes[1].record("j-worker-1").get("status") == "Running", "running")
    nodes[1].ok("stop", name="j", reason="stopped by ann@h")
    assert [node.result()["status"] for node in nodes] == ["STOPPED"] * 2
    assert nodes[0].result()["reason"] == "stopped by ann@h"


@pytest.mark.long
@pytest.mark.parametrize("silent", [0, 1])
def test_a_node_that_is_silent_ends_the_job_on_the_other(nodes, silent):
    together(nodes, "sleep 60", "sleep 60", lost_seconds=1)
    until(
        lambda: all(node.record(f"j-worker-{rank}").get("status") == "Running" for rank, node in enumerate(nodes)),
        "running",
    )
    os.kill(nodes[silent].supervisor(), signal.SIGSTOP)
    try:
        result = nodes[1 - silent].result()
        assert ("node 127.0.0.2 does not answer", "node b does not answer")[silent] in result["reason"]
        assert result["status"] == "FAILED"
    finally:
        os.kill(nodes[silent].supervisor(), signal.SIGCONT)


class Network:
    """The network between two supervisors, which can be cut: connections stay open, and nothing comes through."""

    def __init__(self, address, port):
        self.target = (address, port)
        self.up = threading.Event()
        self.up.set()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.server.accept()
                far = socket.create_connection(self.target)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self.forward, args=ends, daemon=True).start()

    def forward(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.up.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("slow", [0, 1])
def test_a_cut_network_ends_the_job_nowhere_before_its_last_part_has_ended(nodes, slow):
    """No node reports the end while the other one, which it cannot reach, is in its grace time."""
    assignments = [
        assignment(f"j-worker-{rank}", node.name, rank, address=HOSTS[node.name]) for rank, node in enumerate(nodes)
    ]
    port, _ = [prepare(node, assignments, ports=1)["ports"][0] for node in nodes]
    link = Network(HOSTS["a"], port)
    networks = ({"chief_address": HOSTS["a"], "control_port": port}, {"control_port": link.port})
    for rank, node in enumerate(nodes):
        line = "trap '' TERM; while :; do sleep 0.1; done" if rank == slow else "sleep 60"
        box = container(f"j-worker-{rank}", "sh", "-c", line)
        start(node, [box], is_leader=rank == 0, nodes=["a", "b"], secret=SECRET, lost_seconds=1, **networks[rank])
    running = [lambda node=node, rank=rank: node.record(f"j-worker-{rank}") for rank, node in enumerate(nodes)]
    until(lambda: all(record().get("status") == "Running" for record in running), "running")
    link.up.clear()
    try:
        result = nodes[1 - slow].result()
        last = running[slow]()
    finally:
        link.up.set()
        link.server.close()

    assert result["status"] == "FAILED"
    assert last["status"] != "Running", "the end was reported while a part of the job ran"


def test_the_interface_of_an_address_is_reported_if_it_is_down(monkeypatch):
    monkeypatch.setattr(network, "DOWN", ("unknown",))  # what the loopback is
    assert network.interface_error("127.0.0.1") == "its network interface lo is down"
    monkeypatch.setattr(network, "DOWN", ("down",))
    assert network.interface_error("127.0.0.1") == ""
    assert network.interface_error("192.0.2.1") == ""


def test_a_silent_node_is_the_cause_of_a_ranks_failure(nodes):
    together(nodes, "sleep 1; exit 5", "sleep 60", lost_seconds=2)
    until(lambda: nodes[1].record("j-worker-1").get("status") == "Running", "running")
    supervisor = nodes[1].supervisor()
    os.kill(supervisor, signal.SIGSTOP)
    try:
        result = nodes[0].result()
        assert "node b does not answer" in result["reason"]
        assert (result["code"], result["params"]["nodes"]) == ("job.node_silent", ["b"])
    finally:
        os.kill(supervisor, signal.SIGCONT)


@pytest.mark.long
def test_a_start_on_one_of_two_nodes_ends_soon_and_preserves_the_secrets(node):
    node.ok("reserve", name="j", job={"id": "t1", "spec": {}}, queue={}, secrets={"env": {"TOKEN": "hunter2"}})
    assignments = [assignment("j-worker-0", "a", 0), assignment("j-worker-1", "b", 1)]
    port = prepare(node, assignments, ports=1)["ports"][0]
    changes = {"nodes": ["a", "b"], "control_port": port, "coming_seconds": 0.6, "lost_seconds": 0.5, "secret": SECRET}
    start(node, [container("j-worker-0", "true")], **changes)
    assert node.result()["reason"] == "node b does not answer: it was not heard of since the start"
    assert (node.result()["code"], node.result()["params"]) == ("job.node_not_started", {"nodes": ["b"]})
    assert node.ok("secrets", name="j") == {"env": {"TOKEN": "hunter2"}}


@pytest.mark.long
def test_a_restarted_supervisor_ends_the_job_soon_without_its_leader(nodes):
    together(nodes, "sleep 60", "sleep 60", lost_seconds=1, starting_timeout=60)
    until(lambda: nodes[1].record("j-worker-1").get("status") == "Running", "running")
    leader = nodes[0].supervisor()
    os.kill(int(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGSTOP)
    os.kill(leader, signal.SIGKILL)
    os.kill(nodes[1].supervisor(), signal.SIGKILL)
    assert "does not answer" in nodes[1].result(seconds=8)["reason"]


@pytest.mark.long
def test_a_job_continues_after_the_leaders_supervisor_was_killed(nodes):
    together(nodes, "sleep 1.5; echo done", "sleep 1.5; echo done", lost_seconds=6)
    until(lambda: nodes[1].record("j-worker-1").get("status") == "Running", "running")
    for node in nodes:
        os.kill(node.supervisor(), signal.SIGKILL)
    assert [node.result()["status"] for node in nodes] == ["SUCCEEDED"] * 2
    assert [log(node, f"j-worker-{rank}") for rank, node in enumerate(nodes)] == [["o done"]] * 2


@pytest.mark.long
def test_a_node_that_is_not_ready_in_time_is_reported(node):
    assignments = [assignment("j-worker-0", "a", 0), assignment("j-worker-1", "b", 1)]
    port = prepare(node, assignments, ports=1)["ports"][0]
    changes = {"nodes": ["a", "b", "c"], "control_port": port, "starting_timeout": 0.6, "secret": SECRET}
    start(node, [container("j-worker-0", "true")], **changes)
    assert "node b (and 1 more) was not ready within 1 s (starting_timeout)" in node.result()["reason"]
    assert node.record("j-worker-0")["status"] == "Stopped", "it never began"


@pytest.mark.long
def test_lines_without_the_secret_and_repeated_lines_are_ignored(nodes):
    seen = []
    port = together(nodes, "sleep 2", "sleep 60")
    until(lambda: nodes[1].record("j-worker-1").get("status") == "Running", "running")
    with socket.create_connection((HOSTS["a"], port), timeout=5) as stranger:
        seen.append(stranger.recv(100))
        stranger.sendall(b"b 00\n" + b"0" * 64 + b' [1, {"stop": {"reason": "forged"}}]\n' + b"x" * 5000 + b"\n")
        stranger.settimeout(2)
        assert ended(stranger), "a line that proves nothing ends it"
    with socket.create_connection((HOSTS["a"], port), timeout=5) as stranger:
        assert stranger.recv(100) != seen[0], "what was recorded once fits no other connection"
        stranger.sendall(b"nobody 00\n")
        assert stranger.recv(100) == b""
    assert nodes[0].record("result") == {}
    nodes[0].ok("stop", name="j", reason="r", grace=0)
    assert nodes[0].result()["reason"] == "r"


def ended(connection):
    try:
        return connection.recv(100) == b""
    except ConnectionError:
        return True


# mpi


def mpi(nodes, launcher, **changes):
    """Run an mpi job: the launcher beside worker 0 on the first node, a worker that waits on the second."""
    assignments = [
        assignment("j-launcher-x", "a", 0, container="j-worker-0", address=HOSTS["a"]),
        assignment("j-worker-0", "a", 0, is_leader=False, uuids=["GPU-a", "GPU-b"], address=HOSTS["a"]),
        assignment(
            "j-worker-1", "b", 1, container="j-worker-1", is_leader=False, uuids=["GPU-a", "GPU-b"], address=HOSTS["b"]
        ),
    ]
    ports = [prepare(node, assignments, ports=1)["ports"][0] for node in nodes]
    shared = {
        "nodes": ["a", "b"],
        "chief_address": HOSTS["a"],
        "control_port": ports[0],
        "secret": SECRET,
        "ends": "chief",
    }
    boxes = [
        container(
            "j-worker-0", "sh", "-c", launcher, log_instance="j-launcher-x", instances=["j-launcher-x", "j-worker-0"]
        ),
        container("j-worker-1", "python3", "-I", "-S", "-c", LISTEN, str(ports[1]), phase=1, ready_port=ports[1]),
    ]
    for node, box in zip(nodes, boxes, strict=True):
        start(node, [box], **{"is_leader": node is nodes[0], **shared, **changes})
    return ports


LISTEN = """import socket, sys, time
time.sleep(0.3)
listener = socket.create_server(("", int(sys.argv[1])))
while True: listener.accept()[0].close()"""


@pytest.mark.long
def test_the_launcher_begins_when_the_workers_answer_and_its_end_is_the_end(nodes):
    mpi(nodes, "echo trained")
    assert [node.result()["status"] for node in nodes] == ["SUCCEEDED"] * 2
    assert log(nodes[0], "j-launcher-x") == ["o trained"]
    words = {
        name: nodes[name == "j-worker-1"].record(name)["status"]
        for name in ("j-launcher-x", "j-worker-0", "j-worker-1")
    }
    assert set(words.values()) == {"Completed"}


MPIRUN = {
    4: "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
    "the job to be terminated. The first process to do so was:\n\n  Process name: [[30123,1],2]\n  Exit code:    9\n",
    5: "prterun detected that one or more processes exited with non-zero status,\n"
    "thus causing the job to be terminated. The first process to do so was:\n\n"
    "   Process name: [prterun-a-17@1,2]\n   Exit code:    9\n",
}


@pytest.mark.long
@pytest.mark.parametrize("version", MPIRUN)
def test_the_rank_that_mpirun_names_is_the_failure_and_its_node_is_reported(nodes, version):
    mpi(nodes, f"printf %s '{MPIRUN[version]}' >&2; exit 9")
    result = nodes[0].result()
    assert (result["first_rank"], result["first_failure"], result["exit_code"]) == (2, "j-worker-1", 9)
    assert result["reason"] == "rank 2 on b failed: exit code 9"
    nodes[1].result()
    records = {name: nodes[name == "j-worker-1"].record(name) for name in ("j-launcher-x", "j-worker-0", "j-worker-1")}
    assert {name: record["status"] for name, record in records.items()} == {
        "j-launcher-x": "Error",
        "j-worker-0": "Stopped",
        "j-worker-1": "Error",
    }
    assert records["j-worker-1"]["exit_code"] == 9
    assert "first process" in " ".join(records["j-worker-1"]["last_lines"]), "not what its sshd says"


@pytest.mark.long
def test_a_rank_that_a_signal_ended_is_reported_with_the_signal(nodes):
    text = "mpirun noticed that process rank 1 with PID 0 on node a exited on signal 9 (Killed)."
    mpi(nodes, f"echo '{text}' >&2; exit 137")
    result = nodes[0].result()
    assert result["reason"] == "rank 1 on a failed: killed by signal 9 (SIGKILL)"
    assert (nodes[0].record("j-worker-0")["signal"], result["exit_code"]) == (9, 137)


@pytest.mark.long
def test_a_workers_container_that_ends_before_the_launcher_is_the_failure(nodes, engines):
    mpi(nodes, "sleep 60")
    until(lambda: nodes[0].record("j-launcher-x").get("status") == "Running", "running")
    engines[1].ask("POST", "/containers/j-worker-1/kill?signal=KILL")
    result = nodes[0].result()
    assert result["first_failure"] == "j-worker-1"
    assert "j-worker-1 on b failed: killed by signal 9" in result["reason"]


@pytest.mark.long
def test_a_removed_container_of_the_launcher_is_reported_by_its_rank(nodes, engines):
    """The launcher and worker 0 share it, and it has the worker's name."""
    mpi(nodes, "sleep 60")
    until(lambda: nodes[0].record("j-launcher-x").get("status") == "Running", "running")
    engines[0].ask("DELETE", "/containers/j-worker-0?force=1")
    result = nodes[0].result()
    assert (result["first_failure"], result["first_rank"]) == ("j-worker-0", 0)
    assert "j-worker-0 on a failed: its container was removed" in result["reason"]


@pytest.mark.long
def test_a_launcher_that_names_no_rank_fails_by_itself(nodes):
    mpi(nodes, "echo no mpirun here; exit 5")
    result = nodes[0].result()
    assert (result["first_failure"], result["first_rank"], result["exit_code"]) == ("j-launcher-x", None, 5)
    assert nodes[0].record("j-launcher-x")["last_lines"] == ["no mpirun here"]
