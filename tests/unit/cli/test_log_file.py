"""``--log-file``: a copy of what a command prints, private, dated, without colours and secrets."""

from __future__ import annotations

import json
import os
import re
import stat

import pytest

from provision.cli import common, live_progress, log_file, main, progress
from provision.engine import Event
from provision.report import layout
from tests.support.command import eventually

HOSTS = "all:\n  hosts:\n    gpu1: {ansible_host: 127.0.0.1, ansible_port: 1, ansible_password: 'Wr8ong horse'}\n"
DATED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} \d+ (command|stdout|stderr|exit):( .*)?")


@pytest.fixture(autouse=True)
def _own_state(own_level):
    del own_level
    yield
    log_file.stop(0)


@pytest.fixture
def inventory(tmp_path):
    path = tmp_path / "hosts.yml"
    path.write_text(HOSTS)
    return str(path)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "provision.log"


def lines(log, stream):
    """Return what the log has of a stream."""
    head = re.compile(rf"\S+ \d+ {stream}: ?")
    return [head.sub("", line) for line in log.read_text().splitlines() if head.match(line)]


@pytest.mark.parametrize("before", [False, True])
def test_the_log_has_the_command_line_all_output_and_the_exit_code(typed, inventory, log, before):
    """Before or behind the verb; each line has its time."""
    option = ["--log-file", str(log)]
    words = [*option, "plan", "-i", inventory] if before else ["plan", "-i", inventory, f"--log-file={log}"]
    code, out, err = typed(*words)

    assert code == 1
    assert lines(log, "command")[0].startswith("provision plan ")
    assert lines(log, "stdout") == out.splitlines()
    assert lines(log, "stderr") == err.splitlines()
    assert lines(log, "exit")[0].startswith("1 after ")
    assert all(DATED.fullmatch(line) for line in log.read_text().splitlines())
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_second_command_is_appended(typed, log):
    typed("schema", "plan", "--log-file", str(log))
    typed("schema", "nothing", "--log-file", str(log))

    assert [line.split()[0] for line in lines(log, "exit")] == ["0", "2"]
    assert lines(log, "stderr")[0].startswith("error: ")


def test_a_document_is_alone_on_stdout_and_complete_in_the_log(typed, inventory, log):
    _, out, _ = typed("plan", "--json", "-i", inventory, "--log-file", str(log))

    assert json.loads(out) == json.loads("\n".join(lines(log, "stdout")))


def test_secrets_are_not_in_the_log(typed, inventory, log):
    """Those of the command line by their form, those of the inventory by their value."""
    typed("exec", "-i", inventory, "--log-file", str(log), "--", "API_KEY=abc123XYZ", "echo", "Wr8ong horse")
    log_file.start(str(log), ["plan"])
    common.cluster_from(inventory)
    common.show("the output of a node: Wr8ong horse")
    log_file.stop(0)

    assert "abc123XYZ" not in log.read_text()
    assert lines(log, "stdout")[-1] == "the output of a node: [removed]"


def test_colours_and_progress_bars_are_not_in_the_log(log):
    layout.choose(colour=True)
    log_file.start(str(log), ["logs"])
    common.show(layout.state("FAILED"))
    log_file.record_raw("stdout", b"\x1b[31mred\x1b[0m\n10%\r20%\r100%\npart")
    log_file.record_raw("stdout", b" two\nthe end")
    log_file.stop(3)
    layout.choose()

    assert lines(log, "stdout") == ["FAILED", "red", "100%", "part two", "the end"]
    assert lines(log, "exit") == ["3 after 0s"]


def _link(path):
    path.with_suffix(".target").write_text("")
    path.symlink_to(path.with_suffix(".target"))


BAD = {
    "symbolic link": (_link, "it is a symbolic link"),
    "folder": (lambda path: path.mkdir(), "Is a directory"),
    "pipe": (os.mkfifo, "No such device or address"),
    "other user": (lambda path: path.write_text("mine"), "owned by another user"),
    "no folder": (lambda path: path.parent.rmdir(), "No such file or directory"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_unsafe_file_is_refused_before_anything_is_done(typed, monkeypatch, tmp_path, inventory, case):
    """The error names the file and the cause; the verb does not run."""
    make, cause = BAD[case]
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "provision.log"
    make(path)
    if case == "other user":
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    code, out, err = typed("plan", "-i", inventory, "--log-file", str(path))

    assert (code, out) == (2, "")
    assert err.startswith(f"error: --log-file {path}: the file cannot be written (")
    assert cause in err
    assert "\nhint: " in err
    assert case != "other user" or path.read_text() == "mine"


@pytest.mark.parametrize("words", [["--log-file"], ["--log-file", "--json"], ["--log-file="]])
def test_a_missing_file_name_is_refused(typed, words):
    assert typed("schema", "plan", *words)[0] == 2


def test_a_full_disk_does_not_end_the_command(monkeypatch, capsys):
    """One warning, and the results are still printed."""
    monkeypatch.setattr(log_file, "_opened", lambda _: os.open("/dev/full", os.O_WRONLY))
    log_file.start("x.log", ["plan"])
    common.show("result")

    warning = "warning: --log-file x.log: cannot be written (No space left on device)\n"
    assert capsys.readouterr() == ("result\n", warning)


def test_an_unexpected_error_is_in_the_log(monkeypatch, log):
    def broken(*_args, **_options):
        raise RuntimeError("a bug")

    monkeypatch.setattr(main, "build_app", broken)
    with pytest.raises(RuntimeError):
        main.main(["plan", "--log-file", str(log)])

    assert "RuntimeError: a bug" in lines(log, "stderr")
    assert lines(log, "exit")[0].startswith("1 after")


def test_the_log_has_the_progress_that_a_terminal_shows_as_a_table(monkeypatch, log):
    """The frames of the live table are not in the log, but the summaries of a pipe are."""
    monkeypatch.setattr(live_progress, "SUMMARY_SECONDS", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    log_file.start(str(log), ["apply"])
    with progress.ApplyProgress(["gpu1", "gpu2"]) as shown:
        shown.event(Event("gpu1", "platform", "Write", "start"))
        eventually(lambda: lines(log, "stderr"), seconds=10, what="the summary")
    log_file.stop(0)

    assert [re.sub(r"\[ +\d+s\]", "[1s]", line) for line in lines(log, "stderr")] == ["[1s] platform on gpu1"]


def test_the_program_of_a_user_keeps_its_options():
    assert main._levelled(["run", "--", "tool", "--log-file", "x"]) == ["run", "--", "tool", "--log-file", "x"]
    assert not log_file._current


def test_commands_of_the_demo_write_into_the_same_log(log):
    log_file.start(str(log), ["demo"])

    assert log_file.options() == ["--log-file", str(log)]
