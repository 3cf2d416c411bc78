"""The sampler, run on this machine's own /proc with the lab's SIMULATED nvidia-smi."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provision.advisor.advice import advise_from
from provision.advisor.base import Verdict
from provision.advisor.records import read_series
from provision.lab.machines import load, to_json
from tests.support.command import eventually
from tests.support.node.archive import ARCHIVE
from tests.support.processes import own_cgroup

ROOT = Path(__file__).parents[3]
SAMPLER = ROOT / "provision/node/sampler.py"
STAND_IN = ROOT / "provision/lab/files/nvidia_smi.py"
WORKING = "import time\nwhile True: sum(range(50_000)); time.sleep(0.002)"


@pytest.fixture
def node(tmp_path):
    """Return the environment of the lab's nvidia-smi for a machine with two GPUs and an older driver."""
    machine = {**json.loads(to_json(load("pair"))), "seed": "node 1", "driver_version": "530.30.02"}
    (tmp_path / "machine.json").write_text(json.dumps(machine))
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin/nvidia-smi"
    wrapper.write_text(f'#!/bin/sh\necho "$$" >>{tmp_path}/pids\nexec {sys.executable} -IS {STAND_IN} "$@"\n')
    wrapper.chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PROVISION_LAB_MACHINE_FILE": str(tmp_path / "machine.json")}


def start(environment, **asked):
    """Start the program as on a node, with its input open."""
    child = subprocess.Popen(
        [sys.executable, "-IS", str(ARCHIVE), "sampler"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    child.stdin.write(json.dumps(asked).encode() + b"\n")
    child.stdin.flush()
    return child


def finish(child):
    """Wait for its end with the input still open; return its records and stderr."""
    out, err = child.stdout.read(), child.stderr.read()
    assert child.wait(20) == 0, err
    return [json.loads(line) for line in out.splitlines()], err.decode()


def until(child, kind):
    """Read records up to the first of a kind."""
    records = [json.loads(child.stdout.readline())]
    while records[-1]["kind"] != kind:
        records.append(json.loads(child.stdout.readline()))
    return records


def alive(pid):
    return Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def none_left(folder):
    return not any(alive(int(pid)) for pid in (folder / "pids").read_text().split())


def test_container_links_to_node_files_are_not_followed(node, tmp_path):
    """Seen from the node, an absolute link leads to the node's own folder, and dots leave the container's root."""
    outside, image = tmp_path / "outside", tmp_path / "image"
    (outside / "private").mkdir(parents=True)
    (outside / "private/events.out.tfevents.1").write_text("x")
    (outside / "model.pt").write_text("x" * 7777)
    for name in ("logs/below", "dev"):
        (image / name).mkdir(parents=True)
    (image / "logs/run").symlink_to(outside / "private")
    (image / "logs/last.pt").symlink_to(outside / "model.pt")
    (image / "logs/below/model.pt").write_text("x" * 5)
    (image / "linked").symlink_to(outside)
    (image / "dev/shm").symlink_to("/proc")
    ready = "import os, sys, time; os.chroot(sys.argv[1]); print('ready', flush=True); time.sleep(60)"
    job = subprocess.Popen([sys.executable, "-c", ready, str(image)], stdout=subprocess.PIPE)
    try:
        assert job.stdout.readline()
        watch = ["/logs", "/linked", "/linked/private", "/logs/../../outside"]
        asked = {"id": own_cgroup(), "pid": job.pid, "instance": "job-0", "watch": watch}
        records, _ = finish(start(node, seconds=0.2, interval=0.1, containers=[asked]))
    finally:
        job.kill()
        job.wait()
    seen = next(record for record in records if record["kind"] == "node")["containers"]["job-0"]

    assert {path: about[1] for path, about in seen["checkpoints"].items() if about[1] == 7777} == {}
    assert seen["checkpoints"]["/logs/below/model.pt"][1] == 5
    assert seen["tfevents"] == {}
    assert "shm" not in seen


def test_a_window_is_sampled_and_read(node, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/events.out.tfevents.1").write_text("x" * 100)
    (tmp_path / "logs/model.pt").write_text("x")
    (tmp_path / "log").write_text("before\n")
    job = subprocess.Popen([sys.executable, "-c", WORKING], env={**node})
    container = {
        "id": own_cgroup(),
        "pid": job.pid,
        "instance": "job-0",
        "gpus": ["GPU-x"],
        "log": str(tmp_path / "log"),
        "watch": [str(tmp_path / "logs")],
    }
    try:
        child = start(node, seconds=8, interval=0.1, containers=[container])  # a busy machine samples once a second
        seen = until(child, "node")
        with (tmp_path / "log").open("a") as log:
            log.write("one\ntwo\n")
        rest, err = finish(child)
    finally:
        job.kill()
        job.wait()
    series = read_series("gpu1", [json.dumps(record) for record in seen + rest])

    assert err == ""
    assert (series.unread, series.ended) == (0, "window")
    assert len(series.gpus) == len(series.devices) == 2
    assert all(len(samples) >= 2 for samples in series.gpus.values())
    sample = next(iter(series.gpus.values()))[0]
    assert sample.memory_total > 1000
    assert (sample.utilization, sample.clock_events) == (0, 1)
    assert series.simulated
    assert series.users == ()
    process = series.processes[job.pid]
    assert (process.ppid, process.instance) == (os.getpid(), "job-0")
    assert 0 < series.cores_of(process) <= 1.2
    assert process.rate("rchar") is not None
    assert process.threads
    assert len(series.samples) >= 3
    last = series.samples[-1].containers["job-0"]
    assert last.log_lines == 2
    assert last.shm_size > 0
    first = series.samples[0].containers["job-0"]
    assert first.tfevents == {str(tmp_path / "logs/events.out.tfevents.1"): 100}
    assert list(first.checkpoints) == [str(tmp_path / "logs/model.pt")]
    assert any(place == "/" for place, _, _ in series.mounts["job-0"])
    assert all(one.simulated or one.verdict is Verdict.UNKNOWN for one in advise_from([series]))
    eventually(lambda: none_left(tmp_path), seconds=10, what="the end of every nvidia-smi")


def test_the_sampler_ends_when_its_input_closes(node, tmp_path):
    child = start(node, seconds=600, interval=0.2)
    lines = [child.stdout.readline() for _ in range(4)]
    child.stdin.close()
    rest = child.stdout.read().splitlines()

    assert child.wait(10) == 0
    assert json.loads(lines[0])["kind"] == "begin"
    assert json.loads(rest[-1])["reason"] == "closed"
    eventually(lambda: none_left(tmp_path), seconds=10, what="the end of every nvidia-smi")


def test_the_sampler_ends_when_its_reader_is_gone(node, tmp_path):
    child = start(node, seconds=600, interval=0.1)
    child.stdout.readline()
    child.stdout.close()

    assert child.wait(10) == 0
    assert child.stderr.read() == b""
    eventually(lambda: none_left(tmp_path), seconds=10, what="the end of every nvidia-smi")


def test_sigterm_leaves_no_nvidia_smi(node, tmp_path):
    child = start(node, seconds=600, interval=0.1)
    until(child, "gpu")
    child.send_signal(signal.SIGTERM)
    child.stdout.read()

    assert child.wait(10) == 1
    eventually(lambda: none_left(tmp_path), seconds=10, what="the end of every nvidia-smi")


def test_a_node_without_nvidia_smi_is_sampled(node, tmp_path):
    records, err = finish(start({**node, "PATH": str(tmp_path)}, seconds=0.3, interval=0.1))
    series = read_series("gpu1", [json.dumps(record) for record in records])

    assert err == ""
    assert (series.gpus, series.users) == ({}, None)
    assert any("nvidia-smi" in note for note in series.notes)
    assert {one.check: one.verdict for one in advise_from([series])}["low-duty-cycle"] is Verdict.UNKNOWN


def test_unsupported_fields_are_left_out(node, tmp_path):
    """An older driver has another name for the clocks' reasons; one without either name reports the rest."""
    stub = tmp_path / "bin/nvidia-smi"
    stub.write_text(
        """#!/bin/sh
for field in clocks_event_reasons clocks_throttle_reasons; do
  case "$*" in *$field*) echo "Field \\"$field.active\\" is not a valid field to query."; exit 2;; esac
done
case "$*" in *query-compute*) echo "77, GPU-1, 500"; exit 0;; esac
while :; do echo 'GPU-1, 0, H100, 00000000:3B:00.0, 97, 100, [N/A], 10.5, 20, 30, 5, 5, 16, 16'; sleep 0.1; done
"""
    )

    records, _ = finish(start(node, seconds=0.5, interval=0.1))
    series = read_series("gpu1", [json.dumps(record) for record in records])

    sample = series.gpus["GPU-1"][0]
    assert (sample.utilization, sample.memory_total, sample.clock_events, sample.pcie_width) == (97, None, None, 16)
    assert [(user.pid, user.gpu) for user in series.users] == [(77, "GPU-1")]


@pytest.mark.parametrize("line", [b"", b"rubbish\n", b"[]\n"])
def test_invalid_requests_are_refused(line):
    done = subprocess.run(
        [sys.executable, "-IS", ARCHIVE, "sampler"],
        input=line,
        capture_output=True,
        timeout=20,
        check=False,
        env={"PATH": ""},
    )

    if line:
        assert done.returncode == 1
        assert done.stderr.startswith(b"sampler: ")
    assert b"Traceback" not in done.stderr


def test_the_sampler_needs_only_the_standard_library():
    imports = re.findall(r"^(?:import|from) (\w+)", SAMPLER.read_text(), re.MULTILINE)

    assert set(imports) <= sys.stdlib_module_names
