"""Data types that the other modules exchange, without logic beyond properties."""

from provision.model.apply import ApplyReport, Failure, NodeReport, NodeStatus, RoleReport, RoleStatus
from provision.model.bandwidth import Bandwidth, Collective, PairBandwidth, Port
from provision.model.check import CheckResult, CheckStatus, NodeChecks, Verification
from provision.model.cluster import Cluster, Connection, Node
from provision.model.difference import Difference, FileDiff, RoleDiff
from provision.model.identity import Same
from provision.model.node_results import NodeAdoption, NodeReload, NodeReset, ReloadResult, ResetResult
from provision.model.plan import NEVER_APPLIED, NodePlan, Plan, Step, StepClass
from provision.model.preflight import PackageChange, PreflightCode, PreflightProblem
from provision.model.result import CommandResult
from provision.model.secret import Secret
from provision.model.setting import Setting
from provision.model.topology import NodePlacement, RankPlacement, Topology, TopologyGpu, TopologyNic
