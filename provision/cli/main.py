"""The ``provision`` command: finds the verb, runs it, and prints errors.

A verb's module is imported when the verb is called, so that the start-up time does not include all verbs.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import itertools
import os
import re
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
import typer.core

from provision.cli import log_file
from provision.cli.common import adapt_to_terminal, show
from provision.cli.completion import prepare as prepare_completion
from provision.errors import Interrupted, LaunchError, ProvisionError, UsageError
from provision.report import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType, ModuleType
    from typing import Any, NoReturn

    from provision.report.json_documents.base import ErrorDocument

SECTIONS = {
    "Nodes": "init adopt plan apply history unlock bootstrap verify stack gdr topo exec copy reload reset node image "
    "support-bundle doctor schema",
    "Foreground jobs": "place hostfile run nccl-log",
    "Batch jobs": "submit list get logs attach wait stop restart delete prune events port-forward top queue advise "
    "data secret export",
    "Benchmarks and labs": "bench lab demo",
}
"""All verbs, in the sections and order of ``--help``. Verb ``a-b`` is the function `a_b` of `provision.cli.a_b`."""
GROUPS = frozenset({"node", "top", "queue", "image", "bench", "data", "secret", "lab", "stack"})
"""Verbs with verbs of their own; the module contains a typer app ``app``."""
VERBS = [verb for verbs in SECTIONS.values() for verb in verbs.split() if verb not in GROUPS]

ALIASES = {
    "ls": "list",
    "ps": "list",
    "describe": "get",
    "log": "logs",
    "del": "delete",
    "rm": "delete",
}
"""Aliases of verbs, from docker, kubectl and arena; `describe` is ``get -e -g``."""

JOB_VERBS = frozenset({*SECTIONS["Batch jobs"].split(), "node", "image"}) - {"export"}
"""Verbs of batch jobs, which have more output formats; `export` writes files."""

_WITH_ENGINE = JOB_VERBS | {"run", "bench", "export"}
"""Verbs that use a job engine."""
_QUIET = {"-q", "--quiet"}
_VERBOSE = {"-v", "--verbose"}
_FLAGS = {"--json", "--yes", "-y", "--ask-become-pass", "-K", *_QUIET, *_VERBOSE}
_WITH_VALUE = {"--inventory", "-i", "--lab", "--limit", "-l", "--loglevel", "--log-file", "--engine"}
OWN_VERBOSE = frozenset({"plan", "apply", "verify", "gdr", "reload", "reset"})
"""Verbs whose report groups nodes: their --verbose shows each node. For all others it is ``--loglevel debug``."""
_RUN_WITH_VALUE = {
    "-n",
    "--ranks",
    "--sync",
    "--env",
    "-e",
    "--workdir",
    "-w",
    "-x",
    "--preset",
    "--fabric",
    "--launcher",
    "--placement",
    "--fanout",
    "--timeout",
}
_IMPLIED = {"describe": ("--events", "--gpus")}
FORMS = ("wide", "json", "yaml", "name", "table", "text")
"""Values of -o for verbs of batch jobs."""
_STARTING = (["run"], ["lab", "ssh"])
"""Verbs that start a program of the user. From their first argument on, words belong to that program."""

HELP = """Take bare GPU servers to a running multi-node training job over SSH.

\b
  provision lab up demo --driver vm --nodes 2    create virtual nodes
  provision init 'gpu[1-8]' --user root          write an Ansible inventory
  provision plan                                 show pending changes
  provision apply                                apply the inventory
  provision verify                               verify the nodes
  provision run -- python3 train.py              run mpirun across the nodes
  provision submit pytorch --help                submit a batch job

Options such as --json, -i, --lab and those below can be placed before or after
the verb, as can --engine NAME of the verbs for jobs.

\b
  -q, --quiet       print results, warnings and errors only, no progress
  -v, --verbose     print more: each node in reports that group nodes; with
                    other verbs, each connection and command with its time
  --loglevel LEVEL  debug (these times with every verb), info, warn or error
  --log-file FILE   also append all output to FILE, with times, command line
                    and exit code, without colors and secrets

Without -i and --lab the inventory is PROVISION_INVENTORY, or the line
inventory = "PATH" in provision.toml (here or in a parent folder) or in
~/.config/provision/config.toml, or the only inventory in ./inventories.

\b
Exit codes: 0 ok, 1 failed, 2 usage error or refused, 3 drift (plan
--exit-code), 4 locked by another apply, 6 a step or job still waits, 130
interrupted; run: the job's own code, 125 when it could not be started; batch
jobs: 1 the job failed, 3 no such job, 4 the name is in use, 5 insufficient
resources, 6 it still waits or has not ended in time, 7 an unreachable node or
an unconfirmed end; for wait, submit --wait, --follow and logs -f: the job's
own code, 128 + N for signal N.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one ``provision`` command and exit with its code."""
    code = 1
    try:
        _run(list(sys.argv[1:] if argv is None else argv))
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        raise
    except BaseException:
        log_file.record_traceback()
        raise
    finally:
        log_file.stop(code)


def _run(arguments: list[str]) -> NoReturn:
    as_json = _wants_json(arguments)
    atexit.register(gc.freeze)  # the interpreter's last garbage collections would visit all objects
    try:
        adapt_to_terminal()
        if _completing():
            prepare_completion(ALIASES)
        words = _without_engine(_levelled(normalise(arguments)))
        command = typer.main.get_command(build_app(_verb(words), listing=not _verb(words) and not _completing()))
        with _ended_in_order():
            code = command.main(args=words, prog_name="provision", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except ProvisionError as error:
        sys.exit(_exit_code(_report(error, as_json=as_json), arguments, error))
    except KeyboardInterrupt:
        sys.exit(_report(Interrupted("interrupted; run the same command again to continue"), as_json=as_json))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        code = _click_exit(error, arguments, as_json=as_json)
        if code is None:
            raise
        sys.exit(_exit_code(code, arguments) if not isinstance(error, typer.Exit) else code)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP (a service stopped, a terminal closed) interrupt the command as Ctrl-C does.

    Raises:
        KeyboardInterrupt: A signal arrived and had no other handler; typer alone would exit without a message.
    """
    came: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    mine = [
        number for number, handler in usual.items() if signal.getsignal(number) is handler
    ]  # nohup remains effective
    for number in mine:
        signal.signal(number, interrupt)
    try:
        yield
        if came:
            raise KeyboardInterrupt
    finally:
        for number in mine:
            signal.signal(number, usual[number])


def build_app(verb: str | None, *, listing: bool = False) -> typer.Typer:
    """Return the command-line application with `verb` alone, or with all verbs if it is None or unknown.

    With `listing` the verbs have names and help but no options, because options take most of the time.
    """
    app = typer.Typer(
        name="provision",
        cls=_Sections,
        help=HELP,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=True,
        context_settings={"max_content_width": layout.width()},
    )
    app.callback(invoke_without_command=True, help=HELP)(_root)
    known = verb in VERBS or verb in GROUPS
    for name in VERBS:
        if not known or name == verb:
            function = _function(name)
            settings = getattr(function, "typer_settings", {})
            app.command(name, **settings)(_named(function) if listing else function)
    for name in sorted(GROUPS):
        if not known or name == verb:
            group: typer.Typer = _module(name).app
            if listing:
                text, group = group.info.help, typer.Typer()
                group.callback(help=text)(lambda: None)
            app.add_typer(group, name=name)
    return app


class _Sections(typer.core.TyperGroup):
    """Group of verbs that lists them by purpose."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list per section."""
        limit = formatter.width - 6 - max(map(len, self.commands), default=0)
        for title, names in SECTIONS.items():
            known = [(name, self.get_command(ctx, name)) for name in names.split()]
            rows = [(name, command.get_short_help_str(limit)) for name, command in known if command]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _module(verb: str) -> ModuleType:
    return importlib.import_module(f"provision.cli.{verb.replace('-', '_')}")


def _function(verb: str) -> Callable[..., Any]:
    """Return a verb's function; for a Python keyword its name ends in an underscore."""
    module, name = _module(verb), verb.replace("-", "_")
    function: Callable[..., Any] = getattr(module, f"{name}_", None) or getattr(module, name)
    return function


def _named(function: Callable[..., Any]) -> Callable[[], None]:
    def verb() -> None:
        """Placeholder in a list of verbs."""

    verb.__doc__ = function.__doc__
    return verb


def _completing() -> bool:
    """Return whether a shell requests completions, whose words are not our arguments."""
    return "_PROVISION_COMPLETE" in os.environ


def _root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print version and commit, and exit."),
) -> None:
    if version:
        from provision.workflow.installation import version_line

        show(version_line())
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        show(ctx.get_help())
        raise typer.Exit(2)


def normalise(arguments: Sequence[str]) -> list[str]:
    """Move options before the verb after it, and replace ``-o json`` by ``--json``.

    Before the verb ``-i`` is always the inventory. After it, some verbs of batch jobs use it differently.
    """
    hoisted: list[str] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest[0]
        if word in _FLAGS or ("=" in word and word.split("=")[0] in _WITH_VALUE):
            hoisted.append(rest.pop(0))
        elif word in _WITH_VALUE or word in {"-o", "--output"}:
            hoisted.extend(rest[:2])
            del rest[:2]
        else:
            break
    if rest and rest[0] in ALIASES:
        rest = [ALIASES[rest[0]], *_IMPLIED.get(rest[0], ()), *rest[1:]]
    if rest and rest[0] == "exec" and len(_own(rest)[1]) > 1:
        rest = ["attach", *rest[1:]]  # exec JOB -- COMMAND, as in docker and kubectl
    depth = 0 if not rest else 2 if rest[0] in GROUPS and len(rest) > 1 and not rest[1].startswith("-") else 1
    job = bool(rest) and rest[0] in JOB_VERBS
    hoisted = [{"-i": "--inventory", "-v": "--verbose"}.get(word, word) if job else word for word in hoisted]
    words = [*rest[:depth], *hoisted, *rest[depth:]]
    own, _ = _own(words)
    return [*(_form_words(own) if job else _output_words(own)), *words[len(own) :]]


def _own(words: Sequence[str]) -> tuple[Sequence[str], list[str]]:
    """Return our own words and the verbs among them; the following words belong to a program that the verb starts."""
    verbs: list[str] = []
    at = 0
    while at < len(words) and words[at] != "--":
        if words[at].startswith("-"):
            at += 2 if words[at] in _WITH_VALUE | _RUN_WITH_VALUE | {"-o", "--output"} else 1
            continue
        if verbs in _STARTING:
            break
        verbs.append(words[at])
        at += 1
    return words[:at], verbs


def _output_words(words: Sequence[str]) -> list[str]:
    """Replace ``-o json`` by ``--json``."""
    done: list[str] = []
    items = iter(words)
    for word in items:
        if word == "-o":
            form = next(items, None)
            if form == "json":
                done.append("--json")
            elif form not in {"table", "text"}:
                raise UsageError(f"-o {form or ''}: unknown output format", remedy="Choose json or table.")
        else:
            done.append(word)
    return done


def _form_words(words: Sequence[str]) -> list[str]:
    """Normalize a batch job's ``-o FORM``: ``--json``, or ``--output=FORM``."""
    done: list[str] = []
    items = iter(words)
    for word in items:
        match = re.fullmatch(r"(?:-o|--output)(?:=?(.*))?", word) if word.startswith(("-o", "--output")) else None
        if match is None:
            done.append(word)
            continue
        form = match[1] or next(items, "")
        if form not in FORMS:
            raise UsageError(f"-o {form}: unknown output format", remedy=f"Choose {', '.join(FORMS)}.")
        done += ["--json"] if form == "json" else [f"--output={form}"] if form not in {"table", "text"} else []
    return done


def _levelled(words: Sequence[str]) -> list[str]:
    """Apply the options for messages and remove them from our words: ``-q``, ``-v``, ``--loglevel``, ``--log-file``.

    Raises:
        UsageError: The level is unknown, or the log file cannot be written.
    """
    own, verbs = _own(words)
    from provision.cli import levels

    done: list[str] = []
    log: str | None = None
    items = iter(own)
    for word in items:
        name, equals, value = word.partition("=")
        if word in _QUIET:
            levels.choose("warn")
        elif word in _VERBOSE and _means_debug(word, verbs):
            levels.choose("debug")
        elif name == "--loglevel":
            levels.choose(value if equals else next(items, ""))
        elif name == "--log-file":
            log = value if equals else next(items, "")
        else:
            done.append(word)
    if log is not None:
        log_file.start(log, words)
    return [*done, *words[len(own) :]]


def _means_debug(word: str, verbs: Sequence[str]) -> bool:
    """Return whether ``-v`` or ``--verbose`` is the option of all verbs; ``submit -v`` is a mount, as in docker."""
    verb = verbs[0] if verbs else ""
    return verb not in OWN_VERBOSE and (verb, word) != ("submit", "-v")


def _without_engine(words: Sequence[str]) -> list[str]:
    """Store the value of ``--engine`` of a verb that uses a job engine, and return the other words."""
    from provision.cli.engine_option import take_engine_option

    own, verbs = _own(words)
    uses_engine = bool(verbs) and verbs[0] in _WITH_ENGINE
    return [*take_engine_option(own), *words[len(own) :]] if uses_engine else [*take_engine_option(()), *words]


def _wants_json(words: Sequence[str]) -> bool:
    own, _ = _own(words)
    return "--json" in own or any(
        f"{a}={b}" in {"-o=json", "--output=json"} or b in {"-o=json", "-ojson", "--output=json"}
        for a, b in itertools.pairwise(["", *own])
    )


def _exit_code(code: int, arguments: Sequence[str], error: ProvisionError | None = None) -> int:
    """Return the exit code. ``run`` exits with 125 for our errors, because 2 can be the program's own code."""
    _, verbs = _own(arguments)
    if error is not None and verbs and ALIASES.get(verbs[0], verbs[0]) in SECTIONS["Batch jobs"].split():
        from provision.cli.job_options import exit_code_of

        return exit_code_of(error)
    return LaunchError.exit_code if verbs == ["run"] and code == UsageError.exit_code else code


def _verb(words: Sequence[str]) -> str | None:
    return next((word for word in words if not word.startswith("-")), None)


def _report(error: ProvisionError, *, as_json: bool) -> int:
    """Report an error to the user, and as JSON if requested; return the exit code."""
    from provision.cli.common import print_json, say

    output = _without_secrets(error.output)
    if as_json:
        document: ErrorDocument = {
            "ok": False,
            "error": {
                "code": error.code or None,
                "params": error.reason.as_document()["params"] if error.reason else {},
                "node": error.node,
                "message": error.message,
                "remedy": error.remedy,
                "output": output,
            },
        }
        print_json(document)
    say(f"error: {error}")
    for line in output.strip().splitlines()[-10:]:
        say(f"  | {line}")
    if error.remedy:
        say(f"hint: {error.remedy}")
    return error.exit_code


def _without_secrets(text: str) -> str:
    """Return the output of a program on a node without secrets."""
    if not text:
        return ""
    from provision.report.redaction import Redactor

    return Redactor().text(text)


def _click_exit(error: Exception, arguments: Sequence[str], *, as_json: bool) -> int | None:
    """Return the exit code of click's own exceptions, None for any other."""
    name = type(error).__name__
    if name == "Exit":
        return int(getattr(error, "exit_code", 0))
    if name == "Abort":
        return _report(Interrupted("interrupted"), as_json=as_json)
    message = getattr(error, "format_message", None)
    if message is None:
        return None
    from provision.cli.usage_errors import is_missing_verb, usage_error

    if is_missing_verb(error) and not as_json:
        show(message())
        return UsageError.exit_code
    return _report(usage_error(error, arguments), as_json=as_json)
