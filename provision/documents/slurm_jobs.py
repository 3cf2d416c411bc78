"""Documents of the job engine `slurm`: answers of nodes with Slurm."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from provision.model.bounds import Text, Uuid

OUTPUT_LIMIT = 32 * 1024 * 1024
"""Characters of the output of one command of Slurm."""
Output = Annotated[str, Meta(max_length=OUTPUT_LIMIT)]
JobNumber = Annotated[int, Meta(ge=0, le=1 << 31)]
Minor = Annotated[int, Meta(ge=0, le=65535)]
VersionNumber = Annotated[int, Meta(ge=0, le=999)]
MachineName = Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,32}\Z")]
"""A machine as uname names it; it becomes a part of paths and of options of pip."""
Pem = Annotated[str, Meta(max_length=16384, pattern=r"^[A-Za-z0-9+/=\n -]*\Z")]
SealedText = Annotated[str, Meta(max_length=4 * 1024 * 1024, pattern=r"^[A-Za-z0-9+/=\n -]*\Z")]


class SlurmState(Struct, frozen=True):
    """The answer to ``slurm_state``: the output of squeue and sinfo."""

    jobs: Output
    nodes: Output = ""


class SlurmText(Struct, frozen=True):
    """The answer to ``slurm_job``."""

    text: Output


class SlurmSubmitted(Struct, frozen=True):
    """The answer to ``slurm_submit`` and ``slurm_allocate``: the number of the job, or why it was refused."""

    job: JobNumber
    refused: Text = ""
    uncertain: bool = False
    """Whether Slurm may have the job although its number is not known."""


class SlurmNode(Struct, frozen=True):
    """The answer to ``slurm_node``."""

    python: tuple[VersionNumber, VersionNumber]
    machine: MachineName
    starter: bool
    """Whether the node has the starter."""
    certificate: Pem = ""


class Sealed(Struct, frozen=True):
    """The answer to ``slurm_seal``."""

    sealed: SealedText


class SlurmDevice(Struct, frozen=True):
    """A GPU of a node."""

    uuid: Uuid
    minor: Minor
    index: Minor


class StepGpus(Struct, frozen=True):
    """The answer to ``slurm_gpus`` in a step of a job."""

    minors: Annotated[list[Minor], Meta(max_length=1024)] = field(default_factory=list)
    """The minor numbers of the GPUs of the step."""
    devices: Annotated[list[SlurmDevice], Meta(max_length=1024)] = field(default_factory=list)
