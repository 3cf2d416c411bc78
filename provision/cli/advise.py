"""``provision advise``: what keeps a training script from using many GPUs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from provision.cli.common import JsonOption, print_json, say
from provision.errors import ProvisionError, UsageError

__all__ = ["advise"]

_MOST_FILES, _MOST_BYTES = 60, 1 << 21


def advise(
    script: Annotated[
        str | None,
        typer.Option("--script", metavar="FILE", help="The training script; it is read and never run. - reads stdin."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a training script by the five rules of distributed PyTorch; no node and no PyTorch is needed.

    Ranks are distinct, WORLD_SIZE many, and 0 is the master; the process group is made only where WORLD_SIZE is over
    1; the model is wrapped by DistributedDataParallel; the DataLoader gets a DistributedSampler; the sampler is told
    the epoch. Modules of its own that the script imports from its folder are read too. What Lightning, Accelerate,
    DeepSpeed, Transformers, Ray Train or Horovod see to is said.

    The exit code is 0 when no rule is broken, 1 when one is, 2 when there is no such script or it is no Python.
    What cannot be told from the script is "unknown", is said, and does not change the code.

    \b
    Examples:
      provision advise --script train.py
      provision advise --script train.py --json
    """
    if script is None:
        raise UsageError("nothing to give advice on", remedy="Name the training script: --script train.py")
    from provision.advisor.script import RuleVerdict, lint_script
    from provision.report.advice_report import script_document, script_text

    name = "<stdin>" if script == "-" else script
    findings = lint_script(_sources(script))
    if as_json:
        print_json(script_document(name, findings))
    else:
        typer.echo(script_text(name, findings))
    verdicts = [finding.verdict for finding in findings]
    if RuleVerdict.UNKNOWN in verdicts and RuleVerdict.BROKEN not in verdicts:
        say("some rules could not be judged; they are not known to hold")
    raise typer.Exit(1 if RuleVerdict.BROKEN in verdicts else 0)


def _sources(script: str) -> Mapping[str, bytes]:
    """Read the script, and the modules of its own that lie beside it.

    Raises:
        UsageError: there is no such script, or it is something else.
        ProvisionError: it cannot be read.
    """
    if script == "-":
        return {"<stdin>": sys.stdin.buffer.read()}
    if script.endswith(".ipynb"):
        raise UsageError(
            f"{script} is a notebook", remedy=f"Make a script of it: jupyter nbconvert --to script {script}"
        )
    from provision.advisor.source import imported_modules

    found = {script: _read(Path(script))}
    waiting = [script]
    while waiting and len(found) < _MOST_FILES:
        name = waiting.pop(0)
        for module in imported_modules(name, found[name]):
            path = _beside(Path(script).parent, Path(name).parent, module)
            if path is not None and str(path) not in found:
                found[str(path)] = _read(path)
                waiting.append(str(path))
    return found


def _beside(script: Path, importer: Path, module: str) -> Path | None:
    """Return the file of a module that lies in the script's folder or, for a relative import, the importer's.

    A script within a package imports by the package's full name, from two folders up at most.
    """
    folders = [importer] if module.startswith(".") else [script, *list(script.resolve().parents)[:2]]
    parts = module.strip(".").split(".")
    for folder in folders:
        for length in range(len(parts), 0, -1):
            stem = folder.joinpath(*parts[:length])
            for path in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
                if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                    return path
    return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", remedy="Give the path of the training script.") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", remedy="Give the training script in it.") from None
    except OSError as error:
        raise ProvisionError(
            f"{path} cannot be read: {error.strerror}", remedy="Is it yours to read? See: ls -l"
        ) from None
