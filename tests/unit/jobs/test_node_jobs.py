"""The program for jobs as real processes on a node in a folder; docker, systemd and nvidia-smi are STAND-INS."""

import ast
import contextlib
import fcntl
import json
import os
import resource
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from provision.node.jobs import queue as node_queue
from provision.node.jobs import records as node_records
from tests.support.node.archive import ARCHIVE, NODE
from tests.support.node.node import Engine, FakeNode, assignment, job, prepare, run, until
from tests.support.processes import marked

GPU = "GPU-a"


@pytest.fixture
def node(tmp_path):
    with FakeNode(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    made = Engine(tmp_path_factory.mktemp("engine") / "socket")
    yield made
    made.end()


@pytest.fixture
def docked(node, engine):
    yield node.with_docker(engine)
    engine.reset()


def lease(node, name="j", uuids=(GPU,), ident="t1", **more):
    return node.ask("lease", job=name, id=ident, attempt=1, leases=dict.fromkeys(uuids, f"{name}-worker-0"), **more)


def aged(node, uuid, seconds):
    """Make a lease so much older."""
    path = node.run / "leases" / uuid
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, "monotonic": found["monotonic"] - seconds}))


def test_python_3_6_can_read_all_that_goes_to_a_node():
    paths = [path for path in NODE.rglob("*.py") if path.parent.name != "run"]

    assert all(ast.parse(path.read_text(), feature_version=(3, 6)).body for path in paths)


@pytest.mark.row(9)
def test_of_two_that_submit_one_name_one_gets_it_and_the_other_is_told_by_whom(node):
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: node.ask("reserve", name="j", job=job(ident=str(n)), queue={}), range(4)))
    won = [number for number, answer in enumerate(answers) if answer["reserved"]]
    assert len(won) == 1
    assert {answer["job"]["id"] for answer in answers if not answer["reserved"]} == {str(won[0])}
    assert [path.name for path in node.root.iterdir()] == ["j"]


@pytest.mark.long
def test_a_submission_that_breaks_off_shows_nothing_and_leaves_the_name_free(node):
    node.ok("reserve", name="other", job=job("other"))
    broken = node.root / ".new-j-1"
    broken.mkdir()
    (broken / "job.json").write_text("{}")
    assert [told["name"] for told in node.ok("report", names=None, brief=True)["jobs"]] == ["other"]
    assert node.ask("reserve", name="j", job=job(), queue={}) == {"reserved": True}


@pytest.mark.long
@pytest.mark.parametrize("name", ["../x", "", "-a", "A", "a/b", "a" * 80, None, 3])
def test_what_is_no_name_reaches_no_path(node, name):
    assert "invalid job name" in node.ask("reserve", name=name, job=job())["error"]["message"]


def test_the_secrets_of_a_job_are_root_s_alone_and_in_no_report(node):
    node.ok("reserve", name="j", job=job(), queue={"state": "pending"}, secrets={"env": {"TOKEN": "hunter2"}})
    assert node.ok("secrets", name="j") == {"env": {"TOKEN": "hunter2"}}
    assert stat.S_IMODE((node.root / "j/secrets.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((node.root / "j").stat().st_mode) == stat.S_IMODE(node.root.stat().st_mode) == 0o700
    assert b"hunter2" not in node.raw("report", names=["j"], brief=False)
    node.ok("queue", name="j", queue={"state": "failed"}, over=True, event={"source": "queue", "message": "over"})
    assert node.ok("secrets", name="j") == {}
    told = node.ok("report", names=["j"], brief=False)["jobs"][0]
    assert (told["queue"]["state"], told["events"][0]["message"]) == ("failed", "over")


def test_when_a_job_was_submitted_is_told_by_the_node(node):
    before = time.time()
    for name in ("first", "second"):
        node.ok("reserve", name=name, job=dict(job(name), submitted=before + 1e6))
    told = {one["name"]: one["submitted"] for one in node.ok("report", names=None, brief=True)["jobs"]}
    assert before <= told["first"] < told["second"] <= time.time()


def test_the_queue_is_held_by_one_until_its_input_ends_and_the_next_hears_by_whom(node):
    first = node.begin("hold_queue", seconds=1, who="ann@h")
    assert json.loads(first.stdout.readline()) == {"held": True}
    refused = node.ask("hold_queue", seconds=0.1, who="bob@h")
    assert (refused["held"], refused["by"]["who"]) == (False, "ann@h")
    first.communicate(timeout=5)
    assert node.ask("hold_queue", seconds=1) == {"held": True}


def test_no_folder_that_a_job_made_is_too_deep_to_delete(docked):
    """Nor does what another left half done stand in the way of a submission."""
    docked.ok("reserve", name="j", job=job(), queue={})
    for top in (docked.root / "j/code", docked.root / ".new-x-1"):
        make_deep(top)
    os.utime(docked.root / ".new-x-1", (0, 0))
    assert docked.ok("delete", name="j", id="t1") == {"deleted": True}
    assert docked.ok("reserve", name="k", job=job("k"), queue={}) == {"reserved": True}
    assert [path.name for path in docked.root.iterdir()] == ["k"]


def make_deep(top):
    top.mkdir()
    folder = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)


@contextlib.contextmanager
def beating(node, part, **request):
    """A request that gives signs of life until its `silence` is set; three quarters of a second are its minute."""
    code = (
        f"import sys; sys.path.insert(0, {str(ARCHIVE)!r});"
        f"from provision.node.jobs import requests, {part}; {part}.BEAT_SECONDS = 0.75; sys.exit(requests.main())"
    )
    silence = threading.Event()

    def beat():
        with contextlib.suppress(BrokenPipeError):
            while not silence.wait(0.05):
                holder.stdin.write(b"\n")
                holder.stdin.flush()

    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=node.environment
    ) as holder:
        holder.stdin.write(json.dumps({**request, "beats": True}).encode() + b"\n")
        life = threading.Thread(target=beat)
        life.start()
        try:
            yield holder, json.loads(holder.stdout.readline()), silence
        finally:
            silence.set()
            life.join()


def test_gpus_of_a_run_whose_machine_lost_its_power_are_given_back(docked):
    """Its job is ended by then, and nobody would end its connection for hours."""
    request = {"do": "hold", "job": "r", "id": "r", "attempt": 1, "leases": {GPU: ""}}
    with beating(docked, "leasing", **request) as (holder, held, silence):
        assert held == {"taken": {}, "starting": False}
        time.sleep(1)
        assert GPU in docked.ok("look")["leases"], "it beats"
        silence.set()
        assert holder.wait(timeout=10) == 0
    assert docked.ok("look")["leases"] == {}


def test_the_queue_s_holder_that_gives_no_sign_of_life_any_more_loses_it(node):
    """A connection that nobody ends may stand for hours."""
    with beating(node, "queue", do="hold_queue", seconds=1) as (holder, held, silence):
        assert held == {"held": True}
        time.sleep(1)
        assert node.ask("hold_queue", seconds=0)["held"] is False, "it beats"
        silence.set()
        assert holder.wait(timeout=10) == 0
    assert node.ask("hold_queue", seconds=3) == {"held": True}


def test_the_queue_is_written_where_it_stands_as_the_writer_thinks_and_else_told(node):
    node.ok("reserve", name="j", job=job(), queue={"state": "pending", "attempt": 1, "time": 5})
    before = node.ok("report", names=["j"], brief=True)["jobs"][0]["queue"]
    assert before["time"] > 5, "the head's clock counts"
    wrong = ({"if_state": ["started"]}, {"if_attempt": 2}, {"if_id": "t2"}, {"if_state": ["pending"], "if_attempt": 0})
    stopped = {"name": "j", "queue": {"state": "stopped"}, "event": {"message": "no"}, "over": True}
    assert node.ok("queue", **stopped, **wrong[0]) == {"written": False, "queue": before}
    assert node.ok("queues", many=[{**stopped, **guess} for guess in wrong]) == {"written": [False] * 4}
    right = {"if_state": ["held", "pending"], "if_attempt": 1, "if_id": "t1"}
    assert node.ok("queue", name="j", queue={"state": "started", "time": 7}, merge=True, **right) == {"written": True}
    told = node.ok("report", names=["j"], brief=False)["jobs"][0]
    assert (told["queue"]["state"], told["queue"]["attempt"], told["events"]) == ("started", 1, [])
    assert told["queue"]["time"] >= before["time"]


def test_the_queue_is_not_held_for_as_long_as_a_disk_takes_to_keep_what_has_ended(tmp_path, monkeypatch):
    """Of hundreds at once; that a job was stopped outlasts a power cut, that it is over is found out again."""
    kept = []
    monkeypatch.setattr(os, "fsync", kept.append)
    monkeypatch.setattr(node_records, "ROOT", str(tmp_path))
    (tmp_path / "j").mkdir()
    assert node_queue.queues({"many": [{"name": "j", "queue": {"state": "over"}}] * 3}) == {"written": [True] * 3}
    assert kept == []
    node_queue.queue({"name": "j", "queue": {"state": "stopped"}})
    assert len(kept) == 1


def test_the_queue_host_lists_the_nodes_that_have_not_confirmed_an_end(node):
    """All that the job was ever given to; a deletion asks all of them again, and is not taken back by a later stop."""

    def queue(**more):
        assert node.ok("queue", name="j", merge=True, **more) == {"written": True}
        return json.loads((node.root / "j/queue.json").read_text())

    node.ok("reserve", name="j", job=job(), queue={"state": "pending"})
    queue(queue={"state": "started", "attempt": 1, "nodes": ["a", "b"]})
    queue(queue={"state": "started", "attempt": 2, "nodes": ["c"]})
    stopped = queue(queue={"state": "stopped", "reason": "stopped by me"})
    assert (stopped["unconfirmed"], stopped["deleted"], stopped["attempt"]) == (["a", "b", "c"], False, 2)

    confirmed = queue(queue={"state": "stopped"}, confirmed=["a", "c", "other"])
    assert (confirmed["unconfirmed"], confirmed["time"]) == (["b"], stopped["time"])
    assert queue(queue={"state": "stopped"})["unconfirmed"] == ["b"]
    deleted = queue(queue={"state": "stopped", "deleted": True})
    assert (deleted["unconfirmed"], deleted["deleted"]) == (["a", "b", "c"], True)
    queue(queue={"state": "stopped"}, confirmed=["a"])
    again = queue(queue={"state": "stopped", "deleted": False})
    assert (again["unconfirmed"], again["deleted"]) == (["b", "c"], True)
    assert not {"unconfirmed", "deleted"} & set(queue(queue={"state": "pending"}))


def test_a_job_that_is_gone_keeps_no_other_from_being_told_why_it_waits(node):
    node.ok("reserve", name="j", job=job(), queue={"state": "pending"})
    many = [{"name": name, "queue": {"reason": "no room"}, "event": {"message": "no room"}} for name in ("gone", "j")]
    assert node.ok("queues", many=many) == {"written": [False, True]}
    told = node.ok("report", names=["j"], brief=False)["jobs"][0]
    assert (told["queue"]["reason"], told["events"][0]["message"]) == ("no room", "no room")


@pytest.mark.parametrize("end", ["stop", "release", "delete"])
def test_a_job_with_the_id_of_another_one_does_not_end_it(docked, end):
    """The submitter chooses the id; nodes compare the name too."""
    lease(docked)
    lease(docked, "evil", ["GPU-b"])
    run(docked, "sleep", "60", leases=[GPU])
    until(lambda: docked.record("j-worker-0").get("status") == "Running", "the job runs")
    prepare(docked, [assignment("evil-worker-0", "a", 0)], name="evil")

    docked.ok(end, **{"job" if end == "release" else "name": "evil"}, id="t1", attempt=1, grace=0)

    leases = docked.ok("report", names=["j"], brief=True)["leases"]
    assert leases[GPU]["job"] == "j"
    assert docked.record("result") == {}
    assert docked.record("j-worker-0")["status"] == "Running"


def test_folders_of_an_earlier_version_are_closed_to_other_users(node):
    """It made them readable for all."""
    paths = [node.root, *(node.run / name for name in ("leases", "mounts", "units"))]
    for path in paths:
        path.mkdir(parents=True)
        path.chmod(0o755)

    node.ok("reserve", name="j", job=job(), queue={})

    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o700}


def test_renewing_keeps_what_an_attempt_has_and_takes_nothing(docked):
    lease(docked)
    aged(docked, GPU, 100)
    docked.ok("drain", reason="disk")
    assert docked.ok("renew", job="j", id="t1", attempt=2) == {"renewed": 0}
    assert docked.ok("renew", job="j", id="t1", attempt=1) == {"renewed": 1}
    aged(docked, GPU, 100)
    assert list(docked.ok("look")["leases"]) == [GPU]


def test_no_gpu_is_leased_twice_however_many_try_at_once(docked):
    def attempt(number):
        uuids = [*["GPU-a", "GPU-b", "GPU-c"][number % 3 :], "GPU-d"]
        return number, uuids, lease(docked, f"j{number}", uuids, str(number))

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(attempt, range(6)))
    winners = [(number, uuids) for number, uuids, answer in found if not answer["taken"]]
    assert len(winners) == 1, "all want GPU-d"
    number, uuids = winners[0]
    leases = docked.ok("report", names=[], brief=True)["leases"]
    assert {uuid: held["id"] for uuid, held in leases.items()} == dict.fromkeys(uuids, str(number))
    assert all("GPU-d" in answer["taken"] for n, _, answer in found if n != number)


@pytest.mark.row(3)
@pytest.mark.long
def test_all_or_none_and_a_second_try_of_the_same_attempt_is_no_conflict(docked):
    assert lease(docked, "one", ["GPU-b"], "1") == {"taken": {}}
    assert list(lease(docked, "two", ["GPU-a", "GPU-b"], "2")["taken"]) == ["GPU-b"]
    assert list(docked.ok("look")["leases"]) == ["GPU-b"]
    assert lease(docked, "one", ["GPU-b"], "1") == {"taken": {}}
    assert docked.ok("release", job="one", id="1", attempt=1) == {"released": ["GPU-b"]}


@pytest.mark.parametrize("request_", ["look", "report"])
def test_a_lease_stands_while_somebody_makes_its_job_ready_and_not_much_longer(docked, request_):
    prepare(docked, [assignment("j-worker-0", "a", 0)])
    for name, ident, gpu in (("j", "t1", "GPU-a"), ("never", "t2", "GPU-b")):
        assert lease(docked, name, [gpu], ident) == {"taken": {}}
        aged(docked, gpu, 100)
    assert set(docked.ok(request_)["leases"]) == {"GPU-a", "GPU-b"}
    docked.ok("renew", job="j", id="t1", attempt=1)
    aged(docked, "GPU-a", 100)
    aged(docked, "GPU-b", 100)
    assert set(docked.ok(request_)["leases"]) == {"GPU-a"}, "it was renewed"
    aged(docked, "GPU-a", 100)
    assert docked.ok(request_)["leases"] == {}, "whoever made it ready is gone"


@pytest.mark.long
def test_a_lease_whose_container_runs_stays_and_so_do_all_when_docker_does_not_answer(node):
    docked = node.with_docker()
    lease(docked)
    aged(docked, GPU, 9999)
    labels = ["--label=provision.job=j", "--label=provision.id=t1", "--label=provision.attempt=1"]
    made = client(docked, "create", "--name=c", *labels, "image", "sleep", "60")
    docked.engine.ask("POST", f"/containers/{made}/start")
    assert GPU in docked.ok("look")["leases"]
    docked.end_engine()
    found = docked.ok("look")
    assert (GPU in found["leases"], found["docker_error"]) == (True, "docker's engine does not answer")
    docked.with_docker()
    assert docked.ok("look")["leases"] == {}


def test_jobs_are_told_of_also_where_an_old_lease_cannot_be_given_back_now(docked):
    """The next that looks gives it back."""
    lease(docked)
    aged(docked, GPU, 121)
    lock = docked.run / "jobs.lock"
    lock.unlink()
    lock.mkdir()
    assert docked.ok("report")["leases"][GPU]["job"] == "j"
    lock.rmdir()
    assert docked.ok("report")["leases"] == {}


def client(node, *words):
    done = subprocess.run(
        ["docker", *words], env=node.environment, capture_output=True, check=True, executable=node.folder / "bin/docker"
    )
    return done.stdout.decode().strip()


def test_a_gpu_that_others_use_is_told_and_never_leased(docked):
    (docked.folder / "uses").write_text(f"{GPU}, {os.getpid()}\nGPU-b, 999999999\n")
    found = docked.ok("look")
    assert list(found["foreign"]) == [GPU], "a process that is gone uses nothing"
    assert f"(pid {os.getpid()} of " in found["foreign"][GPU]
    assert "pid" in lease(docked)["taken"][GPU]["foreign"]
    assert docked.ok("look")["leases"] == {}


@pytest.mark.long
def test_a_process_in_a_job_s_container_is_not_foreign_where_that_job_has_the_gpu(docked, tmp_path):
    labels = ["--label=provision.job=j", "--label=provision.id=t1", "--label=provision.attempt=1"]
    made = client(docked, "create", "--name=c", *labels, "image", "true")
    proc = tmp_path / "proc/4711"
    proc.mkdir(parents=True)
    (docked.folder / "uses").write_text(f"{GPU}, 4711\n")
    docked.environment["PROVISION_PROC"] = str(tmp_path / "proc")
    (proc / "cgroup").write_text(f"0::/system.slice/docker-{made}.scope\n")
    assert GPU in docked.ok("look")["foreign"], "it has no lease of that GPU"
    docked.environment.pop("PROVISION_PROC")
    (docked.folder / "uses").write_text("")
    assert lease(docked) == {"taken": {}}
    prepare(docked, [assignment("j-worker-0", "a", 0)])
    (docked.folder / "uses").write_text(f"{GPU}, 4711\n")
    docked.environment["PROVISION_PROC"] = str(tmp_path / "proc")
    for text, foreign in ((f"0::/system.slice/docker-{made}.scope\n", False), ("0::/user.slice\n", True)):
        (proc / "cgroup").write_text(text)
        assert (GPU in docked.ok("look")["foreign"]) is foreign


@pytest.mark.long
def test_of_a_gpu_and_its_mig_instances_one_side_alone_can_be_leased(tmp_path):
    smi = (
        "case $1 in --query-gpu*) echo '0, GPU-a, A100, 40960';; "
        "-L) printf 'GPU 0: A100 (UUID: GPU-a)\\n  MIG 1g.5gb Device 0: (UUID: MIG-1)\\n"
        "  MIG 1g.5gb Device 1: (UUID: MIG-GPU-a/2/0)\\n';; esac"
    )
    (tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi1").mkdir(parents=True)
    with FakeNode(tmp_path, smi=smi) as made:
        node = made.with_docker()
        node.environment["PROVISION_PROC"] = str(tmp_path / "proc")
        assert node.ok("look")["gpus"][0]["mig"] == ["MIG-1", "MIG-GPU-a/2/0"]
        assert lease(node, "one", ["MIG-GPU-a/2/0"], "1") == {"taken": {}}
        assert list(lease(node, "two", ["GPU-a"], "2")["taken"]) == ["GPU-a"]
        assert lease(node, "three", ["MIG-1"], "3") == {"taken": {}}
        assert set(node.ok("look")["leases"]) == {"MIG-1", "MIG-GPU-a/2/0"}
        for name, ident in (("one", "1"), ("three", "3")):
            node.ok("release", job=name, id=ident, attempt=1)
        assert lease(node, "two", ["GPU-a"], "2") == {"taken": {}}
        assert list(lease(node, "three", ["MIG-1"], "3")["taken"]) == ["MIG-1"]


@pytest.mark.long
def test_what_a_driver_does_not_answer_is_unknown_and_not_leased(tmp_path):
    with FakeNode(tmp_path, smi="echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18") as made:
        node = made.with_docker()
        found = node.ok("look")
        assert found["gpus"] is None
        assert "version mismatch" in found["gpu_error"]
        assert "is unknown" in lease(node)["error"]["message"]


@pytest.mark.long
def test_a_driver_that_hangs_is_told_after_its_limit(tmp_path):
    with FakeNode(tmp_path, smi="sleep 300") as made:
        found = made.with_docker().ok("look")
        assert (found["gpus"], found["gpu_error"]) == (None, "nvidia-smi did not end in time")


@pytest.mark.long
def test_a_drained_node_takes_no_job_unless_it_is_forced(docked):
    docked.ok("drain", reason="disk of ann")
    assert docked.ok("look")["drained"] == "disk of ann"
    assert "disk of ann" in lease(docked)["error"]["message"]
    assert lease(docked, force=True) == {"taken": {}}
    docked.ok("drain", reason="")
    assert docked.ok("look")["drained"] == ""


@pytest.mark.row(51)
def test_prepare_makes_keys_of_the_job_s_account_and_hands_out_their_public_halves_alone(docked):
    answer = prepare(
        docked, [assignment("j-worker-0", "a", 0)], mpi=True, uid="1234:55", ports=2, images={"image": "missing"}
    )
    there = docked.attempt() / "ssh"
    assert answer["keys"]["client"] == (there / "client.pub").read_text().strip()
    assert answer["images"]["image"] == {"id": "sha256:" + "ab" * 32, "digest": "sha256:" + "12" * 32}
    if os.getuid() == 0:
        assert {(path.stat().st_uid, path.stat().st_gid) for path in (there, *there.iterdir())} == {(1234, 55)}
    assert {stat.S_IMODE(path.stat().st_mode) for path in there.iterdir()} == {0o600}
    assert stat.S_IMODE(there.stat().st_mode) == 0o700
    assert "PRIVATE" not in json.dumps(answer)
    ports = docked.ok("look")["ports"]
    assert {int(port) for port in ports} == set(answer["ports"])
    assert docked.ok("release", job="j", id="t1", attempt=1) == {"released": []}
    assert docked.ok("look")["ports"] == {}
    assert not there.exists(), "what was prepared and not started leaves no key"


@pytest.mark.long
def test_the_keys_are_of_the_account_that_the_image_names_and_of_no_guess(docked):
    request = {"name": "j", "job": job(), "attempt": 1, "attempt_record": {"attempt": 1, "seats": [], "node": "a"}}
    refused = docked.ask("prepare", mpi=True, images={"user:ann": "missing"}, **request)["error"]
    assert "runs as 'ann'" in refused["message"]
    assert "--user" in refused["remedy"]
    docked.ok("prepare", mpi=True, images={"user:1234": "missing"}, **request)
    there = docked.attempt() / "ssh"
    if os.getuid() == 0:
        assert {(path.stat().st_uid, path.stat().st_gid) for path in (there, *there.iterdir())} == {(1234, 1234)}
    docked.ok("prepare", mpi=True, images={"user:ann": "missing"}, uid="55", **request)


@pytest.mark.long
def test_prepare_says_what_is_missing_on_this_node(docked):
    record = {"attempt": 1, "seats": [], "node": "a"}
    base = {"name": "j", "job": job(), "attempt": 1, "attempt_record": record}
    for more, said in (
        ({"images": {"missing:1": "missing"}}, "could not be pulled"),
        ({"images": {"missing:1": "never"}}, "there is no image missing:1"),
        ({"uid": "ann", "mpi": True}, "not of the form UID"),
        ({"job": job(ident="t2")}, "there is another job j"),
    ):
        assert said in docked.ask("prepare", **{**base, **more})["error"]["message"]


def test_a_pull_that_hangs_is_given_up_when_the_start_is_late(docked):
    """Its docker too; and that it is pulled is told while it lasts."""
    (docked.folder / "bin/docker").write_text("#!/bin/sh\nexec sleep 60\n")
    record = {"attempt": 1, "seats": [], "node": "a"}
    request = {"name": "j", "job": job(), "attempt": 1, "attempt_record": record}
    refused = docked.ask("prepare", images={"missing:1": "missing"}, seconds=1, **request)["error"]
    assert refused["message"] == "the image missing:1 was not pulled within 1 s"
    assert "--starting-timeout" in refused["remedy"]
    until(lambda: marked(f"PROVISION_JOBS_ROOT={docked.root}") == [], "nothing of it goes on")
    told = docked.ok("report", names=["j"])["jobs"][0]["events"]
    assert [(event["source"], event["message"]) for event in told] == [("node a", "pulling the image missing:1")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("server", "goes"),
    [("registry.example.com", True), ("docker.io", False), (None, True), ("other.example.com", False)],
)
def test_a_registry_s_login_goes_to_that_registry_alone(docked, server, goes):
    tools = docked.folder / "bin"
    (tools / "docker").write_text(
        f'#!/bin/sh\necho "$@" >{docked.folder}/said; cat "$2/config.json" >>{docked.folder}/said\nexit 1\n'
    )
    login = {"username": "u", "password": "p", "server": server}
    record = {"attempt": 1, "seats": [], "node": "a"}
    docked.ask(
        "prepare",
        name="j",
        job=job(),
        attempt=1,
        attempt_record=record,
        images={"registry.example.com/train:1": "always"},
        registry={key: value for key, value in login.items() if value},
    )
    said = (docked.folder / "said").read_text()
    assert ('{"auths": {"registry.example.com": {"auth": "dTpw"}}}' in said) == goes
    assert not [path for path in docked.run.iterdir() if path.name.startswith("tmp")]


@pytest.mark.parametrize(
    "request_", [{"do": "fly"}, {}, {"do": "lease", "job": "j", "attempt": 1}, {"do": "logs", "name": "j"}]
)
def test_a_request_that_makes_no_sense_is_refused_without_a_traceback(node, request_):
    answer = json.loads(node.raw(request_.get("do", ""), **{k: v for k, v in request_.items() if k != "do"}))
    assert answer["error"]["message"]


def test_five_hundred_jobs_are_told_of_in_no_time(node):
    node.ok("reserve", name="j", job=job(), queue={"state": "started"})
    for number in range(500):
        folder = node.root / f"j{number}/attempts/1"
        folder.mkdir(parents=True)
        (folder.parents[1] / "job.json").write_text(json.dumps(job(f"j{number}", str(number), env={"A": "x" * 200})))
        (folder.parents[1] / "queue.json").write_text('{"state": "started"}')
        (folder / "attempt.json").write_text(
            json.dumps({"seats": [assignment(f"j{number}-worker-0", "a", 0)], "attempt": 1})
        )
        (folder / f"j{number}-worker-0.json").write_text('{"instance": "x", "status": "Completed"}')
        (folder / "result.json").write_text('{"status": "SUCCEEDED"}')
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = node.ok("report", names=None, brief=True)["jobs"]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(told) == 501
    assert "env" not in told[0]["spec"]
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


def log(node, text, status="Completed"):
    prepare(node, [assignment("j-worker-0", "a", 0)])
    (node.attempt() / "j-worker-0.log").write_bytes(text)
    path = node.attempt() / "j-worker-0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": status}))


LOG = b"".join(b"2026-01-31T12:00:0%d.000000Z o line %d\n" % (n, n) for n in range(5))


@pytest.mark.row(40)
@pytest.mark.long
def test_lines_are_given_out_as_they_were_asked_for(node):
    log(node, LOG + b"2026-01-31T12:00:05.000000Z e \xff\x00 two  spaces")

    def lines(**more):
        return node.raw("logs", name="j", attempt=0, instance="j-worker-0", **more)

    assert lines() == b"".join(b"line %d\n" % n for n in range(5)), "a line that is not whole yet is none"
    assert lines(tail=2) == b"line 3\nline 4\n"
    assert lines(tail=0) == b""
    since = 1769860803.0  # 12:00:03
    assert lines(since=since) == b"line 3\nline 4\n"
    assert lines(since=since, tail=1) == b"line 4\n"
    assert lines(tail=1, timestamps=True) == b"2026-01-31T12:00:04.000000Z line 4\n"
    assert lines(follow=True, tail=1) == b"line 4\n", "an instance that is over is not waited for"
    said = json.loads(node.raw("logs", name="j", attempt=0, instance="j-worker-9"))["error"]
    assert "j-worker-0" in said["remedy"]


@pytest.mark.row(18)
def test_what_follows_shows_a_line_at_once_and_ends_with_the_instance(node):
    log(node, LOG, "Running")
    reader = node.begin("logs", name="j", attempt=0, instance="j-worker-0", follow=True, tail=0)
    time.sleep(0.2)
    with (node.attempt() / "j-worker-0.log").open("ab") as stream:
        stream.write(b"2026-01-31T12:00:06.000000Z o new\n")
    assert reader.stdout.readline() == b"new\n"
    with (node.attempt() / "j-worker-0.log").open("ab") as stream:
        stream.write(b"2026-01-31T12:00:07.000000Z o last\n")
    path = node.attempt() / "j-worker-0.json"
    path.write_text(path.read_text().replace("Running", "Completed"))
    assert reader.communicate(timeout=5)[0] == b"last\n"


@pytest.mark.long
def test_who_follows_and_goes_away_leaves_no_process(node):
    log(node, LOG, "Running")
    reader = node.begin("logs", name="j", attempt=0, instance="j-worker-0", follow=True)
    reader.stdout.readline()
    reader.stdout.close()
    assert reader.wait(timeout=3) == 0


@pytest.mark.long
def test_delete_forgets_a_job_and_its_containers_and_no_other_job_of_its_name(docked, engine):
    prepare(docked, [assignment("j-worker-0", "a", 0)], ports=1)
    made = client(docked, "create", "--name=j-tensorboard", "--label=provision.job=j", "image", "true")
    assert docked.ok("delete", name="j", id="other") == {"deleted": False}
    assert docked.ok("delete", name="j", id="t1") == {"deleted": True}
    assert engine.ask("GET", f"/containers/{made}/json")[0] == 404
    assert docked.ok("look")["ports"] == {}
    assert list(docked.root.iterdir()) == []
    assert docked.ok("delete", name="j", id="t1") == {"deleted": False}
    assert docked.ok("stop", name="j") == {"asked": False}


@pytest.mark.long
def test_stop_without_a_supervisor_ends_the_running_part(docked):
    prepare(docked, [assignment("j-worker-0", "a", 0)], ports=1)
    assert docked.ok("stop", name="j", attempt=2) == {"asked": False}
    assert docked.ok("stop", name="j", reason="stopped by ann@h", grace=0, attempt=1) == {"asked": True}
    told = docked.ok("report", names=["j"], brief=True)["jobs"][0]
    assert (told["result"]["status"], told["result"]["reason"]) == ("STOPPED", "stopped by ann@h")
    assert told["instances"]["j-worker-0"]["status"] == "Stopped"
    assert docked.ok("look")["ports"] == {}
    assert docked.ok("stop", name="j") == {"asked": False}


@pytest.mark.long
def test_a_program_without_its_input_ends():
    done = subprocess.run(
        [sys.executable, "-I", "-S", ARCHIVE, "jobs"],
        input=b"",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert b"error" in done.stdout


@pytest.mark.parametrize("do", ["look", "report"])
def test_logins_of_a_fetch_that_was_killed_go_with_the_next_request(node, do):
    """Those of a fetch that goes on stay; nobody has to fetch again for a password to leave the node."""
    for name in ("code-1", "code-left", "code-held"):
        (node.run / name).mkdir(parents=True)
        (node.run / name / "password").write_text("hunter2")
    (node.run / "code-left" / ".lock").touch()
    with (node.run / "code-held" / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        node.ok(do, names=None)
        assert [path.name for path in node.run.glob("code-*")] == ["code-held"]
    node.ok(do, names=None)
    assert not list(node.run.glob("code-*"))


def test_packed_code_is_stored_whole_with_its_job_or_not_at_all(node):
    """What breaks off, or is of another size, is refused and leaves nothing; other ids reach no path."""
    short = node.begin("upload", id="t1", size=10)
    assert "broke off" in json.loads(short.communicate(b"12345", timeout=30)[0])["error"]["message"]
    assert list(node.root.iterdir()) == []
    for bad in ("../x", "", None, "a/b"):
        assert "invalid job ID" in node.ask("upload", id=bad, size=1)["error"]["message"]
    whole = node.begin("upload", id="t1", size=200_000)
    assert json.loads(whole.communicate(b"x" * 200_000, timeout=30)[0]) == {"stored": True}
    node.ok("reserve", name="j", job=job(), queue={}, upload="t1")
    assert node.raw("code", name="j") == b"x" * 200_000
    assert [path.name for path in node.root.iterdir()] == ["j"]
