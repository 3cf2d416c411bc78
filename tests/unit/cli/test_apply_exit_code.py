"""The exit code of ``provision apply`` distinguishes waiting from failing."""

from __future__ import annotations

import pytest

from provision import workflow
from provision.model import ApplyReport, NodeReport, NodeStatus, Plan, RoleReport, RoleStatus
from provision.workflow.plan import PlanResult


@pytest.mark.parametrize(
    ("status", "role", "code"),
    [
        (NodeStatus.UNCHANGED, None, 0),
        (NodeStatus.UNCHANGED, RoleStatus.WAITING, 6),
        (NodeStatus.FAILED, RoleStatus.FAILED, 1),
    ],
)
def test_a_step_that_waits_for_jobs_has_its_own_exit_code(typed, monkeypatch, tmp_path, status, role, code):
    """A script applies again later after 6, and alerts somebody after 1."""
    (tmp_path / "hosts.yml").write_text("gpu_nodes:\n  hosts:\n    gpu1: {ansible_host: 192.0.2.1}\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    roles = (RoleReport("docker_engine", role, ("x",)),) if role else ()
    report = ApplyReport((NodeReport("gpu1", status, roles),), 1.0)
    monkeypatch.setattr(workflow, "probe_and_plan", lambda cluster, *_, **__: PlanResult(cluster, Plan(()), {}, {}))
    monkeypatch.setattr(workflow, "apply", lambda *_, **__: report)

    assert typed("apply", "--yes", "-i", str(tmp_path / "hosts.yml"))[0] == code
