"""The job supervisor: one process for each job, attempt and node."""
