"""The types of the JSON documents of each verb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.report.json_documents import (
    advice,
    base,
    benchmarks,
    changes,
    inventories,
    jobs,
    labs,
    launches,
    probes,
    records,
)

MODULES = (base, inventories, changes, records, probes, launches, jobs, advice, benchmarks, labs)
"""The modules with types."""

DOCUMENTS: Mapping[str, tuple[Any, ...]] = {
    "init": (inventories.Inventory, inventories.ChangedInventory, inventories.ReplacedKeys),
    "adopt": (changes.Adopt,),
    "plan": (changes.Plan,),
    "apply": (changes.Apply,),
    "history": (records.History, records.NodeHistories, records.Audit),
    "unlock": (records.Unlock,),
    "bootstrap": (changes.Apply,),
    "verify": (probes.Verification,),
    "gdr": (probes.Gdr, probes.GdrVerdict),
    "topo": (probes.Topology,),
    "exec": (probes.Command,),
    "copy": (probes.Command,),
    "reload": (changes.Reload,),
    "reset": (changes.Reset,),
    "node list": (list[jobs.JobNode],),
    "node label": (inventories.LabelledNodes,),
    "node drain": (dict[str, jobs.NodeChange],),
    "node resume": (dict[str, jobs.NodeChange],),
    "image pull": (probes.Image,),
    "image list": (probes.Image,),
    "image inspect": (probes.ImageContents,),
    "doctor": (probes.Doctor,),
    "place": (launches.Placement,),
    "hostfile": (launches.HostFile,),
    "run": (launches.Launch,),
    "nccl-log": (launches.NcclLog,),
    "submit": (jobs.Job, jobs.SubmitDryRun),
    "list": (list[jobs.ListedJob],),
    "get": (jobs.Job,),
    "wait": (jobs.Job,),
    "stop": (list[jobs.Job],),
    "restart": (jobs.Job,),
    "delete": (jobs.DeletedJobs,),
    "prune": (jobs.PrunedJobs,),
    "events": (list[jobs.Event],),
    "top node": (jobs.TopNode,),
    "top job": (list[jobs.ListedJob], jobs.Job),
    "top gpu": (list[jobs.TopGpu],),
    "queue": (list[jobs.ListedJob],),
    "queue list": (list[jobs.ListedJob],),
    "queue run": (jobs.StartedJobs,),
    "queue migrate": (jobs.MigratedQueue,),
    "advise": (advice.JobAdvice, advice.ScriptAdvice, advice.JobAndScriptAdvice),
    "data add": (advice.VolumeEntry,),
    "data list": (advice.Volumes,),
    "data check": (advice.CheckedVolumes,),
    "secret list": (advice.Credentials,),
    "export": (advice.Export,),
    "bench run": (benchmarks.StoredRuns, benchmarks.PlannedCommands),
    "bench scale": (benchmarks.StoredRuns, benchmarks.PlannedCommands),
    "bench ab": (benchmarks.StoredComparisons, benchmarks.PlannedCommands),
    "bench parse": (benchmarks.Runs,),
    "bench table": (benchmarks.Runs,),
    "bench compare": (benchmarks.Comparisons,),
    "bench list": (benchmarks.StoredResults,),
    "bench report": (benchmarks.BenchmarkReport,),
    "lab up": (labs.Lab,),
    "lab status": (labs.Lab,),
    "lab list": (labs.Labs,),
}
"""Verb -> the types of the documents that it prints; a verb prints `base.ErrorDocument` instead if it fails before."""
ERROR = (base.ErrorDocument,)
