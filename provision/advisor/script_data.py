"""Rules 4 and 5: each process reads its own share of the data, in a new order in each epoch."""

from __future__ import annotations

import ast

from provision.advisor.evaluate import JOB, evaluate
from provision.advisor.script_analysis import Analysis, RuleResult, broken, holds, mentions, unknown, where
from provision.advisor.script_processes import wrong_ranks, wrong_size
from provision.advisor.source import Place, Script, Site

__all__ = ["check_epoch", "check_sampler"]

_SAMPLE = "Write: sampler = DistributedSampler(dataset), and DataLoader(dataset, sampler=sampler) without shuffle."
_EPOCH = "Call sampler.set_epoch(epoch) at the start of each epoch; otherwise every epoch has the order of the first."
_ITERABLE = {"IterableDataset", "IterDataPipe", "IterableWrapper"}
_STREAMS = (
    "WebDataset",
    "WebLoader",
    "StreamingDataset",
    "load_dataset",
    "DALIGenericIterator",
    "DALIClassificationIterator",
)
_SPLITS = ("split_dataset_by_node", "split_by_node", "get_worker_info")
_OTHERS = ("RandomSampler", "SequentialSampler", "WeightedRandomSampler", "SubsetRandomSampler")


def check_sampler(analysis: Analysis) -> RuleResult:
    """Check that a DistributedSampler is created in a job and passed to the DataLoader of the training data."""
    if not analysis.samplers:
        return _no_sampler(analysis)
    in_job = [site for site in analysis.samplers if analysis.in_job(site.place)]
    if not in_job:
        site = analysis.samplers[0]
        return broken(f"DistributedSampler ({where(site)}) is not created in a job", site, _SAMPLE)
    for site in in_job:
        wrong = _wrong_share(analysis, site)
        if wrong is not None:
            return wrong
    return _loaders(analysis, in_job)


def _no_sampler(analysis: Analysis) -> RuleResult:
    streams = analysis.script.find(*_STREAMS)
    splits = analysis.script.find(*_SPLITS)
    if splits:
        return unknown(
            f"the data are split by {ast.unparse(splits[0].call.func)} ({where(splits[0])}), which cannot be checked",
            splits[0],
        )
    if _ITERABLE & analysis.script.bases or (streams and not analysis.loaders):
        site = next(iter(streams or analysis.loaders), None)
        return unknown(
            "the data are a stream, which has no sampler; whether each process reads its own share is unknown",
            site,
            "Split the stream by dist.get_rank() and get_world_size().",
        )
    if not analysis.loaders:
        return unknown("no DataLoader is created in the files that were read", None, _SAMPLE)
    own = [site for site in analysis.loaders if _given(site, set(), analysis) is not False]
    if own:
        return unknown(f"the sampler of DataLoader ({where(own[0])}) is unknown", own[0], _SAMPLE)
    site = analysis.loaders[0]
    return broken(f"no DistributedSampler: every process reads all data of DataLoader ({where(site)})", site, _SAMPLE)


def _wrong_share(analysis: Analysis, site: Site) -> RuleResult | None:
    """Check num_replicas and rank: wrong values give several processes the same share."""
    for name, position, judge in (("num_replicas", 1, wrong_size), ("rank", 2, wrong_ranks)):
        node = site.argument(name, position)
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            continue
        wrong = judge([evaluate(analysis.script, node, site.place, process) for process in JOB])
        if wrong:
            evidence = f"DistributedSampler ({where(site)}) has {name}={ast.unparse(node)}, and {wrong}"
            return broken(evidence, site, f"Remove {name}: it is taken from the process group.")
    return None


def _loaders(analysis: Analysis, samplers: list[Site]) -> RuleResult:
    """Check that the samplers are passed to DataLoaders."""
    names = names_with_sampler(analysis.script, samplers)
    if not analysis.loaders:
        return unknown(
            f"DistributedSampler ({where(samplers[0])}) is created, but no DataLoader in the files that were read",
            samplers[0],
            _SAMPLE,
        )
    given = {id(site): _given(site, names, analysis) for site in analysis.loaders}
    with_sampler = [site for site in analysis.loaders if given[id(site)]]
    if not with_sampler:
        site = samplers[0]
        return broken(f"DistributedSampler ({where(site)}) is passed to no DataLoader", site, _SAMPLE)
    for site in analysis.loaders:
        if (
            given[id(site)] is False
            and _trains(site)
            and analysis.in_job(site.place)
            and not _has_alternative(analysis, site, given)
        ):
            return broken(
                f"DataLoader ({where(site)}) reads the training data without DistributedSampler", site, _SAMPLE
            )
    for site in with_sampler:
        if evaluate(analysis.script, site.argument("shuffle", 2), site.place, JOB[1]) is True:
            evidence = f"DataLoader ({where(site)}) has both shuffle=True and a sampler, which PyTorch refuses"
            return broken(evidence, site, "Remove shuffle: DistributedSampler shuffles.")
    note = "; with one process there is no process group, and creating the sampler fails"
    fails_with_one = analysis.with_one(samplers[0].place) and samplers[0].argument("num_replicas", 1) is None
    return holds(
        f"DistributedSampler ({where(samplers[0])}) is passed to DataLoader ({where(with_sampler[0])})"
        f"{note * fails_with_one}",
        samplers[0],
        "Create the sampler only if dist.is_initialized()." if fails_with_one else None,
    )


def _trains(site: Site) -> bool:
    words = [*site.targets, ast.unparse(site.argument("dataset", 0) or ast.Constant(""))]
    return any("train" in word.lower() for word in words)


def _has_alternative(analysis: Analysis, site: Site, given: dict[int, bool | None]) -> bool:
    """Return whether the same name is assigned a DataLoader with a sampler under another condition."""
    return any(
        given[id(other)] and set(other.targets) & set(site.targets) for other in analysis.loaders if other is not site
    )


def names_with_sampler(script: Script, samplers: list[Site]) -> set[str]:
    """Return the names of samplers and of objects made from them."""
    made = {id(site.call) for site in samplers}
    names = {name for site in samplers for name in site.targets}
    assigned = [(name, item.value) for (_, _, name), items in script.names.items() for item in items]
    assigned += [(name, item.value) for name, items in script.attributes.items() for item in items]
    for _ in range(4):
        names |= {
            name
            for name, value in assigned
            if value is not None
            and not _is_loader(value)
            and (mentions(value, names) or any(id(part) in made for part in ast.walk(value)))
        }
    for function, returns in script.returns.items():
        if any(
            mentions(item.value, names) or any(id(part) in made for part in ast.walk(item.value))
            for item in returns
            if item.value
        ):
            names.add(getattr(function, "name", ""))
    return names


def _is_loader(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2].endswith("Loader")


def _given(site: Site, names: set[str], analysis: Analysis) -> bool | None:
    """Return whether a DataLoader gets a distributed sampler; None if not all its arguments are visible."""
    made = {id(sampler.call) for sampler in analysis.samplers}
    for name, position in (("sampler", 3), ("batch_sampler", 4)):
        node = site.argument(name, position)
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            continue
        if mentions(node, names) or any(id(part) in made for part in ast.walk(node)):
            return True
        if not any(other in ast.unparse(node) for other in _OTHERS) and not _known_other(analysis, node, site.place):
            return True  # through a parameter, or a function that was not read
    if any(mentions(keyword.value, names) for keyword in site.call.keywords if keyword.arg is None):
        return True
    return None if site.spread() else False


def _known_other(analysis: Analysis, node: ast.expr, place: Place) -> bool:
    """Return whether a variable contains a sampler that is not distributed."""
    values = analysis.script.values(node.id, place) if isinstance(node, ast.Name) else []
    return bool(values) and all(
        item.value is not None
        and (ast.unparse(item.value) == "None" or any(other in ast.unparse(item.value) for other in _OTHERS))
        for item in values
    )


def check_epoch(analysis: Analysis) -> RuleResult:
    """Check that the epoch number is passed to the sampler, in the loop over epochs."""
    calls = analysis.script.find("set_epoch")
    if not analysis.samplers:
        if check_sampler(analysis).verdict == "unknown":
            return unknown("there is no DistributedSampler that needs the epoch (see sampler)")
        return broken("there is no DistributedSampler that gets the epoch", None, f"{_SAMPLE} {_EPOCH}")
    if all(_unshuffled(analysis, site) for site in analysis.samplers):
        return holds(
            f"DistributedSampler ({where(analysis.samplers[0])}) does not shuffle, so it needs no epoch",
            analysis.samplers[0],
        )
    if not calls:
        return broken(
            f"set_epoch is never called on DistributedSampler ({where(analysis.samplers[0])})",
            analysis.samplers[0],
            _EPOCH,
        )
    faults = [_epoch_fault(analysis, site) for site in calls]
    good = [site for site, fault in zip(calls, faults, strict=True) if fault is None]
    if good:
        return holds(f"{ast.unparse(good[0].call)} ({where(good[0])})", good[0])
    return broken(f"{ast.unparse(calls[0].call)} ({where(calls[0])}) {faults[0]}", calls[0], _EPOCH)


def _unshuffled(analysis: Analysis, site: Site) -> bool:
    return evaluate(analysis.script, site.argument("shuffle", 3), site.place, JOB[1]) is False


def _epoch_fault(analysis: Analysis, site: Site) -> str | None:
    """Return what is wrong with a call of set_epoch; None if it is correct."""
    if not analysis.in_job(site.place):
        return "is not reached in a job"
    number = site.argument("epoch", 0)
    if number is None:
        return "has no epoch argument"
    if isinstance(evaluate(analysis.script, number, site.place, JOB[1]), int):
        return "always has the same number"
    if not _loops(analysis, site.place):
        return "is in no loop, so it is called once"
    return _wrong_receiver(analysis, site)


def _wrong_receiver(analysis: Analysis, site: Site) -> str | None:
    """Return a problem if set_epoch is called on a sampler of test data instead of training data."""
    receiver = ast.unparse(site.call.func).removesuffix(".set_epoch").lower()
    trained = [name for sampler in analysis.samplers for name in sampler.targets if "train" in name.lower()]
    if trained and any(word in receiver for word in ("val", "test", "eval")) and "train" not in receiver:
        return f"is called on another sampler than {trained[0]}"
    return None


def _loops(analysis: Analysis, place: Place, depth: int = 6) -> bool:
    """Return whether a place is in a loop, its own or around the calls of its function; callbacks count as such."""
    if place.loops or depth == 0:
        return True
    if place.function is None:
        return False
    name = getattr(place.function, "name", "")
    callers = [caller for _, caller in analysis.script.mentions.get(name, ()) if caller.function is not place.function]
    return not callers or any(_loops(analysis, caller, depth - 1) for caller in callers)
