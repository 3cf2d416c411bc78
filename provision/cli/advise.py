"""``provision advise``: what keeps a job, or a training script, from using its GPUs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, print_json, say, show
from provision.cli.completion import complete_jobs
from provision.cli.job_options import engine_of, seconds
from provision.cli.levels import info
from provision.errors import Interrupted, ProvisionError, UsageError

__all__ = ["advise"]

_MOST_FILES, _MOST_BYTES = 60, 1 << 21
_SHORTEST, _LONGEST = 15.0, 1800.0


def advise(
    job: Annotated[
        str,
        typer.Argument(
            metavar="[JOB]", help="A batch job that runs: its nodes are looked at.", autocompletion=complete_jobs
        ),
    ] = "",
    window: Annotated[
        str, typer.Option("--for", metavar="TIME", help="For how long: 15s to 30m; ten minutes prove a job idle.")
    ] = "60s",
    script: Annotated[
        str | None,
        typer.Option("--script", metavar="FILE", help="The training script; it is read and never run. - reads stdin."),
    ] = None,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain why a job does not use its GPUs.

    Names what to change; --script judges a training script instead.

    JOB: each of its nodes is looked at for a minute, by one SSH session that needs Python 3.8 and leaves nothing:
    GPUs, the job's processes, data workers, storage, network, logs. Each of 21 checks says what it saw. A node that
    does not answer is named, and the others are judged.

    --script: the five rules of distributed PyTorch; no node and no PyTorch is needed. Ranks are distinct, WORLD_SIZE
    many, and 0 is the master; the process group is made only where WORLD_SIZE is over 1; the model is wrapped by
    DistributedDataParallel; the DataLoader gets a DistributedSampler; the sampler is told the epoch. Modules of its
    own that the script imports from its folder are read too. What Lightning, Accelerate, DeepSpeed, Transformers,
    Ray Train or Horovod see to is said.

    The exit code is 0 when nothing is found, 1 when something is, or a node did not tell; 2 when the job does not
    run, there is no such script, or it is no Python. What is "unknown" is said, and does not change the code.

    \b
    Examples:
      provision advise mnist
      provision advise mnist --for 10m --json
      provision advise --script train.py
    """
    if not job and script is None:
        raise UsageError(
            "nothing to give advice on",
            remedy="Name a job that runs (provision advise JOB), or a training script: --script train.py",
        )
    length = _window(window)
    rules = _rules(script) if script is not None else None
    found = _look(job, length, inventory, lab) if job else None
    documents = [one.document for one in (found, rules) if one]
    if as_json:
        document = {key: value for one in reversed(documents) for key, value in one.items()}
        print_json(document | {"ok": all(one["ok"] for one in documents)})
    else:
        show("\n\n".join(one.text() for one in (rules, found) if one))
    if rules and rules.unsure:
        say("some rules could not be judged; they are not known to hold")
    raise typer.Exit(0 if all(one["ok"] for one in documents) else 1)


@dataclass(frozen=True)
class _Told:
    document: dict[str, Any]
    text: Callable[[], str]
    unsure: bool = False
    """Whether there is something that could not be judged, and nothing that is wrong."""


def _window(text: str) -> float:
    wanted = seconds(text, "--for", bare=True)
    if not _SHORTEST <= wanted <= _LONGEST:
        raise UsageError(
            f"--for {text}: too {'short' if wanted < _SHORTEST else 'long'} to look at a job",
            remedy="Give 15s to 30m; checks want ten samples, one a second.",
        )
    return wanted


def _rules(script: str) -> _Told:
    """Judge a script by the five rules."""
    from provision.advisor.script import RuleVerdict, lint_script
    from provision.report.advice_report import script_document, script_text

    name = "<stdin>" if script == "-" else script
    findings = lint_script(_sources(script))
    verdicts = {finding.verdict for finding in findings}
    unsure = RuleVerdict.UNKNOWN in verdicts and RuleVerdict.BROKEN not in verdicts
    return _Told(script_document(name, findings), lambda: script_text(name, findings), unsure)


def _look(job: str, window: float, inventory: str | None, lab: str | None) -> _Told:
    """Look at a job that runs."""
    from provision.report import advice_report as report
    from provision.workflow.advising import advise_job

    runner = engine_of(inventory, lab)
    try:
        found = advise_job(runner, job, seconds=window, tell=info)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {job} goes on", remedy="A shorter look: --for 15s") from None
    document = report.advice_document(job, found.findings) | {
        "ok": found.ok,
        "seconds": window,
        "attempt": found.job.attempt,
        "idle": found.idle is not None,
        "ended": found.ended or None,
        "nodes": report.nodes_document(found.nodes, found.lost),
    }

    def text() -> str:
        parts = [report.nodes_text(job, found.nodes, found.lost), report.advice_text(job, found.findings)]
        if found.ended:
            parts.append(report.ended_text(job, found.ended))
        if found.idle is not None:
            parts.append(report.idle_text(job, found.idle))
        return "\n\n".join(parts)

    return _Told(document, text)


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
