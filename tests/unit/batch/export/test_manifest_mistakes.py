"""Mistakes in manifests are refused with line, path and suggestion; nothing is ignored without a note."""

from __future__ import annotations

import pytest
import yaml

from provision.batch.export.kubernetes import documents
from provision.batch.export.manifests import read_manifest
from provision.batch.export.workload import ExportOptions
from provision.documents.kubernetes import MOST_BYTES, problems, read_manifests
from provision.errors import UsageError
from provision.model.job import JobSpec, Kind

ARENA = """
apiVersion: kubeflow.org/v1
kind: MPIJob
metadata:
  name: tf-dist
  labels: {app: mpijob, release: tf-dist}
spec:
  slotsPerWorker: 1
  cleanPodPolicy: Running
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        metadata: {labels: {role: launcher}}
        spec:
          containers:
            - name: mpi
              image: horovod:1
              command: [sh, -c, mpirun python /examples/train.py]
              env: [{name: LR, value: "0.1"}, {name: OUT, value: /out/$(LR)}]
              resources: {limits: {cpu: "1"}}
    Worker:
      replicas: 2
      template:
        spec:
          containers:
            - name: mpi
              image: horovod:1
              env: [{name: LR, value: "0.1"}, {name: OUT, value: /out/$(LR)}]
              resources: {limits: {nvidia.com/gpu: 1, rdma/hca: 1}}
              volumeMounts: [{name: d, mountPath: /data}]
          volumes: [{name: d, persistentVolumeClaim: {claimName: training-data}}]
"""
PYTORCH = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: mnist}
spec:
  nprocPerNode: "2"
  pytorchReplicaSpecs:
    Master: &m
      replicas: 1
      template: {spec: {containers: [{name: pytorch, image: i, command: [torchrun, a.py]}]}}
""".replace(" &m", "")


def read(text):
    return read_manifest(read_manifests(text, "job.yaml"))


def edited(text, *path, value):
    """Return a manifest with one field changed."""
    document = yaml.safe_load(text)
    part = document
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return yaml.safe_dump(document)


def codes(result):
    return [problem.code for _, problem in result.problems]


def test_a_manifest_of_arena_is_read():
    """Users of arena bring their files; what has no effect is listed."""
    result = read(ARENA)
    notes = {str(note.params.get("path")).rpartition(".")[2] for _, note in result.notes}

    assert result.problems == ()
    assert (result.fields["kind"], result.fields["workers"], result.fields["gpus"]) == (Kind.MPI, 2, 1)
    assert result.fields["command"] == ("mpirun python /examples/train.py",)
    assert result.fields["env"] == {"LR": "0.1", "OUT": "/out/0.1"}
    assert result.fields["data"] == (("training-data", "/data"),)
    assert result.fields["clean_task_policy"] == "Running"
    assert {"cpu", "rdma/hca", "labels"} <= notes


def test_a_misspelt_field_is_named_with_the_right_one():
    result = read(edited(ARENA, "spec", "slotPerWorker", value=2))
    line, problem = result.problems[0]

    assert (problem.code, problem.params["path"], problem.params["near"]) == (
        "manifest.unknown_field",
        "spec.slotPerWorker",
        "slotsPerWorker",
    )
    assert line > 1


def test_a_number_in_nproc_per_node_is_refused():
    """The API server would refuse it, too: the field is text."""
    result = read(PYTORCH.replace('"2"', "2"))

    assert [(p.code, p.params["path"]) for _, p in result.problems] == [("manifest.wrong_type", "spec.nprocPerNode")]


def test_the_former_field_of_train_jobs_is_named_with_its_successor():
    (job,) = documents(JobSpec("a", Kind.PYTORCH, ("x",), image="i"), ExportOptions(kind="trainjob"))[0]
    job["spec"]["podTemplateOverrides"] = job["spec"].pop("runtimePatches")
    ((path, problem),) = problems(job)

    assert (path, problem.params["near"]) == ("spec.podTemplateOverrides", "runtimePatches")


LAUNCHER = ("spec", "mpiReplicaSpecs", "Launcher", "template", "spec")
WORKER = ("spec", "mpiReplicaSpecs", "Worker", "template", "spec")


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ((*LAUNCHER, "containers", 0, "envFrom"), [{"secretRef": {"name": "s"}}], "manifest.unsupported"),
        (
            (*LAUNCHER, "containers", 0, "env"),
            [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
            "manifest.unsupported",
        ),
        ((*LAUNCHER, "containers", 0, "command"), [], "manifest.unsupported"),
        ((*LAUNCHER, "containers", 0, "lifecycle"), {"preStop": {"exec": {"command": ["x"]}}}, "manifest.unsupported"),
        ((*LAUNCHER, "initContainers"), [{"name": "x", "image": "z"}], "manifest.unsupported"),
        ((*LAUNCHER, "containers"), [{"name": "a"}, {"name": "b"}], "manifest.unsupported"),
        ((*WORKER, "volumes"), [{"name": "d", "nfs": {"server": "s", "path": "/p"}}], "manifest.unsupported"),
        ((*WORKER, "containers", 0, "resources"), {"limits": {"amd.com/gpu": 1}}, "manifest.unsupported"),
        ((*WORKER, "affinity"), {"podAffinity": {}}, "manifest.unsupported"),
        (("spec", "slotsPerWorker"), 4, "manifest.slots"),
        (("spec", "mpiReplicaSpecs", "Launcher", "replicas"), 2, "manifest.unsupported"),
        (("spec", "mpiReplicaSpecs", "Worker"), None, "manifest.missing_field"),
        (("metadata", "annotations"), {"provision/gpus": "many"}, "manifest.annotation"),
        (("metadata", "annotations"), {"provision/no_such": "1"}, "manifest.annotation"),
        (("metadata", "annotations"), {"provision/sync": "[1"}, "manifest.annotation"),
        (("kind",), "TFJob", "manifest.other_kind"),
    ],
)
def test_what_cannot_be_used_is_refused(path, value, code):
    """A field that would change the job is never dropped without an error."""
    assert code in codes(read(edited(ARENA, *path, value=value)))


def test_several_jobs_in_a_file_are_refused():
    assert codes(read(f"{ARENA}---\n{PYTORCH}")) == ["manifest.several_jobs"]


def test_a_command_that_runs_once_in_a_pod_runs_once_here():
    """A launcher without mpirun is not started on every slot, nor a plain command by torchrun."""
    once = read(edited(ARENA, *LAUNCHER, "containers", 0, "command", value=["python", "driver.py", "a b"]))
    plain = read(
        edited(
            PYTORCH,
            "spec",
            "pytorchReplicaSpecs",
            "Master",
            "template",
            "spec",
            "containers",
            0,
            "command",
            value=["python", "a.py"],
        )
    )

    assert once.fields["command"] == ("python driver.py 'a b'",)
    assert plain.fields["command"] == ("python a.py",)
    assert read(PYTORCH).fields["command"] == ("torchrun", "a.py")


@pytest.mark.parametrize(
    "text",
    ["a: &x 1\nb: *x", "a: !!python/object:os.system x", "a: 1\na: 2", "[1, 2]", "a: [", "a: " + "[" * 50 + "]" * 50],
)
def test_files_beyond_the_limits_are_refused(text):
    """Anchors can make a small file large; a key that is given twice hides a value."""
    with pytest.raises(UsageError):
        read_manifests(text, "job.yaml")


def test_a_large_file_is_refused():
    with pytest.raises(UsageError, match="larger"):
        read_manifests("a" * (MOST_BYTES + 1), "job.yaml")
