"""Programs that slurmd starts on a node: the prolog and epilog of jobs, and the health checks."""

import os

RUN = os.environ.get("PROVISION_SLURM_RUN") or "/run/provision/slurm"
"""The folder of the files in which a job of ours records itself: SLURM_JOB_ID -> name, id and attempt."""
STARTER = "starter-{}-"
"""How the name of the folder with the files of a starter begins there; the number is SLURM_JOB_ID."""
