"""The output of ``ib_write_bw``, and whether a node is idle and able to run it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from provision.commands.docker import exec_argv
from provision.facts.base import Unknown

_SERVICES = frozenset(
    {
        "dcgm-exporter",
        "gpud",
        "ibacm",
        "nv-fabricmanage",
        "nv-hostengine",
        "nvidia-device-p",
        "nvidia-persiste",
        "nvidia-smi",
        "nvlsm",
    }
)
"""Programs (names truncated to 15 characters by the kernel) that open devices on an idle node too."""
_FACTORS = {"average[Gb/sec]": 1.0, "average[MB/sec]": 8 * 2**20 / 1e9, "average[MiB/sec]": 8 * 2**20 / 1e9}
"""Last word of the heading of the column of averages -> factor to Gbit/s."""
_COLUMNS = 5
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
_TIMED_OUT = frozenset({124, 137})


def bandwidth(text: str) -> float | None:
    """Return the average bandwidth in Gbit/s from the last row of perftest's table; None without a row.

    The columns are #bytes, #iterations, BW peak, BW average, MsgRate; the heading says whether bandwidth is in Gbit/s
    or (without ``--report_gbits``) in MiB/s, which perftest spells ``MB/sec``.
    """
    average: float | None = None
    factor = 0.0
    for line in text.splitlines():
        words = line.split()
        if words[:2] == ["#bytes", "#iterations"]:
            unit = next((word for word in words if word in _FACTORS), "")
            factor = _FACTORS.get(unit, factor)
        elif factor and len(words) >= _COLUMNS and all(_NUMBER.fullmatch(word) for word in words[:_COLUMNS]):
            average = float(words[3]) * factor
    return average or None


def explain(text: str, code: int | None, seconds: float) -> str:
    """Return why a test gave no result; `text` is the output of this end, `code` its exit status."""
    for pattern, meaning in _MEANINGS:
        match = re.search(pattern, text)
        if match:
            return meaning.format(*match.groups())
    if code in _TIMED_OUT:
        return f"no answer within {seconds:.0f} s"
    messages = [line.strip() for line in text.splitlines() if _is_informative(line)]
    if messages:
        return messages[-1]
    return f"ib_write_bw exited with status {code}" if code is not None else "it ended without output"


_MEANINGS = (
    (
        r"Couldn't connect to (\S+):(\d+)",
        "no connection to {0} port {1}: there is no route to that address, or a firewall blocks it",
    ),
    (r"Couldn't listen to port (\d+)", "port {0} is in use"),
    (
        r"Failed to modify QP (?:\d+ )?to RTR",
        "the two ports cannot be connected (QP to RTR): no path between the GIDs, or MTU, VLAN or subnet differ",
    ),
    (r"Failed to modify QP (?:\d+ )?to (\w+)", "the port rejects the connection (QP to {0})"),
    (
        r"Found Incompatibility issue with GID types",
        "the two ports use GIDs of different types, RoCE v1 and RoCE v2",
    ),
    (
        r"Unable to set up socket connection",
        "the GID at the index in sysfs (or, with InfiniBand, the LID) cannot be used in the container",
    ),
    (r"Failed status 12\b", "packets are lost: the other port did not acknowledge (retry counter exceeded)"),
    (r"Failed status 13\b", "the other port was never ready to receive (RNR retry counter exceeded)"),
    (r"Failed status (\d+)[^\n]*", "a transfer failed with completion status {0}"),
    (
        r"Unable to find the Infiniband/RoCE device|Did not detect devices|IB device \S+ not found",
        "the device is not in the container",
    ),
    (r"Port number (\d+) state is (\w+)", "port {0} is {1}"),
    (
        r"Couldn't allocate MR|Failed to create MR",
        "the memory cannot be registered with the card: the memlock limit is too low, or GPU memory is not supported",
    ),
    (r"(?i)unrecognized option '([^']+)'", "this perftest does not support {0}"),
    (
        r"ethernet_read_keys: Couldn't read remote address|Failed to exchange data between server and clients",
        "the other end closed the connection",
    ),
)
"""Messages of perftest, most informative first, and their meaning; both ends may print several of them."""


def _is_informative(line: str) -> bool:
    return bool(re.search(r"[A-Za-z]{3}", line)) and not _FRAME.search(line)


_FRAME = re.compile(
    r"^\s*[-*#]"  # rules, the heading of the table, the waiting server's box
    r"|^ [^:]+\s: |^ (?:PCIe relax order|GID):"  # settings
    r"|address:|RDMA_Write BW|^\s*WARNING|^provision-"
)


@dataclass(frozen=True)
class Holder:
    """A process that has an RDMA device or a GPU open."""

    pid: int
    command: str
    device: str


@dataclass(frozen=True)
class Readiness:
    """Whether a node can be measured now."""

    holders: tuple[Holder, ...]
    """Without services that open devices on an idle node too."""
    missing: tuple[str, ...]
    """Programs that the container lacks."""
    cuda: bool = False
    """Whether the container's perftest supports GPU memory."""
    cuda_dmabuf: bool = False


def readiness_script(container: str) -> str:
    """Return the node's script that lists processes with open devices, and the features of the container's perftest.

    nvidia-smi is not used, because it may hang.
    """
    inner = """for name in ib_write_bw timeout; do command -v $name >/dev/null || echo "missing $name"; done
ib_write_bw --help 2>&1 | grep -o -- '--use_cuda[a-z_]*' | sort -u | sed 's/^/knows /'
echo asked"""
    query = shlex.join(["timeout", "-k", "5", "60", *exec_argv(container, ["sh", "-c", inner])])
    return rf"""LC_ALL=C; export LC_ALL
[ "$(id -u)" = 0 ] && command -v find >/dev/null || {{ echo 'this check requires root and find'; exit 1; }}
find /proc/[0-9]*/fd \( -lname '/dev/infiniband/uverbs*' -o -lname '/dev/nvidia[0-9]*' \) -printf '%p %l\n' \
  2>/dev/null | while read -r file device; do
  pid=${{file#/proc/}}; pid=${{pid%%/*}}
  {{ read -r name </proc/$pid/comm; }} 2>/dev/null && echo "held $pid $device $name"
done
echo looked
{query} </dev/null
"""


def parse_readiness(text: str, error: str = "") -> Readiness | Unknown:
    """Parse the output of ``readiness_script``; Unknown if it is incomplete, which counts as busy."""
    rows = [line.split(None, 3) for line in text.splitlines() if line.strip()]
    words = {row[0] for row in rows}
    if not {"looked", "asked"} <= words:
        messages = [*error.strip().splitlines(), *text.strip().splitlines()] or ["no answer"]
        return Unknown(messages[0] if "looked" not in words else (error.strip().splitlines() or ["no answer"])[-1])
    holders = {
        Holder(int(row[1]), row[3], row[2])
        for row in rows
        if row[0] == "held" and len(row) > 3 and row[1].isdecimal() and row[3] not in _SERVICES  # noqa: PLR2004
    }
    features = {row[1] for row in rows if row[0] == "knows" and len(row) > 1}
    return Readiness(
        tuple(sorted(holders, key=lambda holder: (holder.pid, holder.device))),
        tuple(row[1] for row in rows if row[0] == "missing" and len(row) > 1),
        "--use_cuda" in features,
        "--use_cuda_dmabuf" in features,
    )
