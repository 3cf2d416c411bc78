"""Check a training script against the five rules of distributed PyTorch, without running it.

The rules are those of the reference: (1) every process has its own rank, there are WORLD_SIZE of them, and the master
is rank 0; (2) the process group is created only if WORLD_SIZE is over 1; (3) the model is wrapped by
DistributedDataParallel, because only a wrapped model sums gradients; (4) the DataLoader gets a DistributedSampler, so
that each process reads its own share; (5) the script passes the epoch to that sampler.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from provision.advisor.evaluate import JOB, MANUAL, SINGLE, evaluate, is_reached
from provision.advisor.source import Script, argument, dotted, last_name
from provision.errors import UsageError

RULES: Mapping[str, str] = {
    "ranks": "ranks are distinct, WORLD_SIZE many, and 0 is the master",
    "init": "init_process_group only where WORLD_SIZE is over 1",
    "ddp": "the model is wrapped by DistributedDataParallel",
    "sampler": "the DataLoader gets a DistributedSampler",
    "set_epoch": "the script passes the epoch to the sampler (set_epoch)",
}
"""Id -> the rule, in the order of the reference."""
_TRAINERS = "Trainer Seq2SeqTrainer SFTTrainer DPOTrainer ORPOTrainer RewardTrainer PPOTrainer"
_LIBRARIES = {
    "Lightning": ("lightning pytorch_lightning", "Trainer", "Trainer", "Trainer"),
    "Lightning Fabric": ("lightning lightning_fabric", "Fabric", "setup setup_module", "setup_dataloaders"),
    "Accelerate": ("accelerate", "Accelerator", "prepare prepare_model", "prepare prepare_data_loader"),
    "DeepSpeed": ("deepspeed", "initialize", "initialize", "training_data="),
    "Transformers' Trainer": ("transformers trl", _TRAINERS, _TRAINERS, _TRAINERS),
    "Ray Train": ("ray", "TorchTrainer", "prepare_model", "prepare_data_loader"),
    "Horovod": ("horovod byteps", "init", "DistributedOptimizer", ""),
}
"""Libraries that implement rules: packages, and the calls that start processes, wrap the model and distribute the data.

A word that ends with = is an argument of the first call.
"""
_WITHOUT_EPOCH = ("DeepSpeed", "Ray Train")
"""Libraries that leave set_epoch to the script."""
_SWITCHES = ("use_distributed_sampler", "replace_sampler_ddp")
"""Arguments of Lightning's Trainer that leave the data to the script."""
_WRAPPERS = ("DistributedDataParallel", "DistributedDataParallelCPU", "FullyShardedDataParallel", "fully_shard")
_OTHER_SAMPLERS = re.compile(r"\b(Random|Sequential|WeightedRandom|SubsetRandom)Sampler\b|^None$")
_STREAMS = re.compile(
    r"Iterable|IterDataPipe|Web(Dataset|Loader)|Streaming|load_dataset|DALI|worker_info|split.*by_node"
)
_STARTERS = re.compile(
    r"(?i)init\w*dist|dist\w*init|(setup|start)\w*(ddp|dist|process)|(ddp|dist)\w*(setup|start)|launch"
)
_WRAPS = re.compile(r"(?i)^(?!is_).*(ddp|fsdp|distribute|wrap_model|prepare_model|parallelize)")
_MASTER = re.compile(r"(is_)?(master|main|chief)(_process|_rank|_node)?")
_LOCAL = re.compile(r"(.*//)?(localhost|127\.0\.0\.1|0\.0\.0\.0|::1)(:.*)?")
_LAUNCHER = "Remove it: init_process_group(backend) takes ranks and addresses from the launcher's variables."
_GUARD = 'Write: if int(os.environ.get("WORLD_SIZE", 1)) > 1: dist.init_process_group(backend)'
_WRAP = "After init_process_group write: model = DistributedDataParallel(model, device_ids=[local_rank])"
_SAMPLE = "Write: sampler = DistributedSampler(dataset), and DataLoader(dataset, sampler=sampler) without shuffle."
_EPOCH = "Call sampler.set_epoch(epoch) at the start of each epoch; otherwise every epoch has the order of the first."


class RuleVerdict(StrEnum):
    """The result of a rule."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    """The script does not show it; never treated as holds."""


HOLDS, BROKEN, UNKNOWN = RuleVerdict


@dataclass(frozen=True)
class RuleFinding:
    """The result of one rule."""

    rule: str
    """A key of `RULES`."""
    verdict: RuleVerdict
    file: str
    line: int | None
    """Line of the evidence, from 1; None if there is no line."""
    evidence: str
    remedy: str | None = None
    framework: str | None = None
    """The library that implements the rule."""


Result = tuple[RuleVerdict, str, ast.AST | None, str | None]
"""Verdict, evidence with `{}` for the line, the node with that line, and the remedy."""


def lint_script(sources: Mapping[str, bytes]) -> tuple[RuleFinding, ...]:
    """Check a script against the five rules; it is never executed.

    Args:
        sources: File name -> content; the script first, then its own modules that it imports.

    Raises:
        UsageError: A file is not valid Python; the line is named.
    """
    name, findings = next(iter(sources)), []
    try:
        rules = _Rules(Script(sources))
        for rule in RULES:
            (verdict, evidence, node, remedy), library = rules.check(rule)
            file, line = rules.script.file(node) if node else name, getattr(node, "lineno", None)
            evidence = evidence.replace("{}", f"line {line}", 1)
            findings.append(RuleFinding(rule, verdict, file, line, evidence, remedy, library))
    except RecursionError:
        remedy = "Split the expression, or pass the training script itself."
        raise UsageError(f"{name}: an expression is nested too deeply", remedy=remedy) from None
    return tuple(findings)


def _wrong_ranks(values: list[Any]) -> str | None:
    """Return what is wrong with the ranks of a job's processes; None if nothing is known to be wrong."""
    ranks = [int(value) for value in values if re.fullmatch(r"-?\d+", str(value))]
    if len(ranks) < len(values) or set(ranks) == {-1}:
        return None
    if len(set(ranks)) == 1:
        return f"it is {ranks[0]} in every process"
    if len(set(ranks)) < len(ranks):
        return "processes of two nodes have the same one: it counts within a node"
    return None if 0 in ranks else f"no process has rank 0, the master: they start at {min(ranks)}"


def _wrong_size(values: list[Any]) -> str | None:
    sizes = {str(value) for value in values if re.fullmatch(r"\d+", str(value))}
    return f"it is {min(sizes)} whatever the number of processes" if sizes and sizes != {str(JOB[0].size)} else None


class _Rules:
    """The checks of one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.inits = script.find("init_process_group", "init_device_mesh")
        self.samplers = script.find("DistributedSampler", "DistributedSamplerWrapper", "RASampler")
        self.loaders = script.find("DataLoader", "StatefulDataLoader", "MultiEpochsDataLoader")

    def check(self, rule: str) -> tuple[Result, str | None]:
        """Return the result of a rule, and the library that decides it; a library takes precedence over the script."""
        uses = []
        for name, (packages, start, wrap, data) in _LIBRARIES.items():
            epoch = "" if name in _WITHOUT_EPOCH else data
            calls = {"ranks": start, "init": start, "ddp": wrap, "sampler": data, "set_epoch": epoch}[rule].split()
            uses += [(name, first, calls) for first in self.script.find(*start.split(), packages=packages.split())[:1]]
        if not uses and not {"torch", "apex"} & self.script.packages:
            return (
                UNKNOWN,
                "neither torch nor a library based on it is imported",
                None,
                "Pass the script that trains.",
            ), None
        for name, first, calls in uses:
            switched_off = any(getattr(argument(first, switch), "value", None) is False for switch in _SWITCHES)
            present = [call for call in calls if self.script.find(call) or argument(first, call.rstrip("="))]
            if present and not (rule == "sampler" and switched_off):
                return (HOLDS, f"{name} does it: {present[0]} ({{}})", first, None), name
        result: Result = getattr(self, f"_{rule}")()
        for name, first, calls in uses:
            if calls and result[0] is not HOLDS:
                return (
                    BROKEN,
                    f"{name} is used ({{}}), but not for this",
                    first,
                    f"With {name}: use {calls[0]}.",
                ), name
        return result, None

    def _in_job(self, node: ast.AST) -> bool:
        """Return whether a process of a job may reach a node, after the script has created the process group."""
        return is_reached(self.script, node, JOB[1]._replace(initialized=bool(self.inits) or None)) is not False

    def _in_each(self, node: ast.expr | None) -> list[Any]:
        return [evaluate(self.script, node, process) for process in JOB]

    def _ranks(self) -> Result:
        """Check that every process has its own rank, there are WORLD_SIZE of them, and the master is rank 0."""
        for node, problem in self._rank_problems():
            if self._in_job(node):
                return BROKEN, problem, node, _LAUNCHER
        if not self.inits:
            return UNKNOWN, "no process group is created, so no process has a rank (see init)", None, None
        return (
            HOLDS,
            "init_process_group ({}) takes ranks from the launcher or sets them well",
            self.inits[0],
            None,
        )

    def _rank_problems(self) -> Iterator[tuple[ast.AST, str]]:
        """Yield arguments of init_process_group and variables that are not those of the launcher."""
        environment = self.script.environment
        for name, position, check in (("rank", 4, _wrong_ranks), ("world_size", 3, _wrong_size)):
            places = [(argument(call, name, position), call) for call in self.inits]
            for value, node in [*places, *environment[name.upper()]]:
                if value and (problem := check(self._in_each(value))):
                    yield node, f"{name}={ast.unparse(value)} ({{}}): {problem}"
        for value, node in [
            *((argument(call, "init_method", 1), call) for call in self.inits),
            *environment["MASTER_ADDR"],
        ]:
            if _LOCAL.fullmatch(address := str(evaluate(self.script, value, JOB[1]))):
                yield node, f"the master is at {address} ({{}}): each node would have its own master"
        for name, items in [*self.script.names.items(), *self.script.attributes.items()]:
            for value, node in items if _MASTER.fullmatch(name) else ():
                is_master = self._in_each(value) if isinstance(value, ast.Compare) else [True]
                if is_master[0] is False and True in is_master:
                    yield node, f"rank {is_master.index(True)} is the master ({{}}), which must be rank 0"

    def _init(self) -> Result:
        """Check that the process group is created if and only if there is more than one process."""
        reached = [call for call in self.inits if is_reached(self.script, call, JOB[1]) is not False]
        if not reached:
            for call in self.script.unread(_STARTERS) if not self.inits else ():
                return UNKNOWN, f"{last_name(call)} ({{}}) may create the process group; it was not read", call, None
            evidence = "init_process_group ({}) is not reached if WORLD_SIZE is over 1" if self.inits else (
                "init_process_group is never called: every process would train by itself on all data")  # fmt: skip
            return BROKEN, evidence, next(iter(self.inits), None), _GUARD
        for call in reached:
            alone = [is_reached(self.script, call, process) for process in (MANUAL, SINGLE)]
            if False not in alone and None in alone:
                return UNKNOWN, "the condition of init_process_group ({}) does not show WORLD_SIZE", call, _GUARD
            if False not in alone and not (needs := self._local_rank()):
                return (
                    BROKEN,
                    "init_process_group ({}) is reached without a launcher too, and fails there",
                    call,
                    _GUARD,
                )
            if False not in alone:
                return HOLDS, f"init_process_group ({{}}) is always reached; {needs} needs a launcher", call, None
        return HOLDS, "init_process_group ({}) is reached only if there is more than one process", reached[0], None

    def _local_rank(self) -> str | None:
        """Return how the script reads a local rank, which only launchers set."""
        for call in self.script.find("add_argument"):
            if {"--local_rank", "--local-rank"} & {getattr(word, "value", None) for word in call.args}:
                return f"--local_rank (line {call.lineno})"
        for node in self.script.mentions["environ"]:
            read = self.script.parents[node]
            key = read.slice if isinstance(read, ast.Subscript) and isinstance(read.ctx, ast.Load) else None
            if getattr(key, "value", None) == "LOCAL_RANK" and is_reached(self.script, read, MANUAL):
                return f"LOCAL_RANK (line {node.lineno})"
        return None

    def _ddp(self) -> Result:
        """Check that DistributedDataParallel or FSDP wraps the model in a job, and that the wrapped model is called."""
        wraps = self.script.find(*_WRAPPERS)
        in_job = [call for call in wraps if self._in_job(call)]
        for call in in_job:
            name = last_name(call)
            if isinstance(self.script.parents[call], ast.Expr) and name != "fully_shard":
                return BROKEN, f"the result of {name} is dropped ({{}})", call, _WRAP
            if plain := self._still_called(call):
                return BROKEN, f"{name} ({{}}) wraps {plain}, and then {plain} itself is called", call, _WRAP
        if wraps:
            verdict, text = (HOLDS, "wraps the model") if in_job else (BROKEN, "is not reached in a job")
            return verdict, f"{last_name(wraps[0])} ({{}}) {text}", (in_job or wraps)[0], None if in_job else _WRAP
        unread = [call for call in self.script.unread(_WRAPS) if call.args and self.script.targets(call)]
        sums = [call for call in self.script.find("all_reduce") if re.search(r"\bgrad", ast.unparse(call))]
        for call in [*unread, *sums, *self.script.find("import_module")]:
            return UNKNOWN, f"{last_name(call)} ({{}}) may provide it; it was not read", call, _WRAP
        for call in self.script.find("DataParallel"):
            return BROKEN, "DataParallel ({}) sums no gradients between processes", call, _WRAP
        return BROKEN, "nothing wraps the model: each process would train its own model", None, _WRAP

    def _still_called(self, wrap: ast.Call) -> str | None:
        """Return the name of the unwrapped model if the script calls that afterwards, and never the wrapped one."""
        model, targets, script = argument(wrap, "module", 0), self.script.targets(wrap), self.script
        if not isinstance(model, ast.Name) or model.id in targets or any(script.mentions[name] for name in targets):
            return None
        later = [call for call in script.calls if call.lineno > wrap.lineno]
        own = [call for call in later if script.function(call) is script.function(wrap)]
        return next((model.id for call in own if isinstance(call.func, ast.Name) and call.func.id == model.id), None)

    def _sampler(self) -> Result:  # noqa: PLR0911 - one answer for each case
        """Check that a DistributedSampler is created in a job and passed to the DataLoader of the training data."""
        given = {call: self._given(call) for call in self.loaders}
        users = [call for call in self.loaders if given[call]]
        if not self.samplers:
            return self._no_sampler(next((call for call in self.loaders if given[call] is not False), None))
        samplers = [call for call in self.samplers if self._in_job(call)]
        if not samplers:
            return BROKEN, "DistributedSampler ({}) is not created in a job", self.samplers[0], _SAMPLE
        for call in samplers:
            for name, position, check in (("num_replicas", 1, _wrong_size), ("rank", 2, _wrong_ranks)):
                if problem := check(self._in_each(argument(call, name, position))):
                    return BROKEN, f"{name} of DistributedSampler ({{}}): {problem}", call, f"Remove {name}."
        if not users:
            verdict = BROKEN if self.loaders and None not in given.values() else UNKNOWN
            return verdict, "DistributedSampler ({}) is passed to no DataLoader that was read", samplers[0], _SAMPLE
        served = {name for call in users for name in self.script.targets(call)}
        for call in self.loaders:
            trains = (
                "train"
                in " ".join(self.script.targets(call)) + ast.unparse(call.args[0] if call.args else call).lower()
            )
            if given[call] is False and trains and self._in_job(call) and not served & {*self.script.targets(call)}:
                return BROKEN, "DataLoader ({}) reads the training data without DistributedSampler", call, _SAMPLE
            if given[call] and evaluate(self.script, argument(call, "shuffle", 2), JOB[1]) is True:
                return BROKEN, "DataLoader ({}) has both shuffle=True and a sampler", call, "Remove shuffle."
        return HOLDS, f"DataLoader (line {users[0].lineno}) gets DistributedSampler ({{}})", samplers[0], None

    def _no_sampler(self, unclear: ast.Call | None) -> Result:
        streams = [call for call in self.script.calls if _STREAMS.search(last_name(call))]
        if streams or unclear or any(map(_STREAMS.search, self.script.bases)) or not self.loaders:
            call = next(iter([*streams, *([unclear] if unclear else [])]), None)
            return UNKNOWN, "whether each process reads its own share of the data is not visible", call, _SAMPLE
        return (
            BROKEN,
            "every process reads all data of DataLoader ({}): no DistributedSampler",
            self.loaders[0],
            _SAMPLE,
        )

    def _given(self, loader: ast.Call) -> bool | None:
        """Return whether a DataLoader gets a sampler that may be distributed; None if arguments are unpacked."""
        nodes = [argument(loader, "sampler", 3), argument(loader, "batch_sampler", 4)]
        if any(node is not None and not self._is_plain(node) for node in nodes):
            return True
        unpacked = [keyword.value for keyword in loader.keywords if keyword.arg is None]
        values = [value for node in unpacked for value, _ in self.script.values(dotted(node), node) if value]
        return any("sampler" in ast.unparse(value) for value in values) or (None if unpacked else False)

    def _is_plain(self, node: ast.expr, depth: int = 4) -> bool:
        """Return whether an expression is certainly no distributed sampler."""
        if isinstance(node, ast.Name) and depth:
            values = [value for value, _ in self.script.values(node.id, node)]
            return bool(values) and all(value is not None and self._is_plain(value, depth - 1) for value in values)
        return bool(_OTHER_SAMPLERS.search(ast.unparse(node)))

    def _set_epoch(self) -> Result:
        """Check that the epoch number is passed to the sampler, in the loop over epochs."""
        sampler = self.check("sampler")[0][0]
        if not self.samplers and sampler is not HOLDS:
            return sampler, "no DistributedSampler gets the epoch (see sampler)", None, f"{_SAMPLE} {_EPOCH}"
        shuffles = [evaluate(self.script, argument(call, "shuffle", 3), JOB[1]) is not False for call in self.samplers]
        first = next(iter(self.samplers), None)
        if first and not any(shuffles):
            return HOLDS, "DistributedSampler ({}) does not shuffle, so it needs no epoch", first, None
        faults = [(self._epoch_fault(call), call) for call in self.script.find("set_epoch")]
        for fault, call in sorted(faults, key=lambda item: item[0] is not None):
            evidence = f"{ast.unparse(call)} ({{}}) {fault or 'gets the epoch'}"
            return BROKEN if fault else HOLDS, evidence, call, _EPOCH if fault else None
        return BROKEN, "set_epoch is never called on the DistributedSampler", first, _EPOCH

    def _epoch_fault(self, call: ast.Call) -> str | None:
        """Return what is wrong with a call of set_epoch; None if it is correct."""
        number, receiver = argument(call, "epoch", 0), ast.unparse(call.func).lower()
        if number is None or isinstance(evaluate(self.script, number, JOB[1]), int):
            return "always has the same number"
        if not self._in_job(call) or not self._is_in_loop(call):
            return "is not reached in each epoch of a job"
        names = " ".join(name for sampler in self.samplers for name in self.script.targets(sampler))
        is_other = "train" in names and re.search("val|test", receiver) and "train" not in receiver
        return f"is called on another sampler than {names}" if is_other else None

    def _is_in_loop(self, node: ast.AST, depth: int = 6) -> bool:
        """Return whether a node is in a loop, its own or around the calls of its function; callbacks count as such."""
        function, callers = self.script.function(node), self.script.callers(node)
        for child, parent in self.script.around(node):
            if isinstance(parent, ast.For | ast.AsyncFor | ast.While) and child in parent.body:
                return True
            if parent is function:
                return not callers or depth == 0 or any(self._is_in_loop(caller, depth - 1) for caller in callers)
        return False
