"""Location of the events of a job, and its TensorBoard."""

from dataclasses import replace
from itertools import pairwise

import pytest

from provision.batch.data import new_volume
from provision.batch.tensorboard import create_words, explain_start, log_place, warnings_for
from provision.errors import UsageError
from provision.model.job import JobRecord, JobSpec, JobStatus, Kind

VOLUME = new_volume("training-data", "nfs", "nas:/x")
SPEC = JobSpec("mnist", Kind.PYTORCH, ("true",), image="train:1", tensorboard=True)
SHARED = replace(SPEC, data=(("training-data", "/mnist_data/"),), logdir="/mnist_data/pytorch/logs/")
RECORD = JobRecord(SHARED, "id1", "a@h", 0.0, JobStatus.RUNNING, started=1000.0)


@pytest.mark.row(28)
def test_events_on_a_volume_are_shared():
    """The folder on the nodes is in the volume; there is no warning."""
    place = log_place(SHARED, [VOLUME])

    assert (place.path, place.shared) == ("/mnt/training-data/pytorch/logs", True)
    assert place.mount == ("/mnt/training-data", "/mnist_data")
    assert warnings_for(SHARED, [VOLUME]) == []


@pytest.mark.row(28)
@pytest.mark.parametrize("logdir", ["/training_logs", "/mnist_data2/logs", "/mnist_data/../logs"])
def test_events_on_no_volume_get_a_warning(logdir):
    """Only those of rank 0 are visible; also if the target of a volume is only a prefix of the name."""
    spec = replace(SHARED, logdir=logdir)
    place = log_place(spec, [VOLUME])

    assert (place.path, place.shared) == ("/var/lib/provision/jobs/mnist/logs", False)
    assert "only the events of rank 0" in warnings_for(spec, [VOLUME])[0]


def test_a_read_only_volume_takes_no_events():
    """There is a warning before the job starts."""
    assert "read-only" in warnings_for(SHARED, [replace(VOLUME, read_only=True)])[0]


@pytest.mark.parametrize("logdir", ["/", "logs", "", "/a:/b"])
def test_an_invalid_log_folder_is_refused(logdir):
    """It is a mount."""
    with pytest.raises(UsageError, match="--logdir"):
        log_place(replace(SPEC, logdir=logdir), [])


@pytest.mark.row(27)
def test_the_container_can_read_events_and_nothing_else():
    """No rights, no GPUs, read-only, one address; its labels identify it."""
    words = create_words(replace(RECORD, spec=replace(SHARED, user="1000:1000,44")), [VOLUME], "10.0.0.1")
    pairs = list(pairwise(words))

    assert words[:2] == ["--name", "mnist-tensorboard"]
    assert ("--cap-drop", "ALL") in pairs
    assert ("--security-opt", "no-new-privileges") in pairs
    assert "--read-only" in words
    assert [b for a, b in pairs if a == "--volume"] == ["/mnt/training-data:/mnist_data:ro"]
    assert ("--env", "NVIDIA_VISIBLE_DEVICES=void") in pairs
    assert ("--user", "1000:1000") in pairs
    assert [b for a, b in pairs if a == "--label"] == [
        "provision.job=mnist",
        "provision.id=id1",
        "provision.role=tensorboard",
    ]
    assert words[-6:] == ["train:1", "--logdir", "/mnist_data/pytorch/logs", "--host", "10.0.0.1", "--port"]
    own = create_words(replace(RECORD, spec=replace(SHARED, tensorboard_image="tb:2")), [VOLUME], "10.0.0.1")
    assert own[-6] == "tb:2"


@pytest.mark.parametrize(
    ("code", "why"), [("127", "the image train:1 does not contain tensorboard"), ("1", "it exited immediately")]
)
def test_an_image_without_tensorboard_is_distinguished_from_a_missing_file(code, why):
    """By the message of docker's init and its exit code."""
    said = "[FATAL tini (7)] exec tensorboard failed: No such file or directory"
    assert why in explain_start(said, code, "train:1")[0]
