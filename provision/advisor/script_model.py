"""Rule 3: the model is wrapped, because only a wrapped model sums gradients over the processes."""

from __future__ import annotations

import ast
import re

from provision.advisor.script_analysis import WRAPPERS, Analysis, RuleResult, broken, holds, mentions, unknown, where
from provision.advisor.source import Site

__all__ = ["check_wrap"]

_WRAPPER = re.compile(r"^(?!is_).*(ddp|fsdp|distribute|wrap_model|prepare_model|parallelize)", re.IGNORECASE)
_WRAP = "After init_process_group write: model = DistributedDataParallel(model, device_ids=[local_rank])"


def check_wrap(analysis: Analysis) -> RuleResult:
    """Check that DistributedDataParallel or FSDP wraps the model in a job, and that the wrapped model is called."""
    wraps = analysis.script.find(*WRAPPERS)
    if not wraps:
        return _none(analysis)
    in_job = [site for site in wraps if analysis.in_job(site.place)]
    if not in_job:
        return broken(f"{_name(analysis, wraps[0])} ({where(wraps[0])}) is not reached in a job", wraps[0], _WRAP)
    site = in_job[0]
    lost = next(
        (site for site in in_job if site.dropped and _name(analysis, site) not in {"fully_shard", "replicate"}), None
    )
    if lost is not None:
        return broken(f"what {_name(analysis, lost)} returns is dropped ({where(lost)})", lost, _WRAP)
    for site in in_job:
        plain = _still_called(analysis, site)
        if plain:
            evidence = f"{_name(analysis, site)} ({where(site)}) wraps {plain}, and then {plain} itself is called"
            return broken(evidence, site, f"Call {' or '.join(site.targets)} in the training loop, not {plain}.")
    site = in_job[0]
    if analysis.with_one(site.place):
        note = f"; with one process there is no process group, and line {site.line} ends the script"
        return holds(f"{_name(analysis, site)} ({where(site)}){note}", site, "Wrap only where dist.is_initialized().")
    return holds(f"{_name(analysis, site)} ({where(site)})", site)


def _name(analysis: Analysis, site: Site) -> str:
    """Return the wrapper's name, whatever alias the script uses."""
    meanings = {name.rpartition(".")[2] for name in analysis.script.meanings(site.call.func, site.place)}
    return next((name for name in WRAPPERS if name in meanings), ast.unparse(site.call.func))


def _none(analysis: Analysis) -> RuleResult:
    """Return why nothing wraps the model."""
    for site in analysis.script.find("all_reduce", "all_reduce_coalesced"):
        if mentions(site.call, {"grad", "grads", "gradients"}):
            return unknown(f"gradients are summed by hand ({where(site)}), which cannot be checked", site, _WRAP)
    others = [site for site in analysis.script.unread(_WRAPPER) if site.targets and site.call.args]
    if others:
        name = ast.unparse(others[0].call.func)
        return unknown(f"{name} ({where(others[0])}) may wrap the model; it was not read", others[0], _WRAP)
    dynamic = analysis.script.find("import_module", "__import__")
    if dynamic:
        return unknown(
            f"modules are imported by computed names ({where(dynamic[0])}); they were not read",
            dynamic[0],
            _WRAP,
        )
    single = analysis.script.find("DataParallel")
    if single:
        evidence = (
            f"DataParallel ({where(single[0])}) works within one process; nothing sums gradients between processes"
        )
        return broken(evidence, single[0], _WRAP)
    for full, line in analysis.script.imports.items():
        if full.rpartition(".")[2] in WRAPPERS:
            return broken(f"{full.rpartition('.')[2]} is imported (line {line}) and never called", None, _WRAP, line)
    return broken("nothing wraps the model: each process would train its own model", None, _WRAP)


def _still_called(analysis: Analysis, site: Site) -> str | None:
    """Return the name of the unwrapped model if the script calls that afterwards."""
    model = site.argument("module", 0)
    if not isinstance(model, ast.Name) or not site.targets or model.id in site.targets:
        return None
    calls = [other for other in analysis.script.calls if other.place.file == site.place.file]
    later = [other for other in calls if other.place.function is site.place.function and other.line > site.line]
    plain = any(isinstance(other.call.func, ast.Name) and other.call.func.id == model.id for other in later)
    read = any(len(analysis.script.mentions.get(name, ())) for name in site.targets)
    return model.id if plain and not read else None
