"""Everything that verbs print goes through one place, which keeps the words of nodes from terminals."""

from __future__ import annotations

import ast
from pathlib import Path

import provision.cli

ALLOWED = {
    "common.py",  # documents and reports
    "levels.py",  # messages
    "log_file.py",  # a warning about the log itself
    "top.py",  # one screen over the last one; its lines went through the place
}
RAW = {
    "bench_job.py": "_Shown",
    "following.py": "writer",
    "run.py": "_write",
}
"""Where the output of jobs goes out byte for byte, as that of `docker logs` and `kubectl logs` does."""

NOT_LOGGED = {
    "log_file.py",  # the log cannot be written
    "top.py",  # a frame of lines that went through the place
    "bench_job.py",  # shows output of another verb, which is in the log
}
"""What a log file does not get."""


def test_verbs_print_through_one_module() -> None:
    """No other module writes to a stream, calls print or typer.echo; jobs' output alone goes out as bytes."""
    for file in sorted(Path(provision.cli.__file__).parent.glob("*.py")):
        text = file.read_text()
        calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        names = {ast.unparse(call) for call in calls}
        printed = names & {"print", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write", "sys.stderr.write"}
        assert not printed or file.name in ALLOWED, (file.name, printed)
        assert ".buffer.write" not in text or file.name in RAW, file.name
        assert not printed or "log_file.record" in text or file.name in NOT_LOGGED, file.name
        assert ".buffer.write" not in text or "log_file.record_raw" in text or file.name in NOT_LOGGED, file.name
