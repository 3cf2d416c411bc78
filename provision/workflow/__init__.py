"""The steps behind each verb, as small functions: load, probe, apply, verify, launch.

Nothing here parses a command line or prints; progress goes to the callbacks that are passed in.
"""

from typing import TYPE_CHECKING

from provision.lazy_import import parts

if TYPE_CHECKING:
    from provision.workflow.adoption import adopt, plan_adopt
    from provision.workflow.apply_preflight import preflight
    from provision.workflow.bundle import known_secrets, support_bundle
    from provision.workflow.controller_inventory import local_inventory
    from provision.workflow.converge import WaveOptions, apply, blocked, runnable
    from provision.workflow.differences import content_differences
    from provision.workflow.gpu_topology import topology
    from provision.workflow.gpudirect import gdr
    from provision.workflow.idle_steps import drained_first, steps_to_confirm
    from provision.workflow.inventory_state import log_folder
    from provision.workflow.job_requests import job_request
    from provision.workflow.kernel_reboots import await_reboots
    from provision.workflow.launch_inputs import node_networks, stated_container, stated_entries, stated_networks
    from provision.workflow.module_reload import reload
    from provision.workflow.node_reset import plan_reset, reset
    from provision.workflow.overrides import note_degraded
    from provision.workflow.placement_candidates import places_among, places_for_jobs
    from provision.workflow.plan import PlanResult, Request, probe_and_plan, read_saved, save, saved_differences
    from provision.workflow.role_selection import Asked, asked_for, chosen_roles, named_nodes, refuse_steps
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
    from provision.workflow.verification import Survey, try_pairs, verify

__getattr__ = parts(
    __name__,
    {
        "adoption": ("adopt", "plan_adopt"),
        "role_selection": ("Asked", "asked_for", "chosen_roles", "named_nodes", "refuse_steps"),
        "bundle": ("known_secrets", "support_bundle"),
        "converge": ("WaveOptions", "apply", "blocked", "runnable"),
        "differences": ("content_differences",),
        "gpudirect": ("gdr",),
        "idle_steps": ("steps_to_confirm", "drained_first"),
        "job_requests": ("job_request",),
        "kernel_reboots": ("await_reboots",),
        "launch_inputs": ("node_networks", "stated_container", "stated_entries", "stated_networks"),
        "overrides": ("note_degraded",),
        "inventory_state": ("log_folder",),
        "placement_candidates": ("places_among", "places_for_jobs"),
        "plan": ("PlanResult", "Request", "probe_and_plan", "read_saved", "save", "saved_differences"),
        "apply_preflight": ("preflight",),
        "module_reload": ("reload",),
        "node_reset": ("plan_reset", "reset"),
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
        "controller_inventory": ("local_inventory",),
        "gpu_topology": ("topology",),
        "verification": ("Survey", "try_pairs", "verify"),
    },
)
