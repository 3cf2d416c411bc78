"""Jobs: started over the containers of many nodes, watched, and ended without a trace."""

from typing import TYPE_CHECKING

from provision.lazy_import import parts

if TYPE_CHECKING:
    from provision.jobs.rank_assignment import placed_entries, with_uuids
    from provision.jobs.request import JobRequest, new_job_id
    from provision.jobs.running import Plan, dry_run, prepare, prepare_offline, run
    from provision.jobs.syncing import sync

__getattr__ = parts(
    __name__,
    {
        "request": ("JobRequest", "new_job_id"),
        "running": ("Plan", "dry_run", "prepare", "prepare_offline", "run"),
        "rank_assignment": ("placed_entries", "with_uuids"),
        "syncing": ("sync",),
    },
)
