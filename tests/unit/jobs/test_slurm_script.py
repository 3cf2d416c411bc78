"""The batch script of a job in Slurm: its payload, its options, and the starter with what it imports."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from provision.batch.containers import NodeHardware
from provision.batch.slurm.states import admin_comment
from provision.documents import decode
from provision.documents.jobs import RecordedReason
from provision.documents.slurm_jobs import SlurmNode, StepGpus
from provision.errors import InvalidDocument, LaunchError, ProvisionError, UsageError
from provision.jobs.cluster_snapshot import ClusterSnapshot
from provision.jobs.engines.slurm import bundle
from provision.jobs.engines.slurm.allocation import allocated_node, may_fit, places
from provision.jobs.engines.slurm.payload import MARK, Payload, PayloadMachine, PayloadNode, payload_of, script_text
from provision.jobs.engines.slurm.planning import Choice
from provision.jobs.engines.slurm.submission import check_spec, options, payload_node
from provision.model import Topology, TopologyGpu
from provision.model.job import JobSpec, Kind
from provision.node.files import Refused
from provision.node.slurm import controller
from provision.report.reasons import remedy
from provision.testing import make_cluster
from provision.topology.candidates import Candidate, Machine

CLUSTER = make_cluster("a", "b")
LINKS = (("X", "SYS", "NV2", "SYS"), ("SYS", "X", "SYS", "NV2"), ("NV2", "SYS", "X", "SYS"), ("SYS", "NV2", "SYS", "X"))


def spec(**more: Any) -> JobSpec:
    return JobSpec("mnist", Kind.RUN, ("true",), image="image", **more)


def candidate(name: str) -> Candidate:
    topology = Topology(tuple(TopologyGpu(index) for index in range(4)), (), LINKS)
    return Candidate(name, Machine(topology))


def node(name: str, **more: Any) -> PayloadNode:
    return PayloadNode(
        f"s-{name}", name, "10.0.0.1", "eth0", NodeHardware(), machine=PayloadMachine.of(candidate(name)), **more
    )


def payload(**more: Any) -> Payload:
    fields = {
        "version": 1, "name": "mnist", "id": "abc1", "first_attempt": 1, "owner": "u@h", "submitted": 1.0,
        "spec": spec(), "signed": "text", "signature": "signature", "nodes": (node("a"), node("b")),
    }  # fmt: skip
    return Payload(**{**fields, **more})


# The script


def test_the_payload_of_a_script_is_read_back() -> None:
    before = payload(code=b"\x00\xff" * 9000, variables={"cluster_data": {"x": {"kind": "path", "path": "/x"}}})

    assert payload_of(script_text(before, "/usr/local/lib/start.py")) == before


def test_the_script_starts_the_starter_with_its_own_path() -> None:
    lines = script_text(payload(), "/usr/local/lib/provision/starter/x/start.py").splitlines()

    assert lines[0] == "#!/bin/sh"
    assert lines[2] == 'exec /usr/bin/python3 -I -S /usr/local/lib/provision/starter/x/start.py "$0"'
    assert all(line.startswith(MARK) for line in lines[3:])


def test_a_job_without_its_starter_says_that_it_needs_a_restart(tmp_path: Path) -> None:
    """A node removes a starter that was unused for 30 days, and a job can wait longer; scontrol is a STAND-IN."""
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\n')
    (tmp_path / "scontrol").chmod(0o755)
    script = tmp_path / "script"
    script.write_text(script_text(payload(), str(tmp_path / "start.py"), python="echo"))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True, check=False)
    verb, job, comment = (tmp_path / "words").read_text().splitlines()
    failure = decode(bytes.fromhex(comment.partition("=")[2]), RecordedReason, node="a", what="AdminComment")

    assert (done.returncode, done.stdout, verb, job) == (1, "", "update", "JobId=7")
    assert failure.code == "slurm.starter_missing"
    assert admin_comment(f" {comment} ") == comment.partition("=")[2]
    assert "provision restart" in remedy(failure.cause)

    (tmp_path / "start.py").touch()
    assert subprocess.run(["sh", str(script)], env=environment, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/sh\n",
        f"{MARK}!!!\n",
        f"{MARK}{base64.b64encode(b'no zlib').decode()}\n",
        f"{MARK}{base64.b64encode(zlib.compress(b'{}')).decode()}\n",
        f"{MARK}{base64.b64encode(zlib.compress(b' ' * (65 * 1024 * 1024))).decode()}\n",
    ],
    ids=["none", "no base64", "no zlib", "no payload", "too large"],
)
def test_a_damaged_script_is_refused(script: str) -> None:
    with pytest.raises(InvalidDocument):
        payload_of(script)


def test_a_payload_of_another_version_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="version 2"):
        payload_of(script_text(payload(version=2), "/x"))


def test_a_machine_survives_the_payload() -> None:
    before = candidate("a")
    document = msgspec.json.decode(msgspec.json.encode(PayloadMachine.of(before)), type=PayloadMachine)

    assert document.candidate("a", frozenset()) == before


# The options


def words(job: JobSpec, **more: Any) -> list[str]:
    """Return the options of sbatch as the program on the node builds them."""
    usable = more.pop("usable", [node("a"), node("b")])
    return controller.checked_options(
        options(job, "abc1", usable, more.pop("exclude", []), more.pop("after", []), CLUSTER, more.pop("choice", None))
    )


def test_workers_of_several_gpus_are_packed() -> None:
    assert {"--ntasks=3", "--gpus-per-task=2"} <= set(words(spec(gpus=2, workers=3)))


def test_without_gang_a_job_starts_with_the_nodes_that_are_free() -> None:
    assert {"--nodes=1-3", "--ntasks-per-node=1", "--gpus-per-node=2"} <= set(
        words(spec(gpus=2, workers=3, gang=False))
    )


def test_a_spread_job_uses_all_nodes() -> None:
    assert {"--nodes=2", "--ntasks=3", "--ntasks-per-node=2"} <= set(words(spec(gpus=1, workers=3, spread=True)))


def test_the_spreading_option_that_ends_the_controller_is_never_used() -> None:
    """`--spread-job` with GPUs ends slurmctld 24.11.5."""
    assert not [word for word in words(spec(gpus=1, workers=3, spread=True)) if "spread" in word]


def test_a_launcher_with_equal_slots_gets_equal_nodes() -> None:
    assert {"--nodes=2", "--ntasks-per-node=3", "--ntasks=6"} <= set(words(spec(gpus=1, workers=6, launcher="launch")))


def test_a_job_with_chosen_gpus_asks_for_their_types() -> None:
    """Slurm refuses or ignores numbers of GPUs beside types."""
    given = words(spec(gpus=1, workers=4, gputopology=True), choice=Choice(("s-a", "s-b"), (5, 6), 2, is_free=True))

    assert {"--gres=gpu:g5:1,gpu:g6:1", "--nodelist=s-a,s-b", "--nodes=2"} <= set(given)
    assert {"--ntasks=4", "--ntasks-per-node=2"} <= set(given)
    assert [word for word in given if "--gpus" in word or "spread" in word] == []


def test_an_exclusive_job_with_chosen_nodes_gets_all_their_gpus() -> None:
    job = spec(gpus=1, workers=2, gputopology=True, exclusive=True)
    given = words(job, choice=Choice(("s-a",), (5, 6), 2, is_free=True))

    assert {"--exclusive", "--gpus-per-node=2", "--nodelist=s-a"} <= set(given)
    assert [word for word in given if "--gres" in word] == []


def test_each_job_has_a_time_limit_a_comment_and_a_name() -> None:
    given = words(spec())

    assert {"--time=UNLIMITED", "--comment=provision:mnist@abc1", "--job-name=mnist", "--no-requeue"} <= set(given)
    assert "--requeue" in words(spec(retry=2))
    assert "--time=13" in words(spec(running_timeout=60.0, starting_timeout=600.0))


def test_priority_dependencies_holds_and_excluded_nodes_are_passed_on() -> None:
    given = words(spec(priority=5, hold=True, exclusive=True), exclude=["s-c", "s-d"], after=[3, 4])

    assert {"--nice=-5", "--hold", "--exclusive", "--exclude=s-c,s-d", "--dependency=afterok:3:4"} <= set(given)


def test_partition_account_and_qos_of_the_inventory_are_used() -> None:
    wanted = {"cluster_slurm_partition": "gpu", "cluster_slurm_account": "team-a", "cluster_slurm_qos": "high"}
    given = options(spec(), "abc1", [node("a")], [], [], make_cluster("a", **wanted))

    assert {"--partition=gpu", "--account=team-a", "--qos=high"} <= set(controller.checked_options(given))


@pytest.mark.parametrize(
    "fields",
    [
        {"partition": "x --wrap=id"}, {"partition": "-x"}, {"name": "a\nb"}, {"exclude": ["a,b"]}, {"exclude": "a"},
        {"exclude": ["-x"]}, {"tasks": 0}, {"tasks": True}, {"tasks": "3"}, {"unknown": 1}, {"nice": "5"},
        {"comment": "provision:x y"}, {"comment": "x"}, {"output": "../x"}, {"time": "1 day"}, {"gres": ["license:1"]},
        {"gres": ["gpu:g1:1,gpu:g2:1"]}, {"gres": ["gpu:g1:1 --uid=0"]}, {"gres": ["gpu:g1:x"]}, {"gres": "gpu:g1:1"},
        {"after": ["3:4"]}, {"nodes": [0, 1]}, {"spread": True},
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_option_reaches_no_command(fields: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        controller.checked_options(fields)


@pytest.mark.parametrize("more", [{"gpu_ids": (0,)}, {"allow_drained": True}])
def test_an_option_that_slurm_cannot_carry_out_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        check_spec(spec(**more))
    assert caught.value.code == "slurm.unsupported_option"


# The GPUs of an allocation


def gpus(*minors: int) -> StepGpus:
    """The minor numbers of a node are in the opposite order of the indices of nvidia-smi."""
    devices = [{"uuid": f"GPU-{index}", "minor": 3 - index, "index": index} for index in range(4)]
    return msgspec.convert({"minors": list(minors), "devices": devices}, StepGpus)


def test_minor_numbers_are_not_indices() -> None:
    allocated = allocated_node(node("a"), 1, gpus(1, 3))

    assert (allocated.indices, allocated.uuids) == ((0, 2), {0: "GPU-0", 2: "GPU-2"})


def test_workers_get_gpus_with_good_links() -> None:
    chosen = places(spec(gpus=2, workers=2), [allocated_node(node("a"), 2, gpus(0, 1, 2, 3))])

    assert sorted(sorted(place.gpus) for place in chosen) == [[0, 2], [1, 3]]
    assert all(place.uuids == tuple(f"GPU-{index}" for index in place.gpus) for place in chosen)


def test_only_allocated_gpus_are_used() -> None:
    (place,) = places(spec(gpus=2), [allocated_node(node("a"), 1, gpus(0, 1))])

    assert sorted(place.gpus) == [2, 3]


def test_a_gpu_that_the_driver_does_not_list_is_an_error() -> None:
    with pytest.raises(LaunchError) as caught:
        allocated_node(node("a"), 1, gpus(7))
    assert caught.value.code == "slurm.gpu_unknown"


def test_fewer_gpus_than_the_workers_need_are_an_error() -> None:
    with pytest.raises(LaunchError) as caught:
        places(spec(gpus=2, workers=2), [allocated_node(node("a"), 2, gpus(0, 1, 2))])
    assert caught.value.code == "slurm.gpus_missing"


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({"gpus": 2, "workers": 4}, "ab"),
        ({"gpus": 2, "workers": 4, "gang": False}, "a"),
        ({"gpus": 1, "workers": 2}, "a"),
        ({"workers": 2}, "a"),
    ],
)
def test_a_job_fits_on_nodes_with_four_gpus(options: dict[str, Any], nodes: str) -> None:
    """After a failure, the bad node is not used again."""
    assert may_fit(spec(**options), [node(name) for name in nodes], 2)


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({"gpus": 2, "workers": 4}, "a"),
        ({"gpus": 1, "workers": 2, "spread": True}, "a"),
        ({"gpus": 1, "workers": 2, "max_per_node": 1}, "a"),
        ({"gang": False}, ""),
        ({"gpus": 1, "workers": 2, "gputopology": True}, "a"),
    ],
)
def test_a_job_does_not_fit_on_nodes_with_four_gpus(options: dict[str, Any], nodes: str) -> None:
    """Only then, the bad node is used again."""
    assert not may_fit(spec(**options), [node(name) for name in nodes], 2)


def test_a_node_of_the_payload_comes_from_the_snapshot() -> None:
    snapshot = ClusterSnapshot({"a": candidate("a")}, addresses={"a": "10.0.0.1"}, interfaces={"a": "eth0"})

    assert payload_node("a", "s-a", snapshot, "") == node("a")


# The starter


def test_the_starter_imports_nothing_but_its_bundle(tmp_path: Path) -> None:
    """Compute nodes have Python and no other packages."""
    made = bundle.bundle_for(bundle.Target((sys.version_info[0], sys.version_info[1]), bundle.platform.machine()))
    subprocess.run(["tar", "-xz", "-C", str(tmp_path)], input=made.content, check=True)
    script = tmp_path / "script"
    script.write_text(script_text(payload(), "/x"), encoding="ascii")
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(tmp_path / "start.py"), str(script)],
        capture_output=True, text=True, timeout=120, check=False, env={}, cwd=tmp_path,
    )  # fmt: skip

    assert "this is no batch job of Slurm" in done.stdout, done
    assert (done.stderr, done.returncode) == ("", 1)


def test_the_bundle_is_reproducible() -> None:
    files = {"b": b"2", "a": b"1"}

    assert bundle.pack(files) == bundle.pack(dict(reversed(files.items())))


def test_an_old_python_is_refused() -> None:
    with pytest.raises(ProvisionError) as caught:
        bundle.bundle_for(bundle.Target((3, 9), "x86_64"))
    assert caught.value.code == "slurm.python_too_old"


def test_a_python_that_is_not_known_yet_starts_no_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_downloaded", lambda _target: pytest.fail("downloads"))
    with pytest.raises(ProvisionError) as caught:
        bundle.bundle_for(bundle.Target((3, 99), "x86_64"))
    assert caught.value.code == "slurm.python_too_new"


@pytest.mark.parametrize("machine", ["../../x", "/etc/x", "x86_64\n", "", "A" * 33])
def test_the_machine_of_a_node_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    """A node names its machine, which becomes a part of a path on the controller."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    answer = {"python": [3, 12], "machine": machine, "starter": False}
    with pytest.raises(InvalidDocument):
        decode(msgspec.json.encode(answer), SlurmNode, node="a", what="answer")
    with pytest.raises(ProvisionError) as caught:
        bundle.bundle_for(bundle.Target((3, 12), machine))
    assert caught.value.code == "slurm.machine_unknown"
    assert not list(tmp_path.iterdir())


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bundle.Target]]:
    """The downloads of msgspec, which all fail."""
    tried = list[bundle.Target]()

    def fail(target: bundle.Target) -> Path:
        tried.append(target)
        raise ProvisionError("pip has ended with 1", remedy="Try again.")

    monkeypatch.setattr(bundle, "_downloaded", fail)
    bundle._bundle.cache_clear()
    yield tried
    bundle._bundle.cache_clear()


def test_a_failed_download_is_not_repeated_by_the_same_command(downloads: list[bundle.Target]) -> None:
    """It can take minutes, and every node with the same Python needs the same file."""
    target = bundle.Target((3, 14), "aarch64")
    with ThreadPoolExecutor(4) as pool:
        errors = [one.exception() for one in [pool.submit(bundle.bundle_for, target) for _ in range(4)]]

    assert downloads == [target]
    assert {str(error) for error in errors} == {"pip has ended with 1"}
    assert len({id(error) for error in errors}) == len(errors)


def test_an_unknown_machine_starts_no_download(downloads: list[bundle.Target]) -> None:
    """A node can report any name."""
    with pytest.raises(ProvisionError) as caught:
        bundle.bundle_for(bundle.Target((3, 12), "s390x"))
    assert caught.value.code == "slurm.machine_unknown"
    assert not downloads


def test_a_damaged_wheel_in_the_cache_is_not_packed(tmp_path: Path) -> None:
    good, changed = tmp_path / "msgspec-2.whl", tmp_path / "msgspec-1.whl"
    good.write_bytes(b"good")
    changed.write_bytes(b"changed")
    requirement = f"msgspec==2 --hash=sha256:{hashlib.sha256(b'good').hexdigest()}"

    assert bundle._locked_wheel(tmp_path, requirement) == good
    assert not changed.exists()


def test_a_wheel_that_is_being_written_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are prepared in parallel, and pip writes a wheel in several steps. The second pip fails."""
    requirement = f"msgspec==2 --hash=sha256:{hashlib.sha256(b'good').hexdigest()}"
    target, failed = bundle.Target((3, 12), "x86_64"), list[str]()

    def download(target: bundle.Target, _requirement: str, destination: Path) -> None:
        if failed:
            raise ProvisionError("pip has ended with 1")
        failed.append("second")
        with (destination / "msgspec-2.whl").open("wb", buffering=0) as stream:
            stream.write(b"go")
            with pytest.raises(ProvisionError):
                bundle._downloaded(target)
            stream.write(b"od")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(bundle, "_requirement", lambda: requirement)
    monkeypatch.setattr(bundle, "_download", download)

    assert bundle._downloaded(target).read_bytes() == b"good"


def test_the_lock_file_has_the_hashes_of_msgspec() -> None:
    """pip downloads msgspec for other versions of Python only with these hashes."""
    entry = bundle._requirement()

    assert entry.startswith("msgspec==")
    assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry)
    assert "paramiko" not in entry
