"""The table of tested roles and systems is made of recorded test runs."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from provision.inventory.role_files import systems
from provision.resources import roles_folder
from tests.support import recorded_systems
from tests.support.recorded_systems import PAGE, SystemRecorder, commit_under_test
from tools import system_results, systems_page
from tools.system_results import NODES, Result

COMMIT, OTHER = "a" * 40, "b" * 40
ROLES = {path.name for path in roles_folder().iterdir() if (path / "meta").is_dir()}


def result(nodes: str, role: str = "platform", system: str = "debian_12", commit: str = COMMIT) -> Result:
    return Result(system, nodes, role, commit, "2026-11-29")


def cells(text: str, role: str) -> list[str]:
    """Return the cells of a role in the table of a page."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| `{role}` |")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def test_the_page_has_the_recorded_results() -> None:
    """Each role and system has the best recorded result, or is untested; nothing is written by hand."""
    results, page = system_results.read(), PAGE.read_text(encoding="utf-8")

    assert page == systems_page.page(results)
    for role in ROLES:
        ones = [system_results.best(results, system, role) for system in systems(roles_folder())]
        assert cells(page, role) == [one.nodes if one else "untested" for one in ones]
    assert {commit[:12] for commit in {one.commit for one in results}} <= set(re.findall(r"`([0-9a-f]{12})`", page))


def test_recorded_results_are_valid() -> None:
    """Roles and systems exist, and each names its commit and its day."""
    for one in system_results.read():
        assert one.system in systems(roles_folder()), one
        assert one.role in ROLES, one
        assert one.nodes in NODES, one
        assert re.fullmatch(r"[0-9a-f]{40}", one.commit), one
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", one.date), one


def test_real_systems_count_more_than_simulated_ones() -> None:
    """And machines, which have the system's kernel, more than containers."""
    results = [result("SIMULATED"), result("container"), result("SIMULATED", "slurm")]
    page = systems_page.page(results)
    with_machine = systems_page.page([*results, result("virtual machine")])

    column = list(systems(roles_folder())).index("debian_12")
    assert cells(page, "platform")[column] == "container"
    assert cells(with_machine, "platform")[column] == "virtual machine"
    assert cells(page, "slurm")[column] == "SIMULATED"
    assert cells(page, "base_system") == ["untested"] * len(systems(roles_folder()))


def test_the_table_of_systems_lists_only_recorded_tests() -> None:
    """A supported system without a recorded run is untested there, too."""
    page = systems_page.page([result("SIMULATED"), result("virtual machine", "slurm")])
    tested = {line.split(" | ")[0]: line.split(" | ")[2] for line in page.splitlines() if line.count(" | ") == 6}

    assert tested["| Debian 12"] == "virtual machine, SIMULATED"
    assert tested["| Debian 13"] == "untested"


def test_a_new_result_replaces_the_one_of_the_same_nodes(tmp_path: Path) -> None:
    """Results of other nodes, roles and systems stay."""
    file = tmp_path / "systems.json"
    file.write_text("[]\n", encoding="utf-8")
    system_results.write([result("container"), result("SIMULATED")], file)
    system_results.write([result("container", commit=OTHER)], file)

    assert {(one.nodes, one.commit) for one in system_results.read(file)} == {
        ("container", OTHER),
        ("SIMULATED", COMMIT),
    }


@pytest.mark.parametrize("change", [{"notes": "by hand"}, {"commit": None}])
def test_an_entry_with_other_keys_is_refused(tmp_path: Path, change: dict[str, str | None]) -> None:
    """Also one without a commit."""
    file = tmp_path / "systems.json"
    row = {"system": "debian_12", "nodes": "container", "role": "platform", "commit": COMMIT, "date": "2026-11-29"}
    row = {key: value for key, value in {**row, **change}.items() if value is not None}
    file.write_text(json.dumps([row]), encoding="utf-8")

    with pytest.raises(ValueError, match="each entry has the keys commit, date, nodes, role, system"):
        system_results.read(file)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of results and a page that recorders write, in place of those of the repository."""
    file = tmp_path / "systems.json"
    file.write_text("[]\n", encoding="utf-8")
    monkeypatch.setattr(system_results, "FILE", file)
    monkeypatch.setattr(recorded_systems, "PAGE", tmp_path / "systems.md")
    monkeypatch.setattr(recorded_systems, "commit_under_test", lambda: COMMIT)
    return file


def test_a_run_records_its_roles_and_writes_the_page(recorded: Path) -> None:
    """By the system of the node; containers show nothing of kernel modules."""
    recorder = SystemRecorder(COMMIT)
    recorder("debian12", ["platform", "peer_memory"])
    recorder("el9", ["platform"])
    recorder("debian12", ["peer_memory"], machine=True)
    recorder.write()

    assert {(one.system, one.nodes, one.role) for one in system_results.read(recorded)} == {
        ("debian_12", "container", "platform"),
        ("debian_12", "virtual machine", "peer_memory"),
        ("el_9", "SIMULATED", "platform"),
    }
    assert recorded_systems.PAGE.read_text(encoding="utf-8") == systems_page.page(system_results.read(recorded))


@pytest.mark.parametrize("commit", ["", OTHER])
def test_a_run_without_a_commit_of_its_own_records_nothing(recorded: Path, commit: str) -> None:
    """Without the option, and if another commit was checked out during the run."""
    recorder = SystemRecorder(commit)
    recorder("debian12", ["platform"])
    if commit:
        with pytest.raises(ValueError, match="another commit was checked out"):
            recorder.write()
    else:
        recorder.write()

    assert system_results.read(recorded) == []


def test_modified_files_are_not_the_commit(tmp_path: Path) -> None:
    """The files that runs write may be modified, so that several runs can be recorded for one commit."""

    def git(*words: str) -> str:
        identity = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        done = subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    (tmp_path / "docs/data").mkdir(parents=True)
    (tmp_path / "docs/data/systems.json").write_text("[]\n", encoding="utf-8")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "Add results")
    (tmp_path / "docs/data/systems.json").write_text("[1]\n", encoding="utf-8")

    assert commit_under_test(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "role.yml").write_text("changed\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"files are not committed:\n.*role\.yml"):
        commit_under_test(tmp_path)
