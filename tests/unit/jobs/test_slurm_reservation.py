"""GPUs for a program: allocations of Slurm without a script."""

from __future__ import annotations

from typing import Any

import pytest

from provision.documents.slurm_jobs import SlurmDevice, SlurmSubmitted, StepGpus
from provision.errors import LaunchError
from provision.jobs.engines.slurm import reservation
from provision.jobs.engines.slurm.submission import labels
from provision.model.job_requests import GpuRequest
from provision.testing import make_cluster

DEVICES = (SlurmDevice("GPU-a", 1, 0), SlurmDevice("GPU-b", 0, 1))


def test_exactly_the_requested_gpus_are_allocated() -> None:
    assert reservation._minors(GpuRequest("a", 1, ("GPU-b",)), DEVICES) == [0]
    assert reservation._minors(GpuRequest("a", 1), DEVICES) == [1]
    with pytest.raises(LaunchError) as caught:
        reservation._minors(GpuRequest("a", 2, ("GPU-b", "GPU-x")), DEVICES)
    assert caught.value.code == "slurm.gpus_unknown"


def test_programs_use_the_partition_account_and_qos_of_the_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"cluster_slurm_partition": "gpu", "cluster_slurm_account": "team-a", "cluster_slurm_qos": "high"}
    requests: list[dict[str, Any]] = []

    class Recorder(reservation.Scheduler):
        def ask(self, _do: str, _kind: type[Any], **request: Any) -> Any:
            requests.append(request)
            return SlurmSubmitted(12)

    class NoContact:
        @staticmethod
        def connect(_name: str) -> Any:
            return type("Connector", (), {"close": lambda _self: None})()

    scheduler = Recorder(NoContact(), "a", {"a": "a"}, labels(make_cluster("a", **wanted)))  # type: ignore[arg-type]
    gpus = StepGpus(devices=list(DEVICES))
    monkeypatch.setattr(reservation, "ask_jobs", lambda *_args, **_more: gpus)
    reservation._allocate("run-1", GpuRequest("a", 1), scheduler, {})

    options = requests[0]["options"]
    assert (options["partition"], options["account"], options["qos"]) == ("gpu", "team-a", "high")
