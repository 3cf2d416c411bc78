"""The wording of notes about exports, and of problems in manifests: code -> message and remedy."""

from __future__ import annotations

from collections.abc import Mapping

from provision.model.reason import Wording

REASONS: Mapping[str, Wording] = {
    "export.no_counterpart": Wording("{option} has no counterpart in {target}", "{instead}"),
    "export.network_variables": Wording(
        "the variables of NCCL for the network of the nodes are not written, because they depend on the nodes",
        "Set them if NCCL does not find the network, e.g. --env NCCL_SOCKET_IFNAME=eth0 --env NCCL_IB_HCA=mlx5",
    ),
    "export.interface_names": Wording(
        "the command names interfaces ({options}), which other nodes may not have", "Remove these parameters."
    ),
    "export.launcher_without_gpus": Wording(
        "the command does not start ranks and runs in the launcher pod, which has no GPUs", "Add --np auto."
    ),
    "export.ssh_folder": Wording(
        "the ranks run as {account}, and the operator mounts the keys of SSH below /root/.ssh",
        "Set sshAuthMountPath to the folder .ssh of the account.",
    ),
    "export.single_pod_retries": Wording(
        "--retry restarts single pods of a Job, and the other pods wait for them", "Use --kind pytorchjob."
    ),
    "export.no_rdma_resource": Wording(
        "the pods request no RDMA device", "Specify the resource of the device plugin: --rdma-resource NAME"
    ),
    "export.claim": Wording(
        "--data {volume} is the PersistentVolumeClaim {volume} in the namespace of the job",
        "Create the claim with the access mode ReadWriteMany or ReadOnlyMany.",
    ),
    "export.host_path": Wording(
        "{mounts} are paths of the Kubernetes nodes (hostPath)", "Check that each node has them, or use --data."
    ),
    "export.invalid_label": Wording(
        "Kubernetes does not accept these labels or annotations, which are not written: {keys}"
    ),
    "export.node_names": Wording(
        "{nodes} are used as values of the node label kubernetes.io/hostname",
        "Check that the nodes have these names: kubectl get nodes -L kubernetes.io/hostname",
    ),
    "export.gang": Wording(
        "only a gang scheduler starts all pods or none (minAvailable)",
        "Use Kueue: --queue NAME, or install a scheduler.",
    ),
    "export.secret_empty": Wording(
        "the Secrets {names} have empty values", "Fill them in before you create them, or use --with-secrets."
    ),
    "export.secret_values": Wording(
        "the export contains the values of the secrets {names}", "Keep the file private, and delete it after use."
    ),
    "export.secret_environment": Wording(
        "the secret variables {names} come from the environment in which the script starts",
        "Export them before.",
    ),
    "export.stored_environment": Wording(
        "sbatch stores the environment of the job on the controller", "Use variables that may be stored there."
    ),
    "export.first_node_only": Wording("the command does not start ranks and runs once, on the first node"),
    "export.mpirun_flags": Wording("srun starts the ranks instead of mpirun; its options are not used[: {flags}]"),
    "export.worker_per_node": Wording("each worker gets a node of its own"),
    "export.paths_of_nodes": Wording("these paths must exist on each node: {paths}"),
    "export.no_mounts": Wording(
        "without a container, volumes are not mounted at their targets", "Use the paths of the nodes in the command."
    ),
    "export.one_machine": Wording("all {workers} workers run on this machine", "Specify nodes: --nodes NODE,..."),
    "export.cpus": Wording(
        "the script requests no CPUs, and Slurm gives each task its default, often one",
        "Specify them: --cpus-per-gpu N, or --exclusive.",
    ),
    "export.host_network_sshd": Wording(
        "with the network of the host, sshd of the workers uses port 22 of the node, which the node's own sshd uses",
        "Set another port in sshd_config and ssh_config of the image, or remove --host-network.",
    ),
    "export.code_credential": Wording(
        "a credential with which the job was submitted for its code is not written",
        "If {source} needs one: provision secret add git --server SERVER --username NAME, then export again.",
    ),
    "export.topology_without_queue": Wording("only Kueue reads --topology", "Specify the LocalQueue: --queue NAME"),
    "export.gpu_numbers": Wording("the GPUs are counted from 0, without regard to other jobs"),
    # Manifests
    "manifest.unknown_kind": Wording("unknown kind of object {kind}", "Choose one of: {known}."),
    "manifest.unknown_field": Wording(
        "{path}: unknown field[; did you mean {near}?]", "Choose one of these fields: {known}."
    ),
    "manifest.missing_field": Wording("{path}: the field is missing", "Add it."),
    "manifest.wrong_type": Wording("{path}: {value} must be {expected}", "Change the value."),
    "manifest.unsupported": Wording("{path} is not supported", "Remove the field.[ {instead}]"),
    "manifest.no_effect": Wording("{path} has no effect here"),
    "manifest.beside": Wording("the {kind} in the file is not read; secret variables come from the environment"),
    "manifest.other_kind": Wording(
        "{kind} is not a job that can be submitted", "Use an MPIJob or a PyTorchJob, or remove the document."
    ),
    "manifest.several_jobs": Wording("the file contains {number} jobs", "Write each job into its own file."),
    "manifest.slots": Wording(
        "slotsPerWorker is {slots}, but a worker has {expected:times slot}",
        "Set slotsPerWorker to the GPUs of a worker, or to 1 without GPUs.",
    ),
    "manifest.different": Wording(
        "{path}: {field} differs between {roles:and}",
        "All instances of a job have the same settings: use the same value.",
    ),
    "manifest.reference": Wording(
        "{path}: the value of $({name}) is not known here, and a shell would run {name} as a command",
        "Write ${name} in a shell line: sh -c 'COMMAND'.",
    ),
    "manifest.from_environment": Wording("{path}: the value comes from the variable {name} of your environment"),
    "manifest.launcher_placement": Wording(
        "{path}: {field} of the launcher has no effect here, because it runs beside the first worker"
    ),
    "manifest.all_instances": Wording("{path}: {field} is set for all instances"),
    "manifest.annotation": Wording("{path}: invalid annotation: {cause}", "Remove the annotation."),
    "manifest.changed": Wording("the manifest was changed after its export; these annotations are not used: {fields}"),
}
