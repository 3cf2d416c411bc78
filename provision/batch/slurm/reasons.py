"""The wording of decisions about jobs in Slurm: code -> message and remedy."""

from __future__ import annotations

from collections.abc import Mapping

from provision.model.reason import Wording

_RESTART = "Start the job again: provision restart JOB."
_LESS = "Ask for less, or for other nodes: sinfo -N shows what they have."

REASONS: Mapping[str, Wording] = {
    # Waiting
    "slurm.waits": Wording("Slurm has not tried to start it yet"),
    "slurm.resources": Wording("waits in Slurm for free GPUs or nodes"),
    "slurm.priority": Wording("waits in Slurm behind jobs with a higher priority[ of the partition {partition}]"),
    "slurm.dependency": Wording("waits in Slurm for the jobs that it depends on"),
    "slurm.dependency_failed": Wording(
        "a job that it depends on has failed", "Restart that job, then this one: provision restart JOB"
    ),
    "slurm.held": Wording("held", "Release it: provision queue release JOB"),
    "slurm.held_admin": Wording(
        "held by the administrator of Slurm, or after a failed start", "Release it: provision queue release JOB"
    ),
    "slurm.begin_time": Wording("Slurm waits for the time of its start"),
    "slurm.reservation": Wording("waits in Slurm for its reservation"),
    "slurm.prolog": Wording("Slurm prepares its nodes"),
    "slurm.cleaning": Wording("Slurm ends its previous attempt"),
    "slurm.partition_down": Wording(
        "the partition {partition} starts no jobs", "Set it up: scontrol update partitionname={partition} state=up"
    ),
    "slurm.partition_limit": Wording(
        "it exceeds a limit of the partition {partition}",
        "Ask for less, or choose another one: cluster_slurm_partition.",
    ),
    "slurm.licenses": Wording("waits in Slurm for licenses"),
    "slurm.nodes_unavailable": Wording(
        "nodes that it needs are not available ({cause})",
        "See why: provision top node. Resume them: provision node resume NODE",
    ),
    "slurm.limit": Wording(
        "a limit of its account in Slurm is reached ({cause})",
        "Wait for other jobs of the account, or raise the limit with sacctmgr.",
    ),
    "slurm.other": Wording("waits in Slurm: {cause}"),
    "slurm.requeued": Wording("attempt {attempt} failed; the next one waits: {cause}"),
    "slurm.not_submitted": Wording(
        "it was recorded, and not submitted to Slurm",
        "Submit it again: provision restart JOB, or delete it: provision delete JOB",
    ),
    "slurm.of_direct": Wording(
        "it waits in the queue of the job engine direct, and Slurm does not start it",
        "Move the waiting jobs to Slurm: provision queue migrate --to slurm",
    ),
    "slurm.moving": Wording("its move to Slurm is not completed", "Complete it: provision queue migrate --to slurm"),
    "slurm.example": Wording("nodes and GPUs are an example: Slurm chooses them when the job starts"),
    # Nodes
    "slurm.node_drained": Wording(
        "drained in Slurm[: {cause}]", "Resume it when its fault is fixed: provision node resume {node}"
    ),
    "slurm.node_down": Wording("{state} in Slurm[: {cause}]", "Check slurmd on the node: systemctl status slurmd"),
    "slurm.node_reserved": Wording("{state} in Slurm"),
    "slurm.node_missing": Wording(
        "Slurm has no such node", "Add it to slurm.conf: run provision apply where this inventory sets up Slurm."
    ),
    "slurm.node_not_prepared": Wording("{cause}"),
    # Endings
    "slurm.cancelled": Wording("cancelled in Slurm"),
    "slurm.ended": Wording("Slurm ended it: {state}[ ({cause})]", _RESTART),
    "slurm.forgotten": Wording("Slurm does not know its job {job} any more, and no node has a record of it", _RESTART),
    # Refusals
    "slurm.never_nodes": Wording("Slurm has no nodes for it ({cause})", _LESS),
    "slurm.never_memory": Wording("Slurm has not enough memory for it ({cause})", _LESS),
    "slurm.never_feature": Wording("no node has the requested feature ({cause})", _LESS),
    "slurm.never_gres": Wording("Slurm has no such GPUs ({cause})", _LESS),
    "slurm.no_gpu_types": Wording(
        "Slurm has no type for each GPU, and --gputopology asks for exact GPUs",
        "Give each GPU a type in slurm.conf and gres.conf, as the role slurm does: g0, g1, ... by its minor number.",
    ),
    "slurm.never_partition": Wording(
        "Slurm has no such partition ({cause})", "Correct cluster_slurm_partition in the inventory."
    ),
    "slurm.never_limit": Wording(
        "it exceeds a limit of Slurm ({cause})", "Ask for less, or shorten --running-timeout."
    ),
    "slurm.refused": Wording("Slurm refused the job: {cause}", "Check Slurm on its controller: scontrol ping; sinfo"),
    "slurm.no_node_usable": Wording(
        "no node of this inventory can take the job ({nodes:few})", "Fix the nodes, or run: provision apply"
    ),
    "slurm.script_too_large": Wording(
        "its batch script would have {size} bytes, and Slurm accepts {limit}",
        "Use --sync-mode git or rsync, or a volume (provision data add), instead of packed local code.",
    ),
    "slurm.python_too_old": Wording(
        "its Python is {version}, and the starter of jobs needs 3.11",
        "Use nodes with Debian 12 or newer for Slurm jobs.",
    ),
    "slurm.python_too_new": Wording(
        "its Python is {version}, and the newest that the starter of jobs supports is 3.14",
        "Update provision, or use nodes with an older Python for Slurm jobs.",
    ),
    "slurm.machine_unknown": Wording(
        "its machine is {machine}, and the starter of jobs supports x86_64 and aarch64",
        "Use nodes with one of these machines for Slurm jobs.",
    ),
    "slurm.certificate": Wording(
        "the certificate of its key for sealed secrets is not valid: {cause}",
        "Remove /var/lib/provision/seal on the node; the next submission makes a new key. Waiting jobs need a restart.",
    ),
    "slurm.not_detached": Wording(
        "systemd-run cannot start {unit}: {cause}", "Check systemd on the node: systemctl is-system-running"
    ),
    "slurm.python_other": Wording(
        "its Python is not that of most nodes, and one job uses one version of Python",
        "Submit with --nodes to use these nodes, or install the same operating system.",
    ),
    "slurm.nodes_left_out": Wording(
        "Slurm has no nodes for it ({cause}) without those that cannot be used now: {nodes:few}",
        "Fix these nodes, then submit again.",
    ),
    "slurm.uncertain": Wording(
        "it is not known whether Slurm has the job ({cause})",
        "See it: provision get JOB. If it was not submitted: provision restart JOB, or provision delete JOB.",
    ),
    "slurm.superseded": Wording(
        "it was stopped, deleted or restarted by another command meanwhile; its job {job} in Slurm is cancelled",
        "See it: provision get JOB",
    ),
    "slurm.gpus_unknown": Wording(
        "{node_name} does not list these requested GPUs: {uuids:few}",
        "See its GPUs: provision top node -d",
    ),
    "slurm.no_msgspec": Wording(
        "the starter of jobs needs msgspec for Python {version} ({machine}), which cannot be had: {cause}",
        "Give the controller access to its Python package index, then submit again.",
    ),
    "slurm.submitter": Wording(
        "submitters cannot use the job engine slurm: an operator's inventory is required",
        "Submit with an operator's inventory.",
    ),
    "slurm.unsupported_option": Wording(
        "the job engine slurm does not support {option}",
        "Leave it out, or use the job engine direct on a cluster without Slurm.",
    ),
    "slurm.other_engine": Wording(
        "Slurm schedules the nodes of this cluster ({cause}), and two schedulers would use the same GPUs",
        "Use --engine slurm, or set cluster_engine: slurm in the inventory.",
    ),
    "slurm.not_set_up": Wording(
        "Slurm cannot start jobs on this cluster: {cause}",
        "Set cluster_engine: slurm and run: provision apply. Check Slurm's controller: scontrol ping",
    ),
    "slurm.no_nodes": Wording("it has none of the nodes of this inventory"),
    "slurm.no_move_back": Wording(
        "waiting jobs can be moved to slurm only, not to {engine}",
        "Stop them before the change of cluster_engine (provision stop JOB), and restart them afterwards: "
        "provision restart JOB",
    ),
    "slurm.other_queue_host": Wording(
        "it waits in the queue of {node_name}, and the queue host is {head}, which has no record of it",
        "Set slurm_controller (or cluster_head) to {node_name} and move it, or let its owner submit it again.",
    ),
    "slurm.dependency_of_direct": Wording(
        "it depends on {job}, which has not finished and is not a job of Slurm",
        "When {job} has ended, run: provision queue migrate --to slurm",
    ),
    "slurm.gpus_taken": Wording(
        "Slurm cannot allocate the GPUs now ({cause})[; jobs there: {jobs}]",
        "Wait until these jobs have ended (`provision top node -d` shows them), or choose other nodes.",
    ),
    "slurm.gpu_unknown": Wording(
        "Slurm allocated the GPU with minor number {minor} on {node_name}, and the driver lists no such GPU",
        "Correct gres.conf: File=/dev/nvidiaN is named by minor number.",
    ),
    "slurm.gpus_missing": Wording(
        "Slurm allocated {count} GPUs on {node_name} for {workers} workers with {gpus} GPUs",
        "Correct gres.conf on Slurm's controller.",
    ),
    "slurm.node_unknown": Wording("Slurm allocated {node_name}, which the job does not know", "Submit the job again."),
    "slurm.starter_missing": Wording(
        "its first node does not have the starter of jobs of its submission any more, which was unused for 30 days",
        _RESTART,
    ),
    "slurm.too_many_attempts": Wording("Slurm started it again after its last retry", _RESTART),
    # A login node
    "slurm.login_verb": Wording(
        "this command requires root on the nodes, and the inventory uses Slurm from the login node {name} without root "
        "(cluster_slurm_login)",
        "Use an inventory with a root login. This inventory can submit, list, get, follow, stop, restart and delete "
        "jobs.",
    ),
    "slurm.login_unknown": Wording(
        "cluster_slurm_login: '{name}' is not in the inventory", "Name the login node of Slurm that the inventory has."
    ),
    "slurm.login_source": Wording(
        "cluster_slurm_login is for a Slurm cluster that others manage",
        "Set slurm_source: present, or remove cluster_slurm_login.",
    ),
    "slurm.login_containers": Wording("cluster_slurm_containers: '{value}' is not valid", "Choose one of {choices}."),
    "slurm.login_no_containers": Wording(
        "the nodes of this Slurm cluster start no containers for ordinary users (cluster_slurm_containers: none)",
        "Submit with --no-container. Where the nodes have pyxis or apptainer, set cluster_slurm_containers to it.",
    ),
    "slurm.login_option": Wording(
        "{option} is not supported on a Slurm cluster without root (cluster_slurm_login)",
        "Leave it out. The page 'Slurm without root' lists what is supported.",
    ),
    "slurm.login_secrets": Wording(
        "the secrets {names} were deleted at the end of the job, and are not set here",
        "Export them in this shell, then restart the job again.",
    ),
    "slurm.login_mpi_output": Wording(
        "{instance} has no output of its own: all ranks of an mpi job write into that of its launcher",
        "Leave out --instance.",
    ),
    "slurm.login_failed": Wording("its batch script ended with exit status {code}[ ({line})]"),
    "slurm.login_forgotten": Wording(
        "Slurm does not know its job {job} any more, and its batch script has not recorded its end", _RESTART
    ),
    "slurm.unsealed": Wording("its secrets cannot be read on {node_name}: {cause}", "Submit the job again."),
}
