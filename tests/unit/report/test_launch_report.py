"""The table of a job's settings."""

from __future__ import annotations

import json

from provision.model import Setting
from provision.report.launch_report import as_document, as_text

SETTINGS = (
    Setting("-np", "", "2", "provision", "ranks"),
    Setting("-x", "NCCL_IB_HCA", None, "node facts", "the ports", {"gpu1": "=mlx5_0:1", "gpu2": "=mlx5_bond_0:1"}),
    Setting("--mca", "btl_vader_single_copy_mechanism", "none", "preset horovod-lightcc", "why " * 40),
)


def test_the_table_fits_80_columns_and_shows_values_by_node():
    """Names and sources that are too long for their columns are whole all the same."""
    text = as_text(["mpirun", "a b"], SETTINGS)
    first, *table = text.splitlines()

    assert first == "mpirun 'a b'"
    assert max(map(len, table)) <= 80
    assert "gpu2: =mlx5_bond_0:1" in " ".join(text.split())
    assert "btl_vader_single_copy_mechanism  preset horovod-lightcc" in table


def test_document_and_table_have_the_same_content():
    """Keys are an interface."""
    document = json.loads(json.dumps(as_document(["mpirun"], SETTINGS)))

    assert document["command"] == ["mpirun"]
    assert document["settings"][1] == {
        "flag": "-x",
        "name": "NCCL_IB_HCA",
        "value": None,
        "nodes": {"gpu1": "=mlx5_0:1", "gpu2": "=mlx5_bond_0:1"},
        "from": "node facts",
        "reason": "the ports",
    }
    assert document["settings"][0]["name"] is None
