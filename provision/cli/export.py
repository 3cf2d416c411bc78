"""``provision export``: write a job for Kubernetes, Slurm or a shell."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from provision.cli.common import ClusterOptions, JsonOption, interactive, print_json, show
from provision.cli.completion import complete_jobs, complete_words
from provision.cli.option_groups import with_option_groups
from provision.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provision.batch.export.workload import ExportOptions
    from provision.model.job import JobSpec
    from provision.report.export_text import Exported


_TARGETS_OF = {
    **dict.fromkeys(("kind", "topology", "rdma_resource", "host_network", "sync_image"), ("kubernetes",)),
    **dict.fromkeys(("runtime", "cpus_per_gpu"), ("slurm",)),
    "queue": ("kubernetes", "slurm"),
    "data_path": ("slurm", "script"),
}
"""Options that not all targets have."""


@dataclass(frozen=True, kw_only=True)
class SiteOptions:
    """The settings of the other site."""

    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Kubernetes: mpijob, pytorchjob, trainjob or job.")
    ] = ""
    queue: Annotated[
        str, typer.Option("--queue", metavar="NAME", help="Kubernetes: LocalQueue of Kueue. Slurm: partition.")
    ] = ""
    topology: Annotated[
        str, typer.Option("--topology", metavar="LABEL", help="Kueue: keep all pods within one value of a node label.")
    ] = ""
    rdma_resource: Annotated[
        str, typer.Option("--rdma-resource", metavar="NAME", help="Kubernetes: resource of the RDMA device plugin.")
    ] = ""
    host_network: Annotated[
        bool, typer.Option("--host-network", help="Kubernetes: use the network of the host, as for RoCE.")
    ] = False
    sync_image: Annotated[
        str, typer.Option("--sync-image", metavar="IMAGE", help="Kubernetes: image of git-sync.", show_default=False)
    ] = ""
    runtime: Annotated[str, typer.Option("--runtime", metavar="NAME", help="Slurm: pyxis, apptainer or docker.")] = (
        "pyxis"
    )
    cpus_per_gpu: Annotated[
        int, typer.Option("--cpus-per-gpu", metavar="N", min=0, help="Slurm: CPUs of each GPU.", show_default=False)
    ] = 0
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="NODE,...", help="Script: the nodes of the workers, reached by ssh.")
    ] = ""
    data_path: Annotated[
        list[str] | None,
        typer.Option("--data-path", metavar="NAME=PATH", help="Slurm, script: path of a volume on the nodes."),
    ] = None

    def check_target(self, target: str) -> None:
        """Refuse options of another target.

        Raises:
            UsageError: with the option.
        """
        default = SiteOptions()
        for name, targets in _TARGETS_OF.items():
            if target not in targets and getattr(self, name) != getattr(default, name):
                raise UsageError(
                    f"--{name.replace('_', '-')}: --to {target} does not have this option",
                    remedy=f"Remove it, or use --to {' or '.join(targets)}.",
                )

    def export_options(self) -> ExportOptions:
        """Return the options of the export."""
        from provision.batch.export.workload import SYNC_IMAGE, ExportOptions
        from provision.cli.job_options import pairs

        return ExportOptions(
            kind=self.kind.lower(),
            queue=self.queue,
            topology=self.topology,
            rdma_resource=self.rdma_resource,
            host_network=self.host_network,
            sync_image=self.sync_image or SYNC_IMAGE,
            runtime=self.runtime,
            cpus_per_gpu=self.cpus_per_gpu,
            data_paths=pairs(self.data_path, "--data-path"),
        )


@with_option_groups
def export(
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="kubernetes, slurm or script.",
            autocompletion=complete_words("kubernetes", "slurm", "script"),
        ),
    ],
    cluster: ClusterOptions,
    site: SiteOptions,
    name: Annotated[
        str, typer.Argument(metavar="[JOB]", help="A submitted job; or use --file.", autocompletion=complete_jobs)
    ] = "",
    file: Annotated[
        str, typer.Option("--file", "-f", metavar="SPEC", help="A spec file or manifest; - for standard input.")
    ] = "",
    output: Annotated[
        str, typer.Option("--output", metavar="FILE", help="Write FILE, which only you can read.", show_default=False)
    ] = "",
    with_secrets: Annotated[
        bool, typer.Option("--with-secrets", help="Write the values of secrets too. Keep the output private.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a job for Kubernetes, Slurm or a shell.

    The job is a submitted one, or that of a file (-f): a spec file of `provision submit`, an MPIJob or a PyTorchJob.

    kubernetes writes an MPIJob, a PyTorchJob or a Job; `submit -f` reads MPIJob and PyTorchJob again. slurm writes
    a script for sbatch on a cluster without provision. script writes a shell script with the commands of each node.

    What has no counterpart there is a comment in the output and a line on stderr. Secrets are written without their
    values; --with-secrets reads the values from your environment and from `provision secret`.

    \b
    Examples:
      provision export mnist --to kubernetes --queue research
      provision export -f job.yaml --to kubernetes --kind trainjob
      provision export -f job.yaml --to slurm --runtime apptainer --output job.sh
      provision export mnist --to script --nodes gpu1,gpu2
    """
    if bool(name) == bool(file):
        raise UsageError(
            "specify either a job or --file", remedy="For example: provision export -f job.yaml --to slurm"
        )
    site.check_target(to)
    options = site.export_options()
    exported = _of_file(file, to, cluster, site, options, with_secrets=with_secrets) if file else None
    exported = exported or _of_job(name, to, cluster, site, options, with_secrets=with_secrets)
    _print(exported, output, as_json=as_json)


def _of_file(
    file: str, to: str, where: ClusterOptions, site: SiteOptions, options: ExportOptions, *, with_secrets: bool
) -> Exported:
    """Export the job of a file; no node is asked, and an inventory is read only if it is given."""
    from provision.batch.submission import Here, read_words, submission
    from provision.cli.job_options import is_secret
    from provision.cli.levels import warn
    from provision.workflow.export import environment_for, export, with_logins, with_submission, with_volumes

    document = read_file(file)
    environ = environment_for(document, with_secrets=with_secrets)
    folder = os.getcwd()  # noqa: PTH109 - the path of the shell
    request = submission(read_words(()), Here(folder, environ, is_secret=is_secret), document)
    for note in request.notes:
        warn(note)
    spec = _with_nodes(request.spec, site.nodes)
    cluster = where.cluster(connects=False) if where.is_given else None
    options = with_submission(options, request, with_secrets=with_secrets)
    if to == "kubernetes":
        options = with_logins(options, spec)
    return export(spec, to, with_volumes(options, spec, cluster))


def _of_job(
    name: str, to: str, where: ClusterOptions, site: SiteOptions, options: ExportOptions, *, with_secrets: bool
) -> Exported:
    from dataclasses import replace

    from provision.cli.job_options import SHORT_TIME_LIMIT, cluster_and_engine
    from provision.cli.levels import patience
    from provision.workflow.export import export, placed, secrets_of_job, with_logins, with_volumes

    cluster, engine = cluster_and_engine(where.inventory, where.lab, through_agent=True)
    with patience("querying the nodes"):
        record = engine.get(name, time_limit=SHORT_TIME_LIMIT)
    spec = _with_nodes(record.spec, site.nodes)
    if to == "script" and not site.nodes:
        options = replace(options, places=placed(record))
    options = replace(options, submitted=True)
    if to == "kubernetes":
        options = with_logins(options, spec)
    if with_secrets:
        options = replace(options, secrets=secrets_of_job(spec))
    return export(spec, to, with_volumes(options, spec, cluster))


def _with_nodes(spec: JobSpec, nodes: str) -> JobSpec:
    from dataclasses import replace

    names = tuple(name.strip() for name in nodes.split(",") if name.strip())
    return replace(spec, nodes=names) if names else spec


def read_file(name: str) -> Mapping[str, Any]:
    """Return the fields of a job file, and warn about what has no effect.

    Raises:
        UsageError: it cannot be read, or it is invalid.
    """
    from provision.cli.levels import warn
    from provision.documents.kubernetes import MOST_BYTES
    from provision.workflow.export import read_job_file

    if name == "-" and interactive():
        raise UsageError("-f - reads standard input, which is the terminal", remedy="Specify a file: -f job.yaml")
    where = "standard input" if name == "-" else name
    try:
        if name == "-":
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(name).open("rb") as stream:
                content = stream.read(MOST_BYTES + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"-f {name}: cannot be read: {error}") from error
    if len(content) > MOST_BYTES:
        raise UsageError(f"-f {name}: larger than 1 MiB", remedy="Write one job into the file.")
    return read_job_file(text, where, warn)


def _print(exported: Exported, output: str, *, as_json: bool) -> None:
    from provision.cli.levels import info, warn
    from provision.local_files import write_private
    from provision.report.export_text import export_document, export_text, note_lines

    for line in note_lines(exported.notes):
        warn(line)
    if output:
        try:
            write_private(Path(output), export_text(exported))
        except OSError as error:
            raise UsageError(
                f"--output {output}: cannot be written: {error.strerror}",
                remedy="Specify a file in an existing folder.",
            ) from error
        info(f"wrote {output}; to start the job: {exported.start.replace('FILE', output)}")
    if as_json:
        print_json(export_document(exported, with_text=not output))
    elif not output:
        show(export_text(exported).rstrip("\n"))
