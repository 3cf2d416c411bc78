"""Draw docs/assets/terminal.svg from docs/assets/terminal.txt, a recording of real commands.

``python -m tools.terminal_picture`` draws. ``python -m tools.terminal_picture --record LAB`` first records the commands
on the nodes of a new lab, which is not applied yet.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import shlex
import struct
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

ASSETS = Path(__file__).resolve().parent.parent / "docs/assets"
RECORDING, PICTURE = ASSETS / "terminal.txt", ASSETS / "terminal.svg"
COLUMNS = 100
COMMANDS = (
    "-q plan --lab {lab}",
    "-q apply --lab {lab} --yes",
    "-q verify --lab {lab}",
    "-q run --lab {lab} -- provision-smoke",
)
"""Without progress, which terminals overwrite."""
_LAYOUT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
  <title>Output of provision</title>
  <style>
    .{unique_id}-matrix {{ font: {char_height}px monospace; line-height: {line_height}px; }}
    .{unique_id}-title {{ font: bold 16px sans-serif; }}
    {styles}
  </style>
  <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
    </clipPath>
    {lines}
  </defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">{matrix}</g>
  </g>
</svg>
"""


def drawn(recording: str) -> str:
    """Return the picture of a recording as SVG. It loads no font."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for line in recording.splitlines():
        text = Text.from_ansi(line)
        console.print(Text(line, style="bold cyan") if line.startswith("$ ") else text, soft_wrap=True)
    svg = console.export_svg(title="two nodes of a lab, GPUs SIMULATED", code_format=_LAYOUT, unique_id="terminal")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def recorded(lab: str) -> str:
    """Return each command with its output, run on a lab.

    Raises:
        SystemExit: A command failed.
    """
    parts = []
    for words in COMMANDS:
        command = ["provision", *shlex.split(words.format(lab=lab))]
        output, code = _in_terminal([sys.executable, "-m", *command])
        if code:
            sys.exit(f"{shlex.join(command)}: exit code {code}\n{output}")
        parts.append(f"$ {shlex.join(command)}\n{output}\n")
    return "".join(parts)


def _in_terminal(command: list[str]) -> tuple[str, int]:
    """Run a command in a terminal, in colour; return its output and exit code."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm-256color")
        os.environ.pop("NO_COLOR", None)
        os.execvp(command[0], command)  # noqa: S606 - a command line of this program
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    data = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the command has ended
            break
        data += piece
    os.close(terminal)
    return data.decode().replace("\r\n", "\n"), os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        RECORDING.write_text(recorded(sys.argv[2]), encoding="utf-8")
    PICTURE.write_text(drawn(RECORDING.read_text(encoding="utf-8")), encoding="utf-8")
