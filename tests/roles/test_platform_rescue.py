"""Changes that can cut off the operator: the node reverts them unless the controller confirms them in time."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.util
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure

from provision.components import COMPONENTS
from provision.facts.base import RawOutput
from provision.facts.rescue import RescueFact
from provision.report.rescue_remedies import RESCUE_REMEDIES
from tests.support.interpreters import OLDEST
from tests.support.light_modules import light, run_light
from tests.support.modules import load, provide_utils, run
from tests.unit.checks.conftest import healthy

provide_utils()
node = importlib.import_module("ansible.module_utils.platform_rescue_node")
rescue = importlib.import_module("ansible.module_utils.platform_rescue")
TOKEN, OTHER = "a" * 32, "b" * 32

CHANGING = """\
import io, os
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_rescue import OPTIONS, Rescue

def main():
    spec = {"path": {"type": "path"}, "fails": {"type": "bool", "default": False}, "commands": {"type": "list"}}
    spec["records"] = {"type": "list"}
    spec.update(OPTIONS)
    module = AnsibleModule(argument_spec=spec)
    change = Rescue(module, "fabric_host", "MTU of eth1")
    change.begin()
    with open(module.params["path"]) if os.path.exists(module.params["path"]) else io.StringIO() as stream:
        before = stream.read()
    change.arm([module.params["path"]], module.params["commands"] or [], records=module.params["records"] or [])
    for record in module.params["records"] or []:
        if os.path.exists(record):
            os.unlink(record)
        else:
            with open(record, "w") as stream:
                stream.write("new")
    with open(module.params["path"], "w") as stream:
        stream.write("new")
    if module.params["fails"]:
        change.revert()
        module.fail_json(msg="a part of the change failed")
    module.exit_json(**change.changed({"changed": True, "left": [before]}))

if __name__ == "__main__":
    main()
"""


class Systemd:
    """The timers of a node."""

    def __init__(self) -> None:
        self.timers: dict[str, list[str]] = {}
        self.refuses = ""
        self.reset = set[str]()
        self.checks: list[list[str]] = []

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        """Start or stop a timer."""
        names = [word.replace("--unit=", "") for word in command if "provision-rescue-" in word]
        if command[0] == "systemd-run":
            if "--service-type=oneshot" in command:
                words = command[next(number for number, word in enumerate(command) if word.startswith("/")) :]
                self.checks.append([word.rpartition("/")[2] for word in words[-2:]])
                done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
                return done.returncode, done.stdout, done.stderr
            if self.refuses and self.refuses in names[0]:
                return 1, "", "Failed to start transient timer unit: Connection timed out"
            self.timers[names[0]] = command
        elif command[1] == "stop":
            for name in names:
                self.timers.pop(name.removesuffix(".timer"), None)
        elif command[1] == "reset-failed":
            self.reset.update(names)
        return 0, "", ""

    def seconds(self) -> dict[str, int]:
        """Return the timers and their times."""
        words = {name: next(word for word in command if "active" in word) for name, command in self.timers.items()}
        return {name: int(word.partition("=")[2]) for name, word in words.items()}


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    """A node with systemd and its folders."""
    monkeypatch.setattr(node, "FOLDER", str(tmp_path / "rescue"))
    monkeypatch.setattr(node, "UNITS", str(tmp_path / "units"))
    monkeypatch.setattr(rescue, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(rescue, "connection", lambda: [10, 1])
    made = Systemd()
    for module in (changing(tmp_path), confirming()):
        monkeypatch.setattr(module.AnsibleModule, "run_command", lambda _self, command: made.run_command(command))
        monkeypatch.setattr(module.AnsibleModule, "get_bin_path", lambda _self, name: f"/usr/bin/{name}")
    return made


def changing(folder: Path) -> Any:
    """The module that changes a file."""
    path = folder / "changing.py"
    path.write_text(CHANGING)
    spec = importlib.util.spec_from_file_location("changing", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def confirming() -> Any:
    """The module that confirms a change."""
    return load("platform", "platform_rescue")


def change(path: Path, *, token: str = TOKEN, seconds: int = 45, **more: Any) -> dict[str, Any]:
    """Change a file."""
    return run(changing(path.parent), path=str(path), rescue_token=token, rescue_seconds=seconds, **more)


def confirm(token: str = TOKEN, *, fresh: bool = True) -> dict[str, Any]:
    """Confirm a change."""
    return run(confirming(), token=token, fresh=fresh)


def from_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the following modules run over a connection of their own."""
    monkeypatch.setattr(rescue, "connection", lambda: [11, 2])


def waiting_files(folder: Path) -> list[str]:
    """Return what exists only while a change waits."""
    paths = [folder / "rescue" / "pending.json", *map(Path, node.boot_paths())]
    return [path.name for path in paths if os.path.lexists(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of the node."""
    file = tmp_path / "rules"
    file.write_text("old")
    file.chmod(0o640)
    return file


def test_a_confirmed_change_stays(systemd: Systemd, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of the module is that of the task, and nothing is left that would revert the change."""
    done = change(path)
    assert (done["rescue"], systemd.seconds()) == ("armed", {"provision-rescue-aaaaaaaaaaaa": 45})
    assert len(waiting_files(path.parent)) == 3
    assert stat.S_IMODE((path.parent / "rescue").stat().st_mode) == 0o700

    from_another_connection(monkeypatch)
    answer = confirm()

    assert (answer["state"], answer["result"]) == ("confirmed", {"changed": True, "left": ["old"]})
    assert (path.read_text(), systemd.timers, waiting_files(path.parent)) == ("new", {}, [])
    assert confirm()["state"] == "confirmed"


def test_the_connection_of_the_change_cannot_confirm_it(systemd: Systemd, path: Path) -> None:
    """Sessions that share a connection pass a firewall which refuses new ones. A local controller has no connection."""
    change(path)

    assert confirm()["state"] == "same_connection"
    assert systemd.timers
    assert confirm(fresh=False)["state"] == "confirmed"


def program(folder: Path, *words: str) -> int:
    """Run the program of the node as systemd does."""
    source = (folder / "rescue" / "rescue.py").read_text()
    source = source.replace('"/var/lib/provision/rescue"', repr(str(folder / "rescue")))
    source = source.replace('"/etc/systemd/system"', repr(str(folder / "units")))
    return subprocess.run([OLDEST, "-I", "-S", "-c", source, *words], check=False, timeout=60).returncode


@pytest.mark.usefixtures("systemd")
def test_the_node_reverts_a_change_at_its_limit(path: Path) -> None:
    """Without the controller: files with their modes, then the commands. The task fails with what was restored."""
    mark = path.parent / "mark"
    change(path, commands=[["sh", "-c", f"cat {path} >{mark}"], ["false"]])

    code = program(path.parent, "limit", TOKEN)
    answer = confirm()

    assert (code, path.read_text(), mark.read_text(), stat.S_IMODE(path.stat().st_mode)) == (1, "old", "old", 0o640)
    assert waiting_files(path.parent) == []
    assert (answer["failed"], answer["reason"]) == (True, "rescue.reverted")
    assert (answer["reverted"]["files"], answer["reverted"]["problems"]) == ([str(path)], ["`false` failed: "])
    assert str(path) in answer["msg"]
    assert answer["remedy"] == RESCUE_REMEDIES["rescue.reverted"]


@pytest.mark.usefixtures("systemd")
def test_a_new_file_is_removed(path: Path) -> None:
    """It did not exist before the change."""
    path.unlink()
    change(path)

    assert program(path.parent, "limit", TOKEN) == 0
    assert not path.exists()


@pytest.mark.usefixtures("systemd")
def test_a_boot_before_the_confirmation_reverts_the_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit is enabled before the change. A start of it without a boot changes nothing."""
    change(path)
    link, unit = map(Path, node.boot_paths())
    assert link.resolve() == unit
    assert f"ExecStart={rescue.interpreter()} -I -S {node.FOLDER}/rescue.py boot\n" in unit.read_text()

    assert (program(path.parent, "boot"), path.read_text()) == (0, "new")
    pending = json.loads((path.parent / "rescue" / "pending.json").read_text())
    node.write_document("pending", {**pending, "boot": "another 1"})
    assert (program(path.parent, "boot"), path.read_text()) == (0, "old")

    from_another_connection(monkeypatch)
    assert confirm()["reverted"]["cause"] == "boot"


@pytest.mark.usefixtures("systemd")
@pytest.mark.parametrize("by", ["confirmation", "change"])
def test_a_boot_is_the_cause_although_its_unit_did_not_run(path: Path, by: str) -> None:
    """The network is configured by then, so that the commands for values in effect run too."""
    mark = path.parent / "mark"
    change(path, commands=[["touch", str(mark)]])
    node.write_document("pending", {**node.read_document("pending"), "boot": "another 1"})

    result = confirm() if by == "confirmation" else change(path.with_name("other"), token=OTHER)

    assert (result.get("reason"), result.get("rescue")) in (("rescue.reverted", None), (None, "armed"))
    assert (path.read_text(), node.read_document("last")["cause"], mark.exists()) == ("old", "boot", True)


@pytest.mark.usefixtures("systemd")
def test_a_confirmation_after_the_limit_is_too_late(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer may be late; the node reverts the change at once."""
    change(path)
    node.write_document("pending", {**node.read_document("pending"), "deadline": 0})
    from_another_connection(monkeypatch)

    assert confirm()["reason"] == "rescue.reverted"
    assert path.read_text() == "old"


def test_two_changes_never_overlap(systemd: Systemd, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits, and is refused without a change if the first one does not end."""
    monkeypatch.setattr(rescue, "WAIT_SECONDS", 0.05)
    change(path)
    other = path.with_name("other")

    refused = change(other, token=OTHER)

    assert (refused["reason"], other.exists()) == ("rescue.pending", False)
    assert len(systemd.timers) == 1


@pytest.mark.usefixtures("systemd")
def test_the_next_change_reverts_one_whose_timer_is_lost(path: Path) -> None:
    """Whatever happened to the timer, the saved state is that before the first change."""
    change(path)
    node.write_document("pending", {**node.read_document("pending"), "deadline": 0})
    other = path.with_name("other")

    assert change(other, token=OTHER)["rescue"] == "armed"
    assert (path.read_text(), node.read_document("last")["cause"]) == ("old", "next")


@pytest.mark.usefixtures("systemd")
def test_a_change_is_reverted_before_the_next_one_reads_the_node(path: Path) -> None:
    """The next apply would otherwise see its own desired state, and change nothing."""
    change(path)
    node.write_document("pending", {**node.read_document("pending"), "deadline": 0})

    assert change(path, token=OTHER)["left"] == ["old"]


@pytest.mark.usefixtures("systemd")
def test_a_repeated_task_makes_its_change_once(path: Path) -> None:
    """The program ssh repeats a task whose connection was cut. After a revert the change is not made again."""
    change(path)
    path.write_text("later")
    assert (change(path)["rescue"], path.read_text()) == ("armed", "later")

    program(path.parent, "limit", TOKEN)
    assert (change(path)["reason"], path.read_text()) == ("rescue.reverted", "old")


@pytest.mark.usefixtures("systemd")
def test_a_revert_is_reported_until_the_role_has_nothing_to_change(path: Path) -> None:
    """The record belongs to the role that made the change; a confirmed one stays."""
    change(path)
    program(path.parent, "limit", TOKEN)
    module = type("Module", (), {"check_mode": False, "params": {"rescue_token": "", "rescue_seconds": 0}})()

    rescue.Rescue(module, "base_system", "rules of ufw").unchanged()
    assert node.read_document("last")["state"] == "reverted"
    rescue.Rescue(module, "fabric_host", "MTU of eth1").unchanged()
    assert node.read_document("last") == {}


def test_nothing_changes_without_a_timer(systemd: Systemd, path: Path) -> None:
    """A systemd that does not answer is an error with its own remedy."""
    systemd.refuses = "provision"

    refused = change(path)

    assert (refused["reason"], path.read_text(), waiting_files(path.parent)) == ("rescue.not_armed", "old", [])


@pytest.mark.usefixtures("systemd")
def test_a_path_that_cannot_be_saved_is_not_changed(path: Path) -> None:
    """A link could lead anywhere."""
    link = path.with_name("link")
    link.symlink_to(path)

    refused = change(link)

    assert (refused["reason"], refused["remedy"]) == ("rescue.not_saved", RESCUE_REMEDIES["rescue.not_saved"])
    assert f"{link}: it is a symbolic link" in refused["msg"]
    assert path.read_text() == "old"


def test_a_change_of_which_a_part_fails_is_reverted_at_once(systemd: Systemd, path: Path) -> None:
    """Nothing waits for the limit."""
    assert change(path, fails=True)["failed"]
    assert (path.read_text(), systemd.timers, waiting_files(path.parent)) == ("old", {}, [])


def test_a_change_that_takes_longer_than_its_guard_is_reverted(
    systemd: Systemd, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer ran before the change was complete, so the module reverts it once more."""
    original = rescue.Rescue.changed

    def late(self: Any, result: dict[str, Any]) -> Any:
        assert systemd.seconds() == {"provision-rescue-aaaaaaaaaaaa-guard": 645}
        program(path.parent, "limit", TOKEN)
        assert node.read_document("last")["cause"] == "late"
        path.write_text("new")
        return original(self, result)

    monkeypatch.setattr(rescue.Rescue, "changed", late)

    late_change = change(path)
    assert late_change["reverted"]["cause"] == "late"
    assert "took longer than 645 s" in late_change["msg"]
    assert path.read_text() == "old"


def test_the_limit_starts_after_the_change(systemd: Systemd, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of many nodes take longer than a new connection."""
    original, clock = rescue.Rescue.changed, time.monotonic
    later: list[float] = []

    def slow(self: Any, result: dict[str, Any]) -> Any:
        assert node.read_document("pending")["deadline"] > clock() + 600
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 300)
        later.append(time.monotonic())
        return original(self, result)

    monkeypatch.setattr(rescue.Rescue, "changed", slow)

    assert change(path)["rescue"] == "armed"
    assert 44 < node.read_document("pending")["deadline"] - later[0] < 60
    assert systemd.seconds() == {"provision-rescue-aaaaaaaaaaaa": 45}


def test_the_guard_stays_if_there_is_no_timer_for_the_limit(systemd: Systemd, path: Path) -> None:
    """The change is reverted later, or confirmed."""
    original = systemd.run_command

    def run_command(command: list[str]) -> tuple[int, str, str]:
        return (1, "", "x") if "--unit=provision-rescue-aaaaaaaaaaaa" in command else original(command)

    systemd.run_command = run_command  # type: ignore[method-assign]

    assert change(path)["rescue"] == "armed"
    assert systemd.seconds() == {"provision-rescue-aaaaaaaaaaaa-guard": 645}


@pytest.mark.parametrize("seconds", [-1, 19, 3601])
def test_the_limit_has_bounds(systemd: Systemd, path: Path, seconds: int) -> None:
    """A shorter one has no time for a new connection."""
    assert "platform_rescue_seconds" in change(path, seconds=seconds)["msg"]
    assert (path.read_text(), systemd.timers) == ("old", {})


def test_the_preflight_has_the_bounds_of_the_module() -> None:
    """Otherwise a limit that the node refuses would start an apply."""
    settings = COMPONENTS["platform"].settings
    bounds = (rescue.LEAST_SECONDS, rescue.MOST_SECONDS)

    accepted = [list(settings({"platform_rescue_seconds": seconds}, healthy())) for seconds in (0, *bounds)]
    refused = [list(settings({"platform_rescue_seconds": n}, healthy())) for n in (-1, bounds[0] - 1, bounds[1] + 1)]

    assert (accepted, [len(problems) for problems in refused]) == ([[], [], []], [1, 1, 1])


def test_a_connection_is_that_of_its_sshd(tmp_path: Path) -> None:
    """A process without one has none."""
    assert rescue.connection() is None
    copy = tmp_path / "sshd"
    copy.symlink_to(sys.executable)
    code = "import subprocess, sys; subprocess.run([sys.argv[1], '-c', sys.argv[2]], check=True)"
    folder = Path(rescue.__file__).parent
    asks = (
        f"import sys, ansible.module_utils as utils; utils.__path__.append({str(folder)!r})\n"
        "from ansible.module_utils import platform_rescue; print(platform_rescue.connection()[0])"
    )
    with subprocess.Popen([copy, "-c", code, sys.executable, asks], stdout=subprocess.PIPE, text=True) as server:
        out, _ = server.communicate(timeout=60)

    assert int(out) == server.pid


def test_a_node_without_ansibles_library_gets_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent with the module, and starts under the oldest Python of this machine."""
    path, programs = tmp_path / "rules", tmp_path / "bin"
    path.write_text("old")
    programs.mkdir()
    (programs / "systemd-run").write_text("#!/bin/sh\n")
    (programs / "systemd-run").chmod(0o755)
    (tmp_path / "changing.py").write_text(CHANGING)
    monkeypatch.setitem(light._FOLDERS, "library", (tmp_path,))
    arguments = {"path": str(path), "rescue_token": TOKEN, "rescue_seconds": 45}
    document = light.decoded(light.light_program("changing", arguments))
    for old, new in (("/var/lib/provision", tmp_path), ("/etc/systemd/system", tmp_path / "units")):
        document["parts"] = [[name, file, text.replace(old, str(new))] for name, file, text in document["parts"]]

    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    code, answer = run_light(OLDEST, light.encoded(document), env=environment)

    assert (code, answer.get("rescue"), path.read_text()) == (0, "armed", "new")
    assert program(tmp_path, "limit", TOKEN) == 0
    assert path.read_text() == "old"


class Connection:
    """A connection of Ansible."""

    transport = "ssh"

    def __init__(self) -> None:
        self.resets = 0

    def reset(self) -> None:
        """Count the new connections."""
        self.resets += 1


def confirmed(answers: list[Any], connection: Any = None) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """Run a change whose tasks have these answers; return the result and the tasks."""
    tasks: list[tuple[str, dict[str, Any]]] = []

    def execute(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        tasks.append((name, arguments))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    return light.confirmed(execute, connection or Connection(), "changing", {"rescue_seconds": 45}), tasks


ARMED = {"changed": True, "rescue": "armed"}
CONFIRMED = {"state": "confirmed", "result": {"changed": True, "left_out": []}}
CUT = AnsibleConnectionFailure("Connection timed out")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light, "_PAUSE_SECONDS", 0)


def test_the_controller_confirms_over_a_new_connection() -> None:
    """The token of the change is a new one."""
    connection = Connection()
    result, tasks = confirmed([ARMED, CONFIRMED], connection)

    assert (result, connection.resets) == ({"changed": True, "left_out": []}, 1)
    assert [name for name, _ in tasks] == ["changing", "platform_rescue"]
    assert tasks[0][1]["rescue_token"] == tasks[1][1]["token"]
    assert tasks[1][1]["fresh"] is True


def test_a_task_without_a_change_costs_no_connection() -> None:
    """Most runs change nothing; a failed change has nothing to confirm."""
    connection = Connection()

    assert confirmed([{"changed": False}], connection)[0] == {"changed": False}
    assert confirmed([{"failed": True, "msg": "x"}], connection)[0]["failed"]
    assert connection.resets == 0


@pytest.mark.parametrize("seconds", [0, "0", 45, "45"])
def test_a_task_with_a_limit_of_0_gets_no_token(seconds: Any) -> None:
    """Its change is made at once, and not confirmed."""
    tasks: list[tuple[str, dict[str, Any]]] = []

    def execute(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        tasks.append((name, arguments))
        return {"changed": True}

    assert light.confirmed(execute, Connection(), "changing", {"rescue_seconds": seconds}) == {"changed": True}

    [(name, arguments)] = tasks
    assert (name, arguments["rescue_seconds"]) == ("changing", seconds)
    assert bool(rescue.TOKEN.fullmatch(arguments.get("rescue_token", ""))) is (int(seconds) > 0)


def test_a_local_node_needs_no_new_connection() -> None:
    """There is none that the change could cut."""
    local = Connection()
    local.transport = "local"

    _, tasks = confirmed([ARMED, CONFIRMED], local)

    assert (tasks[1][1]["fresh"], local.resets) == (False, 0)


def test_the_controller_tries_until_the_node_has_decided() -> None:
    """New connections are refused until the node reverts the change; its answer is the result."""
    reverted = {"failed": True, "reason": "rescue.reverted", "msg": "rules of ufw: the node reverted the change"}
    result, tasks = confirmed([ARMED, CUT, {"state": "pending"}, {"state": "same_connection"}, reverted])

    assert result == reverted
    assert len(tasks) == 5


def test_a_change_that_cuts_its_own_connection_is_confirmed_over_another_one() -> None:
    """The node has the result of the module."""
    result, _ = confirmed([CUT, CUT, CONFIRMED])

    assert result == {"changed": True, "left_out": []}


@pytest.mark.parametrize(
    "key", ["add_host", "add_group", "ansible_facts", "_ansible_no_log", "failed", "msg", "rescue"]
)
def test_a_node_cannot_add_keys_of_ansible_to_the_result(key: str) -> None:
    """Ansible checks the result of a module, and not what is nested in it."""
    hostile = {"state": "confirmed", "result": {"changed": True, "files": ["/etc/x"], key: {"host_name": "evil"}}}

    assert confirmed([ARMED, hostile])[0] == {"changed": True, "files": ["/etc/x"]}


def test_a_node_without_a_result_keeps_that_of_the_task() -> None:
    """It may answer anything."""
    assert confirmed([ARMED, {"state": "confirmed", "result": "x"}])[0] == {"changed": True}
    assert confirmed([ARMED, {"state": "confirmed"}])[0] == {"changed": True}


def test_the_controller_waits_for_a_change_that_takes_longer_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit starts afterwards; a node cannot delay the controller without an end."""
    now = [0.0]

    def sleep(_seconds: float) -> None:
        now[0] += 100

    monkeypatch.setattr(light.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(light.time, "sleep", sleep)
    pending = {"state": "pending"}

    assert confirmed([CUT, pending, pending, pending, CUT, CONFIRMED])[0] == {"changed": True, "left_out": []}
    assert confirmed([CUT, *[pending] * 20])[0]["reason"] == "rescue.reverted"


@pytest.mark.parametrize(
    ("state", "reason", "part"),
    [
        ("absent", "rescue.absent", "neither confirmed nor reverted"),
        ("pending", "rescue.reverted", "did not complete the change in time"),
        ("same_connection", "rescue.reverted", "no new connection in time"),
        ("{{ x }}", "rescue.reverted", "no valid answer"),
        ([], "rescue.reverted", "no valid answer"),
        (None, "rescue.reverted", "no valid answer"),
    ],
)
def test_a_change_that_is_not_confirmed_is_reported_by_its_state(
    monkeypatch: pytest.MonkeyPatch, state: Any, reason: str, part: str
) -> None:
    """The node reverts only a change that it has; its answer is no part of the message."""
    monkeypatch.setattr(light, "_GRACE_SECONDS", -45)
    result, _ = confirmed([ARMED, {"state": state}])

    assert (result["failed"], result["reason"]) == (True, reason)
    assert part in result["msg"]
    assert "{{" not in result["msg"]
    assert ("it reverts it" in result["msg"]) is (state != "absent")
    assert reason in RESCUE_REMEDIES


def test_a_node_that_was_lost_before_the_change_is_unreachable() -> None:
    """It has no change with this token."""
    with pytest.raises(AnsibleConnectionFailure):
        confirmed([CUT, {"state": "absent"}])


def test_a_node_that_stays_away_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller waits until after the limit."""
    monkeypatch.setattr(light, "_GRACE_SECONDS", -45)

    with pytest.raises(AnsibleConnectionFailure):
        confirmed([ARMED, CUT])


class Crash(BaseException):
    """The module ends, whatever the reason."""


def test_the_change_waits_only_once_all_that_reverts_it_is_ready(
    systemd: Systemd, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file pending.json without a timer would block later changes."""
    seen: list[Any] = []
    written = node.write_document

    def watched(name: str, document: Any) -> None:
        seen.append((name, len(systemd.timers), [Path(one).name for one in node.boot_paths() if os.path.lexists(one)]))
        written(name, document)

    monkeypatch.setattr(node, "write_document", watched)
    change(path, fails=True)

    assert seen[0] == ("pending", 1, [node.BOOT_UNIT, node.BOOT_UNIT])


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Crash()])
def test_an_error_while_arming_leaves_nothing(
    systemd: Systemd, path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Neither the document nor units, whatever the error is."""

    def fail(name: str, document: Any) -> None:
        Path(node.document_path(name)).write_text(json.dumps(document))
        raise error

    monkeypatch.setattr(node, "write_document", fail)
    with contextlib.suppress(Crash):
        assert change(path)["reason"] == "rescue.not_armed"

    assert (path.read_text(), systemd.timers, waiting_files(path.parent)) == ("old", {}, [])


@pytest.fixture
def held_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another process holds the lock of the documents and never ends."""
    (path.parent / "rescue").mkdir(exist_ok=True)
    monkeypatch.setattr(node, "LOCK_SECONDS", 0.05)
    handle = os.open(path.parent / "rescue" / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    yield
    os.close(handle)


@pytest.mark.usefixtures("held_lock")
def test_a_module_does_not_wait_for_a_lock_without_a_limit(systemd: Systemd, path: Path) -> None:
    """Nothing is changed; a confirmation is tried again by the controller."""
    assert (change(path)["reason"], path.read_text(), systemd.timers) == ("rescue.pending", "old", {})
    assert confirm()["state"] == "pending"


@pytest.mark.usefixtures("systemd")
def test_a_revert_goes_on_although_another_process_holds_the_lock(path: Path, request: pytest.FixtureRequest) -> None:
    """That process hangs, and the node may be cut off. To restore twice is the same as once."""
    change(path)
    request.getfixturevalue("held_lock")

    assert node.revert("limit", TOKEN)["state"] == "reverted"
    assert (path.read_text(), waiting_files(path.parent)) == ("old", [])


def test_a_command_of_a_revert_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a child that goes on nor one that holds the output delays the revert."""
    mark = tmp_path / "mark"
    monkeypatch.setattr(node, "COMMAND_SECONDS", 0.5)

    started = time.monotonic()
    problem = node.run(["sh", "-c", f"(sleep 2; echo late >{mark}) & sleep 60"])
    assert "did not end within" in problem
    assert node.run(["sh", "-c", "sleep 20 & echo x"]) == ""
    assert time.monotonic() - started < 10
    time.sleep(2)
    assert not mark.exists()


def test_a_command_of_a_revert_runs_without_space_for_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk must not prevent it."""

    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.tempfile, "TemporaryFile", full)

    assert node.run(["true"]) == ""
    assert node.run(["sh", "-c", "echo x; exit 1"]) == "`sh -c echo x; exit 1` failed: "


def full_disk(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let no file of these names be written."""
    original = node.write_file

    def write(file: str, *more: Any) -> None:
        if Path(file).name in names:
            raise OSError(28, "No space left on device")
        original(file, *more)

    monkeypatch.setattr(node, "write_file", write)


@pytest.mark.usefixtures("systemd")
def test_a_file_that_cannot_be_restored_is_restored_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change waits for a boot or the next apply, which is refused until then; commands run every time."""
    mark = path.parent / "mark"
    change(path, commands=[["sh", "-c", f"echo x >>{mark}"]])
    with monkeypatch.context() as patch:
        full_disk(patch, path.name)
        assert node.main(["limit", TOKEN]) == 1
        assert len(waiting_files(path.parent)) == 3
        pending = node.read_document("pending")
        node.write_document("pending", {**pending, "deadline": 0})
        refused = change(path, token=OTHER)
        assert (refused["reason"], path.read_text()) == ("rescue.not_restored", "new")
        assert "No space left on device" in refused["msg"]
        assert node.read_document("last")["state"] == "reverted"

    assert change(path, token=OTHER)["left"] == ["old"]
    assert mark.read_text() == "x\nx\nx\n"


@pytest.mark.usefixtures("systemd")
def test_a_confirmation_after_the_limit_reports_a_file_that_was_not_restored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its remedy is another one."""
    change(path)
    full_disk(monkeypatch, path.name)
    assert node.main(["limit", TOKEN]) == 1
    node.write_document("pending", {**node.read_document("pending"), "deadline": 0})

    assert confirm()["reason"] == "rescue.not_restored"


@pytest.mark.usefixtures("systemd")
def test_a_revert_ends_although_its_record_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise it would be repeated at every boot."""
    change(path)
    full_disk(monkeypatch, "last.json")

    assert node.main(["limit", TOKEN]) == 1
    assert (path.read_text(), waiting_files(path.parent)) == ("old", [])
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.usefixtures("systemd")
def test_the_program_reports_an_error_without_a_traceback(path: Path) -> None:
    """Systemd stores its output in the journal."""
    change(path)
    (path.parent / "rescue" / "lock").unlink()
    (path.parent / "rescue" / "lock").mkdir()

    assert node.main(["limit", TOKEN]) == 1


@pytest.mark.usefixtures("systemd")
def test_a_revert_restores_records(path: Path) -> None:
    """The report names the files of the change only."""
    removed, new = path.with_name("removed.json"), path.with_name("new.json")
    removed.write_text("origin")
    change(path, records=[str(removed), str(new)])
    assert (removed.exists(), new.exists()) == (False, True)

    assert program(path.parent, "limit", TOKEN) == 0
    assert (removed.read_text(), new.exists()) == ("origin", False)
    assert node.read_document("last")["files"] == [str(path)]


@pytest.mark.usefixtures("systemd")
def test_the_record_of_a_value_that_was_not_restored_stays(path: Path) -> None:
    """A reset restores the value."""
    removed, new = path.with_name("removed.json"), path.with_name("new.json")
    removed.write_text("origin")
    change(path, records=[str(removed), str(new)], commands=[["false"]])

    assert program(path.parent, "limit", TOKEN) == 1
    assert (removed.read_text(), new.exists()) == ("origin", True)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.usefixtures("systemd")
def test_a_late_change_leaves_the_files_of_another_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """Whether the other one waits or is confirmed."""
    original = rescue.Rescue.changed

    def late(self: Any, result: dict[str, Any]) -> Any:
        monkeypatch.setattr(rescue.Rescue, "changed", original)
        program(path.parent, "limit", TOKEN)
        assert change(path, token=OTHER)["rescue"] == "armed"
        if ends:
            assert confirm(OTHER, fresh=False)["state"] == "confirmed"
        return original(self, result)

    monkeypatch.setattr(rescue.Rescue, "changed", late)
    refused = change(path)

    assert (refused["reason"], path.read_text()) == ("rescue.pending", "new")
    assert "role fabric_host" in refused["msg"]
    assert node.read_document("last" if ends else "pending")["token"] == OTHER


@pytest.mark.usefixtures("systemd")
def test_a_late_change_restores_files_of_its_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another change of other files goes on."""
    original, other = rescue.Rescue.changed, path.with_name("other")

    def late(self: Any, result: dict[str, Any]) -> Any:
        monkeypatch.setattr(rescue.Rescue, "changed", original)
        program(path.parent, "limit", TOKEN)
        path.write_text("new")
        change(other, token=OTHER)
        return original(self, result)

    monkeypatch.setattr(rescue.Rescue, "changed", late)

    assert change(path)["reverted"]["cause"] == "late"
    assert (path.read_text(), node.read_document("pending")["token"]) == ("old", OTHER)


def test_a_failed_service_of_a_revert_does_not_stay(systemd: Systemd, path: Path) -> None:
    """The state of systemd would be degraded until the next boot."""
    change(path, commands=[["false"]])
    program(path.parent, "limit", TOKEN)

    assert confirm()["failed"]
    assert systemd.reset == {"provision-rescue-aaaaaaaaaaaa.service", "provision-rescue-aaaaaaaaaaaa-guard.service"}


@pytest.mark.usefixtures("systemd")
def test_the_record_that_every_probe_reads_is_small(path: Path) -> None:
    """The result of a module can be long; it has a file of its own."""
    change(path, commands=[["sh", "-c", f"echo {number}; exit 1"] for number in range(40)])
    node.write_document("pending", {**node.read_document("pending"), "result": {"diff": "x" * 2**20}})

    assert confirm(fresh=False)["result"] == {"diff": "x" * 2**20}
    assert Path(node.document_path("last")).stat().st_size < 1000
    assert confirm(fresh=False)["result"] == {"diff": "x" * 2**20}

    change(path, token=OTHER, commands=[["sh", "-c", f"echo {number}; exit 1"] for number in range(40)])
    program(path.parent, "limit", OTHER)
    assert len(node.read_document("last")["problems"]) == node.MOST_PROBLEMS
    assert not Path(node.document_path("result")).exists()
    assert RescueFact().parse(RawOutput(Path(node.document_path("last")).read_text(), 0)).state == "reverted"  # type: ignore[union-attr]
    document = {**node.read_document("last"), "files": [f"/etc/{number}" for number in range(400)]}
    node.end({**document, "files": [{"path": name} for name in document["files"]]}, "reverted")
    assert RescueFact().parse(RawOutput(Path(node.document_path("last")).read_text(), 0)).state == "reverted"  # type: ignore[union-attr]


@pytest.mark.usefixtures("systemd")
def test_a_late_confirmation_reports_a_revert_without_a_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full."""
    change(path)
    node.write_document("pending", {**node.read_document("pending"), "deadline": 0})
    full_disk(monkeypatch, "last.json")

    assert confirm()["reason"] == "rescue.reverted"


def test_systemd_starts_the_program_once_before_the_change(systemd: Systemd, path: Path) -> None:
    """A policy, or an interpreter that is missing, would only be noticed at the limit."""
    assert change(path)["rescue"] == "armed"
    assert systemd.checks == [["rescue.py", "check"]]


def test_nothing_changes_if_systemd_cannot_start_the_program(
    systemd: Systemd, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of systemd."""
    monkeypatch.setattr(rescue, "interpreter", lambda: "/usr/bin/false")

    refused = change(path)

    assert (refused["reason"], path.read_text(), waiting_files(path.parent)) == ("rescue.not_armed", "old", [])
    assert (systemd.timers, len(systemd.checks)) == ({}, 1)
    assert "provision-rescue-aaaaaaaaaaaa-check.service" in systemd.reset


def test_the_interpreter_is_that_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a virtual environment may be removed before the limit; one that is too old does not count."""
    programs = []
    for name, code in (("missing", None), ("old", 1), ("new", 0)):
        programs.append(str(tmp_path / name))
        if code is not None:
            (tmp_path / name).write_text(f"#!/bin/sh\nexit {code}\n")
            (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(rescue, "PYTHONS", programs)
    assert rescue.interpreter() == str(tmp_path / "new")
    monkeypatch.setattr(rescue, "PYTHONS", programs[:2])
    assert rescue.interpreter() == sys.executable
    monkeypatch.setattr(rescue, "PYTHONS", [sys.executable])
    assert rescue.interpreter() == sys.executable


def test_the_check_of_the_program_changes_nothing(path: Path) -> None:
    """Also while a change waits."""
    assert node.main(["check"]) == 0
    assert path.read_text() == "old"


def test_a_limit_of_0_means_no_revert(systemd: Systemd, path: Path) -> None:
    """Nothing is saved. A change of another role that waits still comes first."""
    done = change(path, seconds=0)

    assert ("rescue" in done, path.read_text(), systemd.timers, waiting_files(path.parent)) == (False, "new", {}, [])


@pytest.mark.parametrize("token", ["", OTHER])
@pytest.mark.usefixtures("systemd")
def test_a_change_without_a_limit_waits_for_others(path: Path, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """The revert of the other one would undo a part of it."""
    monkeypatch.setattr(rescue, "WAIT_SECONDS", 0.05)
    change(path)

    assert change(path.with_name("other"), token=token, seconds=0)["reason"] == "rescue.pending"


def test_a_change_that_is_too_large_to_be_read_again_is_refused(
    systemd: Systemd, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its revert would not read the document."""
    monkeypatch.setattr(node, "MOST_DOCUMENT_BYTES", 5000)
    path.write_text("x" * 5000)

    assert change(path)["reason"] == "rescue.not_saved"
    assert (path.read_text(), systemd.timers, waiting_files(path.parent)) == ("x" * 5000, {}, [])


@pytest.mark.usefixtures("systemd")
def test_a_result_that_is_too_large_is_not_saved(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change can be confirmed and reverted nevertheless."""
    monkeypatch.setattr(node, "MOST_DOCUMENT_BYTES", 5000)
    original = rescue.Rescue.changed

    def large(self: Any, result: dict[str, Any]) -> Any:
        return original(self, {**result, "diff": ["x" * 9000]})

    monkeypatch.setattr(rescue.Rescue, "changed", large)

    assert change(path)["diff"] == ["x" * 9000]
    assert confirm(fresh=False)["result"] == {"changed": True}
