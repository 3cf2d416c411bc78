"""How a batch job's processes come to be, on two nodes with two SIMULATED GPUs each.

torch's launchers are stand-ins that keep to their documentation, mounted where torch's are: it is half a gigabyte.
"""

from __future__ import annotations

import re

import pytest

from tests.integration.conftest import LAB

NODES = (f"{LAB}-1", f"{LAB}-2")
OWN = "starts:1"
MEET = """\
import os
import socket
import sys
import time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def called():
    for _ in range(100):
        try:
            return socket.create_connection(place, timeout=5)
        except OSError:
            time.sleep(0.1)
    sys.exit("no server at %s:%s" % place)


words = " ".join(sys.argv[1:])
if rank:
    with called() as master:
        master.sendall(f"{rank} {words}".encode())
else:
    with socket.create_server(place) as door:
        met = ["0 " + words]
        while len(met) < size:
            with door.accept()[0] as other:
                met.append(other.makefile().read())
    print(f"{size} ranks met:", "; ".join(sorted(met)), "in", os.getcwd())
"""
"""Every rank finds the master by torch's variables; the master prints who connected, with which arguments."""
LAUNCH = """\
import argparse
import os
import subprocess
import sys


def start(options, local_rank):
    size = options.nnodes * options.nproc_per_node
    shared = {"MASTER_ADDR": options.master_addr, "MASTER_PORT": str(options.master_port), "WORLD_SIZE": str(size)}
    started = []
    for local in range(options.nproc_per_node):
        own = {"RANK": str(options.node_rank * options.nproc_per_node + local), "LOCAL_RANK": str(local)}
        words = [sys.executable, options.script, *(["--local_rank=%d" % local] if local_rank else []), *options.words]
        started.append(subprocess.Popen(words, env={**os.environ, **shared, **own}))
    sys.exit(max(child.wait() for child in started))


def read(prefix):
    parser = argparse.ArgumentParser()
    for name, kind in dict(nproc_per_node=int, nnodes=int, node_rank=int, master_addr=str, master_port=int).items():
        default = os.environ.get("PET_" + name.upper()) if prefix else None
        parser.add_argument("--" + name, type=kind, default=default and kind(default), required=default is None)
    parser.add_argument("script")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return parser.parse_args()


if __name__ == "__main__":
    start(read(""), local_rank=True)
"""
"""torch.distributed.launch as it is documented: numbers by its options, and --local_rank for the script."""
WHERE = "docker run --rm IMAGE python3 -c 'import sys; print(sys.path[-1])'"
MAKE = f"""set -e
mkdir -p /srv/starts/torch/distributed
cat >/srv/starts/mnist.py <<'END'
{MEET}END
cat >/srv/starts/torch/distributed/launch.py <<'END'
{LAUNCH}END
touch /srv/starts/torch/__init__.py /srv/starts/torch/distributed/__init__.py
cat >/srv/starts/torchrun <<'END'
#!/usr/bin/python3
from torch.distributed.launch import read, start
start(read("PET_"), local_rank=False)
END
chmod 755 /srv/starts/torchrun
"""
MAKE_IMAGE = f"""set -e
docker rm -f starts >/dev/null 2>&1 || true
docker create --name starts IMAGE true >/dev/null
docker cp /srv/starts/torchrun starts:/usr/local/bin/torchrun
docker commit starts {OWN} >/dev/null
docker rm starts >/dev/null
"""


@pytest.fixture(scope="module")
def programs(jobs):
    """Flags that mount a program by which ranks meet, and torch's launchers."""
    at = jobs.provision.ok("lab", "ssh", LAB, NODES[0], "--", WHERE.replace("IMAGE", jobs.image)).out.strip()
    for node in NODES:
        jobs.provision.ok("lab", "ssh", LAB, node, "--", MAKE)
    mounts = ("/srv/starts:/starts", f"/srv/starts/torch:{at}/torch", "/srv/starts/torchrun:/usr/local/bin/torchrun")
    yield [f"--mount={mount}:ro" for mount in mounts]
    for node in NODES:
        jobs.provision.ok("lab", "ssh", LAB, node, "--", "rm -rf /srv/starts")


@pytest.fixture
def own(jobs, programs, on_node):
    """An image that the first node alone has, with a torchrun."""
    assert programs
    on_node(NODES[0], MAKE_IMAGE.replace("IMAGE", jobs.image))
    yield OWN
    on_node(NODES[0], f"docker image rm -f {OWN} >/dev/null")


def output(jobs, name, instance=""):
    """What an instance printed, once the job has succeeded."""
    ended = jobs.until(name, "SUCCEEDED", "FAILED")
    said = jobs.logs(name, instance)
    assert ended["status"] == "SUCCEEDED", (ended["reason"], said)
    return said


def settings(lines, *beginnings):
    """The variables with these beginnings, of the output of ``env``."""
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    return {name: value for name, value in variables.items() if name.startswith(beginnings)}


def test_a_job_runs_as_its_submitter_on_all_nodes(jobs):
    """Of an account that the image does not know: mpirun's ssh finds its name, and home and working folder are its."""
    say = "touch $HOME/kept /root/kept; echo $(id -u) $(id -G) $(id -un) $(stat -c %u $HOME/kept) $PROVISION_NODE"
    jobs.submit("mpi", "own", "--gpus=1", "--workers=2", "--spread", "--np=auto", "--user=2042:2043,2044", say)
    said = "2042 2043 2044 provision-2042 2042"
    assert sorted(output(jobs, "own")) == [f"{said} {node}" for node in NODES]


@pytest.mark.row(34, 41, 58)
def test_ranks_connect_with_every_launcher(jobs, programs):
    """As plain python, by a typed line of torch.distributed.launch, and by --launcher torchrun; on one node or two."""
    program, two = "/starts/mnist.py", (*programs, "--workers=2")
    line = (
        "python3 -m torch.distributed.launch --nproc_per_node=2 --nnodes=$WORLD_SIZE --node_rank=$RANK "
        f"--master_addr=$MASTER_ADDR --master_port=$MASTER_PORT {program} --lr 0.1"
    )
    own = ("--launcher=torchrun", "--nproc-per-node=2", "--max-per-node=1")
    jobs.submit("pytorch", "plain", *two, "--gpus=1", "--pack", f"python3 {program} --lr 0.1")
    jobs.submit("pytorch", "typed", *two, "--spread", line)
    jobs.submit("py", "elastic", *two, *own, f"python3 {program} --lr 0.1")

    arguments = "; ".join(f"{rank} --local_rank={rank % 2} --lr 0.1" for rank in range(4))
    assert output(jobs, "plain") == ["2 ranks met: 0 --lr 0.1; 1 --lr 0.1 in /root"]
    assert output(jobs, "typed") == [f"4 ranks met: {arguments} in /root"]
    assert output(jobs, "elastic") == [f"4 ranks met: {'; '.join(f'{rank} --lr 0.1' for rank in range(4))} in /root"]
    seen = {name: {one["node"] for one in jobs.get(name)["instances"]} for name in ("plain", "typed", "elastic")}
    assert {name: len(nodes) for name, nodes in seen.items()} == {"plain": 1, "typed": 2, "elastic": 2}


@pytest.mark.row(11, 42, 59)
def test_options_of_the_cube_studio_launcher_start_a_job(jobs, programs):
    """--working_dir, --command, --num_worker and --image as they are there; three workers are a master and two."""
    assert programs
    words = ("--working_dir", "/mnt/", "--command", "python3 mnist.py", "--num_worker", "3", "--mount=/srv/starts:/mnt")
    jobs.ok("submit", "pytorch", "--name", "cube", "--image", jobs.image, *words)

    assert output(jobs, "cube") == ["3 ranks met: 0 ; 1 ; 2  in /mnt"]
    names = {one["name"] for one in jobs.get("cube")["instances"]}
    assert names == {"cube-master-0", "cube-worker-0", "cube-worker-1"}
    assert re.search(r"^cube +SUCCEEDED +PYTORCHJOB ", jobs.ok("list", "--type", "pytorchjob").out, re.MULTILINE)
    assert jobs("get", "cube", "--type", "mpijob").code == 3


@pytest.mark.row(12, 13)
def test_workers_can_have_their_own_image_and_command_lines_are_unchanged(jobs, own):
    """Quotes, blanks and variables of a line are the shell's in the container; no shell sees the words behind --."""
    has = "command -v torchrun || echo 'no  torchrun';"
    line = has + """ [[ $RANK == [01] ]] && printf '%s|' "a  b" '$HOME' "$RANK" | tr a-z A-Z"""
    words = (f"--nodes={NODES[0]}", f"--worker-image={own}", "--pull=never", "--workers=2", "--shell=bash", line)
    jobs.submit("pytorch", "images", *words)
    jobs.submit("run", "words", "--", "printf", "%s|", "a  b", "$HOME", "; exit 3", "")

    assert output(jobs, "images") == ["no  torchrun", "A  B|$HOME|0|"]
    assert output(jobs, "images", "images-worker-0") == ["/usr/local/bin/torchrun", "A  B|$HOME|1|"]
    assert output(jobs, "words") == ["a  b|$HOME|; exit 3||"]


@pytest.mark.row(35, 52, 53, 54)
def test_a_program_gets_the_environment_variables_of_the_preset(jobs):
    """Horovod's, LightCC's seven and NCCL's by the preset and the fabric; the user's own come first."""
    light = ("--env=LIGHT_TOPK_ALLREDUCE=1", "--env=LIGHT_TOPK_THRESHOLD=2097152", "--env=NCCL_DEBUG=INFO")
    words = ("--preset=horovod-lightcc", "--fabric=tcp", "--gpus=2", *light)
    jobs.submit("mpi", "guided", "--np=1", "--wait", *words, "--", "env")

    lines = jobs.logs("guided")
    assert settings(lines, "HOROVOD_") == {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "0"}
    assert settings(lines, "LIGHT_") == {
        "LIGHT_2D_ALLREDUCE": "1",
        "LIGHT_INTRA_SIZE": "2",
        "LIGHT_TOPK_ALLREDUCE": "1",
        "LIGHT_TOPK_THRESHOLD": "2097152",
    }
    nccl = settings(lines, "NCCL_")
    assert (nccl["NCCL_DEBUG"], nccl["NCCL_IB_DISABLE"]) == ("INFO", "1")
    assert nccl["NCCL_SOCKET_IFNAME"]
    refused = jobs.submit("pytorch", "odd", "--env=LIGHT_SPEED=1", "true", code=2)
    assert "LIGHT_SPEED" in refused.err


@pytest.mark.row(62)
def test_the_exit_code_of_each_process_that_shares_a_gpu_is_reported(jobs, on_node):
    """One succeeds, one fails, and one is ended for it; each has its words, its file, and the same SIMULATED GPU."""
    on_node(NODES[0], "rm -rf /srv/shared && mkdir -p /srv/shared")
    task = 'echo "$@"; nvidia-smi -L | grep -o "GPU-[^)]*"; case $4 in 1) sleep 2; exit 7 ;; 2) sleep 600 ;; esac'
    words = ("--gpus=1", "--procs-per-gpu=3", f"--nodes={NODES[0]}", "--mount=/srv/shared:/logs", "--logdir=/logs")
    jobs.submit("pytorch", "shared", *words, "--wait", "--", "sh", "-c", task, "sh", "--lr", "0.1", code=7)

    said = jobs.logs("shared")
    codes = [re.fullmatch(r"share: process (\d) \(pid \d+\): exit code (\d+)", line) for line in said]
    assert {match[1]: match[2] for match in codes if match} == {"0": "0", "1": "7", "2": "143"}
    for index in range(3):
        assert f"[process{index}] --lr 0.1 --process_index {index} --process_num 3" in said
    files = on_node(NODES[0], "cat /srv/shared/shared-master-0/process?.file").splitlines()
    assert len({line for line in files if line.startswith("GPU-")}) == 1
    assert [line for line in files if line.startswith("--lr")] == [
        f"--lr 0.1 --process_index {n} --process_num 3" for n in range(3)
    ]
    assert jobs.get("shared")["exitCodes"] == {"shared-master-0": 7}
