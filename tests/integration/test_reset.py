"""Nothing of ours is left on a node that was reset, and it can be set up again. See test_site_reset.py too."""

from __future__ import annotations

from tests.integration.conftest import LAB

# Only the node's history records the past.
LEFT = """
ls -A /var/lib/provision
ls -d /etc/provision /usr/local/lib/provision /var/lib/containerd
command -v docker
systemctl list-units --all --no-legend 'provision-*'
find /etc /usr/local /var/lib -name '*provision*' ! -path '*provision-lab*' ! -path '/var/lib/apt/*'
"""


def test_a_reset_node_is_bare_and_can_be_set_up_again(provision, cluster, on_node):
    """It says first what it will do; the other node is left as it is."""
    other, node = (entry["name"] for entry in cluster["nodes"])
    provision.ok("apply", "--lab", LAB, "--yes")
    planned = provision.ok("reset", "--lab", LAB, "--limit", node, "--dry-run", "--json").document["nodes"]
    assert [entry["name"] for entry in planned] == [node]
    assert "stop and remove the container provision-training" in planned[0]["steps"]
    assert "docker.io" in str(planned[0]["steps"])
    assert on_node(node, "docker inspect --format '{{.State.Running}}' provision-training").strip() == "true"

    done = provision.ok("reset", "--lab", LAB, "--limit", node, "--yes", "--json").document["nodes"]
    left = on_node(node, f"({LEFT}) 2>/dev/null; true").splitlines()
    assert [(entry["name"], entry["result"]) for entry in done] == [(node, "reset")]
    assert [line for line in left if line and "provision-lab" not in line] == ["history.jsonl", "/var/lib/provision"]
    assert on_node(other, "docker inspect --format '{{.State.Running}}' provision-training").strip() == "true"

    provision.ok("apply", "--lab", LAB, "--yes")
    plan = provision("plan", "--lab", LAB, "--exit-code")
    assert plan.code == 0, str(plan)
