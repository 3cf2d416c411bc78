"""The node program for jobs as real processes on a node in a folder; Docker, systemd and nvidia-smi are STAND-INS."""

import contextlib
import fcntl
import json
import os
import resource
import stat
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from provision.node.jobs import queue as node_queue
from provision.node.jobs import records as node_records
from tests.support.interpreters import NODE_PYTHON
from tests.support.node.archive import ARCHIVE
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
    """Make a lease so many seconds older."""
    path = node.run / "leases" / uuid
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "monotonic": record["monotonic"] - seconds}))


@pytest.mark.row(9)
def test_one_of_several_submissions_of_a_name_gets_it_and_the_others_get_its_job(node):
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: node.ask("reserve", name="j", job=job(ident=str(n)), queue={}), range(4)))
    won = [number for number, answer in enumerate(answers) if answer["reserved"]]
    assert len(won) == 1
    assert {answer["job"]["id"] for answer in answers if not answer["reserved"]} == {str(won[0])}
    assert [path.name for path in node.root.iterdir()] == ["j"]


@pytest.mark.long
def test_an_incomplete_submission_is_not_listed_and_does_not_reserve_the_name(node):
    node.ok("reserve", name="other", job=job("other"))
    broken = node.root / ".new-j-1"
    broken.mkdir()
    (broken / "job.json").write_text("{}")
    assert [one["name"] for one in node.ok("report", names=None, brief=True)["jobs"]] == ["other"]
    assert node.ask("reserve", name="j", job=job(), queue={}) == {"reserved": True}


@pytest.mark.long
@pytest.mark.parametrize("name", ["../x", "", "-a", "A", "a/b", "a" * 80, None, 3])
def test_an_invalid_job_name_is_refused(node, name):
    assert "invalid job name" in node.ask("reserve", name=name, job=job())["error"]["message"]


def test_secrets_of_a_job_are_readable_by_root_only_and_in_no_report(node):
    node.ok("reserve", name="j", job=job(), queue={"state": "pending"}, secrets={"env": {"TOKEN": "hunter2"}})
    assert node.ok("secrets", name="j") == {"env": {"TOKEN": "hunter2"}}
    assert stat.S_IMODE((node.root / "j/secrets.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((node.root / "j").stat().st_mode) == stat.S_IMODE(node.root.stat().st_mode) == 0o700
    assert b"hunter2" not in node.raw("report", names=["j"], brief=False)
    node.ok("queue", name="j", queue={"state": "failed"}, over=True, event={"source": "queue", "message": "over"})
    assert node.ok("secrets", name="j") == {}
    report = node.ok("report", names=["j"], brief=False)["jobs"][0]
    assert (report["queue"]["state"], report["events"][0]["message"]) == ("failed", "over")


def test_the_time_of_submission_is_that_of_the_node(node):
    before = time.time()
    for name in ("first", "second"):
        node.ok("reserve", name=name, job=dict(job(name), submitted=before + 1e6))
    submitted = {one["name"]: one["submitted"] for one in node.ok("report", names=None, brief=True)["jobs"]}
    assert before <= submitted["first"] < submitted["second"] <= time.time()


def test_one_process_locks_the_queue_until_its_input_ends_and_others_get_its_name(node):
    first = node.begin("hold_queue", seconds=1, who="ann@h")
    assert json.loads(first.stdout.readline()) == {"held": True}
    refused = node.ask("hold_queue", seconds=0.1, who="bob@h")
    assert (refused["held"], refused["by"]["who"]) == (False, "ann@h")
    first.communicate(timeout=5)
    assert node.ask("hold_queue", seconds=1) == {"held": True}


def test_deeply_nested_folders_of_a_job_are_deleted(docked):
    """Those of an incomplete submission too."""
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
    """A request that sends heartbeats until its `silence` is set; its time limit is three quarters of a second."""
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
        [NODE_PYTHON, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=node.environment
    ) as holder:
        holder.stdin.write(json.dumps({**request, "beats": True}).encode() + b"\n")
        life = threading.Thread(target=beat)
        life.start()
        try:
            yield holder, json.loads(holder.stdout.readline()), silence
        finally:
            silence.set()
            life.join()


def test_gpus_of_a_run_are_released_when_its_controller_sends_no_heartbeat(docked):
    """Its job has ended by then, and the connection would stay open for hours."""
    request = {"do": "hold", "job": "r", "id": "r", "attempt": 1, "leases": {GPU: ""}}
    with beating(docked, "leasing", **request) as (holder, held, silence):
        assert held == {"taken": {}, "starting": False}
        time.sleep(1)
        assert GPU in docked.ok("look")["leases"], "it beats"
        silence.set()
        assert holder.wait(timeout=10) == 0
    assert docked.ok("look")["leases"] == {}


def test_the_lock_of_the_queue_is_released_when_its_owner_sends_no_heartbeat(node):
    """The connection may stay open for hours."""
    with beating(node, "queue", do="hold_queue", seconds=1) as (holder, held, silence):
        assert held == {"held": True}
        time.sleep(1)
        assert node.ask("hold_queue", seconds=0)["held"] is False, "it beats"
        silence.set()
        assert holder.wait(timeout=10) == 0
    assert node.ask("hold_queue", seconds=3) == {"held": True}


def test_the_queue_changes_only_if_its_state_is_the_expected_one(node):
    node.ok("reserve", name="j", job=job(), queue={"state": "pending", "attempt": 1, "time": 5})
    before = node.ok("report", names=["j"], brief=True)["jobs"][0]["queue"]
    assert before["time"] > 5, "the head's clock counts"
    wrong = ({"if_state": ["started"]}, {"if_attempt": 2}, {"if_id": "t2"}, {"if_state": ["pending"], "if_attempt": 0})
    stopped = {"name": "j", "queue": {"state": "stopped"}, "event": {"message": "no"}, "over": True}
    assert node.ok("queue", **stopped, **wrong[0]) == {"written": False, "queue": before}
    assert node.ok("queues", many=[{**stopped, **guess} for guess in wrong]) == {"written": [False] * 4}
    right = {"if_state": ["held", "pending"], "if_attempt": 1, "if_id": "t1"}
    assert node.ok("queue", name="j", queue={"state": "started", "time": 7}, merge=True, **right) == {"written": True}
    report = node.ok("report", names=["j"], brief=False)["jobs"][0]
    assert (report["queue"]["state"], report["queue"]["attempt"], report["events"]) == ("started", 1, [])
    assert report["queue"]["time"] >= before["time"]


def test_ends_of_jobs_are_recorded_without_waiting_for_the_disk(tmp_path, monkeypatch):
    """Hundreds may end at once, and the next pass detects them again; a requested stop must survive a power failure."""
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(node_records, "ROOT", str(tmp_path))
    (tmp_path / "j").mkdir()
    assert node_queue.queues({"many": [{"name": "j", "queue": {"state": "over"}}] * 3}) == {"written": [True] * 3}
    assert synced == []
    node_queue.queue({"name": "j", "queue": {"state": "stopped"}})
    assert len(synced) == 1


def test_the_queue_host_lists_the_nodes_that_have_not_confirmed_an_end(node):
    """All nodes that the job ever had; a deletion asks all of them again, and a later stop does not revoke it."""

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


def test_the_states_of_other_jobs_are_recorded_if_one_job_is_missing(node):
    node.ok("reserve", name="j", job=job(), queue={"state": "pending"})
    many = [
        {"name": name, "queue": {"reason": "insufficient resources"}, "event": {"message": "insufficient resources"}}
        for name in ("gone", "j")
    ]
    assert node.ok("queues", many=many) == {"written": [False, True]}
    report = node.ok("report", names=["j"], brief=False)["jobs"][0]
    assert (report["queue"]["reason"], report["events"][0]["message"]) == (
        "insufficient resources",
        "insufficient resources",
    )


@pytest.mark.parametrize("end", ["stop", "release", "delete"])
def test_a_request_with_the_id_of_another_job_does_not_end_that_job(docked, end):
    """The submitter chooses the ID, so nodes compare the name too."""
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
    """All users could read them."""
    paths = [node.root, *(node.run / name for name in ("leases", "mounts", "units"))]
    for path in paths:
        path.mkdir(parents=True)
        path.chmod(0o755)

    node.ok("reserve", name="j", job=job(), queue={})

    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o700}


def test_a_renewal_extends_existing_leases_only(docked):
    lease(docked)
    aged(docked, GPU, 100)
    docked.ok("drain", reason="disk")
    assert docked.ok("renew", job="j", id="t1", attempt=2) == {"renewed": 0}
    assert docked.ok("renew", job="j", id="t1", attempt=1) == {"renewed": 1}
    aged(docked, GPU, 100)
    assert list(docked.ok("look")["leases"]) == [GPU]


def test_a_gpu_is_leased_once_if_several_jobs_request_it_at_the_same_time(docked):
    def attempt(number):
        uuids = [*["GPU-a", "GPU-b", "GPU-c"][number % 3 :], "GPU-d"]
        return number, uuids, lease(docked, f"j{number}", uuids, str(number))

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(attempt, range(6)))
    winners = [(number, uuids) for number, uuids, answer in answers if not answer["taken"]]
    assert len(winners) == 1, "all want GPU-d"
    number, uuids = winners[0]
    leases = docked.ok("report", names=[], brief=True)["leases"]
    assert {uuid: held["id"] for uuid, held in leases.items()} == dict.fromkeys(uuids, str(number))
    assert all("GPU-d" in answer["taken"] for n, _, answer in answers if n != number)


@pytest.mark.row(3)
@pytest.mark.long
def test_all_gpus_or_none_are_leased_and_an_attempt_can_repeat_its_request(docked):
    assert lease(docked, "one", ["GPU-b"], "1") == {"taken": {}}
    assert list(lease(docked, "two", ["GPU-a", "GPU-b"], "2")["taken"]) == ["GPU-b"]
    assert list(docked.ok("look")["leases"]) == ["GPU-b"]
    assert lease(docked, "one", ["GPU-b"], "1") == {"taken": {}}
    assert docked.ok("release", job="one", id="1", attempt=1) == {"released": ["GPU-b"]}


def test_prepare_waits_for_gpus_that_the_job_before_still_has(docked):
    """Slurm allocates the GPUs of a killed job again before its supervisor has released them."""
    lease(docked, "before", ["GPU-a"], "1")
    owner = {"job": "j", "id": "t1", "attempt": 1, "leases": {"GPU-a": "j-worker-0"}}
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(prepare, docked, [assignment("j-worker-0", "a", 0)], lease={**owner, "patience": 60})
        prepared = docked.attempt() / "attempt.json"
        assert docked.ok("release", job="before", id="1", attempt=1) == {"released": ["GPU-a"]}
        assert "taken" not in begun.result()

    assert prepared.exists()
    assert docked.ok("look")["leases"]["GPU-a"]["job"] == "j"


def test_prepare_waits_for_a_node_that_refuses_its_gpus_for_a_moment(tmp_path):
    smi = f"test -e {tmp_path}/asked || {{ touch {tmp_path}/asked; exit 9; }}; "
    owner = {"job": "j", "id": "t1", "attempt": 1, "leases": {"GPU-a": "j-worker-0"}}
    with FakeNode(tmp_path) as node, node.with_docker():
        program = node.folder / "bin/nvidia-smi"
        program.write_text(program.read_text().replace("\n", f"\n{smi}\n", 1))
        prepare(node, [assignment("j-worker-0", "a", 0)], lease={**owner, "patience": 60})

        assert node.ok("look")["leases"]["GPU-a"]["job"] == "j"
    assert (tmp_path / "asked").exists()


def test_prepare_prepares_nothing_if_others_keep_its_gpus(docked):
    lease(docked, "other", ["GPU-a"], "1")
    owner = {"job": "j", "id": "t1", "attempt": 1, "leases": {"GPU-a": "j-worker-0", "GPU-b": "j-worker-1"}}

    answer = prepare(docked, [assignment("j-worker-0", "a", 0)], lease={**owner, "patience": 0})

    assert {gpu: taken["job"] for gpu, taken in answer["taken"].items()} == {"GPU-a": "other"}
    assert list(docked.ok("look")["leases"]) == ["GPU-a"]
    assert not docked.attempt().exists()


@pytest.mark.parametrize("request_", ["look", "report"])
def test_a_lease_lasts_while_its_job_is_prepared_and_then_expires(docked, request_):
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
def test_leases_with_a_running_container_do_not_expire_nor_any_while_docker_is_down(node):
    docked = node.with_docker()
    lease(docked)
    aged(docked, GPU, 9999)
    labels = ["--label=provision.job=j", "--label=provision.id=t1", "--label=provision.attempt=1"]
    made = client(docked, "create", "--name=c", *labels, "image", "sleep", "60")
    docked.engine.ask("POST", f"/containers/{made}/start")
    assert GPU in docked.ok("look")["leases"]
    docked.end_engine()
    answer = docked.ok("look")
    assert (GPU in answer["leases"], answer["docker_error"]) == (True, "docker's engine does not answer")
    docked.with_docker()
    assert docked.ok("look")["leases"] == {}


def test_jobs_are_reported_if_an_expired_lease_cannot_be_released(docked):
    """The next request releases it."""
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


def test_a_gpu_with_a_foreign_process_is_reported_and_not_leased(docked):
    (docked.folder / "uses").write_text(f"{GPU}, {os.getpid()}\nGPU-b, 999999999\n")
    answer = docked.ok("look")
    assert list(answer["foreign"]) == [GPU], "a process that is gone uses nothing"
    assert f"(pid {os.getpid()} of " in answer["foreign"][GPU]
    assert "pid" in lease(docked)["taken"][GPU]["foreign"]
    assert docked.ok("look")["leases"] == {}


@pytest.mark.long
def test_a_process_in_the_container_of_a_job_is_not_foreign_on_gpus_of_the_job(docked, tmp_path):
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
def test_a_gpu_and_its_mig_instances_cannot_be_leased_together(tmp_path):
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
def test_gpus_are_unknown_and_not_leased_if_the_driver_fails(tmp_path):
    with FakeNode(tmp_path, smi="echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18") as made:
        node = made.with_docker()
        answer = node.ok("look")
        assert answer["gpus"] is None
        assert "version mismatch" in answer["gpu_error"]
        assert "is unknown" in lease(node)["error"]["message"]


@pytest.mark.long
def test_a_driver_that_hangs_is_reported_after_a_time_limit(tmp_path):
    with FakeNode(tmp_path, smi="sleep 300") as made:
        answer = made.with_docker().ok("look")
        assert (answer["gpus"], answer["gpu_error"]) == (None, "nvidia-smi did not end in time")


@pytest.mark.long
def test_a_drained_node_leases_gpus_only_with_force(docked):
    docked.ok("drain", reason="disk of ann")
    assert docked.ok("look")["drained"] == "disk of ann"
    error = lease(docked)["error"]
    assert "disk of ann" in error["message"]
    assert error["remedy"] == "Resume it: provision node resume NODE"
    assert lease(docked, force=True) == {"taken": {}}
    docked.ok("resume")
    assert docked.ok("look")["drained"] == ""


def test_a_program_does_not_replace_or_end_the_drain_of_others(docked):
    """An apply resumes only what an apply drained; a person's drain replaces it."""
    docked.ok("drain", reason="kernel upgrade", owner="kernel")
    docked.ok("drain", reason="kernel upgrade again", owner="kernel")
    assert docked.ok("look")["drained"] == "kernel upgrade again"
    docked.ok("resume", owner="other")
    assert docked.ok("look")["drained"] == "kernel upgrade again"
    docked.ok("drain", reason="disk of ann")
    docked.ok("drain", reason="kernel upgrade", owner="kernel")
    docked.ok("resume", owner="kernel")
    assert docked.ok("look")["drained"] == "disk of ann"
    docked.ok("resume")
    docked.ok("drain", reason="kernel upgrade", owner="kernel")
    docked.ok("resume", owner="kernel")
    assert docked.ok("look")["drained"] == ""
    assert "error" in docked.ask("drain", reason="x", owner="Not valid")


@pytest.mark.row(51)
def test_prepare_makes_ssh_keys_for_the_account_of_the_job_and_returns_public_keys_only(docked):
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
def test_ssh_keys_belong_to_the_numeric_user_of_the_image(docked):
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
def test_prepare_reports_what_is_missing_on_the_node(docked):
    record = {"attempt": 1, "seats": [], "node": "a"}
    base = {"name": "j", "job": job(), "attempt": 1, "attempt_record": record}
    for more, said in (
        ({"images": {"missing:1": "missing"}}, "could not be pulled"),
        ({"images": {"missing:1": "never"}}, "there is no image missing:1"),
        ({"uid": "ann", "mpi": True}, "not of the form UID"),
        ({"job": job(ident="t2")}, "there is another job j"),
    ):
        assert said in docked.ask("prepare", **{**base, **more})["error"]["message"]


def test_a_pull_ends_at_the_time_limit_of_the_start(docked):
    """With its docker process; an event reports the pull while it lasts."""
    (docked.folder / "bin/docker").write_text("#!/bin/sh\nexec sleep 60\n")
    record = {"attempt": 1, "seats": [], "node": "a"}
    request = {"name": "j", "job": job(), "attempt": 1, "attempt_record": record}
    refused = docked.ask("prepare", images={"missing:1": "missing"}, seconds=1, **request)["error"]
    assert refused["message"] == "the image missing:1 was not pulled within 1 s"
    assert "--starting-timeout" in refused["remedy"]
    until(lambda: marked(f"PROVISION_JOBS_ROOT={docked.root}") == [], "nothing of it goes on")
    events = docked.ok("report", names=["j"])["jobs"][0]["events"]
    assert [(event["source"], event["message"]) for event in events] == [("node a", "pulling the image missing:1")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("server", "goes"),
    [("registry.example.com", True), ("docker.io", False), (None, True), ("other.example.com", False)],
)
def test_the_credential_of_a_registry_is_sent_to_that_registry_only(docked, server, goes):
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
def test_an_invalid_request_is_refused_without_a_traceback(node, request_):
    answer = json.loads(node.raw(request_.get("do", ""), **{k: v for k, v in request_.items() if k != "do"}))
    assert answer["error"]["message"]


def test_a_report_of_five_hundred_jobs_takes_little_cpu_time(node):
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
    jobs = node.ok("report", names=None, brief=True)["jobs"]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(jobs) == 501
    assert "env" not in jobs[0]["spec"]
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


def log(node, text, status="Completed"):
    prepare(node, [assignment("j-worker-0", "a", 0)])
    (node.attempt() / "j-worker-0.log").write_bytes(text)
    path = node.attempt() / "j-worker-0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": status}))


LOG = b"".join(b"2026-01-31T12:00:0%d.000000Z o line %d\n" % (n, n) for n in range(5))


@pytest.mark.row(40)
@pytest.mark.long
def test_lines_of_output_are_selected_by_number_and_time(node):
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
def test_following_shows_a_new_line_at_once_and_ends_with_the_instance(node):
    log(node, LOG, "Running")
    reader = node.begin("logs", name="j", attempt=0, instance="j-worker-0", follow=True, tail=1)
    assert reader.stdout.readline() == b"line 4\n"
    with (node.attempt() / "j-worker-0.log").open("ab") as stream:
        stream.write(b"2026-01-31T12:00:06.000000Z o new\n")
    assert reader.stdout.readline() == b"new\n"
    with (node.attempt() / "j-worker-0.log").open("ab") as stream:
        stream.write(b"2026-01-31T12:00:07.000000Z o last\n")
    path = node.attempt() / "j-worker-0.json"
    path.write_text(path.read_text().replace("Running", "Completed"))
    assert reader.communicate(timeout=5)[0] == b"last\n"


@pytest.mark.long
def test_a_follower_that_disconnects_leaves_no_process(node):
    log(node, LOG, "Running")
    reader = node.begin("logs", name="j", attempt=0, instance="j-worker-0", follow=True)
    reader.stdout.readline()
    reader.stdout.close()
    assert reader.wait(timeout=3) == 0


@pytest.mark.long
def test_delete_removes_a_job_and_its_containers_and_no_other_job_with_its_name(docked, engine):
    prepare(docked, [assignment("j-worker-0", "a", 0)], ports=1)
    made = client(docked, "create", "--name=j-tensorboard", "--label=provision.job=j", "image", "true")
    assert docked.ok("delete", name="j", id="other") == {"deleted": False}
    assert docked.ok("delete", name="j", id="t1") == {"deleted": True}
    assert engine.ask("GET", f"/containers/{made}/json")[0] == 404
    assert docked.ok("look")["ports"] == {}
    assert list(docked.root.iterdir()) == []
    assert docked.ok("delete", name="j", id="t1") == {"deleted": False}
    assert docked.ok("stop", name="j") == {"asked": False}


@pytest.mark.parametrize(
    ("spec", "is_deleted"),
    [({"no_container": True}, True), ({}, False), ({"no_container": True, "tensorboard": True}, False)],
)
def test_only_jobs_without_containers_are_deleted_while_docker_does_not_answer(node, spec, is_deleted):
    node.ok("reserve", name="j", job=dict(job(), spec=spec))
    (node.root / "j/attempts/1").mkdir(parents=True)

    answer = node.ask("delete", name="j", id=job()["id"])
    assert answer.get("deleted", False) is is_deleted, answer
    assert (node.root / "j").exists() is not is_deleted


@pytest.mark.long
def test_stop_without_a_supervisor_ends_the_running_part(docked):
    prepare(docked, [assignment("j-worker-0", "a", 0)], ports=1)
    assert docked.ok("stop", name="j", attempt=2) == {"asked": False}
    assert docked.ok("stop", name="j", reason="stopped by ann@h", grace=0, attempt=1) == {"asked": True}
    report = docked.ok("report", names=["j"], brief=True)["jobs"][0]
    assert (report["result"]["status"], report["result"]["reason"]) == ("STOPPED", "stopped by ann@h")
    assert report["instances"]["j-worker-0"]["status"] == "Stopped"
    assert docked.ok("look")["ports"] == {}
    assert docked.ok("stop", name="j") == {"asked": False}


@pytest.mark.long
def test_a_program_without_input_ends():
    done = subprocess.run(
        [NODE_PYTHON, "-I", "-S", ARCHIVE, "jobs"],
        input=b"",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert b"error" in done.stdout


@pytest.mark.parametrize("do", ["look", "report"])
def test_the_next_request_removes_credentials_of_a_killed_fetch(node, do):
    """Those of a running fetch stay; the removal needs no other fetch."""
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


def test_packed_code_is_stored_completely_with_its_job_or_not_at_all(node):
    """An incomplete upload is refused and leaves no file, and an invalid ID reaches no path."""
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
