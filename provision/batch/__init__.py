"""Batch jobs as text and values: specification, ranks, order of the queue, and the reports of nodes."""
