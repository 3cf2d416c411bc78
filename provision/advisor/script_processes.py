"""Rules 1 and 2: ranks and their number, and when the process group is made."""

from __future__ import annotations

import ast
import re
from typing import Any

from provision.advisor.evaluate import ALONE, MANY, ONE, evaluate
from provision.advisor.script_scene import Judgement, Scene, broken, holds, unknown, where
from provision.advisor.source import Place, Site

__all__ = ["judge_init", "judge_ranks", "wrong_ranks", "wrong_size"]

_FROM_LAUNCHER = (
    "Leave rank and world_size out: init_process_group(backend) takes them from RANK and WORLD_SIZE, which the "
    "launcher sets for each process."
)
_GUARD = 'Write: if int(os.environ.get("WORLD_SIZE", 1)) > 1: dist.init_process_group(backend)'
_HERE = ("localhost", "127.0.0.1", "0.0.0.0", "::1")  # noqa: S104 # nosec B104 # looked for, not bound to
_STARTERS = re.compile(
    r"init\w*dist|dist\w*init|(setup|init|start)\w*(ddp|dist|process)|(ddp|dist)\w*(setup|start)|launch", re.IGNORECASE
)
_MASTER_NAME = re.compile(r"(is_)?(master|main|chief)(_process|_rank|_node)?")


def judge_ranks(scene: Scene) -> Judgement:
    """Every process has a rank of its own, there are WORLD_SIZE of them, and the master is rank 0."""
    for judge in (_set_variables, _own_arguments, _meeting_point, _master):
        found = judge(scene)
        if found is not None:
            return found
    if not scene.inits:
        return unknown("no process group is made, so that no process has a rank (see init)")
    first = scene.inits[0]
    own = [name for name in ("rank", "world_size") if first.argument(name) is not None]
    if own:
        return holds(f"{' and '.join(own)} of init_process_group ({where(first)}) are not seen to be wrong", first)
    return holds(f"they come from the launcher: init_process_group ({where(first)}) names none", first)


def _of_all(scene: Scene, node: ast.expr | None, place: Place) -> list[Any]:
    """Return what an expression comes to in each process of a job."""
    return [evaluate(scene.script, node, place, process) for process in MANY]


def wrong_ranks(values: list[Any]) -> str | None:
    """Say what is wrong with the ranks of a job's processes; None where nothing is seen to be."""
    numbers = [_number(value) for value in values]
    told = [number for number in numbers if number is not None]
    if len(told) < len(numbers) or set(told) == {-1}:
        return None
    if len(set(told)) == 1:
        return f"it is {told[0]} in every process"
    if len(set(told)) < len(told):
        return "processes of two nodes have the same one: it counts within a node"
    if 0 not in told:
        return f"no process has rank 0, the master: they begin at {min(told)}"
    return None


def wrong_size(values: list[Any]) -> str | None:
    """Say what is wrong with the number of processes, as each of them has it; None where nothing is seen to be."""
    numbers = [_number(value) for value in values]
    if None in numbers or set(numbers) == {-1} or numbers == [process.size for process in MANY]:
        return None
    return f"it is {numbers[0]} whatever the number of processes"


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _set_variables(scene: Scene) -> Judgement | None:
    """The launcher's variables are not the script's to set."""
    for name, judge in (("RANK", wrong_ranks), ("WORLD_SIZE", wrong_size)):
        for item in scene.script.environment.get(name, ()):
            wrong = judge(_of_all(scene, item.value, item.place))
            if wrong and scene.in_job(item.place):
                evidence = f"line {item.line} sets {name} in the environment, and {wrong}"
                return broken(
                    evidence, None, f"Leave {name} to the launcher, which sets it for each process.", item.line
                )
    return None


def _own_arguments(scene: Scene) -> Judgement | None:
    """What is given to init_process_group or to a store outweighs the launcher's variables."""
    for site in scene.inits:
        for name, position, judge in (("rank", 4, wrong_ranks), ("world_size", 3, wrong_size)):
            node = site.argument(name, position)
            wrong = judge(_of_all(scene, node, site.place))
            if node is not None and wrong and scene.in_job(site.place):
                evidence = f"init_process_group ({where(site)}) is given {name}={ast.unparse(node)}, and {wrong}"
                return broken(evidence, site, _FROM_LAUNCHER)
    return None


def _meeting_point(scene: Scene) -> Judgement | None:
    """A master that each node takes to be itself is one master for each node."""
    remedy = "Leave MASTER_ADDR, MASTER_PORT and init_method to the launcher: it names the machine of rank 0."
    for item in scene.script.environment.get("MASTER_ADDR", ()):
        value = evaluate(scene.script, item.value, item.place, MANY[1])
        if value in _HERE and scene.in_job(item.place):
            evidence = f"line {item.line} sets MASTER_ADDR to {value}: each node would have a master of its own"
            return broken(evidence, None, remedy, item.line)
    for site in scene.inits:
        method = evaluate(scene.script, site.argument("init_method", 1), site.place, MANY[1])
        if isinstance(method, str) and any(f"//{host}" in method for host in _HERE) and scene.in_job(site.place):
            evidence = f"init_process_group ({where(site)}) meets at {method}: each node would have a master of its own"
            return broken(evidence, site, remedy)
    return None


def _master(scene: Scene) -> Judgement | None:
    """What the script calls its master has to be rank 0."""
    script = scene.script
    named = [(item, name) for (_, _, name), items in script.names.items() for item in items]
    named += [(item, name) for name, items in script.attributes.items() for item in items]
    for item, name in named:
        if isinstance(item.value, ast.Compare) and _MASTER_NAME.fullmatch(name):
            values = _of_all(scene, item.value, item.place)
            if values[0] is False and True in values:
                return broken(
                    f"line {item.line} makes rank {values.index(True)} the master ({name})",
                    None,
                    "The master is rank 0: that is the process whose address the launcher gives to all.",
                    item.line,
                )
    for site in script.find("TCPStore"):
        values = _of_all(scene, site.argument("is_master", 3), site.place)
        if values[0] is False and True in values:
            evidence = f"TCPStore ({where(site)}) has its master in rank {values.index(True)}"
            return broken(evidence, site, "The master is rank 0: write is_master=rank == 0.")
    return None


def judge_init(scene: Scene) -> Judgement:
    """The process group is made where there is more than one process, and only there."""
    if not scene.inits:
        return _no_init(scene)
    in_job = [site for site in scene.inits if scene.reached(site.place, MANY[1]) is not False]
    if not in_job:
        site = scene.inits[0]
        return broken(f"init_process_group ({where(site)}) is not reached where WORLD_SIZE is over 1", site, _GUARD)
    for site in in_job:
        alone, one = scene.reached(site.place, ALONE), scene.reached(site.place, ONE)
        if False in {alone, one}:
            continue
        if alone is None or one is None:
            test = (
                ast.unparse(site.place.conditions[-1].test) if site.place.conditions else "a condition of its callers"
            )
            return unknown(
                f"init_process_group ({where(site)}) is reached under a condition that is not seen to come from "
                f"WORLD_SIZE: {test[:80]}",
                site,
                _GUARD,
            )
        return _unguarded(scene, site)
    return holds(
        f"init_process_group ({where(in_job[0])}) is reached only where there is more than one process", in_job[0]
    )


def _unguarded(scene: Scene, site: Site) -> Judgement:
    """A script that can be started by a launcher alone has a process group of one, and that works."""
    needs = _launcher_only(scene)
    if needs:
        return holds(
            f"init_process_group ({where(site)}) is always reached; {needs}, so that the script starts under torchrun "
            "only, which sets WORLD_SIZE for a single process too",
            site,
        )
    return broken(
        f"init_process_group ({where(site)}) is reached with one process too, and fails where no launcher set "
        "MASTER_ADDR and RANK",
        site,
        _GUARD,
    )


def _launcher_only(scene: Scene) -> str | None:
    """Say what the script cannot do without; the launchers alone set a local rank."""
    for site in scene.script.find("add_argument"):
        words = [word.value for word in site.call.args if isinstance(word, ast.Constant)]
        if {"--local_rank", "--local-rank"} & set(words):
            return f"line {site.line} takes --local_rank from torch.distributed.launch"
    for name, place, line in scene.script.required:
        if name == "LOCAL_RANK" and scene.reached(place, ALONE):
            return f"line {line} reads LOCAL_RANK"
    return None


def _no_init(scene: Scene) -> Judgement:
    spawned = scene.script.unread(_STARTERS)
    if spawned:
        name = ast.unparse(spawned[0].call.func)
        return unknown(f"{name} ({where(spawned[0])}) may make the process group; it was not read", spawned[0])
    return broken(
        "init_process_group is never called: every process would train by itself on all the data", None, _GUARD
    )
