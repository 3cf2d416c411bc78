"""Parts that exported scripts share: variables, code, and paths of volumes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from provision.batch.export.workload import ExportOptions, VolumeMount, code_folder, fetches_code
from provision.errors import UsageError
from provision.model.job import JobSpec

_ASCII = 128


def secret_lines(spec: JobSpec, options: ExportOptions) -> Iterator[str]:
    """Yield the secret variables of a job: from the environment of the caller, or with their values."""
    for name in spec.secret_env:
        if options.secrets is not None:
            yield f"export {name}={bash_word(options.secrets.env.get(name, ''))}"
        else:
            yield f': "${{{name}:?Export {name} before you start this script}}"'
            yield f"export {name}"


def bash_word(text: str) -> str:
    """Return a text as a word of bash; bytes that are not UTF-8 are written as numbers."""
    try:
        text.encode()
    except UnicodeEncodeError:
        octets = text.encode("utf-8", "surrogateescape")
        letters = (chr(one) if one < _ASCII and chr(one).isalnum() else f"\\x{one:02x}" for one in octets)
        return f"$'{''.join(letters)}'"
    return shlex.quote(text)


def code_lines(spec: JobSpec, folder: str, name: str) -> Iterator[str]:
    """Yield the lines that clone the code into ``$code`` if it is not there.

    Without containers this is the folder in which the job expects it, otherwise ``NAME-code`` below `folder`,
    which the shell expands.
    """
    if spec.sync is None or not fetches_code(spec):
        return
    own = shlex.quote(f"{code_folder(spec)}/{spec.sync.name}")
    yield f"code={own}" if spec.no_container else f'code="{folder}"/{shlex.quote(f"{name}-code")}'
    yield f'if [ ! -d "$code" ]; then git clone --quiet -- {shlex.quote(spec.sync.source)} "$code" || exit 125; fi'
    if spec.sync.revision:
        yield f'git -C "$code" checkout --quiet {shlex.quote(spec.sync.revision)} -- || exit 125'


def data_source(mount: VolumeMount, options: ExportOptions) -> str:
    """Return the path of a volume on the nodes.

    Raises:
        UsageError: it is not known.
    """
    path = options.data_paths.get(mount.source)
    if path is None:
        raise UsageError(
            f"--data {mount.source}: the path of the volume on the nodes is not known",
            remedy=f"Specify it: --data-path {mount.source}=/PATH, or use an inventory with this volume.",
        )
    return path


def image_uri(image: str) -> str:
    """Return an image of a registry as apptainer names it."""
    return f"docker://{image}"
