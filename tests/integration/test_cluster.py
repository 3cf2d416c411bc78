"""From two bare nodes to a job, by the commands that a user types."""

from __future__ import annotations

import json
import signal

import pytest

from tests.integration.conftest import LAB
from tests.support.command import eventually
from tests.support.plain_ansible import changed_by_check_mode

JOB_PROCESSES = r"mpirun|orted|prted|sleep 98765"
CLEANUP_PROCESSES = r"sh -c variables=|(/usr/bin/)?ssh -F /etc/provision/"
"""The shell and the connections that end a job: a step of `apply` that requires an idle node waits for them too."""


@pytest.mark.row(46)
def test_the_first_apply_sets_up_both_nodes(cluster):
    """One apply takes bare nodes all the way, and says what it changed."""
    nodes = cluster["apply"]["nodes"]

    assert [node["status"] for node in nodes] == ["changed", "changed"]
    assert {role["role"] for role in nodes[0]["roles"]} >= {"docker_engine", "training_container", "container_ssh"}


def test_a_second_apply_changes_nothing(provision, cluster):
    """On converged nodes an apply reports every node unchanged, with at most 60 remote tasks."""
    assert cluster["apply"]["ok"]
    done = provision("apply", "--lab", LAB, "--yes", "--json")

    assert done.code == 0, str(done)
    assert [node["status"] for node in done.document["nodes"]] == ["unchanged", "unchanged"]
    assert done.document["remote_tasks"] <= 60


@pytest.mark.slow
def test_plain_ansible_in_check_mode_reports_no_change(provision, cluster):
    """The playbooks work without the command, and check mode agrees that nothing is to be done."""
    changed = changed_by_check_mode(provision, provision.ok("lab", "inventory", LAB).out.strip())

    assert cluster["apply"]["ok"]
    assert changed == {node["name"]: 0 for node in cluster["nodes"]}


def test_verify_passes_and_marks_simulated_components(provision, cluster):
    """verify proves the cluster, and whatever rests on a stand-in is marked SIMULATED."""
    document = provision.ok("verify", "--lab", LAB, "--json").document

    assert cluster["apply"]["ok"]
    assert document["ok"]
    assert any(check["simulated"] for node in document["nodes"] for check in node["checks"])
    assert "container_ssh.pairs" in {check["id"] for check in document["cluster"] if check["status"] == "pass"}
    assert "SIMULATED" in provision.ok("verify", "--lab", LAB, "--verbose").out


def test_a_job_on_both_nodes_computes_the_correct_sum(provision, cluster):
    """run starts a rank on every slot of both nodes, and their all-reduce is right."""
    done = provision.ok("run", "--lab", LAB, "--", "provision-smoke")

    ranks = [line for line in done.out.splitlines() if " of 4 on " in line]
    assert len(ranks) == 4, str(done)
    assert all("sum 10" in line for line in ranks)
    assert all(any(node["name"] in line for line in ranks) for node in cluster["nodes"])


def test_the_host_file_has_one_slot_per_gpu(provision, cluster):
    """hostfile prints every node with as many slots as it has GPUs."""
    done = provision.ok("hostfile", "--lab", LAB, "--launcher", "openmpi")

    lines = [line for line in done.out.splitlines() if line and not line.startswith("#")]
    assert lines == [f"{node['name']} slots=2" for node in cluster["nodes"]]


def test_dry_run_prints_the_command_and_the_host_file(provision, cluster):
    """--dry-run shows what would run, in the documented form, and starts nothing."""
    done = provision.ok("run", "--lab", LAB, "--dry-run", "--", "echo", "two words")

    lines = done.out.splitlines()
    assert "mpirun" in lines[0]
    assert "'two words'" in lines[0]
    assert lines[1] == "# hostfile"
    assert f"{cluster['nodes'][0]['name']} slots=2" in lines[2]


def test_run_exits_with_the_exit_code_of_the_job(provision, cluster):
    """A job that exits 1 makes run exit 1."""
    assert cluster["apply"]["ok"]
    assert provision("run", "--lab", LAB, "--", "false").code == 1
    assert provision("run", "--lab", LAB, "-n", "1", "--", "sh", "-c", "exit 7").code == 7


def test_more_ranks_than_slots_are_refused_with_the_available_slots(provision, cluster):
    """Asking for more ranks than slots exits 125 and shows the slots there are."""
    done = provision("run", "--lab", LAB, "-n", "99", "--", "true")

    assert done.code == 125
    assert "99" in done.err
    assert cluster["nodes"][0]["name"] in done.err
    assert "Traceback" not in done.err


def test_a_missing_program_is_reported_before_the_job_starts(provision, cluster):
    """A program that a node lacks is said, with the node, before anything starts."""
    done = provision("run", "--lab", LAB, "--", "no-such-program")

    assert done.code == 125
    assert "no-such-program" in done.err
    assert cluster["nodes"][0]["name"] in done.err


def test_sync_copies_a_folder_to_every_container(provision, cluster, tmp_path):
    """--sync copies a folder to the same path everywhere before the job starts."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "hello.py").write_text("import os, socket\nprint('hello', os.environ['GREETING'], socket.gethostname())\n")
    done = provision(
        "run",
        "--lab",
        LAB,
        "--sync",
        str(code),
        "--workdir",
        str(code),
        "--env",
        "GREETING=there",
        "--",
        "python3",
        "hello.py",
    )

    assert done.code == 0, str(done)
    assert done.out.count("hello there") == 4
    assert all(node["name"] in done.out for node in cluster["nodes"])


def test_each_container_has_its_own_host_key(cluster, on_node):
    """No two containers share a host key."""
    keys = [
        on_node(node["name"], "cat /var/lib/provision/container_ssh/keys/ssh_host_ed25519_key.pub").split()[1]
        for node in cluster["nodes"]
    ]

    assert len(set(keys)) == 2


def test_run_refuses_a_container_whose_host_key_is_unknown(provision, cluster, on_node):
    """run never trusts an unknown container: it says whose key is missing."""
    head, other = (node["name"] for node in cluster["nodes"])
    known = "/var/lib/provision/container_ssh/known_hosts"
    on_node(head, f"cp -p {known} {known}.kept; sed -i '/{other}/d' {known}")
    try:
        done = provision("run", "--lab", LAB, "--", "true")
    finally:
        on_node(head, f"cp -p {known}.kept {known}; rm {known}.kept")

    assert done.code == 125
    assert other in done.err
    assert "host key" in done.err
    assert provision("run", "--lab", LAB, "--", "true").code == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killing_run_ends_all_ranks_on_all_nodes(provision, cluster, on_node, how):
    """However the local command dies, mpirun, orted and ranks are gone from every node within 10 s."""
    names = [node["name"] for node in cluster["nodes"]]

    def running(what):
        outputs = {name: on_node(name, f"pgrep -fc '^({what})' || true").strip() for name in names}
        return {name: int(count) for name, count in outputs.items()}

    process = provision.start("run", "--lab", LAB, "--", "sleep", "98765")
    try:
        eventually(lambda: all(running("sleep 98765").values()), seconds=60, what="ranks on both nodes")
        process.send_signal(how)
        eventually(lambda: not any(running(JOB_PROCESSES).values()), seconds=10, what="no job process on any node")
        eventually(lambda: not any(running(CLEANUP_PROCESSES).values()), seconds=60, what="idle nodes")
    finally:
        process.kill()
        process.wait()

    assert process.returncode in {-signal.SIGKILL, 130}


def test_an_invalid_daemon_json_is_preserved_and_reported(provision, cluster, on_node):
    """A daemon.json that is not JSON stays as it is; the report names the file, and the other node goes on."""
    name, other = (node["name"] for node in cluster["nodes"])
    on_node(name, "cp /etc/docker/daemon.json /root/daemon.json.kept; echo '{ \"broken\": ' > /etc/docker/daemon.json")
    try:
        done = provision("apply", "--lab", LAB, "--yes", "--json", "--only", "docker_engine")
        left = on_node(name, "cat /etc/docker/daemon.json")
        beside = on_node(name, "cat /etc/docker/daemon.json.broken-* 2>&1 || true")
    finally:
        on_node(name, "mv /root/daemon.json.kept /etc/docker/daemon.json; rm -f /etc/docker/daemon.json.*broken*")

    status = {node["name"]: node for node in done.document["nodes"]}
    assert done.code == 1, str(done)
    assert left == beside == '{ "broken": \n', str(done)
    assert "daemon.json" in status[name]["error"]["message"]
    assert status[other]["status"] == "unchanged"


def test_an_unreachable_node_is_reported_and_the_other_one_is_applied(provision, cluster):
    """A node without power is reported with the reason; apply goes on with the rest and exits 1."""
    name, other = cluster["nodes"][1]["name"], cluster["nodes"][0]["name"]
    provision.ok("lab", "power", LAB, name, "off")
    try:
        done = provision("apply", "--lab", LAB, "--yes", "--json")
        checked = provision("verify", "--lab", LAB, "--json")
    finally:
        provision.ok("lab", "power", LAB, name, "on")

    status = {node["name"]: node for node in done.document["nodes"]}
    assert done.code == 1
    assert status[name]["status"] == "unreachable"
    assert status[name]["error"]["remedy"]
    assert status[other]["status"] == "unchanged"
    checks = {c["id"]: c["status"] for n in checked.document["nodes"] if n["name"] == name for c in n["checks"]}
    assert checks["node.reachable"] == "fail"
    eventually(
        lambda: provision("run", "--lab", LAB, "--", "true").code == 0,
        seconds=90,
        what="a job after the power came back",
    )


def test_a_changed_host_key_is_refused(provision, cluster, ssh_files):
    """A node that shows another host key than the known one is not talked to."""
    name = cluster["nodes"][0]["name"]
    known = ssh_files / "known_hosts"
    original = known.read_text()
    lines = original.splitlines()
    keys = [line.split()[-1] for line in lines if not line.startswith("#")]
    swapped = {keys[0]: keys[-1], keys[-1]: keys[0]}
    for number, line in enumerate(lines):
        lines[number] = " ".join([*line.split()[:-1], swapped.get(line.split()[-1], "")])
    known.write_text("\n".join(lines) + "\n")
    try:
        done = provision("verify", "--lab", LAB, "--json")
    finally:
        known.write_text(original)

    checks = {c["id"]: c for n in done.document["nodes"] if n["name"] == name for c in n["checks"]}
    assert done.code == 1
    assert checks["node.reachable"]["status"] == "fail"
    assert "host key" in checks["node.reachable"]["reason"]


@pytest.mark.slow
def test_the_steps_of_the_readme_lead_from_addresses_to_a_job(provision, own_inventory):
    """A user with hosts, a key and the documentation writes an inventory, applies it and runs a job."""
    own_inventory("mine")

    applied = provision("apply", "--yes", "--json")
    job = provision("run", "--", "provision-smoke")

    assert applied.code == 0, str(applied)
    assert job.code == 0, str(job)
    assert job.out.count("sum 10") >= 4


def test_the_support_bundle_contains_no_private_key(provision, cluster, tmp_path):
    """The bundle has facts and results of every node and no secret."""
    import tarfile

    target = tmp_path / "bundle.tar.gz"
    provision.ok("support-bundle", "--lab", LAB, "--output", str(target))
    with tarfile.open(target) as archive:
        text = b"".join(archive.extractfile(m).read() for m in archive.getmembers() if m.isfile())

    assert target.stat().st_mode & 0o077 == 0
    assert b"PRIVATE KEY" not in text
    assert all(node["name"].encode() in text for node in cluster["nodes"])


def test_json_documents_have_the_documented_keys(cluster):
    """Scripts rely on the keys of lab status."""
    assert set(cluster) >= {"name", "driver", "simulated", "nodes", "inventory"}
    assert set(cluster["nodes"][0]) >= {"name", "address", "port", "state"}
    assert json.dumps(cluster)
