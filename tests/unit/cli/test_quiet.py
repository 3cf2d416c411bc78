"""``-q``: results, warnings and errors, and nothing else."""

from __future__ import annotations

import pytest

from provision.cli import levels, progress
from provision.engine import Event

HOSTS = "all:\n  hosts:\n    gpu1: {ansible_host: 127.0.0.1, ansible_port: 1, docker_engin_source: x}\n"


pytestmark = pytest.mark.usefixtures("own_level")


@pytest.mark.parametrize("words", [["plan", "-q"], ["-q", "plan"], ["--quiet", "plan"], ["plan", "--loglevel", "warn"]])
def test_quiet_hides_progress_and_shows_results_and_warnings(typed, tmp_path, words):
    """Before or behind the verb; a script reads stdout, and a person still sees what is wrong."""
    (tmp_path / "hosts.yml").write_text(HOSTS)
    code, out, err = typed(*words, "-i", str(tmp_path / "hosts.yml"))

    assert code == 1
    assert "gpu1" in out
    assert "refuses connections" in out
    assert f"plan {tmp_path}" not in err
    assert "warning: " in err


def test_progress_is_shown_by_default(typed, tmp_path):
    (tmp_path / "hosts.yml").write_text(HOSTS)

    assert f"plan {tmp_path}" in typed("plan", "-i", str(tmp_path / "hosts.yml"))[2]


def test_quiet_hides_the_lines_of_an_apply(capsys):
    """Its report on stdout names what changed and what failed."""
    levels.choose("warn")
    with progress.ApplyProgress(["gpu1"]) as shown:
        shown.event(Event("gpu1", "platform", "Write", "changed"))
    progress.Steps().step("measure")

    assert capsys.readouterr().err == ""


def test_options_of_the_users_program_are_not_parsed(typed, tmp_path):
    """`run -- cmd -q` gives -q to the program."""
    from provision.cli.main import _levelled

    assert _levelled(["run", "--", "grep", "-q"]) == ["run", "--", "grep", "-q"]
    assert not levels.quiet()
    assert typed("-q", "history", "-i", str(tmp_path / "none"))[2].startswith("error: ")
