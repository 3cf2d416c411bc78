"""Requests to nodes of Slurm: starters, sealed secrets, GPUs, marks, and the refusal of a second scheduler.

Slurm's commands are STAND-INS that print recorded output.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from provision.jobs.engines import EngineContext, create_engine, engine_name
from provision.jobs.engines.base import EngineUnavailable
from provision.testing import make_cluster
from tests.support.node.node import FakeNode


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """A node whose folders are in a temporary folder."""
    made = FakeNode(tmp_path / "node")
    made.environment |= {
        "PROVISION_STARTERS": str(tmp_path / "starters"),
        "PROVISION_SEAL": str(tmp_path / "seal"),
        "PROVISION_SLURM_OUTPUT": str(tmp_path / "output"),
        "PROVISION_SLURM_RUN": str(tmp_path / "marks"),
        "PROVISION_CGROUP": str(tmp_path / "cgroup"),
        "PROVISION_PROC": "/proc",
    }
    return made


def tool(node: FakeNode, name: str, text: str) -> None:
    """Put a STAND-IN of a command of Slurm on a node."""
    path = node.folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def archive(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as target:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/").replace("_py", ".py"))
            entry.size = len(content)
            target.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def store(node: FakeNode, content: bytes, sha: str = "") -> dict[str, Any]:
    """Send a starter to a node."""
    child = node.program()
    request = {"do": "slurm_store", "starter": sha or hashlib.sha256(content).hexdigest(), "size": len(content)}
    return dict(json.loads(child.communicate(json.dumps(request).encode() + b"\n" + content, timeout=30)[0]))


def test_a_starter_is_stored_once(node: FakeNode, tmp_path: Path) -> None:
    content = archive(start_py=b"print('x')\n")
    sha = hashlib.sha256(content).hexdigest()
    assert node.ok("slurm_node", starter=sha)["starter"] is False

    assert store(node, content) == {"stored": True}
    assert store(node, content) == {"stored": True}

    assert node.ok("slurm_node", starter=sha)["starter"] is True
    assert names_in(tmp_path / "starters") == [sha]


def test_a_changed_starter_is_refused(node: FakeNode, tmp_path: Path) -> None:
    assert "changed" in store(node, archive(start_py=b"x"), "0" * 64)["error"]["message"]
    assert names_in(tmp_path / "starters") == []


def test_a_starter_is_unpacked_into_its_folder_only(node: FakeNode, tmp_path: Path) -> None:
    store(node, archive(**{"..__..__outside": b"x", "start_py": b"x"}))

    assert not (tmp_path / "outside").exists()


def test_old_starters_are_removed(node: FakeNode, tmp_path: Path) -> None:
    """Waiting jobs may need the newest ones, and those that a submission has used lately."""
    for number in range(6):
        store(node, archive(start_py=str(number).encode()))
    assert len(names_in(tmp_path / "starters")) == 6

    for name in names_in(tmp_path / "starters"):
        os.utime(tmp_path / "starters" / name, (1.0, 1.0))
    used = names_in(tmp_path / "starters")[-1]
    node.ok("slurm_node", starter=used)
    store(node, archive(start_py=b"7"))
    assert len(names_in(tmp_path / "starters")) == 4
    assert used in names_in(tmp_path / "starters")


def test_what_a_killed_request_has_left_is_removed(node: FakeNode, tmp_path: Path) -> None:
    """A younger folder may belong to a request that is still running."""
    starters = tmp_path / "starters"
    for name in (f".new-1-{'a' * 64}", f".new-2-{'b' * 64}"):
        (starters / name).mkdir(parents=True)
        (starters / f"{name}.tar.gz").touch()
    for name in (f".new-1-{'a' * 64}", f".new-1-{'a' * 64}.tar.gz"):
        os.utime(starters / name, (1.0, 1.0))
    store(node, archive(start_py=b"1"))

    assert names_in(starters)[:2] == [f".new-2-{'b' * 64}", f".new-2-{'b' * 64}.tar.gz"]
    assert len(names_in(starters)) == 3


def test_a_starter_that_another_request_removes_is_no_error(node: FakeNode, tmp_path: Path) -> None:
    """Two submissions store a new starter at the same time; a link without a target stands for the removed one."""
    (tmp_path / "starters").mkdir()
    (tmp_path / "starters" / ("a" * 64)).symlink_to("gone")

    assert store(node, archive(start_py=b"1")) == {"stored": True}


def test_old_messages_of_starters_are_removed(node: FakeNode, tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    for name, age in (("job-1.out", 1.0), ("job-2.out", None), ("health.json", 1.0)):
        (tmp_path / "output" / name).write_text("")
        if age is not None:
            os.utime(tmp_path / "output" / name, (age, age))
    node.ok("slurm_node")

    assert names_in(tmp_path / "output") == ["health.json", "job-2.out"]


@pytest.mark.parametrize("sha", ["../x", "0" * 63, "G" * 64, "0" * 64 + "\n", 3])
def test_the_name_of_a_starter_is_a_hash(node: FakeNode, sha: object) -> None:
    assert "SHA-256" in node.ask("slurm_node", starter=sha)["error"]["message"]


def test_only_the_keys_of_nodes_open_sealed_secrets(node: FakeNode, tmp_path: Path) -> None:
    certificate = node.ok("slurm_node", seal=True)["certificate"]
    assert node.ok("slurm_node", seal=True)["certificate"] == certificate
    other = FakeNode(tmp_path / "other")
    other.environment["PROVISION_SEAL"] = str(tmp_path / "seal-of-other")
    other.environment["PROVISION_SLURM_OUTPUT"] = str(tmp_path / "output")
    certificates = [certificate, other.ok("slurm_node", seal=True)["certificate"]]
    third = FakeNode(tmp_path / "third")
    third.environment["PROVISION_SEAL"] = str(tmp_path / "seal-of-third")
    third.environment["PROVISION_SLURM_OUTPUT"] = str(tmp_path / "output")
    third.ok("slurm_node", seal=True)

    sealed = node.ok("slurm_seal", certificates=certificates, text="the secret")["sealed"]

    assert "the secret" not in sealed
    assert opened(sealed, tmp_path / "seal") == "the secret"
    assert opened(sealed, tmp_path / "seal-of-other") == "the secret"
    assert opened(sealed, tmp_path / "seal-of-third") is None
    assert (tmp_path / "seal").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "seal/key.pem").stat().st_mode & 0o777 == 0o600


def opened(sealed: str, keys: Path) -> str | None:
    """Return the text that the key of a node decrypts; None if it cannot."""
    words = ["openssl", "cms", "-decrypt", "-binary", "-inform", "PEM", "-inkey", str(keys / "key.pem")]
    words += ["-recip", str(keys / "certificate.pem")]
    done = subprocess.run(words, input=sealed.encode(), capture_output=True, check=False)
    return done.stdout.decode() if done.returncode == 0 else None


def test_the_gpus_of_a_step_are_minor_numbers(node: FakeNode, tmp_path: Path) -> None:
    """The driver's files in /proc have the UUID of each minor number, in the order of the PCI bus."""
    for bus, uuid, minor in (("0000:3b:00.0", "GPU-a", 1), ("0000:5e:00.0", "GPU-b", 0)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t A10\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    node.environment |= {"PROVISION_PROC": str(tmp_path / "proc"), "SLURM_STEP_GPUS": "0"}

    assert node.ok("slurm_gpus") == {
        "minors": [0],
        "devices": [{"uuid": "GPU-a", "minor": 1, "index": 0}, {"uuid": "GPU-b", "minor": 0, "index": 1}],
    }


def test_a_waiting_job_is_cancelled_only_while_it_waits(node: FakeNode, tmp_path: Path) -> None:
    tool(node, "scancel", f'echo "$@" >{tmp_path}/words')
    node.ok("slurm_cancel", jobs=[12], pending=True)
    assert (tmp_path / "words").read_text().split() == ["--quiet", "--state=PENDING", "12"]

    node.ok("slurm_cancel", jobs=[12])
    assert (tmp_path / "words").read_text().split() == ["--quiet", "12"]


def test_a_job_stops_requiring_its_nodes_before_they_are_excluded(node: FakeNode, tmp_path: Path) -> None:
    """Slurm refuses to exclude a node that the job requires."""
    tool(node, "scontrol", f'echo "$@" >>{tmp_path}/words')
    node.ok("slurm_job_update", job=12, any_node=True, exclude=["gpu2"], start_soon=True)

    first, second = (tmp_path / "words").read_text().splitlines()
    assert first == "update JobId=12 ReqNodeList="
    assert second == "update JobId=12 ExcNodeList=gpu2 StartTime=now+5"


def test_a_retry_excludes_the_bad_node_although_slurmctld_is_away_meanwhile(node: FakeNode, tmp_path: Path) -> None:
    """It is stopped between the end of the attempt and the requeue: two commands fail, then the job is pending."""
    tool(node, "squeue", f"echo x >>{tmp_path}/asked; test $(wc -l <{tmp_path}/asked) -ge 2 && echo PENDING")
    tool(
        node, "scontrol", f'echo "$@" >>{tmp_path}/words; test $(wc -l <{tmp_path}/words) -ge 2 || echo down >&2; '
        f"test $(wc -l <{tmp_path}/words) -ge 2",
    )  # fmt: skip

    assert node.ok("slurm_retry", job=12, exclude=["gpu2"])["written"]
    assert (tmp_path / "words").read_text().splitlines()[-1] == "update JobId=12 ExcNodeList=gpu2 StartTime=now+5"


def test_a_retry_of_a_job_that_slurm_has_forgotten_changes_nothing(node: FakeNode, tmp_path: Path) -> None:
    """It was cancelled before its requeue."""
    tool(node, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    tool(node, "scontrol", f"touch {tmp_path}/ran")

    assert not node.ok("slurm_retry", job=12, exclude=["gpu2"])["written"]
    assert not (tmp_path / "ran").exists()


def test_a_mark_names_the_attempt(node: FakeNode, tmp_path: Path) -> None:
    node.ok("slurm_mark", job=12, name="mnist", id="abc1", attempt=2)

    assert json.loads((tmp_path / "marks/12").read_text()) == {"name": "mnist", "id": "abc1", "attempt": 2}


def test_a_step_that_reports_its_gpus_records_the_attempt_too(node: FakeNode, tmp_path: Path) -> None:
    node.ok("slurm_gpus", mark={"job": 12, "name": "mnist", "id": "abc1", "attempt": 2})

    assert json.loads((tmp_path / "marks/12").read_text()) == {"name": "mnist", "id": "abc1", "attempt": 2}


def test_the_mark_of_a_job_that_is_starting_stays(node: FakeNode, tmp_path: Path) -> None:
    """Its attempt has no folder yet."""
    node.ok("slurm_mark", job=12, name="starting", id="abc1", attempt=1)
    node.ok("slurm_mark", job=13, name="mnist", id="abc2", attempt=1)

    assert names_in(tmp_path / "marks") == ["12", "13"]


def test_the_mark_of_an_ended_attempt_is_removed_with_the_next_one(node: FakeNode, tmp_path: Path) -> None:
    """Jobs leave their marks on nodes without an epilog."""
    for number, name in ((12, "killed"), (13, "runs")):
        node.attempt(name, 1).mkdir(parents=True)
        node.ok("slurm_mark", job=number, name=name, id="abc1", attempt=1)
        os.utime(tmp_path / f"marks/{number}", (1, 1))
    result = node.attempt("killed", 1) / "result.json"
    result.write_text("{}")
    node.attempt("mnist", 1).mkdir(parents=True)
    node.ok("slurm_mark", job=14, name="mnist", id="abc1", attempt=1)
    assert names_in(tmp_path / "marks") == ["12", "13", "14"]  # its epilog may not have run yet

    os.utime(result, (1, 1))
    node.ok("slurm_mark", job=14, name="mnist", id="abc1", attempt=1)

    assert names_in(tmp_path / "marks") == ["13", "14"]


def test_the_old_mark_of_a_deleted_job_is_removed_with_the_next_one(node: FakeNode, tmp_path: Path) -> None:
    node.ok("slurm_mark", job=12, name="deleted", id="abc1", attempt=1)
    os.utime(tmp_path / "marks/12", (1, 1))

    node.ok("slurm_mark", job=14, name="mnist", id="abc1", attempt=1)

    assert names_in(tmp_path / "marks") == ["14"]


@pytest.mark.parametrize("fields", [{"job": "../x"}, {"job": 0}, {"name": "../x"}, {"attempt": 0}])
def test_an_invalid_mark_is_refused(node: FakeNode, tmp_path: Path, fields: dict[str, Any]) -> None:
    request = {"job": 12, "name": "mnist", "id": "abc1", "attempt": 2, **fields}

    assert "error" in node.ask("slurm_mark", **request)
    assert not (tmp_path / "marks").exists() or names_in(tmp_path / "marks") == []


# Slurm's commands


def test_a_script_is_submitted_by_its_input(node: FakeNode, tmp_path: Path) -> None:
    """Nothing of a script is on a command line, and no variable of the session reaches the job."""
    tool(node, "sbatch", f'env >{tmp_path}/env; echo "$@" >{tmp_path}/words; cat >{tmp_path}/script; echo "12;lab"')
    node.environment["SECRET"] = "x"
    answer = node.ok("slurm_submit", script="#!/bin/sh\nSECRET\n", options={"name": "mnist", "tasks": 2})

    assert answer == {"job": 12, "refused": ""}
    assert (tmp_path / "script").read_text() == "#!/bin/sh\nSECRET\n"
    assert (tmp_path / "words").read_text().split()[-2:] == ["--job-name=mnist", "--ntasks=2"]
    assert "SECRET" not in (tmp_path / "env").read_text()


def test_a_refused_script_is_an_answer(node: FakeNode) -> None:
    tool(node, "sbatch", "echo 'sbatch: error: Invalid feature specification' >&2; exit 1")

    answer = node.ok("slurm_submit", script="#!/bin/sh\n", options={})
    assert (answer["job"], "Invalid feature" in answer["refused"]) == (0, True)


def test_a_missing_command_has_a_remedy(node: FakeNode, tmp_path: Path) -> None:
    node.environment["PATH"] = str(tmp_path)

    error = node.ask("slurm_state")["error"]
    assert ("no squeue" in error["message"], "slurm_controller" in error["remedy"]) == (True, True)


def test_a_controller_that_does_not_answer_is_an_error(node: FakeNode) -> None:
    tool(node, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")

    assert "Unable to contact" in node.ask("slurm_state")["error"]["message"]


def test_a_report_contains_the_queue_as_it_was_before(node: FakeNode) -> None:
    """A job that leaves Slurm's queue during the report is complete: its record is read after the queue."""
    record = node.root / "j/job.json"
    tool(node, "squeue", f'mkdir -p {record.parent}; echo \'{{"id": "0123456789abcdef"}}\' >{record}; echo 7')

    answer = node.ok("slurm_report", names=None, brief=True)
    assert (answer["slurm"], [job["name"] for job in answer["jobs"]]) == ("7\n", ["j"])


def test_a_report_does_not_fail_with_slurm(node: FakeNode) -> None:
    tool(node, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")

    answer = node.ok("slurm_report", names=None, brief=True)
    assert ("Unable to contact" in answer["slurm_problem"]["message"], answer["jobs"]) == (True, [])


@pytest.mark.parametrize(
    ("request_fields", "word"),
    [
        ({"node": "gpu1", "state": "drain"}, "reason"),
        ({"node": "gpu1", "state": "drain", "reason": "x\x1b[31m"}, "reason"),
        ({"node": "gpu1;id", "state": "resume"}, "node"),
        ({"node": "-x", "state": "resume"}, "node"),
        ({"node": "gpu1", "state": "down"}, "state"),
    ],
)
def test_an_invalid_change_of_a_node_reaches_no_command(
    node: FakeNode, tmp_path: Path, request_fields: dict[str, Any], word: str
) -> None:
    tool(node, "scontrol", f"touch {tmp_path}/ran")

    assert word in node.ask("slurm_node_update", **request_fields)["error"]["message"]
    assert not (tmp_path / "ran").exists()


def test_a_drained_node_shows_who_drained_it(node: FakeNode, tmp_path: Path) -> None:
    tool(node, "scontrol", f'printf "%s\\n" "$@" >{tmp_path}/words')
    node.ok("slurm_node_update", node="gpu1", state="drain", reason="memory errors (alice)")

    assert (tmp_path / "words").read_text().splitlines()[-1] == "Reason=provision: memory errors (alice)"


# Two schedulers


def slurmd_runs(node: FakeNode) -> None:
    """Let slurmd run on a node."""
    folder = Path(node.environment["PROVISION_CGROUP"], "system.slice/slurmd.service")
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("123\n")


def test_a_node_that_slurm_schedules_gives_gpus_only_to_jobs_of_slurm(node: FakeNode) -> None:
    request = {"job": "j", "id": "abc1", "attempt": 1, "leases": {"GPU-a": "j-worker-0"}}
    slurmd_runs(node)

    assert "Slurm schedules this node" in node.ask("lease", **request)["error"]["message"]
    assert "Slurm schedules this node" in node.ask("lease", **{**request, "leases": {}})["error"]["message"]
    assert "Slurm schedules this node" in node.ask("hold", **request)["error"]["message"]


def test_the_engine_direct_is_refused_where_the_inventory_says_slurm() -> None:
    cluster = make_cluster("a", cluster_engine="slurm")

    assert engine_name(cluster) == "slurm"
    with pytest.raises(EngineUnavailable) as caught:
        create_engine("direct", EngineContext(cluster, None))  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.exit_code) == ("slurm.other_engine", 2)
