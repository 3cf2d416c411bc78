"""Jobs: started over the containers of many nodes, watched, and ended without a trace."""

from provision.jobs.request import JobRequest, new_job_id
from provision.jobs.run import Plan, dry_run, prepare, prepare_offline, run
from provision.jobs.seating import placed_entries, with_uuids
from provision.jobs.sync import sync

__all__ = [
    "JobRequest",
    "Plan",
    "dry_run",
    "new_job_id",
    "placed_entries",
    "prepare",
    "prepare_offline",
    "run",
    "sync",
    "with_uuids",
]
