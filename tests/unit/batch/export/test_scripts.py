"""Exported scripts run, and pass on exactly the words, variables and exit codes of the job.

docker, srun and scontrol are SIMULATED: stand-ins on PATH that print or run their words.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.batch.export.script import shell_script
from provision.batch.export.slurm import RUNTIMES, enroot_image, slurm_script
from provision.batch.export.workload import ExportOptions
from provision.batch.ranks import Place
from provision.errors import UsageError
from provision.model.job import CodeSource, JobSpec, Kind
from provision.model.job_requests import Secrets
from tests.support.job_specs import job_specs

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
HOSTILE = ["a b", "'", '"', "$(id)", "`id`", "\n", "END_OF_NODE_SCRIPT", "\\", "-x", "", "é", "$HOME", "!"]
SRUN = """#!/usr/bin/env python3
import os, sys
words = sys.argv[1:]
while words and words[0].startswith("--"):
    words.pop(0)
os.environ.update(SLURM_PROCID="1", SLURM_NODEID="1", SLURM_STEP_GPUS="2,5")
os.execvp(words[0], words)
"""


def job(**more):
    return JobSpec(**{"name": "vgg", "kind": Kind.RUN, "command": ("true",), "image": "image", **more})


def plain(*command, **more):
    """Return a job without containers."""
    return job(command=command, image="", no_container=True, working_dir="/", **more)


def stand_in(folder, name, text):
    """Put a SIMULATED program on PATH; return the environment."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def run(script, **more):
    return subprocess.run(["bash"], input=script, capture_output=True, text=True, check=False, timeout=60, **more)


def shown(done):
    """Return the words and the environment of the program `SHOW`."""
    assert done.returncode == 0, done.stderr
    words, environment = json.loads(done.stdout)
    return words, environment


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(HOSTILE) | TEXTS, max_size=4), st.sampled_from(HOSTILE) | TEXTS)
def test_a_job_of_one_node_runs_with_its_words_and_variables(words, value):
    """The script really runs; nothing in a word or a value is interpreted."""
    script, _ = shell_script(plain(sys.executable, "-c", SHOW, *words, env={"A": value}), ExportOptions())
    given_words, environment = shown(run(script))

    assert given_words == words
    assert environment["A"] == value
    assert (environment["RANK"], environment["WORLD_SIZE"], environment["MASTER_ADDR"]) == ("0", "1", "127.0.0.1")


def test_the_exit_code_of_the_first_failure_ends_the_other_workers():
    """A worker that waits for the failed one would wait forever."""
    line = 'if [ "$RANK" = 1 ]; then exit 7; fi; exec sleep 1000'
    done = run(shell_script(plain(line, workers=2), ExportOptions())[0])

    assert done.returncode == 7


def test_an_interrupted_script_ends_its_workers():
    """Ctrl-C leaves no process behind."""
    script, _ = shell_script(plain("echo started; exec sleep 1000"), ExportOptions())
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGTERM)

        assert process.stdout.read() == ""  # the worker has ended, and closed its output
        assert process.wait(timeout=30) == 130


def test_secret_variables_come_from_the_environment_of_the_caller(tmp_path):
    """They are in no command line, and a missing one is named before anything starts."""
    script, _ = shell_script(job(secret_env=("API_TOKEN",)), ExportOptions())
    environment = stand_in(tmp_path / "bin", "docker", f"#!{sys.executable}\n{SHOW}\n")
    words, given_environment = shown(run(script, env={**environment, "API_TOKEN": "t'0\nk"}))

    assert given_environment["API_TOKEN"] == "t'0\nk"
    assert "t'0\nk" not in words
    assert "API_TOKEN" in run(script, env={**environment, "API_TOKEN": ""}).stderr
    assert (
        "export API_TOKEN=v"
        in shell_script(job(secret_env=("API_TOKEN",)), ExportOptions(secrets=Secrets({"API_TOKEN": "v"})))[0]
    )


def test_the_container_has_the_options_of_the_job(tmp_path):
    """docker is SIMULATED: it prints its words."""
    spec = job(
        gpus=2,
        command=("python3", "a b.py"),
        env={"PATH": "/opt/bin"},
        mounts=("/a:/b:ro",),
        data=(("d", "/d"),),
        user="1:2,3",
    )
    options = ExportOptions(data_paths={"d": "/mnt/d e"}, read_only=frozenset({"d"}))
    environment = stand_in(tmp_path / "bin", "docker", f"#!{sys.executable}\n{SHOW}\n")
    words, _ = shown(run(shell_script(spec, options)[0], env=environment))

    assert words[:4] == ["run", "--rm", "--name", "vgg-worker-0"]
    assert words[-4:] == ["--entrypoint", "python3", "image", "a b.py"]
    assert {"/mnt/d e:/d:ro", "/a:/b:ro", '"device=0,1"', "PATH=/opt/bin", "1:2"} <= set(words)


def test_a_job_that_has_run_is_exported_with_its_nodes_and_gpus():
    places = (Place("gpu1", "10.0.0.1", (0,), ("GPU-a",)), Place("gpu2", "10.0.0.2", (1,), ("GPU-b",)))
    script, _ = shell_script(job(gpus=1, workers=2), ExportOptions(places=places))

    assert "run_on gpu2" in script
    assert '"device=GPU-b"' in script
    assert "MASTER_ADDR=10.0.0.1" in script


def test_mpi_jobs_of_several_nodes_are_refused_with_what_to_use():
    spec = job(kind=Kind.MPI, command=("mpirun -np 2 true",), workers=2, nodes=("a", "b"))

    with pytest.raises(UsageError, match="2 nodes") as error:
        shell_script(spec, ExportOptions())

    assert "--to slurm" in error.value.remedy


def test_code_is_cloned_at_its_revision(tmp_path):
    """With a real repository; a second start uses the same clone."""
    repository = tmp_path / "code.git"
    subprocess.run(["git", "init", "-q", "-b", "main", repository], check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for text in ("one", "two"):
        (repository / "f").write_text(text)
        subprocess.run(["git", "-C", repository, "add", "f"], check=True)
        subprocess.run(["git", "-C", repository, *identity, "commit", "-qm", text], check=True)
    subprocess.run(["git", "-C", repository, "tag", "v1", "HEAD~1"], check=True)
    spec = job(
        command=("cat code/code/f",),
        image="",
        no_container=True,
        working_dir=str(tmp_path),
        sync=CodeSource("git", "https://example.com/code.git", "v1"),
    )
    instead = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{repository}.insteadOf"}
    environment = {**os.environ, **instead, "GIT_CONFIG_VALUE_0": "https://example.com/code.git"}
    script, _ = shell_script(spec, ExportOptions())

    assert [run(script, env=environment).stdout for _ in range(2)] == ["one", "one"]


def test_code_of_the_submitters_machine_is_noted():
    """The other site cannot reach it."""
    spec = job(sync=CodeSource("git", "/home/user/code", ""))

    for export in (slurm_script, shell_script):
        script, notes = export(spec, ExportOptions())
        assert "git clone" not in script
        assert "--sync" in {note.params.get("option") for note in notes}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(job_specs(tuple(Kind)), st.sampled_from(RUNTIMES), st.booleans())
def test_every_script_is_valid_for_the_shell(spec, runtime, to_slurm):
    """Or the export is refused."""
    options = ExportOptions(runtime=runtime, data_paths={name: "/mnt" for name, _ in spec.data})
    try:
        script, _ = (slurm_script if to_slurm else shell_script)(spec, options)
    except UsageError:
        return
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def slurm_environment(folder):
    """Return an environment with SIMULATED programs of Slurm."""
    stand_in(folder / "bin", "scontrol", "#!/bin/sh\necho node1\necho node2\n")
    return {**stand_in(folder / "bin", "srun", SRUN), "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "31"}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.sampled_from(HOSTILE), max_size=3), value=st.sampled_from(HOSTILE))
def test_tasks_of_slurm_get_words_ranks_and_variables(tmp_path, words, value):
    """srun is SIMULATED: it runs rank 1. A PATH of the job does not change the script."""
    spec = plain(sys.executable, "-c", SHOW, *words, env={"A": value, "PATH": "/nowhere"}, workers=2)
    given_words, environment = shown(run(slurm_script(spec, ExportOptions())[0], env=slurm_environment(tmp_path)))

    assert given_words == words
    assert (environment["A"], environment["PATH"]) == (value, "/nowhere")
    assert (environment["RANK"], environment["WORLD_SIZE"], environment["MASTER_ADDR"]) == ("1", "2", "node1")


@pytest.mark.parametrize(("runtime", "program"), [("apptainer", "apptainer"), ("docker", "docker")])
def test_containers_of_a_step_have_image_mounts_and_command(tmp_path, runtime, program):
    """The program of the runtime is SIMULATED: it prints its words."""
    spec = job(gpus=2, workers=2, image="nvcr.io/nvidia/pytorch:1", command=("python3", "a b"), mounts=("/a:/b:ro",))
    environment = slurm_environment(tmp_path) | stand_in(tmp_path / "bin", program, f"#!{sys.executable}\n{SHOW}\n")
    environment |= slurm_environment(tmp_path)
    words, _ = shown(run(slurm_script(spec, ExportOptions(runtime=runtime))[0], env=environment))

    assert "/a:/b:ro" in words
    assert words[-1] == "a b"
    if runtime == "docker":
        assert {'"device=2,5"', "vgg-31-1", "nvcr.io/nvidia/pytorch:1"} <= set(words)
    else:
        assert {"--nv", "docker://nvcr.io/nvidia/pytorch:1", "env"} <= set(words)


def test_a_cancelled_step_stops_its_container(tmp_path):
    """Slurm ends only its own processes. docker is SIMULATED: its container ends when it is stopped."""
    fifo = tmp_path / "stopped"
    os.mkfifo(fifo)
    text = f"""#!/bin/sh
trap '' TERM
case $1 in
    run) exec 3<>{fifo}; echo started; read line <&3; exit 9 ;;
    stop) echo "$4" >{fifo} ;;
esac
"""
    stand_in(tmp_path / "bin", "docker", text)
    script, _ = slurm_script(job(), ExportOptions(runtime="docker"))
    with subprocess.Popen(
        ["bash", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env=slurm_environment(tmp_path),
        start_new_session=True,
    ) as process:
        assert process.stdout.readline() == "started\n"
        os.killpg(process.pid, signal.SIGTERM)

        assert process.stdout.read() == ""  # the container has ended, and closed its output


def test_srun_starts_the_ranks_of_an_mpi_job():
    """mpirun of the image would not reach the other nodes."""
    typed = slurm_script(
        job(kind=Kind.MPI, command=("mpirun -np 4 -x A=1 python3 a.py",), gpus=2, workers=2), ExportOptions()
    )
    generated = slurm_script(job(kind=Kind.MPI, command=("python3", "a.py"), gpus=2, workers=2), ExportOptions())

    for script, _ in (typed, generated):
        assert "--nodes=2 --ntasks=4 --gpu-bind=none --mpi=pmix" in script
        assert "mpirun" not in script
    assert "A=1" in typed[0]
    assert "export.mpirun_flags" in {note.code for note in typed[1]}
    with pytest.raises(UsageError, match="srun"):
        slurm_script(job(kind=Kind.MPI, command=("mpirun -np 2 a; mpirun -np 2 b",)), ExportOptions())


def test_directives_of_slurm_cannot_be_extended_by_names():
    """sbatch reads the rest of the line as further options."""
    with pytest.raises(UsageError, match="invalid name"):
        slurm_script(job(nodes=("a --wrap=x",)), ExportOptions())
    with pytest.raises(UsageError, match="invalid name"):
        slurm_script(job(), ExportOptions(queue="a\nb"))
    script, _ = slurm_script(
        job(gpus=4, workers=2, running_timeout=90, exclusive=True, hold=True), ExportOptions(queue="gpu")
    )
    assert {"#SBATCH --nodes=2", "#SBATCH --gpus-per-node=4", "#SBATCH --time=2", "#SBATCH --partition=gpu"} <= set(
        script.splitlines()
    )


@pytest.mark.parametrize(
    ("image", "named"),
    [("ubuntu:24.04", "ubuntu:24.04"), ("nvcr.io/a/b:1", "nvcr.io#a/b:1"), ("r:5000/a", "r:5000#a"), ("a/b", "a/b")],
)
def test_images_are_named_as_enroot_does(image, named):
    assert enroot_image(image) == named


def test_a_volume_without_a_known_path_is_refused():
    for export in (slurm_script, shell_script):
        with pytest.raises(UsageError, match="not known") as error:
            export(job(data=(("sets", "/data"),)), ExportOptions())
        assert "--data-path sets=/PATH" in error.value.remedy


def test_a_failed_clone_ends_the_job(tmp_path):
    """Else the job would run with an empty folder, or with another revision."""
    environment = {**stand_in(tmp_path / "bin", "git", "#!/bin/sh\nexit 1\n"), "HOME": str(tmp_path)}
    stand_in(tmp_path / "bin", "docker", "#!/bin/sh\necho started\n")
    script, _ = shell_script(job(sync=CodeSource("git", "https://example.com/a.git", "v1")), ExportOptions())
    done = run(script, env=environment)

    assert (done.returncode, done.stdout) == (125, "")


def test_secrets_that_are_not_utf_8_are_written_exactly():
    value = "k\udcff'\n"
    options = ExportOptions(secrets=Secrets({"API_TOKEN": value}))
    script, _ = slurm_script(plain("true", secret_env=("API_TOKEN",)), options)
    (line,) = (one for one in script.splitlines() if "export API_TOKEN" in one)
    done = subprocess.run(["bash", "-c", f"{line}; printenv API_TOKEN"], capture_output=True, check=True)

    assert done.stdout == value.encode("utf-8", "surrogateescape") + b"\n"


def test_gpus_are_given_to_one_worker_only():
    with pytest.raises(UsageError, match="--gpu-ids"):
        shell_script(job(gpus=2, workers=2, gpu_ids=(4, 5)), ExportOptions())
    assert "device=6,7" in shell_script(job(gpus=2, workers=2, gpu_ids=(4, 5, 6, 7)), ExportOptions())[0]


def test_cpus_are_requested_or_noted():
    """A task of Slurm has one CPU by default, on which a data loader is slow."""
    script, notes = slurm_script(job(gpus=2), ExportOptions(cpus_per_gpu=8))

    assert "#SBATCH --cpus-per-gpu=8" in script
    assert "export.cpus" not in {one.code for one in notes}
    assert "export.cpus" in {one.code for one in slurm_script(job(gpus=2), ExportOptions())[1]}


def test_a_variable_is_given_to_docker_once():
    script, _ = slurm_script(job(kind=Kind.PYTORCH, env={"RANK": "7"}), ExportOptions(runtime="docker"))

    assert "\n    RANK=7\n" in script
    assert "\n    RANK\n" not in script
