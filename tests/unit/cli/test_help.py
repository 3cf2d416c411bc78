"""The help of every command is complete at 80 columns, and uses a wider terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
import typer

from provision.cli.main import build_app, main

MOST = 50


def all_commands():
    """Return (name, command) of every verb and group, and of those below them."""

    def walk(command, name):
        for word, below in getattr(command, "commands", {}).items():
            yield f"{name} {word}".strip(), below
            yield from walk(below, f"{name} {word}".strip())

    return list(walk(typer.main.get_command(build_app(None)), ""))


COMMANDS = all_commands()
GROUPS = [("", typer.main.get_command(build_app(None))), *((n, c) for n, c in COMMANDS if hasattr(c, "commands"))]


def summary(command):
    """Return the first paragraph of the help."""
    return " ".join(command.help.strip().split("\n\n")[0].split())


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_summary_has_at_most_fifty_characters_and_is_one_sentence(name, command):
    """One sentence of its own: what follows is another paragraph."""
    text = summary(command)

    assert len(text) <= MOST, f"{name}: {text}"
    assert text.endswith(".")
    assert ". " not in text


@pytest.mark.parametrize(("name", "group"), GROUPS, ids=[name or "provision" for name, _ in GROUPS])
def test_no_summary_is_cut_off_in_a_list_of_commands(name, group):
    context = typer.Context(group, info_name=f"provision {name}", terminal_width=78)
    lines = group.get_help(context).splitlines()

    assert max(map(len, lines)) <= 80
    for word, below in group.commands.items():
        if below.hidden:
            continue
        line = next(line for line in lines if line.split()[:1] == [word])
        assert line.split(maxsplit=1)[1].removesuffix(".") == summary(below).removesuffix(".")


def in_terminal(*words, columns, **environment):
    """Run a command in a terminal of so many columns; return its output."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "NO_COLOR"}}
    env |= {"TERM": "xterm", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "provision", *words], stdin=slave, stdout=slave, stderr=slave, env=env, close_fds=True
    )
    os.close(slave)
    data = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the terminal is closed
            break
        if not piece:
            break
        data += piece
    process.wait(timeout=30)
    os.close(master)
    return data.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 100, 132])
def test_help_uses_the_width_of_the_terminal(columns):
    lines = in_terminal("apply", "--help", columns=columns).splitlines()

    assert columns - 20 < max(map(len, lines)) <= columns


def test_help_in_a_pipe_fits_eighty_columns():
    env = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "provision", "apply", "--help"], capture_output=True, text=True, env=env, check=True
    )

    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("verb", ["plan", "apply", "verify", "reset", "reload", "gdr"])
def test_reports_about_nodes_have_a_verbose_form(capsys, verb):
    """A group of nodes shows the details of one of them; -v shows all."""
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert "--verbose" in capsys.readouterr().out
