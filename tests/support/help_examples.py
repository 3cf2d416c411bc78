"""The examples of `--help` that tests run: one for each verb, on this machine alone or on the container lab."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer

from provision.cli.main import build_app

__all__ = ["OF_LABS", "ON_NODES", "WITHOUT_NODES", "Example", "examples", "verbs"]


@dataclass(frozen=True)
class Example:
    """One example of a verb, and what it does."""

    verb: str
    shows: str
    """Regular expression of what it prints."""
    having: str = ""
    """A part of the example; empty for the first one of the verb."""
    codes: tuple[int, ...] = (0,)

    @property
    def line(self) -> str:
        """The command line, word for word as in the help."""
        return next(line for line in examples(verbs()[self.verb]) if self.having in line)


@functools.cache
def verbs() -> dict[str, Any]:
    """Return the command of each verb, and of each one below a group; hidden ones are synonyms."""

    def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        for word, below in getattr(command, "commands", {}).items():
            if hasattr(below, "commands"):
                yield from leaves(below, f"{name}{word} ")
            elif not below.hidden:
                yield f"{name}{word}", below

    return dict(leaves(typer.main.get_command(build_app(None)), ""))


def examples(command: Any) -> list[str]:
    """Return the command lines in the help; one can consist of several lines."""
    text = re.search(r"^ *Examples?:\n(.*?)(?:\n\n|\Z)", command.help, re.MULTILINE | re.DOTALL)
    return [line.strip() for line in re.split(r"(?<!\\)\n", text[1])] if text else []


WITHOUT_NODES = (
    Example("doctor", "^pass +python", codes=(0, 1)),
    Example("data add", "imagenet was added"),
    Example("data rm", "imagenet was removed"),
    Example("node label", "gpu1 labeled", "rack=r1"),
    Example("place", "n1", "--topo-file n1=topo.txt"),
    Example("nccl-log", "transport +IB", "nccl-log job.log"),
    Example("advise", "set_epoch", "--script train.py"),
    Example("schema", "json-schema.org/draft/2020-12", "schema plan"),
    Example("export", "kind: TrainJob", "--kind trainjob"),
    Example("queue unit", r"^ExecStart=.* queue run --daemon -i .*inventories/prod$"),
    Example("secret add", "stored in", "git.example.com"),
    Example("secret list", "git +git.example.com +alice"),
    Example("secret rm", "git.example.com"),
    Example("bench parse", "resnet50 +.*8"),
    Example("bench table", r"16gpu.log"),
    Example("bench compare", "real: "),
    Example("bench list", "no stored results"),
    Example("bench report", "scaling.html", "scaling.html 1gpu.log"),
)
"""Verbs that need no nodes, in an order in which they work."""

OF_LABS = (
    Example("lab up", "LAB-2 .* running", "lab up quick"),
    Example("lab list", r"LAB +container +debian13 +2/2 +up"),
    Example("lab status", "LAB-1 .* running"),
    Example("lab inventory", "LAB/inventory"),
    Example("lab ssh", r"^\d+\.\d+", "-- uname -r"),
    Example("lab reboot", "LAB-1 has rebooted"),
    Example("lab link", "LAB-2 is cut off", " off"),
    Example("lab power", "LAB-2 is off", " off"),
    Example("lab down", "Lab LAB was removed"),
)
"""Verbs that change a lab, in an order in which they work; LAB is its name."""

ON_NODES = (
    Example("init", "inventories/cluster", "--known-hosts keys.txt"),
    Example("adopt", "", "--dry-run"),
    Example("plan", "of 2 nodes are up to date"),
    Example("apply", "2 of 2 nodes are up to date", "--lab demo"),
    Example("history", "apply"),
    Example("unlock", "LAB-2", "unlock gpu3"),
    Example("verify", "LAB-"),
    Example("stack lock", "stack of LAB-1"),
    Example("stack diff", "LAB-|same stack", codes=(0, 1)),
    Example("stack check", "LAB-1"),
    Example("gdr", "LAB-"),
    Example("topo", "GPU0", "topo gpu1"),
    Example("exec", "load average", "-- uptime"),
    Example("copy", "LAB-", "topology.xml"),
    Example("reload", "LAB-2", "--limit gpu3"),
    Example("reset", "LAB-", "--dry-run"),
    Example("support-bundle", r"\.tar\.gz"),
    Example("hostfile", "^LAB-1 slots=2$"),
    Example("run", "the sum equals", "provision-smoke"),
    Example("bench run", "^provision run .*vgg16", "--dry-run"),
    Example("bench scale", "^provision run .*mlp", "--dry-run"),
    Example("bench ab", "^provision run .*--gputopology", "--dry-run"),
    Example("image pull", "LAB-"),
    Example("image list", "LAB-"),
    Example("image inspect", "(?i)python"),
    Example("node list", "LAB-1 .*Ready"),
    Example("node drain", "LAB-2 drained"),
    Example("node resume", "LAB-2 resumed"),
    Example("data list", "training-data"),
    Example("data check", "training-data"),
    Example("submit", "mnist", "--name=mnist"),
    Example("wait", "mnist", "--for running --timeout 60"),
    Example("list", "mnist +RUNNING"),
    Example("get", "Status: +RUNNING"),
    Example("attach", "NVIDIA-SMI", "-- nvidia-smi"),
    Example("port-forward", "train.py", ":8888", codes=(130,)),
    Example("logs", "rank 0 of 3"),
    Example("events", "mnist"),
    Example("top node", "LAB-1"),
    Example("top job", "mnist"),
    Example("top gpu", "mnist-worker-0"),
    Example("queue list", ""),
    Example("queue run", "no job was started"),
    Example("queue release", "mnist RUNNING"),
    Example("queue migrate", "Slurm cannot start jobs on this cluster", codes=(2,)),
    Example("restart", "mnist"),
    Example("stop", "mnist"),
    Example("prune", "", "--dry-run"),
    Example("delete", "mnist"),
    Example("bootstrap", "bootstrap this machine as", codes=(0, 1, 2)),
    Example("demo", "Summary", "--driver container --name"),
)
"""Verbs that need nodes, in an order in which they work; LAB is the name of the lab.

bootstrap shows the plan for the machine of the tests, and its question has no answer: nothing is changed.
"""
