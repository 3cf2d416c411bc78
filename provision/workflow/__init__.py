"""The steps behind each verb, as small functions: load, probe, apply, verify, launch.

Nothing here parses a command line or prints; progress goes to the callbacks that are passed in.
"""

from __future__ import annotations

from provision.workflow.bundle import known_secrets, support_bundle
from provision.workflow.converge import apply, chosen_roles, local_inventory, log_folder, unreachable
from provision.workflow.gpudirect import gdr
from provision.workflow.overrides import note_degraded
from provision.workflow.reloading import reload
from provision.workflow.survey import (
    HostFile,
    Survey,
    chosen,
    degraded,
    host_entries,
    hostfile,
    probe,
    role_defaults,
    supported_systems,
    try_pairs,
    verify,
    with_defaults,
)

__all__ = [
    "HostFile",
    "Survey",
    "apply",
    "chosen",
    "chosen_roles",
    "degraded",
    "gdr",
    "host_entries",
    "hostfile",
    "known_secrets",
    "local_inventory",
    "log_folder",
    "note_degraded",
    "probe",
    "reload",
    "role_defaults",
    "support_bundle",
    "supported_systems",
    "try_pairs",
    "unreachable",
    "verify",
    "with_defaults",
]
