"""What has to be done: what the inventory wants and what is seen of the nodes in, steps with reasons out."""

from provision.planning.causes import Cause, CauseKind
from provision.planning.classes import step_class
from provision.planning.fingerprint import RoleSource, fingerprint, salt_of
from provision.planning.partners import with_partners
from provision.planning.scene import ROLES, PlanScene
from provision.planning.standing import kept
from provision.planning.steps import blind, findings, plan_node

__all__ = [
    "ROLES",
    "Cause",
    "CauseKind",
    "PlanScene",
    "RoleSource",
    "blind",
    "findings",
    "fingerprint",
    "kept",
    "plan_node",
    "salt_of",
    "step_class",
    "with_partners",
]
