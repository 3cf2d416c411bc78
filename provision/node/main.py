"""Runs one program of the archive: ``python3 ARCHIVE PROGRAM [ARGUMENT...]``."""

import importlib
import sys
from typing import Optional

PROGRAMS = {
    "agent": "provision.node.jobs.agent",
    "attach": "provision.node.unit.attach",
    "code": "provision.node.code.sync",
    "data-check": "provision.node.data_check",
    "image-peers": "provision.node.image_peers.main",
    "jobs": "provision.node.jobs.requests",
    "lock": "provision.node.lock.holder",
    "package-preflight": "provision.node.package_preflight",
    "probe": "provision.node.probe.probe",
    "reload": "provision.node.reload",
    "run": "provision.node.run.supervisor",
    "sampler": "provision.node.sampler",
    "slurm-epilog": "provision.node.slurm.epilog",
    "slurm-health": "provision.node.slurm.health",
    "slurm-login": "provision.node.slurm.login",
    "slurm-prolog": "provision.node.slurm.prolog",
    "supervisor": "provision.node.supervisor.main",
    "tensorboard": "provision.node.tensorboard",
    "unit": "provision.node.unit.shim",
}
"""Program -> its module, whose function `main` takes no argument and reads ``sys.argv``."""


def main() -> Optional[int]:
    """Run the program that the first argument names; return its exit status.

    ``sys.argv`` of the program begins with the path of the archive.
    """
    words = sys.argv[1:2]
    if not words or words[0] not in PROGRAMS:
        sys.exit("provision: unknown program {}; programs: {}".format(words, ", ".join(sorted(PROGRAMS))))
    del sys.argv[1]
    status: Optional[int] = importlib.import_module(PROGRAMS[words[0]]).main()
    return status
