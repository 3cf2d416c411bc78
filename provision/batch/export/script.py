"""A shell script that shows, and does, what runs on each node of a job."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from provision.batch.containers import NodeHardware, program_words, rights
from provision.batch.export.shell import code_lines, data_source, secret_lines
from provision.batch.export.workload import (
    MASTER_PORT,
    ExportOptions,
    Workload,
    build,
    dropped,
    fetches_code,
    launcher_command,
    rank_variables,
    single_process,
)
from provision.batch.ranks import NO_GPUS, Place
from provision.errors import UsageError
from provision.model.job import JobSpec, Kind
from provision.model.reason import Reason, reason

LOCAL = "localhost"
_ONE_NODE = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
"""Without a host file, Open MPI counts cores as slots; version 4 and version 5."""
_DROPPED = {
    "gputopology": "Specify the GPUs by CUDA_VISIBLE_DEVICES, or export a job that has run.",
    "selector": "",
    "allow_drained": "",
    "exclude": "",
    "spread": "",
    "max_per_node": "",
    "exclusive": "",
    "procs_per_gpu": "Each GPU gets one process.",
    "mps": "",
    "fabric": "Set the variables of NCCL by --env.",
    "tensorboard": "Start TensorBoard on the first node.",
    "retry": "Start the script again.",
    "running_timeout": "Start the script with the command timeout.",
    "starting_timeout": "",
    "ttl_after_finished": "",
    "clean_task_policy": "",
    "priority": "",
    "hold": "",
    "depends": "",
}
_FUNCTIONS = """
run_on() {  # NODE; its script is standard input
    if [ "$1" = localhost ]; then bash -s; else ssh -o BatchMode=yes -- "$1" bash -s; fi
}
quoted() {  # NAME: print a line that sets this variable in another shell
    printf 'export %s=%q\\n' "$1" "${!1}"
}
stop() {
    trap '' INT TERM
    stop_containers >/dev/null 2>&1
    for pid in "${pids[@]}"; do kill -TERM -- "-$pid" 2>/dev/null; done
}
"""
_WAIT = """
code=0
for pid in "${pids[@]}"; do
    wait -n || { code=$?; break; }
done
if [ "$code" -ne 0 ]; then stop; fi
wait
exit "$code"
"""


@dataclass(frozen=True)
class _Process:
    """What runs on a node for one instance."""

    name: str
    node: str
    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    gpus: str
    """Indices or UUIDs, separated by commas; empty for none."""


def shell_script(spec: JobSpec, options: ExportOptions) -> tuple[str, list[Reason]]:
    """Return a script for bash without its first line, and what has no counterpart.

    Raises:
        UsageError: a part of the job cannot be written as a script.
    """
    workload = build(spec, options)
    places = _places(spec, options)
    _check(spec, places)
    names = dict(_DROPPED)
    if not fetches_code(spec):
        names["sync"] = "Copy the code into the working directory."
    notes = [*workload.notes, *dropped(spec, "a script", names), *_notes(spec, options, places)]
    processes = list(_processes(workload, places))
    lines = ["set -u -m", *secret_lines(spec, options), *_FUNCTIONS.splitlines(), "stop_containers() {"]
    lines += ["    :", *(_stop_line(one) for one in processes if not spec.no_container), "}"]
    for index, one in enumerate(processes):
        lines += ["", *_worker(workload, options, one, index)]
    lines += ["", "pids=()", "trap 'stop; wait; exit 130' INT TERM"]
    for index in range(len(processes)):
        lines += [f"worker_{index} </dev/null & pids+=($!)"]
    return "\n".join(lines) + _WAIT, notes


def _places(spec: JobSpec, options: ExportOptions) -> list[Place]:
    """Return the place of each worker; without places, the nodes of the job in turn, or this machine."""
    if options.places:
        return list(options.places)
    nodes = spec.nodes or (LOCAL,)
    next_gpu: dict[str, int] = {}
    places = []
    for index in range(spec.workers):
        node = nodes[index % len(nodes)]
        first = next_gpu.get(node, 0)
        next_gpu[node] = first + spec.gpus
        if spec.gpu_ids and first + spec.gpus > len(spec.gpu_ids):
            raise UsageError(
                f"--gpu-ids: {node} gets several workers, and too few GPUs for them are specified",
                remedy="Specify GPUs for all workers of the node, or more nodes: --nodes NODE,...",
            )
        gpus = spec.gpu_ids[first : first + spec.gpus] if spec.gpu_ids else tuple(range(first, first + spec.gpus))
        places.append(Place(node, "127.0.0.1" if node == LOCAL else node, gpus))
    return places


def _check(spec: JobSpec, places: Sequence[Place]) -> None:
    nodes = list(dict.fromkeys(place.node for place in places))
    for node in nodes:
        if not node or node.startswith("-") or any(letter.isspace() or not letter.isprintable() for letter in node):
            raise UsageError(f"{node!r}: invalid name of a node", remedy="Use --nodes NODE,...")
    if spec.kind is Kind.MPI and len(nodes) > 1:
        raise UsageError(
            f"an mpi job on {len(nodes)} nodes cannot be written as a script: its containers need keys of SSH",
            remedy="Use --to slurm or --to kubernetes, or export it for one node: --nodes NODE.",
        )
    if spec.no_container and nodes != [LOCAL]:
        raise UsageError(
            "--no-container: a script can end processes only on the machine on which it runs",
            remedy="Use --to slurm, or remove --nodes.",
        )


def _notes(spec: JobSpec, options: ExportOptions, places: Sequence[Place]) -> Iterator[Reason]:
    if spec.config_files or spec.mounts:
        paths = [text.partition(":")[0] for text in (*spec.mounts, *spec.config_files)]
        yield reason("export.paths_of_nodes", paths=paths)
    if spec.no_container and (spec.data or spec.mounts):
        yield reason("export.no_mounts")
    if spec.no_container and spec.user:
        yield reason("export.no_counterpart", option="--user", target="a script without containers", instead="")
    if spec.secret_env:
        given = options.secrets is not None
        yield reason("export.secret_values" if given else "export.secret_environment", names=spec.secret_env)
    if not options.places and not spec.nodes and spec.workers > 1:
        yield reason("export.one_machine", workers=spec.workers)
    if spec.gpus and not any(place.uuids for place in places):
        yield reason("export.gpu_numbers")


def _processes(workload: Workload, places: Sequence[Place]) -> Iterator[_Process]:
    spec = workload.spec
    if spec.kind is Kind.MPI:
        gpus = ",".join(name for place in places for name in _gpus(place))
        variables = {**workload.environment, **_ONE_NODE}
        yield _Process(f"{spec.name}-launcher", places[0].node, spec.image, launcher_command(spec), variables, gpus)
        return
    command = program_words(single_process(spec))
    for rank, place in enumerate(places):
        is_master = spec.kind is Kind.PYTORCH and not rank
        index = rank - 1 if spec.kind is Kind.PYTORCH and rank else rank
        variables = {**rank_variables(spec, places[0].address, str(rank), str(MASTER_PORT)), **workload.environment}
        image = spec.worker_image if spec.worker_image and rank else spec.image
        name = f"{spec.name}-{'master' if is_master else 'worker'}-{index}"
        yield _Process(name, place.node, image, command, variables, ",".join(_gpus(place)))


def _gpus(place: Place) -> tuple[str, ...]:
    return place.uuids or tuple(map(str, place.gpus))


def _stop_line(one: _Process) -> str:
    stop = shlex.quote(f"docker stop --time 15 {one.name}")
    return f"    echo {stop} | run_on {shlex.quote(one.node)} &"


def _worker(workload: Workload, options: ExportOptions, one: _Process, index: int) -> Iterator[str]:
    """Yield the function that runs an instance; the script of the node is a document that the shell does not expand."""
    body = [*code_lines(workload.spec, "${XDG_CACHE_HOME:-$HOME/.cache}", one.name), *_body(workload, options, one)]
    end = "END_OF_NODE_SCRIPT"
    while any(end in line for line in body):
        end += "_"
    yield f"worker_{index}() {{  # {one.name}"
    yield "    {"
    yield from (f"        quoted {name}" for name in workload.spec.secret_env)
    yield f"        cat <<'{end}'"
    yield from body
    yield end
    yield f"    }} | run_on {shlex.quote(one.node)}"
    yield "}"


def _body(workload: Workload, options: ExportOptions, one: _Process) -> Iterator[str]:
    spec = workload.spec
    if spec.no_container:
        visible = {"CUDA_VISIBLE_DEVICES": one.gpus} if spec.gpus else {}
        yield from (f"export {name}={shlex.quote(value)}" for name, value in {**one.environment, **visible}.items())
        yield f"cd {shlex.quote(spec.working_dir)} || exit 125"
        yield f"exec {shlex.join(one.command)}"
        return
    yield "set --"
    if spec.rdma and not spec.privileged:
        yield "for device in /dev/infiniband/uverbs* /dev/infiniband/rdma_cm; do"
        yield '    if [ -e "$device" ]; then set -- "$@" --device "$device"; fi'
        yield "done"
    words = ["docker run --rm", f"--name {one.name}", *_options(workload, options, one)]
    for name, value in one.environment.items():
        words.append(f"--env {shlex.quote(f'{name}={value}')}")
    words += [f"--env {name}" for name in spec.secret_env]
    entry, *rest = one.command
    words.append(f'"$@" --entrypoint {shlex.quote(entry)} {shlex.quote(one.image)}')
    words += [shlex.quote(word) for word in rest]
    yield "exec " + " \\\n    ".join(words)


def _options(workload: Workload, options: ExportOptions, one: _Process) -> Iterator[str]:
    spec = workload.spec
    yield "--network host --init --ipc private"
    yield f"--shm-size {shlex.quote(spec.share_memory)}"
    if spec.pull != "missing":
        yield f"--pull {spec.pull}"
    yield shlex.join(rights(spec, NodeHardware()))
    if one.gpus:
        devices = f'"device={one.gpus}"'
        yield f"--gpus {shlex.quote(devices)}"
    else:
        yield f"--env NVIDIA_VISIBLE_DEVICES={NO_GPUS}"
    for mount in workload.volumes:
        if mount.kind == "code" and spec.sync is not None:
            yield f'--volume "$code"{shlex.quote(f":{mount.target}/{spec.sync.name}")}'
            continue
        source = data_source(mount, options) if mount.kind == "data" else mount.source
        yield f"--volume {shlex.quote(f'{source}:{mount.target}' + ':ro' * mount.read_only)}"
    yield f"--workdir {shlex.quote(spec.working_dir)}"
    account, _, groups = spec.user.partition(",")
    if account:
        yield f"--user {account}"
    yield from (f"--group-add {group}" for group in groups.split(",") if group)
