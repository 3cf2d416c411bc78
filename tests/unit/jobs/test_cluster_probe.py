"""Which nodes can take jobs: with GPUs, without GPUs, and with an unknown state."""

from __future__ import annotations

import pytest

from provision.facts import NodeFacts, Unknown
from provision.facts.system import Kind, Limits, NodeKind
from provision.model import Topology
from provision.model.reason import reason
from provision.testing import make_cluster
from provision.workflow import probe_snapshot


def test_nodes_with_unusable_gpus_are_reported_and_nodes_without_gpus_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node without GPUs takes jobs that need none; a node that lost its GPUs is excluded with a reason."""
    none = NodeFacts(gpus=(), gpu_pci=(), topology=Topology((), (), ()))
    lost = NodeFacts(gpus=(), gpu_pci=("0000:17:00.0",), topology=Topology((), (), ()))
    driverless = NodeFacts(gpus=Unknown("nvidia-smi failed"), gpu_pci=(), topology=Unknown("nvidia-smi failed"))
    facts_by_node = {"login": none, "gpu1": lost, "bare": driverless}
    monkeypatch.setattr(probe_snapshot, "probe", lambda *_words, **_more: facts_by_node)
    monkeypatch.setattr(
        probe_snapshot, "degraded", lambda *_words: {}
    )  # what the check at boot found is not the matter here

    snapshot = probe_snapshot.ProbeSnapshot().probe(make_cluster(*facts_by_node), list(facts_by_node))

    assert snapshot.candidates == {}
    assert dict(snapshot.left_out) == {}
    assert dict(snapshot.gpus_out) == {"gpu1": reason("placement.gpus_missing")}


@pytest.mark.row(48)
@pytest.mark.parametrize(("kind", "most"), [(NodeKind.METAL, {}), (NodeKind.CONTAINER, {"memlock": 1 << 26})])
def test_locked_memory_is_limited_on_container_nodes_only(
    monkeypatch: pytest.MonkeyPatch, kind: NodeKind, most: dict[str, int]
) -> None:
    """The limit of systemd, an eighth of the memory, does not apply to containers that Docker starts on bare metal."""
    limits = Limits({}, {"Max locked memory": 1 << 26, "Max open files": None})
    facts = NodeFacts(
        gpus=(), gpu_pci=(), topology=Topology((), (), ()), kind=Kind(kind, "", sysctls_writable=True), limits=limits
    )
    monkeypatch.setattr(probe_snapshot, "probe", lambda *_words, **_more: {"gpu1": facts})
    monkeypatch.setattr(probe_snapshot, "degraded", lambda *_words: {})

    assert probe_snapshot.ProbeSnapshot().probe(make_cluster("gpu1"), ["gpu1"]).hardware["gpu1"].limits == most
