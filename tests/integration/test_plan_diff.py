"""``plan --diff`` on real nodes shows changes of files, changes nothing, and prints no secret."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.conftest import LAB

LIMITS = "/etc/security/limits.d/90-provision.conf"
PASSWORD = "marker-of-a-password-4711"
LOGINS = [{"registry": "registry.example.org:5000", "username": "bob", "password_secret": PASSWORD}]
STATE = (
    "find /etc /root /var/lib/provision /usr/local -type f -exec sha256sum {} + | sort | sha256sum; "
    "docker ps -aq --no-trunc; systemctl show -p InvocationID docker.service"
)
"""All that an apply could have changed: files, containers, a restart of docker."""


@pytest.fixture
def drifted(provision, lab_variables, cluster, on_node) -> Iterator[str]:
    """A node on which a file was edited, with a password in it; the lab's inventory got a login since its apply."""
    node = cluster["nodes"][0]["name"]
    provision.ok("apply", "--lab", LAB, "--yes")
    lab_variables({"docker_engine_registry_logins": LOGINS})
    on_node(node, f"printf '# edited by hand\\n# login: bob {PASSWORD}\\n' >>{LIMITS}")
    yield node
    lab_variables({})
    provision.ok("apply", "--lab", LAB, "--yes")


def test_plan_diff_shows_changed_lines_and_changes_nothing(provision, drifted, on_node) -> None:
    """Only steps of the plan; the password is never shown, in text or JSON, stdout or stderr."""
    node, only = drifted, ("--lab", LAB, "--limit", drifted)
    before = on_node(node, STATE)
    plain = provision.ok("plan", *only)
    text = provision.ok("plan", *only, "--diff")
    plan = provision.ok("plan", *only, "--diff", "--json")

    assert on_node(node, STATE) == before
    assert text.out.startswith(plain.out.rstrip("\n"))
    section = text.out.partition(f"--- {node}: base_system: {LIMITS}\n")[2].partition("\n---")[0]
    assert section.startswith("@@ "), str(text)
    assert "-# edited by hand" in section.splitlines()
    assert "-# login: bob [removed]" in section.splitlines()
    assert "compare the files" in text.err

    steps = {step["role"]: step for step in plan.document["nodes"][0]["steps"]}
    assert [file["path"] for file in steps["base_system"]["diffs"]] == [LIMITS]
    assert any("may contain secrets" in file["note"] for file in steps["docker_engine"]["diffs"]), steps
    assert all(step["diffs_note"] == "" for step in steps.values()), steps
    assert PASSWORD not in text.out + text.err + plan.out + plan.err


@pytest.mark.long
def test_a_step_that_waits_for_a_job_has_a_diff(provision, cluster, on_node) -> None:
    """The role would refuse to go on under a job; to compare disturbs none."""
    node = cluster["nodes"][0]["name"]
    provision.ok("apply", "--lab", LAB, "--yes")
    on_node(node, "docker exec -d provision-training python3 -c 'import time; time.sleep(1000)'")
    on_node(node, 'sed -i \'s/"max-file": "[0-9]*"/"max-file": "9"/\' /etc/docker/daemon.json')
    try:
        before = on_node(node, STATE)
        document = provision.ok("plan", "--lab", LAB, "--diff", "--json").document
        step = next(step for step in document["nodes"][0]["steps"] if step["role"] == "docker_engine")

        assert step["waits_for"]
        assert (step["diffs_note"], [file["path"] for file in step["diffs"]]) == ("", ["/etc/docker/daemon.json"]), step
        assert '"max-file": "9"' in step["diffs"][0]["diff"]
        assert on_node(node, STATE) == before
    finally:
        on_node(node, "docker exec provision-training pkill -f time.sleep || true")
        provision.ok("apply", "--lab", LAB, "--yes")


@pytest.mark.long
def test_a_role_without_a_diff_does_not_fail_the_plan(provision, cluster, on_node) -> None:
    """Why is said, and the plan stands: here a link stands where a file should be."""
    node = cluster["nodes"][0]["name"]
    provision.ok("apply", "--lab", LAB, "--yes")
    on_node(node, f"mv {LIMITS} /root/limits && ln -s /root/limits {LIMITS}")
    try:
        done = provision.ok("plan", "--lab", LAB, "--diff", "--json")
        step = next(step for step in done.document["nodes"][0]["steps"] if step["role"] == "base_system")

        assert step["diffs_note"].startswith("could not be compared: "), step
        assert "it is a link to /root/limits" in step["diffs_note"]
    finally:
        on_node(node, f"rm {LIMITS} /root/limits")
        provision.ok("apply", "--lab", LAB, "--yes")
