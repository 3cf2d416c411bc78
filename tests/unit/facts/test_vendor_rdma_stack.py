"""A vendor's RDMA stack as the probe reads it."""

from __future__ import annotations

import os
import subprocess

from provision.facts import RawOutput
from provision.facts.nvidia_driver import DkmsTree
from provision.facts.rdma import RdmaFact, VendorStack


def parsed(text: str) -> VendorStack:
    """Return what the probe makes of an output."""
    return RdmaFact().parse(RawOutput(text, 0)).vendor


def test_builds_service_and_replaced_modules_are_read() -> None:
    """A node whose build failed, and whose loaded modules are those of another stack."""
    vendor = parsed(
        "ofed\tOFED-internal-25.10-1:\n"
        "tree\tmlnx-ofed-kernel\t25.10.OFED.25.10.1\tno\n"
        "make\tcma.c:1:9: error: too few arguments\n"
        "tree\tmlnx-ofa_kernel\t25.10\tyes\n"
        "openibd\tActiveState=active\nopenibd\tUnitFileState=enabled\nopenibd\tLoadState=loaded\n"
        "replaced\tib_core\nreplaced\tmlx5_core\n"
    )

    assert vendor.trees == (
        DkmsTree(
            "mlnx-ofed-kernel", "25.10.OFED.25.10.1", built=False, errors=("cma.c:1:9: error: too few arguments",)
        ),
        DkmsTree("mlnx-ofa_kernel", "25.10", built=True),
    )
    assert vendor.replaced == ("ib_core", "mlx5_core")
    assert (vendor.openibd, vendor.openibd_enabled) == ("active", True)


def test_a_node_without_the_unit_has_no_openibd() -> None:
    """systemd reports an unknown unit as inactive."""
    text = "openibd\tActiveState=inactive\nopenibd\tUnitFileState=\nopenibd\tLoadState=not-found\n"

    assert parsed(text) == parsed("") == VendorStack()


def test_other_lines_and_endless_outputs_are_ignored() -> None:
    """A node cannot fill the memory of the controller."""
    long = "".join(f"make\terror {number} {'x' * 1000}\n" for number in range(1000))
    vendor = parsed("tree\tx y\t1\tno\ntree\tn\tv\tmaybe\nmake\tbefore\ntree\tn\t1\tno\n" + long)

    many = parsed("".join(f"tree\tn{number}\t1\tyes\nreplaced\tm{number}\n" for number in range(1000)))

    assert len(vendor.trees) == 1
    assert len(many.trees) == 20
    assert many.replaced == ()
    assert parsed("openibd\tActiveState=\x1b[31m\nopenibd\tLoadState=loaded\n").openibd == ""
    assert len(vendor.trees[0].errors) == 20
    assert max(map(len, vendor.trees[0].errors)) == 400


def test_the_command_runs_here() -> None:
    """It is valid shell, and a machine without a vendor's stack has none."""
    done = subprocess.run(
        ["sh", "-c", RdmaFact.command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PROBE_RELEASE": os.uname().release},
        timeout=30,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert parsed(done.stdout) == VendorStack()
