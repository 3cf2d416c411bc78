"""The wording of the states and endings of jobs: code -> message and remedy.

`provision/report/reasons.py` describes the templates. Codes of `RESULT_CODES` are written by nodes: their messages are
recorded there, and these templates are for the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping

from provision.model.reason import Wording

_RESTART = "Start the job again: provision restart JOB. With --retry N, a job does this itself."

NODE_FAULTS = frozenset({"job.node_rebooted", "job.node_silent", "job.node_isolated", "job.node_lost_job"}) | {
    "job.unsupervised"
}
"""Failures of the nodes in the parameter `nodes`, not of the program: a retry does not use these nodes."""
RESULT_CODES = NODE_FAULTS | {
    "job.instance_failed",
    "job.node_error",
    "job.node_not_started",
    "job.running_timeout",
    "job.starting_timeout",
    "job.stopped",
}
"""Codes that a node may write into result.json; others are read as `job.unspecified`."""

REASONS: Mapping[str, Wording] = {
    # Waiting
    "job.starting": Wording("its start has begun"),
    "job.held": Wording("held", "Release it: provision queue release JOB"),
    "job.dependency_missing": Wording(
        "it depends on {job}, which does not exist", "Submit that job, or delete this one: provision delete JOB"
    ),
    "job.dependency_unfinished": Wording("it depends on {job}, which is {status}"),
    "job.older_job": Wording("waits behind {job}, which was submitted before"),
    "job.refused": Wording("{cause}[. {remedy}][; {warning}]"),
    "job.insufficient_resources": Wording(
        "{cause}[ ({nodes:few})][; GPUs in use by {holders}][ and {more_holders} more]"
        "[. To set up {to_set_up:short}, run: provision apply][ --limit {limit:limit}]"
    ),
    "job.duplicate_id": Wording(
        "{job} has the id of another job ({other})", "Delete it and submit it again: provision delete {job}"
    ),
    "job.lease_refused": Wording("{node_name}: {cause}"),
    "job.lease_taken": Wording("{gpu} was taken by {job} meanwhile"),
    "job.changed": Wording("another command changed the job at the same time"),
    "job.of_other_engine": Wording(
        "{job} is a job of the engine {engine}, which alone may start and end it", "Use: --engine {engine}"
    ),
    "job.instance_starting": Wording("{instance} is {status}[ {detail}]"),
    "job.attempt_failed": Wording("attempt {attempt} failed: {cause}"),
    "job.retry": Wording("{failure}; it will be retried"),
    # Endings
    "job.dependency_failed": Wording(
        "it depends on {job}, which is {status}", "Restart that job, then this one: provision restart JOB"
    ),
    "job.start_failed": Wording("[{node_name}: ]{cause}", _RESTART),
    "job.start_interrupted": Wording("its start was interrupted before anything ran", _RESTART),
    "job.stopped": Wording("{text}"),
    "job.end_requested": Wording("its end is requested"),
    "job.end_unconfirmed": Wording(
        "{cause}; not confirmed by {nodes}",
        "Repair these nodes: they confirm when they answer. For a node that is lost: provision delete JOB --lost NODE",
    ),
    "job.instance_failed": Wording(
        "{instance} failed[ with exit code {exit_code}]", "Read its output: provision logs JOB -i {instance}"
    ),
    "job.node_rebooted": Wording("node {nodes} was rebooted during the job", _RESTART),
    "job.node_silent": Wording("node {nodes} does not answer[: nothing was received for {seconds} s]", _RESTART),
    "job.node_isolated": Wording("node {nodes} cannot reach the others[: {cause}]", _RESTART),
    "job.node_lost_job": Wording("node {nodes} has no record of it any more", _RESTART),
    "job.node_error": Wording("node {nodes}: {cause}", _RESTART),
    "job.node_not_started": Wording("node {nodes} did not start its part", _RESTART),
    "job.unsupervised": Wording("its job supervisor on {nodes} is not running", _RESTART),
    "job.starting_timeout": Wording(
        "node {nodes} was not ready within {seconds} s (starting_timeout)[: {activity}]",
        "Allow more time with --starting-timeout, or fix what delays the node.",
    ),
    "job.running_timeout": Wording(
        "it ran for longer than {seconds} s (running_timeout)", "Allow more time with --running-timeout."
    ),
    "job.all_nodes_lost_job": Wording(
        "none of its nodes ({nodes}) has a record of it, or they are not in this inventory", _RESTART
    ),
    "job.all_nodes_silent": Wording(
        "none of its nodes answers[: {nodes}]", "Check that the nodes run and that SSH reaches them."
    ),
    "job.unspecified": Wording("{text}"),
}
