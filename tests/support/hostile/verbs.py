"""The verbs that talk to nodes, each with command lines that reach deep into it; and those that talk to none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import typer

from provision.cli.main import build_app
from tests.support.hostile.world import GOOD, Outcome

__all__ = ["CASES", "NO_NODES", "RECORDING", "VERBS", "Verb"]


@dataclass(frozen=True)
class Verb:
    """How a verb is tried; ``{folder}`` is an empty folder, ``{fingerprint}`` that of the nodes' host key."""

    lines: tuple[str, ...]
    """Command lines, one word a word; they are tried in turn."""
    good: Callable[[Outcome], bool] | None = None
    """Whether the well-behaved node's part was done, of verbs that print a part for each node."""
    raw: bool = False
    """It passes on the output of a job, byte for byte; what nodes say beside it goes to stderr."""
    anycode: bool = False
    """Its exit code may be that of a job."""
    codes: frozenset[int] = frozenset({0})
    """How it ends where all nodes are honest; what is recorded does not change, so that some would have to wait."""


def _node(outcome: Outcome) -> dict[str, Any]:
    document = json.loads(outcome.out)
    nodes = document["nodes"] if isinstance(document, dict) else document
    return next(node for node in nodes if node["name"] == GOOD)


def _field(key: str, value: Any) -> Callable[[Outcome], bool]:
    return lambda outcome: _node(outcome)[key] == value


def _reached(outcome: Outcome) -> bool:
    return any(check["id"] == "node.reachable" and check["status"] == "pass" for check in _node(outcome)["checks"])


def _history(outcome: Outcome) -> bool:
    if not outcome.out.startswith("{") or '"ok":' not in outcome.out:
        return True
    return bool(_node(outcome)["error"] is None)


def _data(outcome: Outcome) -> bool:
    return all(
        finding["node"] != GOOD for volume in json.loads(outcome.out)["volumes"] for finding in volume["findings"]
    )


_FAILING, _WAITING = frozenset({0, 1}), frozenset({0, 6})
_RUN = "run --allow-missing --yes"

VERBS: dict[str, Verb] = {
    "adopt": Verb(("adopt --dry-run", "adopt --dry-run --json")),
    "plan": Verb(
        ("plan --json", "plan --read-only --json", "plan --diff --force docker_engine --json"),
        _field("reachable", value=True),
    ),
    "apply": Verb(
        ("apply --yes --force docker_engine --json",),
        lambda o: _node(o)["status"] != "unreachable",
        codes=_FAILING | _WAITING,
    ),
    "history": Verb(
        ("history --nodes --json", "history --audit --json", "history --audit", "history --json", "history"), _history
    ),
    "init": Verb(("init gpu0001 --replace-key --json", "init gpu0001 --replace-key --fingerprint {fingerprint}")),
    "unlock": Verb(("unlock gpu0001 gpu0002 gpu0003 --yes --json",), _field("result", "unlocked")),
    "bootstrap": Verb(("bootstrap --yes --name gpu0001 --only docker_engine",), codes=_FAILING),
    "verify": Verb(
        ("verify --json", "verify --level full --json", "verify --level full --collective --json"),
        _reached,
        codes=_FAILING,
    ),
    "stack lock": Verb(
        ("stack lock gpu0001 --out {folder}/lock.yml --json", "stack lock gpu0001 --out {folder}/lock.yml"),
        codes=_FAILING,
    ),
    "stack diff": Verb(("stack diff gpu0001 gpu0002 --json", "stack diff gpu0001 gpu0002"), codes=_FAILING),
    "stack check": Verb(
        ("stack check --kernel 6.12.1-1-amd64 --json", "stack check --kernel 6.12.1-1-amd64", "stack check --json"),
        lambda o: not o.out.startswith("{") or _node(o)["error"] is None,
        codes=_FAILING,
    ),
    "gdr": Verb(("gdr --json",), _field("path", "dma_buf")),
    "exec": Verb(("exec --json -- uname -r",), _field("exit_code", 0), codes=_FAILING),
    "copy": Verb(("copy --json /etc/passwd /tmp/",), _field("error", None), codes=_FAILING),
    "topo": Verb(("topo gpu0001", "topo gpu0001 --json", "topo gpu0001 --svg {folder}/x.svg")),
    "reload": Verb(("reload --yes --json",), _field("result", "skipped")),
    "reset": Verb(
        ("reset --yes --json", "reset --dry-run --json"),
        lambda o: _node(o)["steps"] == ["remove /etc/x"],
        codes=_FAILING,
    ),
    "place": Verb(("place --gpus 2 --workers 3 --explain", "place --gputopology --gpus 2 --workers 2 --json")),
    "hostfile": Verb(
        ("hostfile --json", "hostfile --launcher torchrun --json"),
        lambda o: json.loads(o.out).get("slots", {GOOD: 8}).get(GOOD) == 8,
    ),
    "run": Verb(
        (
            f"{_RUN} -- python3 train.py",
            f"{_RUN} --sync {{folder}} -- python3 train.py",
            f"{_RUN} --gputopology --gpus 2 --workers 2 -- python3 train.py",
            f"{_RUN} --explain -- python3 train.py",
            f"{_RUN} --dry-run -- python3 train.py",
        ),
        raw=True,
        anycode=True,
    ),
    "submit": Verb(
        (
            "submit run --name=done --image=image --gpus=1 true",
            "submit pytorch --name=pair --image=image --gpus=1 --workers=2 --data=shared:/data true",
            "submit mpi --name=ranks --image=image --gpus=1 --workers=2 --dry-run -o json -- true",
            "submit run --name=coded --image=image --sync-mode=git --sync-source=https://example.com/a/code.git true",
            "submit run --name=board --image=image --tensorboard true",
        )
    ),
    "list": Verb(("list --json", "list", "list -o wide")),
    "get": Verb(("get busy -e -g", "get pair -e -g --json", "get done -o yaml")),
    "export": Verb(("export done --to kubernetes", "export pair --to slurm --data-path shared=/x --json")),
    "logs": Verb(
        ("logs done", "logs pair --all --timestamps", "logs done -f", "logs done --attempt 1 --all"),
        raw=True,
        anycode=True,
    ),
    "attach": Verb(("attach busy -- true",), anycode=True),
    "wait": Verb(("wait done --timeout 3s", "wait busy --for running --timeout 3s"), anycode=True),
    "stop": Verb(("stop pair", "stop busy --yes --grace 1s --json"), codes=_WAITING),
    "restart": Verb(("restart done", "restart failed --json"), codes=_WAITING),
    "delete": Verb(("delete pair", "delete done busy --force --json"), codes=_WAITING),
    "prune": Verb(("prune --since 1s", "prune --since 1s --dry-run --json")),
    "events": Verb(("events busy", "events done --json")),
    "port-forward": Verb(("port-forward busy 8888", "port-forward board 9090:tensorboard"), anycode=True),
    "advise": Verb(("advise busy --for 15s", "advise busy --for 15s --json"), codes=_FAILING),
    "support-bundle": Verb(("support-bundle --output {folder}/bundle.tar.gz",)),
    "node list": Verb(("node list --json", "node list")),
    "node drain": Verb(("node drain gpu0001 gpu0002 gpu0003 --reason x --json",)),
    "node resume": Verb(("node resume gpu0001 gpu0002 gpu0003 --json",)),
    "top node": Verb(("top node -d --metric", "top node --json")),
    "top job": Verb(("top job busy", "top job --json", "top job pair")),
    "top gpu": Verb(("top gpu", "top gpu --json")),
    "queue": Verb(("queue", "queue --json")),
    "queue list": Verb(("queue list", "queue list --user me --json")),
    "queue run": Verb(("queue run", "queue run --json")),
    "queue migrate": Verb(
        ("queue migrate --to slurm --dry-run", "queue migrate --to slurm --yes --json"), codes=frozenset(range(8))
    ),
    "queue release": Verb(("queue release held",)),
    "image pull": Verb(("image pull image --json", "image pull image --peers --json"), _field("error", None)),
    "image list": Verb(("image list image --json",), _field("error", None)),
    "image inspect": Verb(("image inspect image --node gpu0001", "image inspect image --node gpu0001 --json")),
    "bench run": Verb(("bench run --yes --allow-missing",), anycode=True),
    "bench scale": Verb(("bench scale --sizes 1,2 --yes --allow-missing",), anycode=True),
    "bench ab": Verb(("bench ab --a A=1 --b X=1 --rounds 1 --yes --allow-missing",), anycode=True),
    "data list": Verb(("data list --all --json", "data list")),
    "data check": Verb(("data check --json",), _data),
}

NO_NODES: dict[str, str] = {
    "nccl-log": "reads a log that the user names (its parser is in the tests of regular expressions)",
    "doctor": "checks this machine and connects to no node",
    "schema": "prints JSON Schemas and connects to no node",
    "demo": "runs other verbs in processes of their own, on nodes of its own lab",
    "node label": "writes labels into the inventory",
    "queue unit": "prints a unit file",
    "bench parse": "reads files that the user names (its parser is in the tests of regular expressions)",
    "bench table": "reads results that are kept on this machine",
    "bench compare": "reads results that are kept on this machine",
    "bench list": "reads results that are kept on this machine",
    "bench report": "reads results that are kept on this machine",
    "data add": "writes a volume into the inventory",
    "data rm": "removes a volume from the inventory",
    "secret add": "stores a login on this machine",
    "secret set": "is an alias of secret add",
    "secret list": "lists logins that are kept on this machine",
    "secret rm": "removes a login from this machine",
    "lab up": "makes nodes on this machine; the lab is trusted",
    "lab status": "shows nodes of this machine's lab",
    "lab list": "lists labs of this machine",
    "lab down": "removes a lab of this machine",
    "lab ssh": "starts ssh to a node of this machine's lab",
    "lab reboot": "restarts a node of this machine's lab",
    "lab inventory": "prints the path of a lab's inventory",
    "lab power": "switches a node of this machine's lab",
    "lab link": "switches a link of this machine's lab",
}
"""Verb -> why no node can answer it."""


def _leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every verb: commands, and groups that do something by themselves."""
    below = getattr(command, "commands", None)
    if below is None or (path and getattr(command, "invoke_without_command", False)):
        yield " ".join(path), command
    for name, child in (below or {}).items():
        if not getattr(child, "hidden", False):
            yield from _leaves(child, (*path, name))


def _of_examples(verb: str, command: Any) -> Verb:
    """Return the case of a verb without a line in `VERBS`: the one-line examples of its help."""
    examples = re.findall(rf"^ *provision ({re.escape(verb)}\b[^\n]*?)(?:  .*)?$", command.help or "", re.MULTILINE)
    return Verb(tuple(examples), anycode=True, codes=frozenset(range(256)))


CASES: dict[str, Verb] = {
    verb: VERBS.get(verb) or _of_examples(verb, command)
    for verb, command in _leaves(typer.main.get_command(build_app(None)))
    if verb not in NO_NODES
}
"""All verbs that talk to nodes. One that is not in `VERBS` is tried with the examples of its help."""

RECORDING: tuple[str, ...] = (
    "run --yes -- python3 train.py",
    "submit run --name=done --image=image --gpus=1 true",
    "submit run --name=failed --image=image exit\xa03",
    "submit run --name=busy --image=image --gpus=1 exec\xa0sleep\xa0600",
    "submit run --name=board --image=image --tensorboard exec\xa0sleep\xa0600",
    "submit run --name=coded --image=image --sync-mode=git --sync-source=https://example.com/a/code.git true",
    (
        "submit pytorch --name=pair --image=image --gpus=1 --workers=2 --data=shared:/data "
        "echo\xa0hello;\xa0exec\xa0sleep\xa0600"
    ),
    "submit run --name=held --image=image --hold true",
    "wait done --timeout 20s",
    "wait busy --for running --timeout 20s",
    "get pair -e -g",
    "logs done --all",
    "logs pair --all",
    "submit run --name=freed --image=image --hold true",
    "queue release freed",
    "stop pair",
    "restart failed",
    "wait failed --timeout 20s",
    "node drain gpu0003 --reason x",
    "node resume gpu0003",
    "queue run",
    "delete freed",
    "top node -d --metric",
    "list --json",
    "get done",
    "get failed",
    "get busy",
    "get pair",
    "get board",
    "get coded",
    "get held",
)
"""What is done once with the real programs, so that there are jobs in every state (a hard space is a space)."""
