"""The steps behind each verb, as small functions: load, probe, apply, verify, launch.

Nothing here parses a command line or prints; progress goes to the callbacks that are passed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.lazy_import import parts

if TYPE_CHECKING:
    from provision.workflow.adopting import adopt, plan_adopt
    from provision.workflow.apply_preflight import preflight
    from provision.workflow.asking import Asked, asked_for, chosen_roles, named_nodes, refuse_steps
    from provision.workflow.bundle import known_secrets, support_bundle
    from provision.workflow.converge import Pace, apply, blocked, runnable
    from provision.workflow.differences import content_differences
    from provision.workflow.gpu_topology import topology
    from provision.workflow.gpudirect import gdr
    from provision.workflow.idle_steps import agreeable, drained_first
    from provision.workflow.job_requests import job_request
    from provision.workflow.launching import found_networks, stated_container, stated_entries, stated_networks
    from provision.workflow.overrides import note_degraded
    from provision.workflow.places import log_folder
    from provision.workflow.placing import places_among, places_for_jobs
    from provision.workflow.plan import Look, Request, look, read_saved, save, saved_differences
    from provision.workflow.reloading import reload
    from provision.workflow.resetting import plan_reset, reset
    from provision.workflow.survey import (
        HostFile,
        chosen,
        degraded,
        host_entries,
        hostfile,
        probe,
        role_defaults,
        supported_systems,
        with_defaults,
    )
    from provision.workflow.this_machine import local_inventory
    from provision.workflow.verification import Survey, try_pairs, verify

__all__ = [
    "Asked",
    "HostFile",
    "Look",
    "Pace",
    "Request",
    "Survey",
    "adopt",
    "agreeable",
    "apply",
    "asked_for",
    "blocked",
    "chosen",
    "chosen_roles",
    "content_differences",
    "degraded",
    "drained_first",
    "found_networks",
    "gdr",
    "host_entries",
    "hostfile",
    "job_request",
    "known_secrets",
    "local_inventory",
    "log_folder",
    "look",
    "named_nodes",
    "note_degraded",
    "places_among",
    "places_for_jobs",
    "plan_adopt",
    "plan_reset",
    "preflight",
    "probe",
    "read_saved",
    "refuse_steps",
    "reload",
    "reset",
    "role_defaults",
    "runnable",
    "save",
    "saved_differences",
    "stated_container",
    "stated_entries",
    "stated_networks",
    "support_bundle",
    "supported_systems",
    "topology",
    "try_pairs",
    "verify",
    "with_defaults",
]

__getattr__ = parts(
    __name__,
    {
        "adopting": ("adopt", "plan_adopt"),
        "asking": ("Asked", "asked_for", "chosen_roles", "named_nodes", "refuse_steps"),
        "bundle": ("known_secrets", "support_bundle"),
        "converge": ("Pace", "apply", "blocked", "runnable"),
        "differences": ("content_differences",),
        "gpudirect": ("gdr",),
        "idle_steps": ("agreeable", "drained_first"),
        "job_requests": ("job_request",),
        "launching": ("found_networks", "stated_container", "stated_entries", "stated_networks"),
        "overrides": ("note_degraded",),
        "places": ("log_folder",),
        "placing": ("places_among", "places_for_jobs"),
        "plan": ("Look", "Request", "look", "read_saved", "save", "saved_differences"),
        "apply_preflight": ("preflight",),
        "reloading": ("reload",),
        "resetting": ("plan_reset", "reset"),
        "survey": (
            "HostFile",
            "chosen",
            "degraded",
            "host_entries",
            "hostfile",
            "probe",
            "role_defaults",
            "supported_systems",
            "with_defaults",
        ),
        "this_machine": ("local_inventory",),
        "gpu_topology": ("topology",),
        "verification": ("Survey", "try_pairs", "verify"),
    },
)
