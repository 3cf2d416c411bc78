"""Gives one rank of a job what its node and its place on it ask for, and becomes the rank's program.

It is started by mpirun (Open MPI 4 or 5, MPICH, Intel MPI), srun or torchrun in the program's place, finds out where it
is, sets variables and CPUs, and executes the program. It arrives with its plan in the environment, needs Python 3.8 and
nothing else, and leaves no file.

The plan is JSON: ``nodes`` in the order of the ranks, each with ``name``, ``address``, ``environment`` and ``ranks``
(each with ``gpus``, ``nics``, ``cpus``, ``numa``, ``gid_index``, none of them needed); ``keep``, the names of variables
that are the user's; ``master``, where torch's ranks meet, or null; ``mode``: ``rank``, or ``node`` with one process on
each node, which starts its ranks; ``prefix``, words in front of the program; and ``visible``, which GPUs a rank sees:
those of its ``node``'s ranks, or of the ``rank``.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any, NoReturn

PLAN = "PROVISION_RANKS"
CODE = "PROVISION_LAUNCHER"

FAMILIES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)
"""What each launcher calls rank, size, local rank and local size; torchrun's are the third."""
TORCHRUN = 2
OF_MPI = re.compile(r"(OMPI|PMIX|PMI|PRTE|ORTE|HYDRA|HYD|I_MPI)_|MPI_LOCAL")


class Wrong(Exception):
    """The rank cannot be started; the text says why."""


def main() -> None:
    """Become the program, or end with 125 and the reason."""
    environment = dict(os.environ)
    environment.pop(CODE, None)
    try:
        plan = json.loads(zlib.decompress(base64.b64decode(environment.pop(PLAN, ""))))
        argv = prepare(plan, environment, sys.argv[1:])
    except (Wrong, ValueError, KeyError, zlib.error) as problem:
        end(125, f"the rank has no place: {problem}")
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        end(127, f"{argv[0]} was not found")
    except OSError as error:
        end(126, f"{argv[0]} cannot be started: {error.strerror}")


def say(text: str) -> None:
    """Tell the user, who sees the lines of many nodes."""
    sys.stderr.write(f"provision: on {socket.gethostname()}: {text}\n")


def end(code: int, text: str) -> NoReturn:
    """Say why there is no program, and end."""
    say(text)
    sys.exit(code)


def prepare(plan: dict[str, Any], environment: dict[str, str], argv: list[str]) -> list[str]:
    """Set what the plan asks for in `environment` and on this process; return the words to execute."""
    number, node = find_node(plan["nodes"], environment)
    wanted = dict(node["environment"])
    if plan["mode"] == "rank":
        place = find_place(plan["nodes"], number, environment)
        mine = node["ranks"][place["local"]]
        wanted.update(devices(node["ranks"], [mine] if plan["visible"] == "rank" else node["ranks"], mine))
        wanted.update(rendezvous(plan, place))
        argv = bound(mine, argv)
    else:
        wanted.update(devices(node["ranks"], node["ranks"], node["ranks"][0]))
        wanted.update(of_node(plan, number))
        for name in [name for name in environment if OF_MPI.match(name) and name not in plan["keep"]]:
            del environment[name]  # torch's processes are no ranks of mpirun
    environment.update({name: value for name, value in wanted.items() if name not in plan["keep"]})
    return [*plan["prefix"], *argv]


def find_node(nodes: list[dict[str, Any]], environment: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Return the number and the entry of the node that this is: by what it was told, its addresses, or its name."""
    told, own = environment.get("PROVISION_NODE"), socket.gethostname()
    here, names = local_addresses(), {own, own.partition(".")[0]}
    for fits in (
        lambda node: node["name"] == told,
        lambda node: node["address"] in here,
        lambda node: node["name"] in names,
    ):
        for number, node in enumerate(nodes):
            if fits(node):
                return number, node
    raise Wrong(f"this is none of the job's nodes ({', '.join(node['name'] for node in nodes[:8])})")


def local_addresses() -> set[str]:
    """Return this machine's own addresses; that one can be bound to proves nothing (ip_nonlocal_bind)."""
    texts = []
    for file in ("/proc/net/fib_trie", "/proc/net/if_inet6"):
        text = ""
        with contextlib.suppress(OSError):
            text = Path(file).read_text()
        texts.append(text)
    return addresses_in(*texts)


def addresses_in(routes: str, interfaces: str) -> set[str]:
    """Return the IPv4 and IPv6 addresses of the kernel's tables, without those that every machine has."""
    found = set(re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", routes))
    words = [line.split()[0] for line in interfaces.splitlines() if re.match(r"[0-9a-f]{32} ", line)]
    found.update(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(word)) for word in words)
    return found - {"127.0.0.1", "::1"}


def find_place(nodes: list[dict[str, Any]], number: int, environment: dict[str, str]) -> dict[str, int]:
    """Return rank, size, local rank and local size, whoever started this.

    mpirun's variables are there under torchrun too, where torchrun's count. Where a launcher tells no local rank, the
    ranks are taken to fill node after node.
    """
    order = list(FAMILIES)
    if "TORCHELASTIC_RUN_ID" in environment:
        order.insert(0, order.pop(TORCHRUN))
    for names in order:
        rank, size, local, local_size = numbers(names, environment)
        if rank is None:
            continue
        ranks = [len(node["ranks"]) for node in nodes]
        mine = rank - sum(ranks[:number]) if local is None else local
        if not 0 <= mine < ranks[number]:
            name = nodes[number]["name"]
            raise Wrong(f"rank {rank} is number {mine} on {name}, for which {ranks[number]} are planned")
        return {"rank": rank, "size": size or sum(ranks), "local": mine, "local_size": local_size or ranks[number]}
    raise Wrong("neither mpirun nor srun nor torchrun started it")


def numbers(names: tuple[str, ...], environment: dict[str, str]) -> list[int | None]:
    """Return the values of variables; None for what is not set, or no number."""
    texts = [environment.get(name, "") for name in names]
    return [int(text) if text.isdigit() else None for text in texts]


def devices(ranks: list[dict[str, Any]], shown: list[dict[str, Any]], mine: dict[str, Any]) -> dict[str, str]:
    """Return the variables for GPUs and network cards.

    All ranks of a node name the same cards, or NCCL would see another machine in each. They see the same GPUs too,
    unless each is to see its own alone: programs choose by their local rank.
    """
    found: dict[str, str] = {}
    gpus = [gpu for rank in shown for gpu in rank.get("gpus", ())]
    if gpus:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if gpus and all(gpu.isdigit() for gpu in gpus):
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    nics = dict.fromkeys(nic for rank in ranks for nic in rank.get("nics", ()))
    if nics:
        found["NCCL_IB_HCA"] = "=" + ",".join(nics)
    if mine.get("gid_index") is not None:
        found["NCCL_IB_GID_INDEX"] = str(mine["gid_index"])
    return found


def rendezvous(plan: dict[str, Any], place: dict[str, int]) -> dict[str, str]:
    """Return what torch's env:// wants; nothing without a master."""
    if not plan["master"]:
        return {}
    return {
        "MASTER_ADDR": plan["master"]["address"],
        "MASTER_PORT": str(plan["master"]["port"]),
        "RANK": str(place["rank"]),
        "WORLD_SIZE": str(place["size"]),
        "LOCAL_RANK": str(place["local"]),
        "LOCAL_WORLD_SIZE": str(place["local_size"]),
    }


def of_node(plan: dict[str, Any], number: int) -> dict[str, str]:
    """Return what torchrun reads on a node; RANK and WORLD_SIZE count nodes until it sets those of its processes."""
    nodes, master = plan["nodes"], plan["master"]
    meet = {"MASTER_ADDR": master["address"], "MASTER_PORT": str(master["port"])}
    own = {"NNODES": str(len(nodes)), "NODE_RANK": str(number), "NPROC_PER_NODE": str(len(nodes[number]["ranks"]))}
    of_torchrun = {f"PET_{name}": value for name, value in {**own, **meet}.items()}
    return {**of_torchrun, **meet, "WORLD_SIZE": own["NNODES"], "RANK": own["NODE_RANK"]}


def bound(rank: dict[str, Any], argv: list[str]) -> list[str]:
    """Bind this process to the rank's CPUs; return the words that take its memory from its NUMA node too.

    CPUs that the container may not use are left out; where none is left, the process stays as it is.
    """
    cpus = set(rank.get("cpus", ()))
    usable = cpus & os.sched_getaffinity(0)
    if usable:
        os.sched_setaffinity(0, usable)
    elif cpus:
        say(f"none of the CPUs {shown(cpus)} may be used; the rank is not bound")
    numa, numactl = rank.get("numa"), shutil.which("numactl")
    if numa is None or numactl is None:
        return argv
    words = [numactl, f"--preferred={numa}"]
    tried = subprocess.call([*words, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return [*words, *argv] if tried == 0 else argv  # a container may be refused the system call


def shown(cpus: set[int]) -> str:
    """Write CPU numbers as ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


if __name__ == "__main__":
    main()
