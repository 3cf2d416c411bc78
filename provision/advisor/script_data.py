"""Rules 4 and 5: each process reads its own share of the data, and another order in each epoch."""

from __future__ import annotations

import ast

from provision.advisor.evaluate import MANY, evaluate
from provision.advisor.script_processes import wrong_ranks, wrong_size
from provision.advisor.script_scene import Judgement, Scene, broken, holds, mentions, unknown, where
from provision.advisor.source import Place, Script, Site

__all__ = ["judge_epoch", "judge_sampler"]

_SAMPLE = "Write: sampler = DistributedSampler(dataset), and DataLoader(dataset, sampler=sampler) without shuffle."
_EPOCH = "Call sampler.set_epoch(epoch) at the begin of each epoch, or every epoch has the order of the first."
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


def judge_sampler(scene: Scene) -> Judgement:
    """A DistributedSampler is made in a job and given to the DataLoader that training reads."""
    if not scene.samplers:
        return _no_sampler(scene)
    in_job = [site for site in scene.samplers if scene.in_job(site.place)]
    if not in_job:
        site = scene.samplers[0]
        return broken(f"DistributedSampler ({where(site)}) is not made in a job", site, _SAMPLE)
    for site in in_job:
        wrong = _wrong_share(scene, site)
        if wrong is not None:
            return wrong
    return _loaders(scene, in_job)


def _no_sampler(scene: Scene) -> Judgement:
    streams = scene.script.find(*_STREAMS)
    splits = scene.script.find(*_SPLITS)
    if splits:
        return unknown(
            f"the data are split by {ast.unparse(splits[0].call.func)} ({where(splits[0])}), which cannot be judged",
            splits[0],
        )
    if _ITERABLE & scene.script.bases or (streams and not scene.loaders):
        site = next(iter(streams or scene.loaders), None)
        return unknown(
            "the data are a stream, which takes no sampler; whether each process reads its own share cannot be told",
            site,
            "Split the stream by dist.get_rank() and get_world_size().",
        )
    if not scene.loaders:
        return unknown("no DataLoader is made in what was read, so that there is nothing to split", None, _SAMPLE)
    own = [site for site in scene.loaders if _given(site, set(), scene) is not False]
    if own:
        return unknown(f"what sampler DataLoader ({where(own[0])}) gets cannot be told", own[0], _SAMPLE)
    site = scene.loaders[0]
    return broken(
        f"no DistributedSampler: every process reads all that DataLoader ({where(site)}) gives", site, _SAMPLE
    )


def _wrong_share(scene: Scene, site: Site) -> Judgement | None:
    """Numbers of one's own may give processes the same share."""
    for name, position, judge in (("num_replicas", 1, wrong_size), ("rank", 2, wrong_ranks)):
        node = site.argument(name, position)
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            continue
        wrong = judge([evaluate(scene.script, node, site.place, process) for process in MANY])
        if wrong:
            evidence = f"DistributedSampler ({where(site)}) is given {name}={ast.unparse(node)}, and {wrong}"
            return broken(evidence, site, f"Leave {name} out: it is taken from the process group.")
    return None


def _loaders(scene: Scene, samplers: list[Site]) -> Judgement:
    """Judge where the samplers go."""
    names = carried(scene.script, samplers)
    if not scene.loaders:
        return unknown(
            f"DistributedSampler ({where(samplers[0])}) is made, and no DataLoader in what was read",
            samplers[0],
            _SAMPLE,
        )
    given = {id(site): _given(site, names, scene) for site in scene.loaders}
    with_sampler = [site for site in scene.loaders if given[id(site)]]
    if not with_sampler:
        site = samplers[0]
        return broken(f"DistributedSampler ({where(site)}) is given to no DataLoader", site, _SAMPLE)
    for site in scene.loaders:
        if (
            given[id(site)] is False
            and _trains(site)
            and scene.in_job(site.place)
            and not _sampled_beside(scene, site, given)
        ):
            return broken(
                f"DataLoader ({where(site)}) reads the training data without DistributedSampler", site, _SAMPLE
            )
    for site in with_sampler:
        if evaluate(scene.script, site.argument("shuffle", 2), site.place, MANY[1]) is True:
            evidence = f"DataLoader ({where(site)}) has shuffle=True beside its sampler, which PyTorch refuses"
            return broken(evidence, site, "Leave shuffle out: DistributedSampler shuffles.")
    note = "; with one process there is no process group, and making the sampler ends the script"
    alone = scene.with_one(samplers[0].place) and samplers[0].argument("num_replicas", 1) is None
    return holds(
        f"DistributedSampler ({where(samplers[0])}) is given to DataLoader ({where(with_sampler[0])}){note * alone}",
        samplers[0],
        "Make the sampler only where dist.is_initialized()." if alone else None,
    )


def _trains(site: Site) -> bool:
    words = [*site.targets, ast.unparse(site.argument("dataset", 0) or ast.Constant(""))]
    return any("train" in word.lower() for word in words)


def _sampled_beside(scene: Scene, site: Site, given: dict[int, bool | None]) -> bool:
    """Whether the same name is assigned a DataLoader with sampler under another condition."""
    return any(
        given[id(other)] and set(other.targets) & set(site.targets) for other in scene.loaders if other is not site
    )


def carried(script: Script, samplers: list[Site]) -> set[str]:
    """Return the names that hold a sampler, or what was made of it."""
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


def _given(site: Site, names: set[str], scene: Scene) -> bool | None:
    """Whether a DataLoader gets a distributed sampler; None where its arguments are not all seen."""
    made = {id(sampler.call) for sampler in scene.samplers}
    for name, position in (("sampler", 3), ("batch_sampler", 4)):
        node = site.argument(name, position)
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            continue
        if mentions(node, names) or any(id(part) in made for part in ast.walk(node)):
            return True
        if not any(other in ast.unparse(node) for other in _OTHERS) and not _known_other(scene, node, site.place):
            return True  # through a parameter, or a function that was not read
    if any(mentions(keyword.value, names) for keyword in site.call.keywords if keyword.arg is None):
        return True
    return None if site.spread() else False


def _known_other(scene: Scene, node: ast.expr, place: Place) -> bool:
    """Whether a variable holds a sampler that is not distributed."""
    values = scene.script.values(node.id, place) if isinstance(node, ast.Name) else []
    return bool(values) and all(
        item.value is not None
        and (ast.unparse(item.value) == "None" or any(other in ast.unparse(item.value) for other in _OTHERS))
        for item in values
    )


def judge_epoch(scene: Scene) -> Judgement:
    """The sampler is told each epoch's number, in the loop over epochs."""
    calls = scene.script.find("set_epoch")
    if not scene.samplers:
        if judge_sampler(scene).verdict == "unknown":
            return unknown("there is no DistributedSampler that could be told the epoch (see sampler)")
        return broken("there is no DistributedSampler that could be told the epoch", None, f"{_SAMPLE} {_EPOCH}")
    if all(_unshuffled(scene, site) for site in scene.samplers):
        return holds(
            f"DistributedSampler ({where(scene.samplers[0])}) does not shuffle, so that the epoch does not matter",
            scene.samplers[0],
        )
    if not calls:
        return broken(
            f"set_epoch is never called on DistributedSampler ({where(scene.samplers[0])})", scene.samplers[0], _EPOCH
        )
    faults = [_epoch_fault(scene, site) for site in calls]
    good = [site for site, fault in zip(calls, faults, strict=True) if fault is None]
    if good:
        return holds(f"{ast.unparse(good[0].call)} ({where(good[0])})", good[0])
    return broken(f"{ast.unparse(calls[0].call)} ({where(calls[0])}) {faults[0]}", calls[0], _EPOCH)


def _unshuffled(scene: Scene, site: Site) -> bool:
    return evaluate(scene.script, site.argument("shuffle", 3), site.place, MANY[1]) is False


def _epoch_fault(scene: Scene, site: Site) -> str | None:
    """Say why a call of set_epoch does not serve; None where it does."""
    if not scene.in_job(site.place):
        return "is not reached in a job"
    number = site.argument("epoch", 0)
    if number is None:
        return "is given no epoch"
    if isinstance(evaluate(scene.script, number, site.place, MANY[1]), int):
        return "is given the same number always"
    if not _loops(scene, site.place):
        return "stands in no loop, so that it is called once"
    return _wrong_receiver(scene, site)


def _wrong_receiver(scene: Scene, site: Site) -> str | None:
    """A sampler of the test data that is told the epoch does not help the training."""
    told = ast.unparse(site.call.func).removesuffix(".set_epoch").lower()
    trained = [name for sampler in scene.samplers for name in sampler.targets if "train" in name.lower()]
    if trained and any(word in told for word in ("val", "test", "eval")) and "train" not in told:
        return f"tells another sampler than {trained[0]}"
    return None


def _loops(scene: Scene, place: Place, depth: int = 6) -> bool:
    """Whether a place is in a loop, its own or one around the calls of its function; frameworks' callbacks are."""
    if place.loops or depth == 0:
        return True
    if place.function is None:
        return False
    name = getattr(place.function, "name", "")
    callers = [caller for _, caller in scene.script.mentions.get(name, ()) if caller.function is not place.function]
    return not callers or any(_loops(scene, caller, depth - 1) for caller in callers)
