"""Stacks: a lock that was written, differences of two, and predictions for kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from provision.errors import ProvisionError
from provision.model.stack import Stack
from provision.report import layout
from provision.report.grouping import reason_lines
from provision.report.job_words import columns
from provision.report.reasons import message, remedy
from provision.stack.compare import Difference
from provision.stack.prediction import Forecast, Prediction

if TYPE_CHECKING:
    from provision.report.json_documents.stacks import (
        ForecastNode,
        StackDifferences,
        StackDocument,
        StackForecast,
    )

NO_KERNEL = "no newer kernel is available in its package sources"
LIMITS = (
    "Nothing is compiled: a result without obstacle does not say that the build succeeds (docs/how-to/stack-lock.md)."
)


def lock_text(path: str, stack: Stack) -> str:
    """Return a lock that was written, component by component."""
    rows = [[name, part.version, _count(part.packages)] for name, part in stack.parts.items()]
    return "\n".join([f"{path}: the stack of {stack.node}", *columns([["COMPONENT", "VERSION", "PACKAGES"], *rows])])


def _count(packages: Mapping[str, str]) -> str:
    return str(len(packages)) if packages else "-"


def lock_document(path: str, stack: Stack) -> StackDocument:
    """Return the document of ``stack lock --json``."""
    return {
        "file": path,
        "node": stack.node,
        "system": stack.system,
        "architecture": stack.architecture,
        "components": {
            name: {"version": part.version, "packages": dict(part.packages)} for name, part in stack.parts.items()
        },
    }


def differences_text(a: str, b: str, results: Sequence[Difference]) -> str:
    """Return the differences of two stacks as a table."""
    if not results:
        return f"{a} and {b} have the same stack"
    rows = [[one.component, one.package or "-", one.a or "-", one.b or "-"] for one in results]
    return "\n".join(columns([["COMPONENT", "PACKAGE", a, b], *rows]))


def differences_document(a: str, b: str, results: Sequence[Difference]) -> StackDifferences:
    """Return the document of ``stack diff --json``."""
    return {
        "a": a,
        "b": b,
        "same": not results,
        "differences": [
            {"component": one.component, "package": one.package, "a": one.a, "b": one.b} for one in results
        ],
    }


def forecast_text(results: Mapping[str, Mapping[str, Sequence[Prediction]] | ProvisionError]) -> str:
    """Return the predictions of all nodes, with reasons and remedies."""
    lines: list[str] = []
    errors = [(name, value.message) for name, value in results.items() if isinstance(value, ProvisionError)]
    for name, kernels in results.items():
        if isinstance(kernels, ProvisionError):
            continue
        lines += [] if kernels else [f"{name}: {NO_KERNEL}"]
        for kernel, predictions in kernels.items():
            lines.append(f"{name}: kernel {kernel}")
            for one in predictions:
                word = one.forecast.value.replace("_", " ")
                lines += layout.hanging(f"  {one.component} {one.version}: {word}  ", _messages(one, name))
            lines += _remedies(predictions, name)
    return "\n".join([*lines, *reason_lines(errors), *([LIMITS] if lines else [])])


def _messages(one: Prediction, name: str) -> str:
    return "; ".join(message(why, name) for why in one.reasons)


def _remedies(predictions: Sequence[Prediction], name: str) -> list[str]:
    texts = [remedy(why, name) for one in predictions for why in one.reasons]
    return [f"  {text}" for text in dict.fromkeys(filter(None, texts))]


def forecast_document(
    results: Mapping[str, Mapping[str, Sequence[Prediction]] | ProvisionError],
) -> StackForecast:
    """Return the document of ``stack check --json``."""
    return {"nodes": [_node(name, value) for name, value in results.items()]}


def _node(name: str, value: Mapping[str, Sequence[Prediction]] | ProvisionError) -> ForecastNode:
    if isinstance(value, ProvisionError):
        return {"name": name, "error": value.message, "error_code": value.code, "remedy": value.remedy, "kernels": []}
    return {
        "name": name,
        "error": None,
        "error_code": None,
        "remedy": None,
        "kernels": [
            {
                "release": kernel,
                "components": [
                    {
                        "component": one.component,
                        "version": one.version,
                        "forecast": one.forecast,
                        "text": _messages(one, name),
                        "reasons": [why.as_document() for why in one.reasons],
                        "remedy": " ".join(dict.fromkeys(filter(None, (remedy(why, name) for why in one.reasons)))),
                    }
                    for one in predictions
                ],
            }
            for kernel, predictions in value.items()
        ],
    }


def fails(results: Mapping[str, Mapping[str, Sequence[Prediction]] | ProvisionError]) -> bool:
    """Return whether a node was not reached, or a build is known to fail."""
    return any(
        isinstance(value, ProvisionError)
        or any(one.forecast is Forecast.FAILS for predictions in value.values() for one in predictions)
        for value in results.values()
    )
