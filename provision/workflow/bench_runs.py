"""Preparation and records of benchmarks on nodes: sizes to try, the program's folder, and stored results."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision.benchmarks import NodeInfo, Record, parse
from provision.documents import decode, printable_values
from provision.errors import InvalidDocument, NoResult, ProvisionError
from provision.facts import NodeFacts, Unknown
from provision.facts.container import Container
from provision.facts.derived import simulated
from provision.launchers import HostEntry
from provision.locks import user
from provision.resources import package_path
from provision.workflow import benchmark_files

PROGRAM = "provision_training_bench.py"
_ABOUT = "About: "
_ABOUT_LIMIT = 262_144


def default_sizes(entries: Sequence[HostEntry]) -> list[int]:
    """Return the numbers of slots to try: one, one node, then twice as many nodes each time up to all.

    For two nodes of eight GPUs: 1, 8, 16.
    """
    slots = [entry.slots for entry in entries if entry.slots]
    counts = {1, len(slots)} | {2**power for power in range(len(slots).bit_length()) if 2**power <= len(slots)}
    return sorted({1} | {sum(slots[:count]) for count in counts}) if slots else []


def program_folder() -> Path:
    """Return a folder that contains only our benchmark program, to be copied into the containers.

    Raises:
        ProvisionError: the folder is not writable.
    """
    source = package_path("benchmarks", "files", PROGRAM)
    folder = benchmark_files.folder() / "program"
    target = folder / PROGRAM
    try:
        program = source.read_bytes()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not target.exists() or target.read_bytes() != program:
            draft = benchmark_files.folder() / f".{PROGRAM}.{os.getpid()}"
            draft.write_bytes(program)
            draft.replace(target)
    except OSError as error:
        raise ProvisionError(
            f"{folder}: cannot write the benchmark program ({error.strerror})",
            remedy="Free disk space there, or set XDG_STATE_HOME to another folder.",
        ) from error
    return folder


def visible_environment(words: Sequence[str]) -> dict[str, str | None]:
    """Return the variables of ``K=V`` and ``K`` for the record; secrets and values of the environment are None.

    Passwords in URLs are removed.
    """
    from provision.report.redaction import Redactor
    from provision.report.secret_names import is_plain, names_secret

    without_passwords = Redactor().text
    shown: dict[str, str | None] = {}
    for word in words:
        name, given, value = word.partition("=")
        secret = names_secret(name) == "strong" or (names_secret(name) == "weak" and not is_plain(value))
        shown[name] = None if secret or not given else without_passwords(value)
    return shown


def node_infos(entries: Sequence[HostEntry], facts: Mapping[str, NodeFacts | ProvisionError]) -> tuple[NodeInfo, ...]:
    """Return the nodes with ranks, one per slot, and their known properties."""
    infos: list[NodeInfo] = []
    for entry in entries:
        node_facts = facts.get(entry.name)
        plain = NodeInfo(entry.name, entry.slots)
        infos.append(_node_info(entry, node_facts) if isinstance(node_facts, NodeFacts) else plain)
    return tuple(infos)


def _node_info(entry: HostEntry, facts: NodeFacts) -> NodeInfo:
    gpus = () if isinstance(facts.gpus, Unknown) else facts.gpus
    products = Counter(gpu.name for gpu in gpus)
    system = None if isinstance(facts.system, Unknown) else facts.system
    container = facts.container if isinstance(facts.container, Container) else None
    stand_ins = facts.simulated if isinstance(facts.simulated, Mapping) else {}
    return NodeInfo(
        name=entry.name,
        ranks=entry.slots,
        gpus=", ".join(f"{count}x {name}" for name, count in products.items()) if entry.kind == "gpu" else "CPU",
        driver=gpus[0].driver if gpus else "",
        system=system.title if system else "",
        kernel=system.kernel if system else "",
        fabric=_fabric(facts),
        image=container.image if container else "",
        image_id=container.image_id if container else "",
        simulated=tuple(f"{thing}: {text}" for thing, text in stand_ins.items())
        if entry.kind == "gpu" and simulated(facts, "nvidia")
        else (),
    )


def _fabric(facts: NodeFacts) -> tuple[str, ...]:
    if isinstance(facts.rdma, Unknown):
        return ()
    return tuple(
        f"{device.name} {port.link_layer} {port.rate}".strip() + (" (software)" if device.soft else "")
        for device in facts.rdma.devices
        for port in device.ports
        if port.active
    )


@dataclass(frozen=True)
class Ended:
    """The exit code, output and duration of a completed job."""

    exit_code: int
    output: str
    seconds: float


def finish(record: Record, ended: Ended) -> Record:
    """Complete and store the record of a benchmark; its runs are labelled with its name.

    Raises:
        NoResult: the output has no result.
        ProvisionError: the result cannot be stored.
    """
    runs, unfinished = parse(ended.output, record.name)
    if not runs:
        why = unfinished[0].reason if unfinished else "no result in a known format"
        raise NoResult(
            f"the benchmark exited with code {ended.exit_code} without a result: {why}",
            ended.exit_code,
            remedy="Check its output above, then the nodes: provision verify",
            output=ended.output[-4000:],
        )
    done = replace(
        record,
        seconds=round(ended.seconds, 1),
        exit_code=ended.exit_code,
        about=_about(ended.output),
        runs=tuple(replace(run, simulated=bool(record.simulated)) for run in runs),
        user=user(),
        host=os.uname().nodename,
    )
    benchmark_files.store_record(done)
    return done


def _about(output: str) -> dict[str, Any]:
    """Return the properties that our own program prints about itself; empty for other programs."""
    for line in output.splitlines():
        _, separator, text = line.partition(_ABOUT)
        if separator:
            with suppress(InvalidDocument):
                about = decode(text, dict[str, Any], node="", what="benchmark description", limit=_ABOUT_LIMIT)
                return dict(printable_values(about))
    return {}


def now() -> str:
    """Return the time in UTC in the format of records."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
