"""Fields of pods are read as Kubernetes reads them; none of them is dropped without an error or a note."""

from __future__ import annotations

import copy

import pytest
import yaml

from provision.batch.export.kubernetes import documents
from provision.batch.export.manifests import read_manifest
from provision.batch.export.pod_volumes import docker_size
from provision.batch.export.workload import ExportOptions
from provision.documents.kubernetes import read_manifests
from provision.model.job import JobSpec, Kind

HOST = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def job(pod=None, container=None, *, kind="PyTorchJob", launcher=None, **spec):
    """Return the result of reading a job whose pods have these fields; `launcher` has precedence for the launcher."""
    main = {"name": "main", "image": "i", "command": ["python", "a.py"], **(container or {})}
    template = {"spec": {"containers": [main], **(pod or {})}}
    if kind == "PyTorchJob":
        roles = {"pytorchReplicaSpecs": {"Master": {"template": template}}}
    else:
        first = copy.deepcopy(template)
        first["spec"] |= (launcher or {}).get("pod", {})
        first["spec"]["containers"][0] |= (launcher or {}).get("container", {})
        roles = {"mpiReplicaSpecs": {"Launcher": {"template": first}, "Worker": {"template": template}}}
    version = "kubeflow.org/v1" if kind == "PyTorchJob" else "kubeflow.org/v2beta1"
    document = {"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": {**roles, **spec}}
    return read_manifest(read_manifests(yaml.safe_dump(document), "job.yaml"))


def ends(reasons):
    """Return code and last part of the path of each reason."""
    return {(one.code.partition(".")[2], str(one.params.get("path")).rpartition(".")[2]) for _, one in reasons}


def test_a_gang_scheduler_starts_the_workers_of_an_mpijob_before_the_launcher():
    """The launcher is created when the workers are ready: a gang that contains it never starts."""
    spec = JobSpec("a", Kind.MPI, ("x",), image="i", workers=4, gang=True)
    written = documents(spec, ExportOptions())[0][-1]["spec"]

    assert written["launcherCreationPolicy"] == "WaitForWorkersReady"
    assert written["runPolicy"]["schedulingPolicy"] == {"minAvailable": 4}


def test_the_account_of_the_container_has_precedence():
    result = job(
        {"securityContext": {"runAsUser": 1, "runAsGroup": 2, "supplementalGroups": [44]}},
        {"securityContext": {"runAsUser": 1000}},
    )

    assert (result.problems, result.fields["user"]) == ((), "1000:2,44")


@pytest.mark.parametrize(
    "container",
    [{"securityContext": {"privileged": True}}, {"env": [{"name": "A", "value": "1"}]}],
)
def test_rights_and_variables_of_the_launcher_alone_are_refused(container):
    """They would be given to all workers."""
    only = job(kind="MPIJob", launcher={"container": container})

    assert [one.code for _, one in only.problems] == ["manifest.different"]
    assert "Worker" in only.problems[0][1].params["path"]
    assert job(kind="MPIJob", container=container).problems == ()


def test_an_account_of_one_role_is_refused():
    result = job(kind="MPIJob", launcher={"pod": {"securityContext": {"runAsUser": 1000}}})

    assert [one.params["field"] for _, one in result.problems] == ["user"]


def test_placement_of_the_launcher_alone_is_dropped_with_a_note():
    """The launcher of a job runs beside its first worker, so its selector would keep the job from nodes with GPUs."""
    result = job({"nodeSelector": {"gpu": "a"}}, kind="MPIJob", launcher={"pod": {"nodeSelector": {"cpu": "b"}}})

    assert (result.problems, result.fields["selector"]) == ((), {"gpu": "a"})
    assert "manifest.launcher_placement" in {one.code for _, one in result.notes}


CLAIM = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
PATH = {"volumes": [{"name": "v", "hostPath": {"path": "/p"}}]}


def mounted(**mount):
    return {"volumeMounts": [{"name": "v", "mountPath": "/data", **mount}]}


def apart(labels, word=REQUIRED):
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": labels}}
    return {"affinity": {"podAntiAffinity": {word: [term]}}}


def hosts(*values):
    rules = [{"key": HOST, "operator": "In", "values": [value]} for value in values]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": rules}]}}}}


@pytest.mark.parametrize(
    ("pod", "container", "path"),
    [
        (CLAIM, mounted(subPathExpr="$(A)"), "subPathExpr"),
        (PATH, mounted(mountPropagation="Bidirectional"), "mountPropagation"),
        ({"securityContext": {"runAsNonRoot": True}}, {}, "runAsNonRoot"),
        ({"securityContext": {"runAsNonRoot": True}}, {"securityContext": {"runAsUser": 0}}, "runAsNonRoot"),
        ({"securityContext": {"runAsGroup": 7}}, {}, "runAsGroup"),
        ({"securityContext": {"supplementalGroups": [7]}}, {}, "supplementalGroups"),
        (hosts("a", "b"), {}, "matchExpressions[1]"),
        (apart({"app": "other"}), {}, REQUIRED),
        ({}, {"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}, "com/mig-1g.10gb"),
        ({}, {"resources": {"limits": {"huawei.com/Ascend910": 1}}}, "com/Ascend910"),
    ],
)
def test_fields_that_change_the_job_are_refused(pod, container, path):
    path = path.rpartition(".")[2]
    assert ("unsupported", path) in ends(job(pod, container).problems)


@pytest.mark.parametrize(
    ("pod", "container", "path"),
    [
        (CLAIM, mounted(readOnly=True), "readOnly"),
        (
            {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c", "readOnly": True}}]},
            mounted(),
            "readOnly",
        ),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/p", "type": "Directory"}}]}, mounted(), "type"),
        (PATH, mounted(mountPropagation="HostToContainer"), "mountPropagation"),
        ({}, {"securityContext": {"capabilities": {"drop": ["ALL"]}}}, "drop"),
        ({"tolerations": [{"operator": "Exists"}]}, {}, "tolerations[0]"),
        ({}, {"resources": {"limits": {"rdma/hca": 1}}}, "rdma/hca"),
    ],
)
def test_fields_without_effect_are_noted(pod, container, path):
    result = job(pod, container)

    assert result.problems == ()
    assert ("no_effect", path) in ends(result.notes)
    assert not result.fields.get("allow_drained")


def test_pods_of_a_job_can_have_a_node_each():
    assert job(apart({"training.kubeflow.org/job-name": "a"})).fields["max_per_node"] == 1


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [("mpiImplementation", "Intel", "problems"), ("sshAuthMountPath", "/home/u/.ssh", "notes")],
)
def test_settings_of_mpi_are_not_dropped(name, value, place):
    result = job(kind="MPIJob", **{name: value})

    assert name in {path for _, path in ends(getattr(result, place))}


def test_restarts_of_containers_are_noted():
    roles = {
        "Master": {
            "restartPolicy": "Always",
            "template": {"spec": {"containers": [{"name": "m", "image": "i", "command": ["x"]}]}},
        }
    }

    assert ("no_effect", "restartPolicy") in ends(job(pytorchReplicaSpecs=roles).notes)


SECRET = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "TOKEN"}}}


@pytest.mark.parametrize("more", [{"key": "other"}, {"key": "TOKEN", "optional": True}])
def test_the_source_of_a_secret_variable_is_noted(more):
    """Its value comes from the environment of the caller."""
    result = job(container={"env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", **more}}}]})

    assert result.fields["secret_env"] == ("TOKEN",)
    assert "manifest.from_environment" in {one.code for _, one in result.notes}
    assert "manifest.from_environment" not in {one.code for _, one in job(container={"env": [SECRET]}).notes}


@pytest.mark.parametrize(
    "container",
    [
        {"env": [SECRET], "command": ["sh", "-c", "login $(TOKEN)"]},
        {"env": [SECRET], "command": ["x"], "args": ["$(TOKEN)"]},
        {"env": [SECRET, {"name": "URL", "value": "https://$(TOKEN)@host"}]},
        {"command": ["sh", "-c", "torchrun --rank $(RANK)"]},
    ],
)
def test_references_to_unknown_values_are_refused(container):
    """A shell would run the name of the variable as a command."""
    assert {one.code for _, one in job(container=container).problems} == {"manifest.reference"}


def test_a_command_substitution_of_a_shell_stays():
    result = job(container={"command": ["sh", "-c", "echo $(date) $$(RANK)"]})

    assert result.fields["command"] == ("echo $(date) $(RANK)",)


def test_the_last_variable_of_a_name_counts():
    result = job(container={"env": [{"name": "TOKEN", "value": "old"}, SECRET]})

    assert (result.fields["env"], result.fields["secret_env"]) == ({}, ("TOKEN",))


@pytest.mark.parametrize(
    ("quantity", "size"),
    [
        ("1.5Gi", "1536m"),
        (1e9, "1000000000b"),
        ("500M", "500000000b"),
        ("1Pi", "1024t"),
        ("64Mi", "64m"),
        ("0.5", "1b"),
        ("1024", "1024b"),
    ],
)
def test_sizes_of_shared_memory_are_quantities(quantity, size):
    """Units of Kubernetes without i are powers of 1000."""
    assert docker_size(quantity) == size


@pytest.mark.parametrize("limit", ["0", 0, "-1Gi", "16Ei", "1e999999"])
def test_impossible_sizes_are_problems_with_a_path(limit):
    volumes = [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": limit}}]
    result = job({"volumes": volumes}, {"volumeMounts": [{"name": "v", "mountPath": "/dev/shm"}]})

    assert ("wrong_type", "sizeLimit") in ends(result.problems)


def test_an_account_beyond_the_numbers_of_linux_is_refused():
    assert ("wrong_type", "runAsUser") in ends(job({"securityContext": {"runAsUser": 1 << 31}}).problems)
