"""Rules 1 and 2: ranks and their number, and the creation of the process group."""

from __future__ import annotations

import ast
import re
from typing import Any

from provision.advisor.evaluate import JOB, MANUAL, SINGLE, evaluate
from provision.advisor.script_analysis import Analysis, RuleResult, broken, holds, unknown, where
from provision.advisor.source import Place, Site

__all__ = ["check_init", "check_ranks", "wrong_ranks", "wrong_size"]

_FROM_LAUNCHER = (
    "Remove rank and world_size: init_process_group(backend) takes them from RANK and WORLD_SIZE, which the "
    "launcher sets for each process."
)
_GUARD = 'Write: if int(os.environ.get("WORLD_SIZE", 1)) > 1: dist.init_process_group(backend)'
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0", "::1")  # noqa: S104 # nosec B104 # compared, not bound to
_STARTERS = re.compile(
    r"init\w*dist|dist\w*init|(setup|init|start)\w*(ddp|dist|process)|(ddp|dist)\w*(setup|start)|launch", re.IGNORECASE
)
_MASTER_NAME = re.compile(r"(is_)?(master|main|chief)(_process|_rank|_node)?")


def check_ranks(analysis: Analysis) -> RuleResult:
    """Check that every process has its own rank, there are WORLD_SIZE of them, and the master is rank 0."""
    for check in (_set_variables, _own_arguments, _master_address, _master):
        result = check(analysis)
        if result is not None:
            return result
    if not analysis.inits:
        return unknown("no process group is created, so no process has a rank (see init)")
    first = analysis.inits[0]
    own = [name for name in ("rank", "world_size") if first.argument(name) is not None]
    if own:
        return holds(f"{' and '.join(own)} of init_process_group ({where(first)}) show no error", first)
    return holds(f"they come from the launcher: init_process_group ({where(first)}) sets none", first)


def _values_in_job(analysis: Analysis, node: ast.expr | None, place: Place) -> list[Any]:
    """Return the value of an expression in each process of a job."""
    return [evaluate(analysis.script, node, place, process) for process in JOB]


def wrong_ranks(values: list[Any]) -> str | None:
    """Return what is wrong with the ranks of a job's processes; None if nothing is known to be wrong."""
    numbers = [_number(value) for value in values]
    ranks = [number for number in numbers if number is not None]
    if len(ranks) < len(numbers) or set(ranks) == {-1}:
        return None
    if len(set(ranks)) == 1:
        return f"it is {ranks[0]} in every process"
    if len(set(ranks)) < len(ranks):
        return "processes of two nodes have the same one: it counts within a node"
    if 0 not in ranks:
        return f"no process has rank 0, the master: they start at {min(ranks)}"
    return None


def wrong_size(values: list[Any]) -> str | None:
    """Return what is wrong with the number of processes in each of them; None if nothing is known to be wrong."""
    numbers = [_number(value) for value in values]
    if None in numbers or set(numbers) == {-1} or numbers == [process.size for process in JOB]:
        return None
    return f"it is {numbers[0]} whatever the number of processes"


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _set_variables(analysis: Analysis) -> RuleResult | None:
    """Check that the script does not set the launcher's variables to wrong values."""
    for name, check in (("RANK", wrong_ranks), ("WORLD_SIZE", wrong_size)):
        for item in analysis.script.environment.get(name, ()):
            wrong = check(_values_in_job(analysis, item.value, item.place))
            if wrong and analysis.in_job(item.place):
                evidence = f"line {item.line} sets {name} in the environment, and {wrong}"
                return broken(evidence, None, f"Let the launcher set {name} for each process.", item.line)
    return None


def _own_arguments(analysis: Analysis) -> RuleResult | None:
    """Check the arguments of init_process_group, which take precedence over the launcher's variables."""
    for site in analysis.inits:
        for name, position, check in (("rank", 4, wrong_ranks), ("world_size", 3, wrong_size)):
            node = site.argument(name, position)
            wrong = check(_values_in_job(analysis, node, site.place))
            if node is not None and wrong and analysis.in_job(site.place):
                evidence = f"init_process_group ({where(site)}) has {name}={ast.unparse(node)}, and {wrong}"
                return broken(evidence, site, _FROM_LAUNCHER)
    return None


def _master_address(analysis: Analysis) -> RuleResult | None:
    """Check for a local address as the master, which would give each node its own master."""
    remedy = "Let the launcher set MASTER_ADDR, MASTER_PORT and init_method: it knows the node of rank 0."
    for item in analysis.script.environment.get("MASTER_ADDR", ()):
        value = evaluate(analysis.script, item.value, item.place, JOB[1])
        if value in _LOCAL_HOSTS and analysis.in_job(item.place):
            evidence = f"line {item.line} sets MASTER_ADDR to {value}: each node would have its own master"
            return broken(evidence, None, remedy, item.line)
    for site in analysis.inits:
        method = evaluate(analysis.script, site.argument("init_method", 1), site.place, JOB[1])
        if (
            isinstance(method, str)
            and any(f"//{host}" in method for host in _LOCAL_HOSTS)
            and analysis.in_job(site.place)
        ):
            evidence = f"init_process_group ({where(site)}) uses {method}: each node would have its own master"
            return broken(evidence, site, remedy)
    return None


def _master(analysis: Analysis) -> RuleResult | None:
    """Check that the script's master is rank 0."""
    script = analysis.script
    named = [(item, name) for (_, _, name), items in script.names.items() for item in items]
    named += [(item, name) for name, items in script.attributes.items() for item in items]
    for item, name in named:
        if isinstance(item.value, ast.Compare) and _MASTER_NAME.fullmatch(name):
            values = _values_in_job(analysis, item.value, item.place)
            if values[0] is False and True in values:
                return broken(
                    f"line {item.line} makes rank {values.index(True)} the master ({name})",
                    None,
                    "The master must be rank 0: the launcher distributes the address of that process.",
                    item.line,
                )
    for site in script.find("TCPStore"):
        values = _values_in_job(analysis, site.argument("is_master", 3), site.place)
        if values[0] is False and True in values:
            evidence = f"TCPStore ({where(site)}) has its master in rank {values.index(True)}"
            return broken(evidence, site, "The master must be rank 0: write is_master=rank == 0.")
    return None


def check_init(analysis: Analysis) -> RuleResult:
    """Check that the process group is created if and only if there is more than one process."""
    if not analysis.inits:
        return _no_init(analysis)
    in_job = [site for site in analysis.inits if analysis.is_reached(site.place, JOB[1]) is not False]
    if not in_job:
        site = analysis.inits[0]
        return broken(f"init_process_group ({where(site)}) is not reached if WORLD_SIZE is over 1", site, _GUARD)
    for site in in_job:
        manual, single = analysis.is_reached(site.place, MANUAL), analysis.is_reached(site.place, SINGLE)
        if False in {manual, single}:
            continue
        if manual is None or single is None:
            test = (
                ast.unparse(site.place.conditions[-1].test) if site.place.conditions else "a condition of its callers"
            )
            return unknown(
                f"init_process_group ({where(site)}) is reached under a condition that does not visibly depend on "
                f"WORLD_SIZE: {test[:80]}",
                site,
                _GUARD,
            )
        return _unguarded(analysis, site)
    return holds(
        f"init_process_group ({where(in_job[0])}) is reached only if there is more than one process", in_job[0]
    )


def _unguarded(analysis: Analysis, site: Site) -> RuleResult:
    """Return the result for an unconditional process group, which works only if a launcher always starts the script."""
    needs = _launcher_only(analysis)
    if needs:
        return holds(
            f"init_process_group ({where(site)}) is always reached; {needs}, so the script starts only under torchrun, "
            "which sets WORLD_SIZE for a single process too",
            site,
        )
    return broken(
        f"init_process_group ({where(site)}) is also reached with one process, and fails if no launcher set "
        "MASTER_ADDR and RANK",
        site,
        _GUARD,
    )


def _launcher_only(analysis: Analysis) -> str | None:
    """Return why the script needs a launcher: only launchers set a local rank."""
    for site in analysis.script.find("add_argument"):
        words = [word.value for word in site.call.args if isinstance(word, ast.Constant)]
        if {"--local_rank", "--local-rank"} & set(words):
            return f"line {site.line} takes --local_rank from torch.distributed.launch"
    for name, place, line in analysis.script.required:
        if name == "LOCAL_RANK" and analysis.is_reached(place, MANUAL):
            return f"line {line} reads LOCAL_RANK"
    return None


def _no_init(analysis: Analysis) -> RuleResult:
    spawned = analysis.script.unread(_STARTERS)
    if spawned:
        name = ast.unparse(spawned[0].call.func)
        return unknown(f"{name} ({where(spawned[0])}) may create the process group; it was not read", spawned[0])
    return broken("init_process_group is never called: every process would train by itself on all data", None, _GUARD)
