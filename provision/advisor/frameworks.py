"""Libraries that implement the rules of distributed training for a script."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from provision.advisor.source import Script, Site

__all__ = ["FrameworkUse", "find_frameworks"]

RANKS, INIT, WRAP, SAMPLER, EPOCH = "ranks", "init", "ddp", "sampler", "set_epoch"


@dataclass(frozen=True)
class FrameworkUse:
    """The use of one library in a script."""

    name: str
    site: Site
    """The call that starts it."""
    done: Mapping[str, str]
    """Rule -> how the library implements it."""
    missing: Mapping[str, str]
    """Rule -> the call that is missing in the script."""


_START = "starts the process group"
_LAUNCHER = "takes ranks and their number from the launcher"


def find_frameworks(script: Script) -> list[FrameworkUse]:
    """Return the libraries that are used; an import alone does not count."""
    detectors = (_lightning, _fabric, _accelerate, _deepspeed, _transformers, _ray, _horovod)
    return [use for detect in detectors if (use := detect(script)) is not None]


def _of(script: Script, call: str, *packages: str) -> Site | None:
    """Return the first call of a function that was imported from one of the packages."""
    for site in script.find(call):
        names = script.meanings(site.call.func, site.place)
        if any(name.partition(".")[0] in packages for name in names):
            return site
    return None


def _is_false(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _lightning(script: Script) -> FrameworkUse | None:
    site = _of(script, "Trainer", "lightning", "pytorch_lightning")
    if site is None:
        return None
    done = {
        RANKS: "the Trainer takes them from the launcher; devices times num_nodes must be the number of processes",
        INIT: f"the Trainer {_START}",
        WRAP: "the Trainer wraps the module by its strategy",
        SAMPLER: "the Trainer gives each DataLoader a DistributedSampler",
        EPOCH: "the Trainer calls set_epoch before each epoch",
    }
    if any(_is_false(site.argument(name)) for name in ("use_distributed_sampler", "replace_sampler_ddp")):
        del done[SAMPLER]
    return FrameworkUse("Lightning", site, done, {})


def _fabric(script: Script) -> FrameworkUse | None:
    site = _of(script, "Fabric", "lightning", "lightning_fabric", "pytorch_lightning")
    if site is None:
        return None
    done = {RANKS: f"Fabric {_LAUNCHER}", INIT: f"Fabric.launch() {_START}"}
    missing = {}
    if script.find("setup", "setup_module"):
        done[WRAP] = "Fabric.setup() wraps the model by its strategy"
    else:
        missing[WRAP] = "call fabric.setup(model, optimizer)"
    if script.find("setup_dataloaders"):
        done[SAMPLER] = "Fabric.setup_dataloaders() gives each DataLoader a DistributedSampler"
        done[EPOCH] = "the loaders of Fabric.setup_dataloaders() call set_epoch"
    elif not script.find("DistributedSampler"):
        missing[SAMPLER] = "call fabric.setup_dataloaders(loader)"
    return FrameworkUse("Lightning Fabric", site, done, missing)


def _accelerate(script: Script) -> FrameworkUse | None:
    site = _of(script, "Accelerator", "accelerate")
    if site is None:
        return None
    done = {RANKS: f"Accelerator() {_LAUNCHER}", INIT: f"Accelerator() {_START}"}
    missing = {}
    if script.find("prepare", "prepare_model"):
        done[WRAP] = "Accelerator.prepare() wraps the model"
    else:
        missing[WRAP] = "give the model to accelerator.prepare()"
    if script.find("prepare", "prepare_data_loader"):
        done[SAMPLER] = "Accelerator.prepare() gives each process its own share of a DataLoader"
        done[EPOCH] = "the loaders of Accelerator.prepare() reshuffle in each epoch, equally in all processes"
    else:
        missing[SAMPLER] = "give the DataLoader to accelerator.prepare()"
    return FrameworkUse("Accelerate", site, done, missing)


def _deepspeed(script: Script) -> FrameworkUse | None:
    site = _of(script, "initialize", "deepspeed")
    if site is None:
        return None
    done = {
        RANKS: f"deepspeed.initialize() {_LAUNCHER}",
        INIT: f"deepspeed.initialize() {_START}",
        WRAP: "the engine of deepspeed.initialize() sums the gradients",
    }
    if site.argument("training_data", 3) is not None:
        done[SAMPLER] = "deepspeed.initialize(training_data=...) makes a loader with a DistributedSampler"
    return FrameworkUse("DeepSpeed", site, done, {})


def _transformers(script: Script) -> FrameworkUse | None:
    names = ("Trainer", "Seq2SeqTrainer", "SFTTrainer", "DPOTrainer", "ORPOTrainer", "RewardTrainer", "PPOTrainer")
    site = next((site for name in names if (site := _of(script, name, "transformers", "trl"))), None)
    done = {
        RANKS: f"the Trainer {_LAUNCHER}",
        INIT: f"the Trainer's arguments {_START.replace('starts', 'start')}",
        WRAP: "the Trainer wraps the model",
        SAMPLER: "the Trainer gives each process its own share of the data",
        EPOCH: "the Trainer reshuffles in each epoch",
    }
    return None if site is None else FrameworkUse("Transformers' Trainer", site, done, {})


def _ray(script: Script) -> FrameworkUse | None:
    site = _of(script, "TorchTrainer", "ray")
    if site is None:
        return None
    done = {RANKS: "Ray Train gives each worker its rank", INIT: f"Ray Train {_START}"}
    if script.find("prepare_model"):
        done[WRAP] = "prepare_model() wraps the model"
    if script.find("prepare_data_loader"):
        done[SAMPLER] = "prepare_data_loader() gives the DataLoader a DistributedSampler"
    return FrameworkUse("Ray Train", site, done, {})


def _horovod(script: Script) -> FrameworkUse | None:
    """Horovod manages processes and gradients itself; the script splits the data."""
    site = _of(script, "init", "horovod", "hvd", "byteps")
    if site is None:
        return None
    done = {RANKS: "hvd.init() takes them from mpirun or horovodrun", INIT: "hvd.init() works with one process too"}
    missing = {}
    if script.find("DistributedOptimizer"):
        done[WRAP] = "hvd.DistributedOptimizer averages the gradients"
    else:
        missing[WRAP] = "wrap the optimizer: hvd.DistributedOptimizer(optimizer)"
    return FrameworkUse("Horovod", site, done, missing)
