"""Sets the variables and CPUs of one rank of a job, and executes the rank's program.

mpirun (Open MPI 4 or 5, MPICH, Intel MPI), srun or torchrun starts it in place of the program. The environment contains
the program and its plan. It needs Python 3.6 or newer and nothing else, and leaves no file.

The plan is JSON: ``nodes`` in the order of the ranks, each with ``name``, ``address``, ``environment`` and ``ranks``
(each with ``gpus``, ``nics``, ``cpus``, ``numa``, ``gid_index``, all optional); ``keep``, the names of variables that
the user has set; ``master``, the rendezvous of torch's ranks, or null; ``mode``: ``rank``, or ``node`` with one process
on each node, which starts its ranks; ``prefix``, words before the program; and ``visible``: a rank sees the GPUs of all
ranks of its ``node``, or those of the ``rank``.
"""

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
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple

PLAN = "PROVISION_RANKS"
CODE = "PROVISION_LAUNCHER"

FAMILIES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)
"""The names of rank, size, local rank and local size in each launcher; torchrun's are the third."""
TORCHRUN = 2
OF_MPI = re.compile(r"(OMPI|PMIX|PMI|PRTE|ORTE|HYDRA|HYD|I_MPI)_|MPI_LOCAL")


Entry = Dict[str, Any]
"""An object of the plan: the plan, a node or a rank."""


class Wrong(Exception):
    """The rank cannot be started; the text is the reason."""


class Place(NamedTuple):
    """The numbers of a rank."""

    rank: int
    size: int
    local: int
    local_size: int


def main() -> None:
    """Execute the program, or exit with 125 and the reason."""
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
    """Print a message with the name of this node."""
    sys.stderr.write(f"provision: on {socket.gethostname()}: {text}\n")
    sys.stderr.flush()  # before Python 3.9, a pipe is buffered, and the program that follows drops the buffer


def end(code: int, text: str) -> NoReturn:
    """Print why the program was not executed, and exit."""
    say(text)
    sys.exit(code)


def prepare(plan: Entry, environment: Dict[str, str], argv: List[str]) -> List[str]:
    """Apply the plan to `environment` and this process; return the words to execute."""
    number, node = find_node(plan["nodes"], environment)
    variables: Dict[str, str] = dict(node["environment"])
    if plan["mode"] == "rank":
        place = find_place(plan["nodes"], number, environment)
        rank = node["ranks"][place.local]
        variables.update(devices(node["ranks"], [rank] if plan["visible"] == "rank" else node["ranks"], rank))
        variables.update(rendezvous(plan, place))
        argv = bind(rank, argv)
    else:
        variables.update(devices(node["ranks"], node["ranks"], node["ranks"][0]))
        variables.update(of_node(plan, number))
        for name in [name for name in environment if OF_MPI.match(name) and name not in plan["keep"]]:
            del environment[name]  # torch's processes are not ranks of mpirun
    environment.update({name: value for name, value in variables.items() if name not in plan["keep"]})
    return [*plan["prefix"], *argv]


def find_node(nodes: List[Entry], environment: Dict[str, str]) -> Tuple[int, Entry]:
    """Return the number and the entry of this node: by its variable, its addresses, or its name."""
    name, own = environment.get("PROVISION_NODE"), socket.gethostname()
    addresses, names = local_addresses(), {own, own.partition(".")[0]}
    conditions: List[Callable[[Entry], bool]] = [
        lambda node: bool(node["name"] == name),
        lambda node: node["address"] in addresses,
        lambda node: node["name"] in names,
    ]
    for is_this_node in conditions:
        for number, node in enumerate(nodes):
            if is_this_node(node):
                return number, node
    raise Wrong(f"this is none of the job's nodes ({', '.join(node['name'] for node in nodes[:8])})")


def local_addresses() -> Set[str]:
    """Return this machine's addresses; binding to an address proves nothing (ip_nonlocal_bind)."""
    texts = []
    for file in ("/proc/net/fib_trie", "/proc/net/if_inet6"):
        text = ""
        with contextlib.suppress(OSError):
            text = Path(file).read_text()
        texts.append(text)
    return addresses_in(*texts)


def addresses_in(routes: str, interfaces: str) -> Set[str]:
    """Return the IPv4 and IPv6 addresses of the kernel's tables, without those that every machine has."""
    addresses = set(re.findall(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL", routes))
    words = [line.split()[0] for line in interfaces.splitlines() if re.match(r"[0-9a-f]{32} ", line)]
    addresses.update(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(word)) for word in words)
    return addresses - {"127.0.0.1", "::1"}


def find_place(nodes: List[Entry], number: int, environment: Dict[str, str]) -> Place:
    """Return the numbers of this rank, from the variables of any launcher.

    torchrun inherits mpirun's variables; its own have precedence. If a launcher sets no local rank, the ranks fill one
    node after the other.
    """
    order = list(FAMILIES)
    if "TORCHELASTIC_RUN_ID" in environment:
        order.insert(0, order.pop(TORCHRUN))
    for names in order:
        rank, size, local, local_size = numbers(names, environment)
        if rank is None:
            continue
        ranks = [len(node["ranks"]) for node in nodes]
        index = rank - sum(ranks[:number]) if local is None else local
        if not 0 <= index < ranks[number]:
            name = nodes[number]["name"]
            raise Wrong(f"rank {rank} is number {index} on {name}, for which {ranks[number]} are planned")
        return Place(rank, size or sum(ranks), index, local_size or ranks[number])
    raise Wrong("neither mpirun nor srun nor torchrun started it")


def numbers(names: Sequence[str], environment: Dict[str, str]) -> List[Optional[int]]:
    """Return the values of variables; None for a missing or invalid one."""
    texts = [environment.get(name, "") for name in names]
    return [int(text) if text.isdigit() else None for text in texts]


def devices(ranks: List[Entry], visible: List[Entry], own: Entry) -> Dict[str, str]:
    """Return the variables for GPUs and network cards.

    All ranks of a node have the same cards, otherwise NCCL would treat each rank as a separate machine. By default they
    see the same GPUs too, and programs choose by their local rank.
    """
    variables: Dict[str, str] = {}
    gpus = [gpu for rank in visible for gpu in rank.get("gpus", ())]
    if gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if gpus and all(gpu.isdigit() for gpu in gpus):
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    nics = dict.fromkeys(nic for rank in ranks for nic in rank.get("nics", ()))
    if nics:
        variables["NCCL_IB_HCA"] = "=" + ",".join(nics)
    if own.get("gid_index") is not None:
        variables["NCCL_IB_GID_INDEX"] = str(own["gid_index"])
    return variables


def rendezvous(plan: Entry, place: Place) -> Dict[str, str]:
    """Return the variables of torch's env://, none without a master."""
    if not plan["master"]:
        return {}
    return {
        "MASTER_ADDR": plan["master"]["address"],
        "MASTER_PORT": str(plan["master"]["port"]),
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.size),
        "LOCAL_RANK": str(place.local),
        "LOCAL_WORLD_SIZE": str(place.local_size),
    }


def of_node(plan: Entry, number: int) -> Dict[str, str]:
    """Return torchrun's variables on a node; RANK and WORLD_SIZE count nodes until it sets those of its processes."""
    nodes, master = plan["nodes"], plan["master"]
    address = {"MASTER_ADDR": master["address"], "MASTER_PORT": str(master["port"])}
    own = {"NNODES": str(len(nodes)), "NODE_RANK": str(number), "NPROC_PER_NODE": str(len(nodes[number]["ranks"]))}
    of_torchrun = {f"PET_{name}": value for name, value in {**own, **address}.items()}
    return {**of_torchrun, **address, "WORLD_SIZE": own["NNODES"], "RANK": own["NODE_RANK"]}


def bind(rank: Entry, argv: List[str]) -> List[str]:
    """Bind this process to the rank's CPUs; return the words that also allocate its memory on its NUMA node.

    CPUs that the container may not use are ignored; without any, the process is not bound.
    """
    cpus = set(rank.get("cpus", ()))
    usable = cpus & os.sched_getaffinity(0)
    if usable:
        os.sched_setaffinity(0, usable)
    elif cpus:
        say(f"none of the CPUs {ranges(cpus)} may be used; the rank is not bound")
    numa, numactl = rank.get("numa"), shutil.which("numactl")
    if numa is None or numactl is None:
        return argv
    words = [numactl, f"--preferred={numa}"]
    status = subprocess.call([*words, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return [*words, *argv] if status == 0 else argv  # the container may forbid the system call


def ranges(cpus: Set[int]) -> str:
    """Return CPU numbers as ``0-3,8``."""
    runs: List[List[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


if __name__ == "__main__":
    main()
