"""What is healthy: numbers and meanings, each with where it comes from. The checks hold none of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

RESET = "End its jobs, then reset the GPU (nvidia-smi --gpu-reset -i {gpu}) or reboot the node."


class XidWeight(Enum):
    """What an Xid says about the GPU."""

    JOB = "job"
    """A program's own error, or the driver's note of something that needs nothing done: no fault of the node."""
    WATCH = "watch"
    """The GPU works on; it may be wearing out."""
    BROKEN = "broken"
    """The GPU is not to be used before something was done."""


@dataclass(frozen=True)
class XidMeaning:
    """The meaning of an Xid, and its remedy."""

    weight: XidWeight
    text: str
    remedy: str = ""


_GPU = "Reset the GPU (nvidia-smi --gpu-reset) or reboot the node; if it comes back, have the GPU replaced."
_LINK = "Reset all GPUs of the node or reboot it; if it comes back, have GPU, baseboard and NVLink bridges inspected."
_MEMORY = "Reset the GPU (nvidia-smi --gpu-reset) or reboot the node, then run dcgmi diag -r 3 on it."
_WATCH = "Keep an eye on this GPU; run dcgmi diag -r 3 when the node has no jobs."
_JOB, _SEE, _BAD = XidWeight.JOB, XidWeight.WATCH, XidWeight.BROKEN

XIDS: Mapping[int, XidMeaning] = {
    13: XidMeaning(_JOB, "a program's kernel made an error"),
    31: XidMeaning(_JOB, "a program touched memory that is not its own"),
    43: XidMeaning(_JOB, "a program's channel was stopped"),
    45: XidMeaning(_JOB, "channels were taken down, as when a job ends or after another Xid"),
    63: XidMeaning(_JOB, "a bad memory row was noted for replacement"),
    121: XidMeaning(_JOB, "an error on the chip-to-chip link was corrected"),
    137: XidMeaning(_JOB, "a program's access over NVLink was refused"),
    157: XidMeaning(_JOB, "noted by the driver, nothing to be done"),
    68: XidMeaning(_SEE, "the video decoder made an error", _WATCH),
    92: XidMeaning(_SEE, "many memory errors had to be corrected", _WATCH),
    94: XidMeaning(_SEE, "a memory error was contained and ended the program that it hit", _WATCH),
    **dict.fromkeys((56, 57, 58, 65, 69, 73, 80, 81), XidMeaning(_SEE, "the GPU or its driver made an error", _WATCH)),
    48: XidMeaning(_BAD, "a memory error could not be corrected", _MEMORY),
    62: XidMeaning(_BAD, "the GPU's own controller halted", _GPU),
    64: XidMeaning(_BAD, "a bad memory row could not be replaced", _MEMORY),
    74: XidMeaning(_BAD, "an NVLink made an error", _LINK),
    79: XidMeaning(
        _BAD,
        "the GPU has fallen off the bus",
        "Switch the node off and on again; if it comes back, check the GPU's slot, power and cooling.",
    ),
    95: XidMeaning(_BAD, "a memory error could not be contained", _MEMORY),
    109: XidMeaning(_BAD, "the GPU hung while it changed between programs", _GPU),
    110: XidMeaning(_BAD, "a security fault", _GPU),
    119: XidMeaning(_BAD, "the GPU's system processor did not answer", _GPU),
    120: XidMeaning(_BAD, "the GPU's system processor made an error", _GPU),
    **dict.fromkeys(range(144, 151), XidMeaning(_BAD, "an NVLink (5th generation) made an error", _LINK)),
    **dict.fromkeys((136, 140, 143, 155, 156, 158), XidMeaning(_BAD, "the driver asks for a reset", _GPU)),
    154: XidMeaning(_BAD, "the driver asks for action", _GPU),
}
"""Numbers by NVIDIA's Xid catalogue (its immediate actions: restart the program, reset, restart the node, ignore), as
gpud carries it. Those in `WATCH` without a word of the catalogue are what Azure's node health checks stop a node for
(56-58, 65, 69, 73, 80, 81). 154 is followed by the action itself."""


@dataclass(frozen=True)
class ClockEvent:
    """One bit of what holds the clocks down."""

    bit: int
    text: str
    fails: bool
    remedy: str
    general: bool = False
    """It comes along with the bits that name the cause."""


_COOLING = "Check fans, air flow and the room's temperature, and the BMC's sensors."
_POWER = "Check the power supplies and their cables, and the BMC's event log."

CLOCK_EVENTS: tuple[ClockEvent, ...] = (
    ClockEvent(0x40, "the hardware slows it down for heat", fails=True, remedy=_COOLING),
    ClockEvent(0x80, "the hardware brakes it for power", fails=True, remedy=_POWER),
    ClockEvent(0x08, "the hardware slows it down", fails=True, remedy=f"{_COOLING} {_POWER}", general=True),
    ClockEvent(0x20, "the driver slows it down for heat", fails=False, remedy=_COOLING),
)
"""Bits of NVML's clock event reasons that matter.
Not in the list, for they are no faults: 0x01 idle, 0x02 application clocks, 0x04 software power cap, 0x10 sync boost,
0x100 display clocks."""


@dataclass(frozen=True)
class PortCounter:
    """How many of one counter a port may have."""

    per_hour: float
    """Averaged since boot; 0: any single one counts."""
    text: str
    fails: bool = False


_DAILY = 10 / 24

PORT_COUNTERS: Mapping[str, PortCounter] = {
    # 120 an hour is what a link may have at the bit error rate of 1e-12 that the InfiniBand specification allows.
    "symbol_error": PortCounter(120, "symbol errors", fails=True),
    # The physical layer gave up, or a link that promises to lose nothing lost something: NVSentinel counts each one.
    "local_link_integrity_errors": PortCounter(0, "times with more physical errors than the port allows"),
    "excessive_buffer_overrun_errors": PortCounter(0, "buffer overruns"),
    # Ours: links go down when a switch or a peer restarts, and a bad cable does it far more often than ten times a day.
    "link_downed": PortCounter(_DAILY, "times link down"),
    "carrier_down_count": PortCounter(_DAILY, "times link down"),
    "link_error_recovery": PortCounter(_DAILY, "link recoveries"),
    "port_rcv_errors": PortCounter(_DAILY, "bad packets received"),
    "rx_crc_errors": PortCounter(_DAILY, "frames with a wrong checksum"),
}
"""Counters of the physical link. They count since the card's driver was loaded, so a rate decides, not a number."""

PORT_MENTIONED = (
    "port_rcv_remote_physical_errors",
    "port_xmit_discards",
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "out_of_buffer",
)
"""Counters that are only reported: they come from congestion, adaptive routing, other ports, or ended jobs."""

SHORT_LINK_LANES = 1
"""An InfiniBand link of one lane has lost the others: cards and cables have four, splitter cables two."""
