"""Failures that are seen often come with what to do."""

import pytest

from provision.report.kernel_remedies import KERNEL_REMEDIES
from provision.report.package_remedies import REMEDIES
from provision.report.remedies import remedy_for
from provision.report.rescue_remedies import RESCUE_REMEDIES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("E: write error - write (28: No space left on device)", "disk is full"),
        ("Get https://10.0.2.2:5000/v2/: x509: certificate signed by unknown authority", "docker_engine_registry_ca"),
        (
            "x509: certificate has expired or is not yet valid: current time 1999-01-01T00:00:00Z is before 2026",
            "date -u",
        ),
        ("E: Release file for http://m/InRelease is not valid yet (invalid for another 2h 3min 5s)", "date -u"),
        ("manifest for registry/x:1 not found: manifest unknown", "training_image_reference"),
        (
            "Get https://10.0.2.2:5000/v2/: dial tcp 10.0.2.2:5000: connect: connection refused",
            "registry does not answer",
        ),
        ("Missing sudo password", "--ask-become-pass"),
    ],
)
def test_a_known_failure_has_a_remedy(text, expected):
    """The hint fits the failure."""
    assert expected in remedy_for(text)


@pytest.mark.parametrize("piece", ["dpkg", "connection refused", "Repository ", "registry"])
def test_only_the_end_of_long_output_is_searched(piece):
    """In time that does not depend on its length."""
    assert "disk is full" in remedy_for(f"{piece * 100_000}\nNo space left on device\n")
    assert "disk is full" not in (remedy_for("No space left on device\n" + piece * 100_000) or "")
    assert "disk is full" in remedy_for("No space left on device", piece * 100_000)


def test_the_reason_code_of_a_module_decides():
    """The words of a package manager do not; a code without a meaning of its own leaves the choice to them."""
    words = "packages docker.io: cannot install them (the mirror could not resolve: No space left on device)"

    assert remedy_for(words, code="packages.held") == REMEDIES["packages.held"]
    assert "disk is full" in remedy_for(words, code="packages.failed")
    assert remedy_for("x", code="packages.failed") == REMEDIES["packages.failed"]
    assert remedy_for("x", code="packages.unknown") is None
    for code, remedy in {**RESCUE_REMEDIES, **KERNEL_REMEDIES}.items():
        assert remedy_for("rules of ufw: Connection timed out", code=code) == remedy


def test_an_unknown_failure_has_no_remedy():
    """An unknown failure has no remedy."""
    assert remedy_for("something odd happened") is None
