"""The page docs/reference/reasons.md: every code with its message and fix.

``python -m provision.report.reasons_page > docs/reference/reasons.md`` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from provision.checks import CHECKS, CLUSTER_CHECKS
from provision.checks.controller import CONTROLLER_CHECKS
from provision.checks.minimums import MINIMUMS, profile_id
from provision.checks.reasons import DESCRIPTIONS
from provision.errors import ProvisionError
from provision.model.reason import Wording
from provision.report.reasons import catalogue

_HEAD = """\
# Reasons

Every decision that `provision` reports has a code, which never changes, and parameters. JSON documents have both as
`code` and `params` beside the message. This page is generated from the catalogues of the messages by `make docs`.

Words in angle brackets are parameters. Parts in square brackets appear only if their parameters have values. `<node>`
is the node, or the host pattern of all nodes with the same result. A code without a fix needs no action, or is a part
of another message.

A check that needs a fact which is not available fails, also if it only warns otherwise: the code is
`check.fact_unavailable` unless the check has its own.
"""
_ERRORS = """\
## Errors

Symptom: a command ends with `error: ...` and one of these exit codes. With `--json`, `error.code` is the code; the
message names the cause, and the hint the fix. Some errors have a more specific code, e.g. `job.not_owner`.
"""
_OTHERS = {
    "check": "Any check",
    "plan": "Steps and findings of a plan",
    "file": "Drift: files",
    "package": "Drift: packages",
    "unit": "Drift: systemd units",
    "module": "Drift: kernel modules",
    "image": "Drift: images",
    "container": "Drift: containers",
    "host": "Nodes that are left out of host files and runs",
    "topology": "Faults and repairs of topology matrices",
    "placement": "Placements of jobs, and nodes that are not used",
    "nccl": "Logs of NCCL: verdicts of `provision nccl-log`",
    "gdr": "GPUDirect RDMA: verdicts, and preconditions that a path needs",
    "job": "Jobs: reasons for waiting, and endings",
    "reload": "Results of `provision reload`",
}
"""Area of codes that belong to no check -> heading."""


def page() -> str:
    """Return the page as Markdown."""
    sections: dict[str, dict[str, Wording]] = {}
    for code, wording in catalogue().items():
        sections.setdefault(_section(code), {})[code] = wording
    lines = [line for name, codes in sections.items() for line in _lines(name, codes)]
    return "\n".join([_HEAD, *lines, *_errors()])


def _errors() -> Iterator[str]:
    """Yield the section about errors of commands."""
    yield from (_ERRORS, "| code | cause | exit code |", "| --- | --- | --- |")
    kinds: list[type[ProvisionError]] = [ProvisionError, *_kinds(ProvisionError)]
    for error in sorted(kinds, key=lambda kind: kind.code):
        meaning = (error.__doc__ or "").partition("\n")[0].rstrip(".")
        yield f'| <a id="error-{error.code}"></a>`{error.code}` | {meaning} | {error.exit_code} |'
    yield ""


def _kinds(error: type[ProvisionError]) -> Iterator[type[ProvisionError]]:
    for kind in error.__subclasses__():
        if kind.__module__ == ProvisionError.__module__:
            yield kind
            yield from _kinds(kind)


def _section(code: str) -> str:
    check = ".".join(code.split(".")[:2])
    area = code.partition(".")[0]
    profiles = {profile_id(need.component) for needs in MINIMUMS.values() for need in needs}
    if check in {*CHECKS, *CLUSTER_CHECKS, *CONTROLLER_CHECKS, *profiles}:
        return f"Check `{check}`"
    return _OTHERS.get(area, f"Common to `{area}`")


def _lines(name: str, codes: Mapping[str, Wording]) -> Iterator[str]:
    yield f"## {name}\n"
    if name.startswith("Check"):
        verb = "doctor" if name.partition("`")[2].startswith("controller.") else "verify"
        yield f"Symptom: `provision {verb}` reports {name.partition(' ')[2]} with one of these causes.\n"
        passes, otherwise = DESCRIPTIONS.get(name.partition("`")[2].rstrip("`"), ("", ""))
        yield from [f"Passes when: {passes}.{f' Otherwise: {otherwise}.' if otherwise else ''}\n"] if passes else ()
    yield "| code | cause | fix |"
    yield "| --- | --- | --- |"
    for code, wording in codes.items():
        yield f'| <a id="{code}"></a>`{code}` | {_cell(wording.message)} | {_cell(wording.remedy)} |'
    yield ""


def _cell(template: str) -> str:
    """Return a template for readers: a parameter is a word in angle brackets."""
    text = re.sub(r"\{(\w+):remedy\}", r"<fix of \1>", template)
    text = re.sub(r"\{(\w+)[^{}]*\}", r"<\1>", text).replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`" if text else ""


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
