"""Names and values that the API server would refuse are refused at the export; secrets of logins are written."""

from __future__ import annotations

import pytest

from provision.batch.export.kubernetes import documents
from provision.batch.export.manifests import write_manifests
from provision.batch.export.workload import ExportOptions
from provision.documents.kubernetes import MOST_PROBLEMS, problems, read_manifests
from provision.errors import UsageError
from provision.model.job import CodeSource, JobSpec, Kind


def job(**more):
    return JobSpec(**{"name": "vgg", "kind": Kind.PYTORCH, "command": ("x",), "image": "image", **more})


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        (job(name="1a"), ExportOptions()),
        (job(name="1a", workers=2), ExportOptions(kind="job")),
        (job(name="a" * 55), ExportOptions()),
        (job(), ExportOptions(rdma_resource="hca")),
        (job(), ExportOptions(topology="a..b/leaf")),
        (job(data=(("a..b", "/data"),)), ExportOptions()),
        (job(mounts=("/a/../b:/b",)), ExportOptions()),
        (job(user="4000000000:0"), ExportOptions()),
    ],
)
def test_names_that_kubernetes_refuses_are_refused(spec, options):
    with pytest.raises(UsageError) as error:
        documents(spec, options)
    assert error.value.remedy


def test_a_job_of_one_pod_needs_no_service():
    assert documents(job(name="1a"), ExportOptions(kind="job"))[0][-1]["metadata"]["name"] == "1a"


def test_a_variable_is_written_once():
    """The last one of a name would count, whatever the specification says."""
    spec = job(env={"A": "1"}, secret_env=("A", "RANK"))
    (container,) = documents(spec, ExportOptions(kind="job"))[0][-1]["spec"]["template"]["spec"]["containers"]
    names = [one["name"] for one in container["env"]]

    assert len(names) == len(set(names))
    assert {"A", "RANK"} <= set(names)


def test_pods_log_in_to_a_registry_with_a_stored_credential():
    """Without the Secret the pods could not pull the image. Its name is no part of the job."""
    written, notes = write_manifests(job(image="r:5000/a"), ExportOptions(registry="r:5000"))
    template = written[-1]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]

    assert template["spec"]["imagePullSecrets"] == [{"name": "vgg-registry"}]
    assert written[0]["stringData"] == {".dockerconfigjson": '{"auths": {}}'}
    assert "export.secret_empty" in {one.code for one in notes}
    assert "provision/image_pull_secret" not in written[-1]["metadata"].get("annotations", {})


def test_a_credential_that_is_not_stored_is_noted():
    spec = job(sync=CodeSource("git", "https://example.com/a.git"))

    assert "export.code_credential" in {one.code for one in documents(spec, ExportOptions(submitted=True))[1]}


@pytest.mark.parametrize(
    ("spec", "options", "code"),
    [
        (job(kind=Kind.MPI), ExportOptions(host_network=True), "export.host_network_sshd"),
        (job(), ExportOptions(topology="example.com/leaf"), "export.topology_without_queue"),
    ],
)
def test_settings_that_do_not_work_alone_are_noted(spec, options, code):
    assert code in {one.code for one in documents(spec, options)[1]}


def test_problems_are_limited():
    """A file with thousands of unknown fields gives a short answer."""
    fields = {f"field-{number}": 1 for number in range(1000)}

    assert len(problems({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", **fields})) == MOST_PROBLEMS


def test_a_key_beyond_the_limit_of_kubernetes_is_refused():
    with pytest.raises(UsageError, match="characters"):
        read_manifests(f"{'a' * 400}: 1", "job.yaml")
