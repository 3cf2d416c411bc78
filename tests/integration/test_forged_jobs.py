"""Root on the node that keeps the queue writes job files by hand: no controller does anything because of them."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from provision.connectors.ssh_signatures import own_signing_key
from tests.integration.conftest import LAB
from tests.support.command import eventually

ROOT = "/var/lib/provision/jobs"


@pytest.fixture
def head(cluster, on_node):
    """Writes files of a job on the head as root does; the jobs are removed by hand at the end."""
    name = cluster["nodes"][0]["name"]
    written = []

    def write(job, document, **files):
        written.append(job)
        queue = {"state": "pending", "attempt": 0, "time": time.time()}
        for item, content in {"job": document, "queue": queue, **files}.items():
            text = base64.b64encode(json.dumps(content).encode()).decode()
            folder = shlex.quote(f"{ROOT}/{job}")
            on_node(name, f"mkdir -p -m 700 {folder}; echo {text} | base64 -d > {folder}/{item}.json")

    yield write
    for job in written:
        on_node(name, f"rm -rf {ROOT}/{job}")


def spec(job, **more):
    document = {"name": job, "kind": "run", "command": ["true"], "no_container": True}
    return {"id": f"id-{job}", "owner": "root@head", "submitted": 1.0, "spec": {**document, **more}}


def test_forged_jobs_are_refused_without_reading_or_running_anything_for_them(provision, jobs, head, on_node, tmp_path):
    """Each is refused by name with the reason, the operator's files stay here, and an honest job starts beside them."""
    trap, secret, folder = tmp_path / "trap", tmp_path / "secret", tmp_path / "project"
    secret.write_text("operator's secret")
    folder.mkdir()
    (folder / "mine.txt").write_text("operator's folder")
    stranger = tmp_path / "stranger"
    own_signing_key(stranger)
    signed = json.dumps({"version": 1, "name": "forged-key"})
    sign = ["ssh-keygen", "-Y", "sign", "-q", "-n", "provision-job", "-f", str(stranger)]
    armoured = subprocess.run(sign, input=signed.encode(), capture_output=True, check=True).stdout.decode()
    signature = "".join(armoured.splitlines()[1:-1])
    git = {"mode": "git", "source": f"ssh://h/{folder}", "revision": f"--upload-pack=touch {trap}"}
    key_file = {"mode": "git", "source": "ssh://h/p.git", "options": {"GIT_SYNC_SSH_KEY_FILE": str(secret)}}
    local = {"mode": "local", "source": str(folder)}
    head("forged-root", spec("forged-root", command=["touch /root/forged"]))
    head("forged-git", spec("forged-git", sync=git))
    head("forged-file", spec("forged-file", sync=key_file))
    head("forged-local", spec("forged-local", sync=local))
    head("forged-key", {**spec("forged-key"), "signed": signed, "signature": signature})
    head("forged-types", {"id": ["x"], "spec": {"gpus": "many"}})
    before = secret.stat().st_atime_ns

    said = jobs.submit("run", "honest", "true").err

    assert jobs.until("honest", "SUCCEEDED", "FAILED")["status"] == "SUCCEEDED"
    for name in ("forged-root", "forged-git", "forged-file", "forged-local"):
        job = jobs.get(name)
        assert (job["status"], job["attempt"]) == ("PENDING", 0)
        assert f"{name} is not signed" in job["reason"]
        assert f"warning: {name} is not signed" in said
    assert "cluster_operators" in jobs.get("forged-key")["reason"]
    assert own_signing_key(stranger).public in jobs.get("forged-key")["reason"]
    assert "job forged-types is ignored" in said
    assert not trap.exists()
    assert secret.stat().st_atime_ns == before
    for node in provision.ok("lab", "status", LAB, "--json").document["nodes"]:
        assert on_node(node["name"], "ls /root/forged 2>/dev/null || true").strip() == ""
        assert on_node(node["name"], f'grep -rl "operator\'s" {ROOT} /run/provision || true').strip() == ""
    jobs.ok("delete", "honest")


def test_a_job_waits_until_the_inventory_lists_the_key_of_its_owner(provision, jobs, lab_variables, tmp_path):
    """The reason has the very line; with it in the inventory the job starts by anybody's command."""
    other = provision.operator("other")
    other.environment["PROVISION_SIGNING_KEY"] = str(tmp_path / "other")
    public = own_signing_key(Path(tmp_path / "other")).public
    inventory = provision.ok("lab", "inventory", LAB).out.strip()
    words = ("submit", "run", "-i", inventory, "--name=others", "--no-container", "--hold", "true")
    other.ok(*words, timeout=300)
    provision("queue", "release", "--lab", LAB, "others", timeout=300)

    assert public in jobs.get("others")["reason"]
    lab_variables({"cluster_operators": [{"name": "other", "key": public}]})
    try:
        provision.ok("queue", "run", "--lab", LAB, timeout=300)
        eventually(lambda: jobs.get("others")["status"] == "SUCCEEDED", seconds=60, what="the start of the job")
    finally:
        jobs.ok("delete", "others")
