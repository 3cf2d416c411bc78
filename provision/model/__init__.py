"""Values that the other modules hand to each other; no behaviour beyond reading them."""

from provision.model.apply import ApplyReport, Failure, NodeReport, NodeStatus, RoleReport, RoleStatus
from provision.model.bandwidth import Bandwidth, PairBandwidth, Port
from provision.model.check import CheckResult, CheckStatus, NodeChecks, Verification
from provision.model.cluster import Cluster, Connection, Node
from provision.model.reload import NodeReload, ReloadResult
from provision.model.result import CommandResult
from provision.model.secret import Secret

__all__ = [
    "ApplyReport",
    "Bandwidth",
    "CheckResult",
    "CheckStatus",
    "Cluster",
    "CommandResult",
    "Connection",
    "Failure",
    "Node",
    "NodeChecks",
    "NodeReload",
    "NodeReport",
    "NodeStatus",
    "PairBandwidth",
    "Port",
    "ReloadResult",
    "RoleReport",
    "RoleStatus",
    "Secret",
    "Verification",
]
