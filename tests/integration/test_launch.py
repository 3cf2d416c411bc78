"""Jobs on the GPUs that were chosen for them, and host files that real launchers read, on containers of two nodes.

The long ones have a lab of their own that stands for two DGX-1, with MPICH and PyTorch in its training containers, and
at the end Open MPI 5.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import LAB
from tests.support.command import Provision, eventually
from tests.support.engine import engine_host, held
from tests.support.jobs import Jobs

MESH = f"mesh{os.getpid()}"
QUADS = ({0, 1, 2, 3}, {4, 5, 6, 7})
TELL = 'echo "$OMPI_COMM_WORLD_RANK $(hostname) $CUDA_VISIBLE_DEVICES $NCCL_IB_HCA"'
REACH = "ssh -F /etc/provision/ssh/ssh_config"
NETWORKS = "--mca oob_tcp_if_include eth1 --mca btl_tcp_if_include eth1"
OPENMPI = f"mpirun --allow-run-as-root --hostfile /tmp/hosts --mca plm_rsh_agent '{REACH}' {NETWORKS}"


def words_by_rank(done):
    """Return the words of each rank, by rank."""
    assert done.code == 0, str(done)
    lines = [line.partition("] ")[2].split() for line in done.out.splitlines() if line.startswith("[")]
    return [words[1:] for words in sorted(lines, key=lambda words: int(words[0]))]


def in_container(provision, lab, node, command, **options):
    """Output of a shell command in a node's training container."""
    words = ["docker", "exec", "-i", "provision-training", "sh", "-c", f"'{command}'"]
    return provision("lab", "ssh", lab, node, "--", *words, **options)


def gpus_of(provision, lab, node):
    """UUIDs of a node's GPUs, in nvidia-smi's order."""
    listed = provision.ok("lab", "ssh", lab, node, "--", "nvidia-smi", "-L").out
    return [line.partition("UUID: ")[2].rstrip(")") for line in listed.splitlines() if "UUID" in line]


def trained(output):
    """Count by node the nine ranks that trained, which have to end with one gradient."""
    words = [line.replace("]:", "] ").split()[-4:] for line in output.splitlines() if " 9 " in line]
    assert sorted(int(rank) for rank, *_ in words) == list(range(9)), output
    assert len({gradient for *_, gradient in words}) == 1, output
    return Counter(node for _, _, node, _ in words)


def by_mpich(provision, lab, folder):
    """Return an inventory of the lab's nodes by which MPICH's launcher is the image's mpirun."""
    document = yaml.safe_load(Path(provision.ok("lab", "inventory", lab).out.strip()).read_text())
    document["all"]["children"]["gpu_nodes"]["vars"]["cluster_mpirun"] = "/usr/bin/mpiexec.hydra"
    made = folder / "mpich.yml"
    made.write_text(yaml.safe_dump(document))
    return str(made)


def started_by(provision, lab, launcher, command, ranks, program="hostname"):
    """Write the launcher's host file into the first node's container, start a program by it, and count the answers."""
    hosts = provision.ok("hostfile", "--lab", lab, "--launcher", launcher, "-n", str(ranks)).out
    in_container(provision, lab, f"{lab}-1", "cat > /tmp/hosts", stdin=hosts)
    done = provision(
        "lab", "ssh", lab, f"{lab}-1", "--", f"docker exec provision-training {command} {program}", timeout=120
    )
    assert done.code == 0, str(done)
    return Counter(done.out.split())


def test_a_job_runs_on_its_selected_gpus(provision, cluster):
    """Two GPUs of one node rather than one of each, and each rank sees one of them."""
    ranks = words_by_rank(
        provision("run", "--lab", LAB, "--gputopology", "-n", "2", "--own-gpus", "--", "sh", "-c", TELL)
    )

    assert cluster["nodes"]
    assert len({node for node, *_ in ranks}) == 1
    assert [gpu for _, gpu in ranks] == gpus_of(provision, LAB, ranks[0][0])


def test_a_placement_file_is_written_by_place_and_used_by_run(provision, cluster):
    """Both workers' nodes, each rank with all GPUs of its worker in the order of the ring."""
    file = provision.folder / "placement.json"
    file.write_text(provision.ok("place", "--lab", LAB, "--gpus", "2", "--workers", "2", "--json").out)
    ranks = words_by_rank(provision("run", "--lab", LAB, "--placement", str(file), "--", "sh", "-c", TELL))

    assert [node for node, *_ in ranks] == [f"{LAB}-{number}" for number in (1, 1, 2, 2)]
    for node, gpus in ranks:
        assert gpus.split(",") == gpus_of(provision, LAB, node)
    assert cluster["nodes"]


@pytest.fixture
def renamed(provision, cluster):
    """Give the data interface of the second node another name than the first node's has."""
    rename = "ip link set {0} down && ip link set {0} name {1} && ip link set {1} up"
    assert cluster["nodes"]
    provision.ok("lab", "ssh", LAB, f"{LAB}-2", "--", rename.format("eth1", "data1"))
    yield
    provision.ok("lab", "ssh", LAB, f"{LAB}-2", "--", rename.format("data1", "eth1"))


@pytest.mark.usefixtures("renamed")
def test_nodes_with_different_interface_names_run_one_job(provision, tmp_path):
    """Ranks reach each other by TCP, and each gets the interface of its own node; nothing names a data network."""
    document = yaml.safe_load(Path(provision.ok("lab", "inventory", LAB).out.strip()).read_text())
    del document["all"]["children"]["gpu_nodes"]["vars"]["cluster_data_networks"]
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(document))
    show = 'echo "$(hostname) $NCCL_SOCKET_IFNAME"; exec provision-smoke'
    done = provision("run", "-i", str(tmp_path / "hosts.yml"), "--", "sh", "-c", show, timeout=120)

    assert done.code == 0, str(done)
    assert "right: the sum equals" in done.out
    assert done.out.count(f"{LAB}-1 =eth1") == done.out.count(f"{LAB}-2 =data1") == 2
    assert "if_include" not in done.out + done.err

    jobs = Jobs(provision, "direct", LAB)
    words = ["--gpus=1", "--workers=4", "--launcher=mpirun", "--wait", "--", "sh", "-c", show]
    try:
        jobs.submit("mpi", "renamed", *words)
        lines = jobs.logs("renamed")
    finally:
        jobs("delete", "renamed", "--yes")
    assert lines.count(f"{LAB}-1 =eth1") == lines.count(f"{LAB}-2 =data1") == 2, lines
    assert not any("if_include" in line for line in lines), lines


def test_a_job_with_insufficient_gpus_starts_no_worker(provision, cluster):
    """What is missing is said."""
    done = provision("run", "--lab", LAB, "--gputopology", "--gpus", "2", "--workers", "3", "--", "echo", "started")

    assert cluster["nodes"]
    assert (done.code, done.out) == (125, "")
    assert "insufficient GPUs for 1 of 3 workers" in done.err


def test_open_mpi_reads_its_host_file(provision, cluster):
    """The real mpirun fills the nodes as the file says."""
    assert cluster["nodes"]
    assert started_by(provision, LAB, "openmpi", f"{OPENMPI} --bind-to none", 3) == {f"{LAB}-1": 2, f"{LAB}-2": 1}


BOUND = "sh -c 'echo $(hostname):$(grep Cpus_allowed_list /proc/self/status | cut -f 2)'"


def assert_rank_file_binds(provision, lab, launcher, command):
    """Write a rank file for nine ranks into the first node's container; ranks that it starts have its CPUs."""
    text = provision.ok("hostfile", "--lab", lab, "--launcher", launcher, "-n", "9", "--rankfile").out
    in_container(provision, lab, f"{lab}-1", "cat > /tmp/ranks", stdin=text)
    planned = [line.replace("=", " ").split() for line in text.splitlines()]

    assert started_by(provision, lab, launcher, command, 9, BOUND) == Counter(
        f"{node}:{cpus}" for _, _, node, _, cpus in planned
    )


# On two machines of eight GPUs

INSTALL = """
set -e
docker exec provision-training mkdir -p /usr/share/keyrings
docker cp /etc/apt/sources.list.d/. provision-training:/etc/apt/sources.list.d/
docker cp /usr/share/keyrings/. provision-training:/usr/share/keyrings/
test ! -e /etc/apt/apt.conf.d/90lab-mirror ||
    docker cp /etc/apt/apt.conf.d/90lab-mirror provision-training:/etc/apt/apt.conf.d/
docker exec -i provision-training sh -e <<'END'
export DEBIAN_FRONTEND=noninteractive
rm -f /etc/dpkg/dpkg.cfg.d/99mmdebstrap  # it left files out of the image of which torch needs those of libxml2
apt-get -qq update
apt-get -qq install -y --no-install-recommends --reinstall libxml2 libicu72 >/dev/null
apt-get -qq install -y --no-install-recommends mpich python3-torch >/dev/null
printf '#!/bin/sh\\nexec %s "$@"\\n' "ssh -F /etc/provision/ssh/ssh_config" > /tmp/reach
chmod +x /tmp/reach
END
"""
TRAIN = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
torch.manual_seed(dist.get_rank())
model(torch.randn(8, 4)).sum().backward()
total = float(next(model.parameters()).grad.sum())
print(dist.get_rank(), dist.get_world_size(), os.uname().nodename, f"{total:.5f}", flush=True)
"""


@pytest.fixture(scope="module")
def mesh(provision: Provision):
    """Two container nodes that stand for DGX-1, applied."""
    host = ""
    try:
        provision.ok("lab", "up", MESH, "--driver", "container", "--nodes", "2", "--machine", "dgx1v")
        host = engine_host(provision.folder / "state/provision/labs" / MESH)
        provision.ok("apply", "--lab", MESH, "--yes")
        yield MESH
    finally:
        down = provision("lab", "down", MESH)
    assert down.code == 0, str(down)
    assert held(host, "ps", "-aq", "--filter", f"name=provision-{MESH}-") == []


@pytest.fixture(scope="module")
def equipped(provision: Provision, mesh: str):
    """The same with MPICH and PyTorch in the training containers, from the lab's package mirror."""
    for number in (1, 2):
        done = provision("lab", "ssh", mesh, f"{mesh}-{number}", "--", "sh", stdin=INSTALL)
        assert done.code == 0, str(done)
    return mesh


@pytest.mark.row(17)
@pytest.mark.long
def test_four_ranks_get_the_four_gpus_with_the_best_links(provision, mesh, tmp_path):
    """A quad of the cube mesh; by a recorded matrix the other one while two GPUs are busy, with the cards near it."""
    document = provision.ok("place", "--lab", mesh, "--gpus", "1", "--workers", "4", "--gputopology", "--json").document
    chosen = {gpu for worker in document["workers"] for gpu in worker["gpus"]}

    assert chosen in QUADS
    assert len({worker["node"] for worker in document["workers"]}) == 1

    matrix = tmp_path / "topo.txt"
    matrix.write_text(provision.ok("lab", "ssh", mesh, f"{mesh}-2", "--", "nvidia-smi", "topo", "-m").out)
    recorded = f"{mesh}-2={matrix},gpu=V100,nic_gbit=100,pcie_gen=3,busy=0-1"
    placement = tmp_path / "placement.json"
    placement.write_text(provision.ok("place", "-g", "1", "--workers", "4", "--topo-file", recorded, "--json").out)
    words = ["--placement", str(placement), "--own-gpus", "--", "sh", "-c", TELL]
    ranks = words_by_rank(provision("run", "--lab", mesh, *words))

    assert [gpu for _, gpu, _ in ranks] == gpus_of(provision, mesh, f"{mesh}-2")[4:]
    assert {(node, cards) for node, _, cards in ranks} == {(f"{mesh}-2", "=mlx5_2,mlx5_3")}


@pytest.mark.long
def test_a_node_with_a_job_is_not_selected(provision, mesh):
    """The next job goes to the other one; when both are busy it does not start."""
    first = provision.start("run", "--lab", mesh, "--gputopology", "-n", "4", "--", "sh", "-c", "echo ready; sleep 600")
    try:
        assert any("ready" in line for line in first.stdout)
        second = provision("run", "--lab", mesh, "--gputopology", "-n", "4", "--", "sh", "-c", TELL)
        third = provision("run", "--lab", mesh, "--gputopology", "--gpus", "8", "--workers", "2", "--", "true")
    finally:
        first.terminate()
        first.wait(60)

    assert {node for node, *_ in words_by_rank(second)} == {f"{mesh}-2"}
    assert third.code == 125
    assert "count as busy" in third.err


@pytest.mark.long
def test_only_one_of_several_concurrent_jobs_gets_all_gpus(provision, mesh):
    """Each wants all of both nodes; the others say who holds them, and none is refused for one that was refused."""
    words = ("run", "--lab", mesh, "-n", "16", "--", "sh", "-c", "echo ready; sleep 600")
    starts = [provision.start(*words) for _ in range(3)]
    ends = [0, 125, 125]
    try:
        eventually(lambda: sorted(done.poll() or 0 for done in starts) == ends, seconds=60, what="two are refused")
        (winner,) = [done for done in starts if done.poll() is None]
        assert any("ready" in line for line in winner.stdout)
        refused = [done.communicate()[0] for done in starts if done is not winner]
    finally:
        for done in starts:
            done.terminate()
            done.wait(60)
    assert all("is held by the job" in text for text in refused), refused


@pytest.mark.long
@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        ("openmpi", f"{OPENMPI} --bind-to none"),
        ("mpich", "mpiexec.hydra -launcher ssh -launcher-exec /tmp/reach -f /tmp/hosts -n 9"),
    ],
    ids=["openmpi", "mpich"],
)
def test_a_launcher_reads_its_host_file(provision, equipped, launcher, command):
    """Over the containers' own logins: the first node is full before the second gets a rank."""
    assert started_by(provision, equipped, launcher, command, 9) == {f"{equipped}-1": 8, f"{equipped}-2": 1}


@pytest.mark.long
@pytest.mark.parametrize("words", [["python"], ["torchrun", "-e", "PET_TEE=1", "-e", "PET_REDIRECTS=1"]])
def test_pytorch_trains_with_mpich(provision, equipped, tmp_path, words):
    """The same ranks with the same variables by Hydra, which the inventory names as the image's mpirun."""
    (tmp_path / "train.py").write_text(TRAIN)
    inventory = by_mpich(provision, equipped, tmp_path)
    launcher, *more = words
    program = [*(["python3"] if launcher == "python" else []), "train.py"]
    given = ["-n", "9", "--launcher", launcher, *more, "-e", "OMP_NUM_THREADS=1", "-e", "GLOO_SOCKET_IFNAME=eth1"]
    done = provision("run", "-i", inventory, *given, "--sync", str(tmp_path), "--yes", "--", *program, timeout=300)

    assert done.code == 0, str(done)
    assert trained(done.out) == {f"{equipped}-1": 8, f"{equipped}-2": 1}


@pytest.mark.long
@pytest.mark.parametrize("name", ["PET_TEE", "A", "LR"])
def test_a_variable_reaches_ranks_of_mpich_on_other_nodes(provision, equipped, tmp_path, name):
    """Whichever is the last of the launcher's own environment, which Hydra would lose."""
    inventory = by_mpich(provision, equipped, tmp_path)
    done = provision("run", "-i", inventory, "-n", "9", "-e", f"{name}=here", "--", "sh", "-c", f"echo ${name}")

    assert done.out.count("] here") == 9, str(done)


@pytest.mark.long
def test_ranks_of_mpich_use_the_gpus_and_cpus_of_a_placement(provision, equipped, tmp_path):
    """As those of Open MPI do."""
    inventory = by_mpich(provision, equipped, tmp_path)
    tell = 'echo "$PMI_RANK $(hostname) $CUDA_VISIBLE_DEVICES"'
    ranks = words_by_rank(
        provision("run", "-i", inventory, "--gputopology", "-n", "4", "--own-gpus", "--", "sh", "-c", tell)
    )

    assert {node for node, *_ in ranks} == {f"{equipped}-1"}
    assert [gpu for _, gpu in ranks] == gpus_of(provision, equipped, f"{equipped}-1")[:4]


@pytest.mark.long
def test_open_mpi_4_reads_its_rank_file(provision, equipped):
    """Each rank is bound to the CPUs that the file gives it; ranks outnumber CPUs here."""
    mapped = "--rankfile /tmp/ranks --mca rmaps_rank_file_physical 1 -np 9"

    assert_rank_file_binds(provision, equipped, "openmpi", f"{OPENMPI} {mapped}")


@pytest.mark.long
def test_torchrun_trains_with_the_generated_command_lines(provision, equipped):
    """Node rank, processes, and where they meet, as each line says, one torchrun on each node."""
    started = []
    for line in provision.ok("hostfile", "--lab", equipped, "--launcher", "torchrun", "-n", "9").out.splitlines():
        node, rank, processes, address, port = line.split()
        in_container(provision, equipped, node, "cat > /tmp/train.py", stdin=TRAIN)
        torchrun = f"torchrun --nnodes 2 --node_rank {rank} --nproc_per_node {processes}"  # as all versions have it
        given = "-e OMP_NUM_THREADS=1 -e GLOO_SOCKET_IFNAME=eth1 -e PET_TEE=1 -e PET_REDIRECTS=1"
        words = f"{torchrun} --master_addr {address} --master_port {port} /tmp/train.py"
        started.append(
            provision.start("lab", "ssh", equipped, node, "--", f"docker exec {given} provision-training {words}")
        )
    outputs = [process.communicate(timeout=300)[0] for process in started]

    assert [process.returncode for process in started] == [0, 0], outputs
    assert trained("".join(outputs)) == {f"{equipped}-1": 8, f"{equipped}-2": 1}


@pytest.mark.long
@pytest.mark.parametrize(
    "words", [["python", "--", "python3"], ["torchrun", "-e", "PET_TEE=1", "-e", "PET_REDIRECTS=1", "--"]]
)
def test_pytorch_trains_over_both_nodes(provision, equipped, tmp_path, words):
    """Nine processes, of which one is on the second node, end with the same gradient.

    With PyTorch 1.13, torchrun fails on Python 3.11 unless PET_TEE and PET_REDIRECTS are set.
    """
    (tmp_path / "train.py").write_text(TRAIN)
    launcher, *more = words
    common = ["--sync", str(tmp_path), "-n", "9", "-e", "OMP_NUM_THREADS=1", "--launcher", launcher]
    done = provision("run", "--lab", equipped, *common, *more, "train.py")

    assert done.code == 0, str(done)
    assert trained(done.out) == {f"{equipped}-1": 8, f"{equipped}-2": 1}


@pytest.mark.long
def test_the_synthetic_benchmark_runs_on_chosen_gpus_and_is_recorded(provision, equipped):
    """On CPUs, with our own program and torch's gloo: as the first node is busy, all of it is on the second."""
    first = provision.start(
        "run", "--lab", equipped, "--limit", f"{equipped}-1", "-n", "1", "--", "sh", "-c", "echo ready; sleep 600"
    )
    words = ["-n", "2", "--model", "convnet", "--device", "cpu", "--batch-size", "4", "--num-iters", "1"]
    words += ["--with", "--gputopology", "-e", "OMP_NUM_THREADS=1", "--json"]
    try:
        assert any("ready" in line for line in first.stdout)
        document = provision.ok("bench", "run", "--lab", equipped, *words).document
    finally:
        first.terminate()
        first.wait(60)
    (recorded,) = provision.ok("bench", "list", "--json").document["results"]

    assert [run["model"] for run in document["runs"]] == ["convnet"]
    assert [(node["name"], node["ranks"]) for node in recorded["nodes"]] == [(f"{equipped}-2", 2)]


@pytest.mark.row(50)
@pytest.mark.long
def test_the_synthetic_benchmark_scales_over_both_nodes(provision, equipped):
    """One process, a node, and more than one node; a job that fails has the last word."""
    words = [
        "--model",
        "convnet",
        "--device",
        "cpu",
        "--batch-size",
        "2",
        "--num-iters",
        "1",
        "-e",
        "OMP_NUM_THREADS=1",
    ]
    runs = provision.ok("bench", "scale", "--lab", equipped, "--sizes", "1,8,9", *words, "--json").document["runs"]
    failed = provision("bench", "run", "--lab", equipped, "-n", "2", "--", "sh", "-c", "exit 7")

    assert [run["gpus"] for run in runs] == [1, 8, 9]
    assert runs[0]["efficiency"] == 1
    assert failed.code == 7
    assert "exited with code 7 without a result" in failed.err


# With Open MPI 5: these come last, for the containers' MPICH and PyTorch are those of another release

NEXT_RELEASE = """
docker exec -i provision-training sh -e <<'END'
export DEBIAN_FRONTEND=noninteractive
sed -i 's/bookworm/trixie/' /etc/apt/sources.list.d/debian.sources
apt-get -qq update
apt-get -qq install -y --no-install-recommends openmpi-bin >/dev/null
END
"""
PRRTE = f"--prtemca plm_ssh_agent '{REACH}' --prtemca prte_if_include eth1 --mca btl_tcp_if_include eth1"
OPENMPI5 = f"mpirun --allow-run-as-root --hostfile /tmp/hosts {PRRTE}"


@pytest.fixture(scope="module")
def modern(provision: Provision, equipped: str):
    """The same with Open MPI 5, of Debian's next release."""
    for number in (1, 2):
        done = provision("lab", "ssh", equipped, f"{equipped}-{number}", "--", "sh", stdin=NEXT_RELEASE)
        assert done.code == 0, str(done)
        assert "(Open MPI) 5." in in_container(provision, equipped, f"{equipped}-{number}", "mpirun --version").out
    return equipped


@pytest.mark.long
def test_open_mpi_5_reads_its_host_file(provision, modern):
    """As version 4 does."""
    command = f"{OPENMPI5} --bind-to none"

    assert started_by(provision, modern, "openmpi5", command, 9) == {f"{modern}-1": 8, f"{modern}-2": 1}


@pytest.mark.long
def test_open_mpi_5_reads_its_rank_file(provision, modern):
    """As version 4 does, from where version 5 wants it named."""
    mapped = "--map-by rankfile:file=/tmp/ranks --bind-to core:overload-allowed"

    assert_rank_file_binds(provision, modern, "openmpi5", f"{OPENMPI5} {mapped}")


@pytest.mark.long
def test_a_job_runs_with_open_mpi_5(provision, modern):
    """In its own names, with its ranks' numbers before their lines."""
    ranks = words_by_rank(provision("run", "--lab", modern, "-n", "9", "--", "sh", "-c", TELL))

    assert [node for node, *_ in ranks] == [f"{modern}-1"] * 8 + [f"{modern}-2"]
