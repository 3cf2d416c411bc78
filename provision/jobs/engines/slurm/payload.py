"""The payload of a batch script: all that the starter needs to know of a job and of the nodes that it may get.

It contains no secret in clear: `sealed` is encrypted for the keys of the nodes.
"""

from __future__ import annotations

import base64
import zlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from provision.batch.containers import NodeHardware
from provision.documents import decode
from provision.documents.jobs import Count, PackedCode, Sha256, recorded_reason
from provision.documents.slurm_jobs import Pem, SealedText
from provision.errors import InvalidDocument
from provision.model.bounds import Address, Identifier, JobName, NodeName, ShortText, Time
from provision.model.job import JobSpec
from provision.model.reason import reason
from provision.model.topology import Topology, TopologyGpu, TopologyNic
from provision.profiles import NodeNetwork
from provision.report.reasons import message
from provision.topology.candidates import Candidate, Machine, Mode, Port

VERSION = 1
MARK = "#provision-payload "
"""The beginning of the lines of the payload in a batch script."""
LIMIT = 64 * 1024 * 1024
"""Bytes of an unpacked payload."""
SCRIPT_BYTES = 3_900_000
"""Slurm refuses scripts of 4 MiB."""
_LINE = 76 * 100


class PayloadMachine(Struct, frozen=True):
    """The GPUs of a node and their links."""

    gpus: tuple[TopologyGpu, ...]
    nics: tuple[TopologyNic, ...] = ()
    links: tuple[tuple[str, ...], ...] = ()
    lane: int = 0
    lanes: int | None = None
    pcie: int = 0
    inter_cpu: int | None = None
    ports: tuple[Port, ...] = ()
    p2p: tuple[tuple[int, ...], ...] | None = None
    mode: str = ""
    leaf: str = ""
    rack: str = ""
    domain: str = ""

    @classmethod
    def of(cls, candidate: Candidate) -> PayloadMachine:
        """Return the document of a node."""
        machine, mode = candidate.machine, candidate.mode
        return cls(
            machine.topology.gpus, machine.topology.nics, machine.topology.links, machine.lane, machine.lanes,
            machine.pcie, machine.inter_cpu, machine.ports, machine.p2p, str(mode) if mode else "", candidate.leaf,
            candidate.rack, candidate.domain,
        )  # fmt: skip

    def candidate(self, name: str, busy: frozenset[int]) -> Candidate:
        """Return the node as a place for a job, without the GPUs `busy`."""
        topology = Topology(self.gpus, self.nics, self.links)
        machine = Machine(topology, self.lane, self.lanes, self.pcie, self.inter_cpu, self.ports, self.p2p)
        mode = Mode(self.mode) if self.mode else None
        return Candidate(name, machine, busy, mode=mode, leaf=self.leaf, rack=self.rack, domain=self.domain)


class PayloadNode(Struct, frozen=True):
    """The facts at submission of a node that the job may get."""

    slurm: NodeName
    """Its name in Slurm."""
    name: NodeName
    """Its name in the inventory."""
    address: Address
    interface: ShortText
    hardware: NodeHardware
    network: NodeNetwork | None = None
    machine: PayloadMachine | None = None
    certificate: Pem = ""


class Payload(Struct, frozen=True):
    """A job for the starter."""

    version: Annotated[int, Meta(ge=1)]
    name: JobName
    id: Identifier
    first_attempt: Count
    owner: ShortText
    submitted: Time
    spec: JobSpec
    signed: str
    signature: str
    nodes: tuple[PayloadNode, ...]
    variables: dict[str, Any] = field(default_factory=dict)
    """The variables of the inventory that a start reads."""
    sealed: SealedText = ""
    """`SecretsDocument` as JSON, encrypted for the keys of the nodes; empty for a job without secrets."""
    secrets: Sha256 = "0" * 64
    code: bytes = b""
    about: PackedCode | None = None


def script_text(payload: Payload, start: str, python: str = "/usr/bin/python3") -> str:
    """Return the batch script of a job. It records in Slurm if the node does not have the starter any more.

    Args:
        payload: the job.
        start: the path of the starter on nodes.
        python: the interpreter of nodes.
    """
    packed = base64.b64encode(zlib.compress(msgspec.json.encode(payload), 9)).decode()
    lines = [f"{MARK}{packed[at : at + _LINE]}" for at in range(0, len(packed), _LINE)]
    why = reason("slurm.starter_missing")
    comment = msgspec.json.encode(recorded_reason(why, message(why))).hex()
    record = f'scontrol update JobId="$SLURM_JOB_ID" AdminComment={comment}'
    check = f"[ -f {start} ] || {{ {record}; exit 1; }}"
    return "\n".join(["#!/bin/sh", check, f'exec {python} -I -S {start} "$0"', *lines, ""])


def payload_of(script: str) -> Payload:
    """Return the payload of a batch script.

    Raises:
        InvalidDocument: it has none, or an invalid one.
    """
    packed = "".join(line[len(MARK) :] for line in script.splitlines() if line.startswith(MARK))
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(packed, validate=True), LIMIT)
    except (ValueError, zlib.error) as error:
        raise InvalidDocument(f"batch script: {error}", remedy="Submit the job again.") from error
    if not text or unpacker.unconsumed_tail:
        raise InvalidDocument("batch script: the payload is missing or too large", remedy="Submit the job again.")
    payload = decode(text, Payload, node="", what="payload of the batch script", limit=LIMIT)
    if payload.version != VERSION:
        raise InvalidDocument(
            f"batch script: version {payload.version} instead of {VERSION}", remedy="Submit the job again."
        )
    return payload
