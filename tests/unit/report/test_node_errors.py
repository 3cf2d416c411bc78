"""Scripts decide by the code of a node's error, in every document that has one."""

from __future__ import annotations

import pytest

from provision.errors import HostNotTrusted
from provision.model import NodePlan, Plan
from provision.model.apply import Failure
from provision.model.node_results import NodeAdoption, NodeReset, ResetResult
from provision.report import adopt_report, audit_report, history_report, image_report, plan_report, reset_report

ERROR = HostNotTrusted("its host key is unknown", node="gpu1", remedy="Run: provision bootstrap")
FAILURE = Failure(None, "connect", ERROR.message, "", ERROR.remedy, ERROR.code)
ADOPTION = NodeAdoption("gpu1", error=ERROR.message, remedy=ERROR.remedy, reachable=False, error_code=ERROR.code)
PLAN = Plan((NodePlan("gpu1", error=ERROR.message, error_code=ERROR.code, reachable=False),))
LOST = {"gpu1": ERROR}

NODES = {
    "plan": plan_report.as_document(PLAN)["nodes"][0],
    "adopt": adopt_report.as_document([ADOPTION], {}, written=False)["nodes"][0],
    "reset": reset_report.as_document([NodeReset("gpu1", ResetResult.UNREACHABLE, error=FAILURE)])["nodes"][0],
    "image list": image_report.states_document("training", LOST)["nodes"][0],
    "history": history_report.fleet_document([], LOST)["unreachable"][0],
    "history --nodes": history_report.nodes_document(LOST)["nodes"][0],
    "history --audit": audit_report.audit_document(LOST)["nodes"][0],
}


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_an_error_has_its_code(node):
    """Beside the text, or in the object that has it."""
    error = node["error"]
    code = error["code"] if isinstance(error, dict) else node["error_code"]

    assert code == ERROR.code != ""


def test_a_node_without_an_error_has_no_code():
    assert plan_report.as_document(Plan((NodePlan("gpu1"),)))["nodes"][0]["error_code"] is None
