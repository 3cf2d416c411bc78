"""What has to be done: what the inventory wants and what is seen of the nodes in, steps with reasons out."""

from provision.model.cause import Cause, CauseKind
from provision.planning.fingerprint import RoleSource, fingerprint, salt_of
from provision.planning.partners import with_partners
from provision.planning.preservation import preserved_variables
from provision.planning.scene import PlanScene
from provision.planning.steps import blind, findings, plan_node, step_class
