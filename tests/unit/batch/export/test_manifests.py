"""Manifests are valid, and one that was read back gives the same specification."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from provision.batch.export.kubernetes import KINDS, documents
from provision.batch.export.manifests import read_manifest, write_manifests
from provision.batch.export.workload import ExportOptions
from provision.batch.export.yaml_text import yaml_text
from provision.batch.fields import PULL_SECRET
from provision.documents.kubernetes import problems, read_manifests
from provision.errors import UsageError
from provision.model.job import CodeSource, JobSpec, Kind
from tests.support.job_specs import job_specs

THOROUGH = settings(
    max_examples=60, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow], deadline=None
)
OPTIONS = st.builds(
    ExportOptions,
    queue=st.sampled_from(["", "research"]),
    topology=st.sampled_from(["", "example.com/leaf"]),
    rdma_resource=st.sampled_from(["", "rdma/hca_shared_devices_a"]),
    host_network=st.booleans(),
)


def read(written):
    """Return the fields of documents that were written as YAML and read again."""
    return read_manifest(read_manifests(yaml_text(written), "job.yaml"))


def job(**more):
    return JobSpec(**{"name": "vgg", "kind": Kind.PYTORCH, "command": ("python3 train.py",), "image": "image", **more})


@THOROUGH
@given(job_specs(), OPTIONS)
def test_a_manifest_that_was_read_back_gives_the_same_specification(spec, options):
    """Every option, also those for which Kubernetes has nothing, and texts that YAML or a shell would interpret."""
    result = read(write_manifests(spec, options)[0])

    assert result.problems == ()
    assert JobSpec(**result.fields) == spec


@THOROUGH
@given(job_specs(tuple(Kind)), OPTIONS, st.data())
def test_every_manifest_is_valid(spec, options, data):
    """Each document of each kind has only fields of its schema, with the right types, and survives YAML."""
    kind = data.draw(st.sampled_from(KINDS[spec.kind]))
    assume(kind != "trainjob" or spec.name[0].isalpha())
    written, _ = documents(spec, replace(options, kind=kind))

    assert [one.value for one in read_manifests(yaml_text(written), "job.yaml")] == written
    assert [problem for one in written for problem in problems(one)] == []


HOSTILE = "'\"; $(touch /tmp/x) `id` $$ \n---\nkind: Pod"


def test_the_job_has_the_ranks_volumes_and_resources_of_its_specification():
    """What a user checks before kubectl create."""
    spec = job(gpus=8, workers=4, data=(("sets", "/data"),), mounts=("/scratch:/s:ro",), env={"A": HOSTILE})
    options = ExportOptions(queue="research", topology="example.com/leaf", rdma_resource="rdma/hca")
    document = write_manifests(spec, options)[0][-1]
    roles = document["spec"]["pytorchReplicaSpecs"]
    pod = roles["Worker"]["template"]["spec"]
    container = pod["containers"][0]

    assert {name: role["replicas"] for name, role in roles.items()} == {"Master": 1, "Worker": 3}
    assert document["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research"}
    assert "schedulingPolicy" not in document["spec"]["runPolicy"]
    assert roles["Master"]["template"]["metadata"]["annotations"] == {
        "kueue.x-k8s.io/podset-required-topology": "example.com/leaf"
    }
    assert (container["name"], container["command"]) == ("pytorch", ["sh", "-c", "python3 train.py"])
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8, "rdma/hca": 1}}
    assert {"name": "A", "value": HOSTILE.replace("$(", "$$(").replace("$$ ", "$$$$ ")} in container["env"]
    assert [one.get("persistentVolumeClaim", one.get("hostPath")) for one in pod["volumes"][:2]] == [
        {"claimName": "sets"},
        {"path": "/scratch"},
    ]


def test_secrets_are_empty_unless_their_values_are_exported():
    """A manifest may be stored; with values it is private."""
    from provision.model.job_requests import Secrets

    spec = job(secret_env=("API_TOKEN",), config_files=("/home/u/key:/etc/key",))
    empty, notes = write_manifests(spec, ExportOptions(pull_secrets=("r:5000",)))
    values = Secrets(
        {"API_TOKEN": "t0k"}, {}, {"/etc/key": "k\udcff"}, {"server": "r:5000", "username": "u", "password": "p"}
    )
    filled, warned = write_manifests(spec, ExportOptions(pull_secrets=("r:5000",), secrets=values))

    assert [one.get("stringData") for one in empty[:2]] == [{"API_TOKEN": ""}, {"file-0": ""}]
    assert "t0k" not in yaml_text(empty)
    assert filled[0]["stringData"] == {"API_TOKEN": "t0k"}
    assert filled[1]["data"] == {"file-0": "a/8="}
    assert '"password": "p"' in filled[2]["stringData"][".dockerconfigjson"]
    assert [problem for one in filled for problem in problems(one)] == []
    assert (
        "export.secret_empty" in {one.code for one in notes},
        "export.secret_values" in {one.code for one in warned},
    ) == (
        True,
        True,
    )


def test_code_is_fetched_by_git_sync_before_the_job():
    spec = job(sync=CodeSource("git", "https://example.com/a/b.git", "v1", {"GIT_SYNC_DEPTH": "1"}))
    written, _ = write_manifests(spec, ExportOptions(sync_secrets=("GIT_SYNC_PASSWORD",)))
    fetch = written[-1]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["initContainers"][0]
    settings_of = {one["name"]: one.get("value") for one in fetch["env"]}

    assert settings_of["GITSYNC_REPO"] == "https://example.com/a/b.git"
    assert (settings_of["GITSYNC_REF"], settings_of["GITSYNC_ROOT"], settings_of["GITSYNC_LINK"]) == (
        "v1",
        "/root/code",
        "b",
    )
    assert read(written).fields["secret_env"] == ("GIT_SYNC_PASSWORD",)


def test_what_has_no_counterpart_is_noted():
    spec = job(gpus=2, workers=2, gputopology=True, mps=True, procs_per_gpu=0, ulimits={"memlock": "-1"}, priority=3)
    options = {one.params["option"] for one in write_manifests(spec, ExportOptions())[1] if "option" in one.params}

    assert options == {"--gputopology", "--mps", "--ulimit", "--priority"}


@pytest.mark.parametrize(
    ("kind", "spec"), [("mpijob", job()), ("pytorchjob", job(kind=Kind.RUN)), ("trainjob", job(name="1a"))]
)
def test_a_kind_that_does_not_fit_the_job_is_refused(kind, spec):
    with pytest.raises(UsageError, match=r"kind|name"):
        documents(spec, ExportOptions(kind=kind))


def test_a_job_without_containers_is_refused():
    with pytest.raises(UsageError, match="image"):
        documents(job(no_container=True), ExportOptions())


def changed(spec, change):
    """Return what a manifest gives after a user has changed it."""
    written = write_manifests(spec, ExportOptions())[0]
    change(written[-1])
    return read(written)


def test_a_changed_manifest_counts_more_than_the_annotations_of_its_export():
    """Otherwise the command that a user wrote would not be the one that runs."""
    spec = job(kind=Kind.MPI, command=("python3 a.py",), gpus=1, workers=2, gputopology=True, launcher="mpirun")

    def change(document):
        launcher = document["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
        launcher["command"] = ["sh", "-c", "mpirun -np 2 python3 b.py"]

    result = changed(spec, change)

    assert result.fields["command"] == ("mpirun -np 2 python3 b.py",)
    assert "launcher" not in result.fields
    assert result.fields["gputopology"] is True
    assert "manifest.changed" in {note.code for _, note in result.notes}


def test_registry_credentials_keep_their_names():
    written = write_manifests(job(), ExportOptions(pull_secrets=("r:5000",)))[0]

    assert read(written).fields[PULL_SECRET] == ("r:5000",)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (job(), {"queue": "a b"}),
        (job(), {"topology": "x y"}),
        (job(), {"rdma_resource": "$(x)"}),
        (job(data=(("My_Data", "/data"),)), {}),
        (job(nodes=("a/b",)), {}),
    ],
)
def test_names_that_the_api_server_would_refuse_are_refused(spec, options):
    with pytest.raises(UsageError, match="does not accept"):
        documents(spec, ExportOptions(**options))
