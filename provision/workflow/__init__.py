"""The steps behind each verb, as small functions: load, probe, apply, verify, launch.

Nothing here parses a command line or prints; progress goes to the callbacks that are passed in.
"""

from __future__ import annotations

from provision.workflow.bundle import known_secrets, support_bundle
from provision.workflow.converge import apply, chosen_roles, local_inventory, log_folder, unreachable
from provision.workflow.gpudirect import gdr
from provision.workflow.survey import (
    Survey,
    chosen,
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
    "Survey",
    "apply",
    "chosen",
    "chosen_roles",
    "gdr",
    "host_entries",
    "hostfile",
    "known_secrets",
    "local_inventory",
    "log_folder",
    "probe",
    "role_defaults",
    "support_bundle",
    "supported_systems",
    "try_pairs",
    "unreachable",
    "verify",
    "with_defaults",
]
