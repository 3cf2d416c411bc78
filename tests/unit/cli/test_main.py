"""The command line itself: options on either side of the verb, errors in words, exit codes."""

import json
import signal
import subprocess
import sys

import pytest
import typer

from provision.cli.main import GROUPS, VERBS, _report, build_app, main, normalise
from provision.errors import NeverFits, NodeError, UsageError
from provision.model.reason import reason
from provision.report.reasons import error_of
from provision.workflow import chosen_roles


def exit_of(capsys, *words):
    """Run the command in this process; return exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    out = capsys.readouterr()
    return stopped.value.code, out.out, out.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--json", "verify"], ["verify", "--json"]),
        (
            ["-i", "x", "run", "-n", "2", "--", "a", "-o", "json"],
            ["run", "-i", "x", "-n", "2", "--", "a", "-o", "json"],
        ),
        (["--json", "lab", "up", "demo"], ["lab", "up", "--json", "demo"]),
        (["verify", "-o", "json"], ["verify", "--json"]),
        (["--lab=demo", "apply"], ["apply", "--lab=demo"]),
        (["--help"], ["--help"]),
    ],
)
def test_options_are_accepted_before_the_verb(words, expected):
    """Shared options are accepted on either side of the verb, and the job's own words are left alone."""
    assert normalise(words) == expected


def test_an_unknown_output_format_is_refused():
    """-o takes the formats there are."""
    with pytest.raises(UsageError, match="unknown output format"):
        normalise(["verify", "-o", "xml"])


@pytest.mark.parametrize("verb", [*VERBS, *GROUPS])
def test_every_verb_has_help_with_examples(capsys, verb):
    """--help of each verb explains it and shows at least one command to type."""
    code, out, _ = exit_of(capsys, verb, "--help")

    assert code == 0
    assert f"provision {verb}" in out


def test_a_missing_verb_prints_the_help_and_is_a_usage_error(capsys):
    """The bare command explains itself and does not pretend success."""
    code, out, _ = exit_of(capsys)

    assert code == 2
    assert all(verb in out for verb in VERBS)


def test_a_missing_inventory_exits_with_2_without_a_traceback(capsys, tmp_path):
    """An inventory that is not there is named, without a traceback."""
    code, _, err = exit_of(capsys, "verify", "-i", str(tmp_path / "none.yml"))

    assert code == 2
    assert "none.yml" in err
    assert "Traceback" not in err


def test_json_is_printed_on_failure(capsys, tmp_path):
    """A script that asked for JSON gets a document also when the command fails."""
    code, out, _ = exit_of(capsys, "--json", "apply", "-i", str(tmp_path / "none.yml"))

    assert code == 2
    assert "none.yml" in json.loads(out)["error"]["message"]


def test_the_json_of_an_error_has_the_code_and_parameters_of_its_reason(capsys):
    """Other errors have the code of their kind, and no parameters."""
    _report(error_of(NeverFits, reason("placement.unknown_node", nodes=["x"])), as_json=True)
    refused = json.loads(capsys.readouterr().out)["error"]
    _report(NeverFits("never"), as_json=True)
    other = json.loads(capsys.readouterr().out)["error"]

    assert (refused["code"], refused["params"]) == ("placement.unknown_node", {"nodes": ["x"]})
    assert refused["message"] == "there is no node x"
    assert (other["code"], other["params"]) == ("job.insufficient_resources", {})


@pytest.mark.parametrize("as_json", [False, True])
def test_the_output_of_an_error_contains_no_secret(capsys, as_json):
    """The last lines of a program on a node are shown without tokens and keys."""
    error = NodeError(
        "git failed", node="gpu1", output="fatal: https://bob:hunter22@git.example/x denied\nglpat-" + "x" * 20
    )

    _report(error, as_json=as_json)

    out = "".join(capsys.readouterr())
    assert "denied" in out
    assert [word for word in ("hunter22", "xxxxxx") if word in out] == []


def test_a_wrong_option_is_a_usage_error(capsys):
    """A misspelt option is named and exits 2."""
    code, _, err = exit_of(capsys, "apply", "--jsno")

    assert code == 2
    assert "--jsno" in err


def test_diff_and_read_only_exclude_each_other(capsys):
    """Refused before any node is contacted, with the reason."""
    code, _, err = exit_of(capsys, "plan", "--diff", "--read-only", "-i", "none.yml")

    assert code == 2
    assert "Ansible writes temporary files" in " ".join(err.split())


@pytest.mark.parametrize("verb", ["apply", "bootstrap"])
def test_a_misspelt_role_is_a_usage_error(capsys, verb):
    """A role that does not exist would change nothing and look like success; the one that was meant is named."""
    code, _, err = exit_of(capsys, verb, "--only", "platform", "--only", "docker_enigne", "--yes")

    assert code == 2
    assert "docker_enigne" in err
    assert "did you mean docker_engine?" in err


def test_roles_and_steps_can_be_selected():
    """Both are tags of the playbooks; several may stand in one word."""
    assert chosen_roles(["docker_engine", "container_ssh_receipt,platform"]) == (
        "docker_engine",
        "container_ssh_receipt",
        "platform",
    )
    assert chosen_roles([]) == ()
    with pytest.raises(UsageError):
        chosen_roles(["docker_engine_no_such_step"])
    with pytest.raises(UsageError):
        chosen_roles([","])


WAITING = """
import sys, types, time
from provision.cli import main
verb = types.ModuleType("provision.cli.wait")
def wait():
    "Wait for long."
    try:
        print("begun", flush=True)
        time.sleep(600)
    finally:
        print("in order", flush=True)
verb.wait = wait
sys.modules["provision.cli.wait"] = verb
main.main(["wait"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_ends_cleanly_on_a_signal(number):
    """Ctrl-C, a stopped service and a closed terminal: what the command began is cleared up, then it exits 130."""
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=20)

    assert (process.returncode, out) == (130, b"in order\n")
    assert b"interrupted; run the same command again to continue" in err
    assert b"Traceback" not in err


def test_the_list_of_verbs_does_not_build_their_options():
    """`provision --help` makes none of the verbs' options, and says what the whole application would say."""
    whole, listing = (typer.main.get_command(build_app(None, listing=way)) for way in (False, True))
    texts = [command.get_help(typer.Context(command, info_name="provision")) for command in (whole, listing)]

    assert texts[0] == texts[1]
    assert all(verb.params for name, verb in whole.commands.items() if name in VERBS)
    assert not any(verb.params for name, verb in listing.commands.items() if name in VERBS)


def test_a_command_ends_without_a_final_garbage_collection():
    """The interpreter would go through all that is known of a thousand nodes before it exits."""
    end = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 0))"
    call = f"{end}; from provision.cli.main import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "True"
