"""Commands of a page are read and run as a reader does, and the outputs that the page shows are compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.command import ROOT, Provision
from tests.support.page_commands import Command, PageFile, Reader, differing_parts, steps_of

PAGE = """# A page

1. Write it:

    ```yaml title="vars/all.yml"
    kernel: 6.1
    ```

```console
$ first --option
one
...
three
$ second
```

```bash
not run
```

```yaml
no: file
```
"""
UPGRADE = (ROOT / "docs/how-to/upgrade.md").read_text(encoding="utf-8")
OFFLINE = [step for step in steps_of(UPGRADE) if isinstance(step, Command) and "--assume" in step.line]


def test_files_and_commands_are_read_in_their_order() -> None:
    """Without the blocks that are not run."""
    assert steps_of(PAGE) == [
        PageFile("vars/all.yml", "kernel: 6.1\n"),
        Command("first --option", "one\n...\nthree\n"),
        Command("second", ""),
    ]


@pytest.mark.parametrize(
    ("shown", "differing"),
    [
        ("", []),
        ("one\n", []),
        ("one two\n  three after 1m02s\n", []),
        ("one\n...\nat Sat 2026-12-05 02:00 CET\n", []),
        ("three\n...\none\n", ["one"]),
        ("one\nthree\n", ["one\nthree"]),
        ("two\n...\nfive\n", ["five"]),
    ],
)
def test_a_shown_output_is_compared_without_wrapping_and_times(shown: str, differing: list[str]) -> None:
    """Parts between dots have to be in the output, in the order of the page."""
    output = "one\ntwo three after 5s four\nat Mon 2027-01-02\n 12:34 UTC\n"

    assert differing_parts(shown, output) == differing


def test_commands_are_run_with_the_names_of_the_folder(tmp_path: Path) -> None:
    """A command sees the exit code of the one before; its output is compared."""
    reader = Reader(tmp_path, os.environ, {"6.1": "6.12", "other": "same"})
    reader.write(PageFile("vars/all.yml", "kernel: 6.1\n"))

    assert reader.run(Command("cat vars/all.yml; exit 6", "kernel: 6.1\n"), seconds=60) == []
    assert reader.code == 6
    assert reader.run(Command("echo $?", "6\n"), seconds=60) == []
    assert reader.run(Command("echo same", "different\n"), seconds=60) == ["different"]
    assert reader.transcript == "$ cat vars/all.yml; exit 6\nkernel: 6.12\n$ echo $?\n6\n$ echo same\nsame\n"


@pytest.mark.parametrize("command", [pytest.param(one, id=one.line) for one in OFFLINE])
def test_the_outputs_about_described_machines_are_those_of_the_program(tmp_path: Path, command: Command) -> None:
    """The page about upgrades shows them; they need no node."""
    provision = Provision(tmp_path)
    provision.put_on_path()

    reader = Reader(tmp_path, provision.environment, {})

    assert reader.run(command, seconds=120) == [], reader.transcript
    assert reader.code == 0


def test_the_page_about_upgrades_has_such_outputs() -> None:
    """The test above has read them."""
    assert OFFLINE
