"""Requests about batch jobs, and the node's records, leases and GPUs."""
