"""Rule 3: the model is wrapped, for the gradients of a wrapped model alone are summed over the processes."""

from __future__ import annotations

import ast
import re

from provision.advisor.script_scene import WRAPPERS, Judgement, Scene, broken, holds, mentions, unknown, where
from provision.advisor.source import Site

__all__ = ["judge_wrap"]

_WRAPPER = re.compile(r"^(?!is_).*(ddp|fsdp|distribute|wrap_model|prepare_model|parallelize)", re.IGNORECASE)
_WRAP = "After init_process_group write: model = DistributedDataParallel(model, device_ids=[local_rank])"


def judge_wrap(scene: Scene) -> Judgement:
    """The model is wrapped by DistributedDataParallel (or FSDP), in a job, and it is the wrapped one that is called."""
    wraps = scene.script.find(*WRAPPERS)
    if not wraps:
        return _none(scene)
    in_job = [site for site in wraps if scene.in_job(site.place)]
    if not in_job:
        return broken(f"{_name(scene, wraps[0])} ({where(wraps[0])}) is not reached in a job", wraps[0], _WRAP)
    site = in_job[0]
    lost = next(
        (site for site in in_job if site.dropped and _name(scene, site) not in {"fully_shard", "replicate"}), None
    )
    if lost is not None:
        return broken(f"what {_name(scene, lost)} returns is dropped ({where(lost)})", lost, _WRAP)
    for site in in_job:
        plain = _still_called(scene, site)
        if plain:
            evidence = f"{_name(scene, site)} ({where(site)}) wraps {plain}, and then {plain} itself is called"
            return broken(evidence, site, f"Call {' or '.join(site.targets)} in the training loop, not {plain}.")
    site = in_job[0]
    if scene.with_one(site.place):
        note = f"; with one process there is no process group, and line {site.line} ends the script"
        return holds(f"{_name(scene, site)} ({where(site)}){note}", site, "Wrap only where dist.is_initialized().")
    return holds(f"{_name(scene, site)} ({where(site)})", site)


def _name(scene: Scene, site: Site) -> str:
    """Return what a call stands for, whatever it is called in the script."""
    meanings = {name.rpartition(".")[2] for name in scene.script.meanings(site.call.func, site.place)}
    return next((name for name in WRAPPERS if name in meanings), ast.unparse(site.call.func))


def _none(scene: Scene) -> Judgement:
    """Nothing wraps the model; say what is there in place of it."""
    for site in scene.script.find("all_reduce", "all_reduce_coalesced"):
        if mentions(site.call, {"grad", "grads", "gradients"}):
            return unknown(f"gradients are summed by hand ({where(site)}), which cannot be judged", site, _WRAP)
    others = [site for site in scene.script.unread(_WRAPPER) if site.targets and site.call.args]
    if others:
        name = ast.unparse(others[0].call.func)
        return unknown(f"{name} ({where(others[0])}) may wrap the model; it was not read", others[0], _WRAP)
    dynamic = scene.script.find("import_module", "__import__")
    if dynamic:
        return unknown(
            f"modules are imported by names that are made up ({where(dynamic[0])}); they were not read",
            dynamic[0],
            _WRAP,
        )
    single = scene.script.find("DataParallel")
    if single:
        evidence = (
            f"DataParallel ({where(single[0])}) stays within one process; nothing sums gradients between processes"
        )
        return broken(evidence, single[0], _WRAP)
    for full, line in scene.script.imports.items():
        if full.rpartition(".")[2] in WRAPPERS:
            return broken(f"{full.rpartition('.')[2]} is imported (line {line}) and never called", None, _WRAP, line)
    return broken("nothing wraps the model: each process would train a model of its own", None, _WRAP)


def _still_called(scene: Scene, site: Site) -> str | None:
    """Return the name of the unwrapped model where that is what the script calls afterwards."""
    model = site.argument("module", 0)
    if not isinstance(model, ast.Name) or not site.targets or model.id in site.targets:
        return None
    calls = [other for other in scene.script.calls if other.place.file == site.place.file]
    mine = [other for other in calls if other.place.function is site.place.function and other.line > site.line]
    plain = any(isinstance(other.call.func, ast.Name) and other.call.func.id == model.id for other in mine)
    read = any(len(scene.script.mentions.get(name, ())) for name in site.targets)
    return model.id if plain and not read else None
