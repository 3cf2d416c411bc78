"""Every block of code of the tutorials, in the order of the pages, on a container lab.

A block `sh` is run, and a block with a title is a file of that name. A block `bash` needs what the test does not have.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import ENGINES
from tests.support.command import ROOT, Provision, with_own_state
from tests.support.engine import engine_host

LAB = f"tutorial{os.getpid()}"
TUTORIALS = ROOT / "docs/tutorial"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = ("laptop", "mpi-job", "pytorch-job")
RESULTS = {
    "laptop": (
        "right: the sum equals 4*(4+1)/2 = 10",
        "2 of 2 nodes are up to date",
        "/etc/security/limits.d/90-provision.conf",
    ),
    "mpi-job": ("the sum is 6", "SUCCEEDED", "PENDING", "\nnow\n"),
    "pytorch-job": ("5 holds", "rank 0 of 3, master ", "rank 1 of 3, master "),
}
"""What the page says that a reader sees."""


@pytest.fixture(scope="module")
def reader() -> Iterator[Provision]:
    """A person with the command on the PATH, in an empty folder."""
    with with_own_state() as command:
        command.put_on_path()
        try:
            yield command
        finally:
            folder = command.folder / "state/provision/labs" / LAB
            if folder.exists():
                ENGINES.add(engine_host(folder))
            down = command("lab", "down", LAB)
        assert down.code == 0, str(down)


def script(page: str, folder: Path) -> str:
    """Return the commands of a page with this lab's name, and write its files."""
    commands = []
    text = (TUTORIALS / f"{page}.md").read_text(encoding="utf-8")
    for language, title, body in BLOCK.findall(text):
        if title:
            (folder / title).parent.mkdir(parents=True, exist_ok=True)
            (folder / title).write_text(body, encoding="utf-8")
        elif language == "sh":
            commands.append(re.sub(r"\blaptop\b", LAB, body))
    assert len(commands) > 3
    return "".join(commands)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_tutorial_work(reader, page):
    """Each one succeeds, and prints what the page says."""
    words = ["bash", "-exuo", "pipefail", "-c", script(page, reader.folder)]
    done = subprocess.run(
        words, cwd=reader.folder, env=reader.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=1500, check=False,
    )  # fmt: skip

    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert [words for words in RESULTS[page] if words not in done.stdout] == []


def test_all_tutorials_are_tested():
    """A new page is added to the list above."""
    assert {f"{page}.md" for page in PAGES} == {file.name for file in TUTORIALS.glob("*.md")}
