"""``provision advise``: why a job or a training script does not use its GPUs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import InventoryOption, JsonOption, LabOption, print_json, say, show
from provision.cli.completion import complete_jobs
from provision.cli.job_options import engine_of, seconds
from provision.cli.levels import info
from provision.errors import Interrupted, ProvisionError, UsageError

if TYPE_CHECKING:
    from provision.report.json_documents.advice import JobAdvice, ScriptAdvice

_MOST_FILES, _MOST_BYTES = 60, 1 << 21
_SHORTEST, _LONGEST = 15.0, 1800.0


def advise(
    job: Annotated[
        str,
        typer.Argument(
            metavar="[JOB]", help="A running batch job, whose nodes are probed.", autocompletion=complete_jobs
        ),
    ] = "",
    window: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Duration: 15s to 30m. An idle job needs 10m.")
    ] = "60s",
    script: Annotated[
        str | None,
        typer.Option("--script", metavar="FILE", help="Training script to analyze; it is not run. - reads stdin."),
    ] = None,
    inventory: InventoryOption = None,
    lab: LabOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain why a job does not use its GPUs.

    Names what to change; --script analyzes a training script instead.

    JOB: each of its nodes is observed for a minute in one SSH session:
    GPUs, the job's processes, data workers, storage, network, logs. Each of 21 checks reports its observations.
    Nodes that do not answer are listed; the results of the others are shown.

    --script: the five rules of distributed PyTorch, without a node or PyTorch. Ranks are distinct, WORLD_SIZE
    many, and 0 is the master; the process group is only created if WORLD_SIZE is over 1; the model is wrapped in
    DistributedDataParallel; the DataLoader gets a DistributedSampler; the sampler's set_epoch is called. Modules that
    the script imports from its folder are analyzed too. The report lists rules that Lightning, Accelerate, DeepSpeed,
    Transformers, Ray Train or Horovod implement.

    The exit code is 0 without findings, 1 with findings or when a node did not answer; 2 when the job does not
    run, or the script does not exist or is not Python. "unknown" is reported and does not change the exit code.

    \b
    Examples:
      provision advise mnist
      provision advise mnist --for 10m --json
      provision advise --script train.py
    """
    if not job and script is None:
        raise UsageError(
            "no job or script given",
            remedy="Specify a running job (provision advise JOB), or a training script: --script train.py",
        )
    length = _window(window)
    rules = _rules(script) if script is not None else None
    advice = _observe(job, length, inventory, lab) if job else None
    documents = [one.document for one in (advice, rules) if one]
    if as_json:
        document = {key: value for one in reversed(documents) for key, value in one.items()}
        print_json(document | {"ok": all(one["ok"] for one in documents)})
    else:
        show("\n\n".join(one.text() for one in (rules, advice) if one))
    if rules and rules.unsure:
        say("some rules could not be evaluated; they may be violated")
    raise typer.Exit(0 if all(one["ok"] for one in documents) else 1)


@dataclass(frozen=True)
class _Advice:
    document: JobAdvice | ScriptAdvice
    text: Callable[[], str]
    unsure: bool = False
    """Whether some rules could not be evaluated and none is violated."""


def _window(text: str) -> float:
    wanted = seconds(text, "--for", bare=True)
    if not _SHORTEST <= wanted <= _LONGEST:
        raise UsageError(
            f"--for {text}: too {'short' if wanted < _SHORTEST else 'long'} to observe a job",
            remedy="Use 15s to 30m; checks require ten samples, one per second.",
        )
    return wanted


def _rules(script: str) -> _Advice:
    """Analyze a script with the five rules."""
    from provision.advisor.script import RuleVerdict, lint_script
    from provision.report.advice_report import script_document, script_text

    name = "<stdin>" if script == "-" else script
    findings = lint_script(_sources(script))
    verdicts = {finding.verdict for finding in findings}
    unsure = RuleVerdict.UNKNOWN in verdicts and RuleVerdict.BROKEN not in verdicts
    return _Advice(script_document(name, findings), lambda: script_text(name, findings), unsure)


def _observe(job: str, window: float, inventory: str | None, lab: str | None) -> _Advice:
    """Observe a running job."""
    from provision.report import advice_report as report
    from provision.workflow.job_advice import advise_job

    engine = engine_of(inventory, lab)
    try:
        result = advise_job(engine, job, seconds=window, report=info)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; {job} continues", remedy="To observe it for a shorter time: --for 15s"
        ) from None
    document: JobAdvice = {
        **report.advice_document(job, result.findings),
        "ok": result.ok,
        "seconds": window,
        "attempt": result.job.attempt,
        "idle": result.idle is not None,
        "ended": result.ended or None,
        "nodes": report.nodes_document(result.nodes, result.lost),
    }

    def text() -> str:
        parts = [report.nodes_text(job, result.nodes, result.lost), report.advice_text(job, result.findings)]
        if result.ended:
            parts.append(report.ended_text(job, result.ended))
        if result.idle is not None:
            parts.append(report.idle_text(job, result.idle))
        return "\n\n".join(parts)

    return _Advice(document, text)


def _sources(script: str) -> Mapping[str, bytes]:
    """Return the script and the modules that it imports from its folder.

    Raises:
        UsageError: The script does not exist or is not a file.
        ProvisionError: It cannot be read.
    """
    if script == "-":
        return {"<stdin>": sys.stdin.buffer.read()}
    if script.endswith(".ipynb"):
        raise UsageError(
            f"{script} is a notebook", remedy=f"Convert it to a script: jupyter nbconvert --to script {script}"
        )
    from provision.advisor.source import imported_modules

    texts = {script: _read(Path(script))}
    waiting = [script]
    while waiting and len(texts) < _MOST_FILES:
        name = waiting.pop(0)
        for module in imported_modules(name, texts[name]):
            path = _beside(Path(script).parent, Path(name).parent, module)
            if path is not None and str(path) not in texts:
                texts[str(path)] = _read(path)
                waiting.append(str(path))
    return texts


def _beside(script: Path, importer: Path, module: str) -> Path | None:
    """Return the file of a module in the script's folder or, for a relative import, in the importer's folder.

    A script in a package imports by the package's full name, from at most two folders above.
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
        raise UsageError(f"{path}: no such file", remedy="Specify the path of the training script.") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", remedy="Specify the training script in it.") from None
    except OSError as error:
        raise ProvisionError(
            f"{path} cannot be read: {error.strerror}", remedy="Check the permissions: ls -l"
        ) from None
