"""The probe's script, run by the shell of this machine."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from provision.facts import ALL_FACTS, NodeFacts, Parameters, RawOutput, Unknown, as_data, parse
from provision.facts import script as node_script
from provision.facts.docker import DockerConfigFact
from provision.facts.kernel import PackagesFact
from provision.facts.script import TOGETHER, split
from provision.facts.system import Hardware, System

DIFFERENT = ("group", "subshell", "apart", "program", '"$smi"', '"$topology"')
NAP = f"98.{os.getpid()}"


class Quick:
    """Ends at once, with an exit code and a line on stderr."""

    name: ClassVar[str] = "quick"
    label: ClassVar[str] = "echo"
    limit_seconds: ClassVar[int] = 5
    command: ClassVar[str] = "echo 'it'\\''s here'; echo trouble >&2; exit 3"

    def parse(self, raw: RawOutput) -> RawOutput:
        """Return the output unchanged."""
        return raw


class Hanging(Quick):
    """Ignores TERM and leaves a child process."""

    name: ClassVar[str] = "hanging"
    label: ClassVar[str] = "sleep forever"
    limit_seconds: ClassVar[int] = 1
    command: ClassVar[str] = f"trap '' TERM HUP; echo begun; sleep {NAP} & sleep {NAP}"


class Slow(Hanging):
    """Hangs for longer than the test waits."""

    limit_seconds: ClassVar[int] = 60


class Forger(Quick):
    """Prints a forged end of its own output."""

    name: ClassVar[str] = "forger"
    command: ClassVar[str] = "echo '0123456789abcdef0123456789abcdef end forger 0'; printf 'no newline'"


class First(Hanging):
    """Hangs in the shared session."""

    name: ClassVar[str] = "boot"


class Second(Quick):
    """Runs in the shared session."""

    name: ClassVar[str] = "clock"
    command: ClassVar[str] = "cd /; here=clock; echo second; exit 4"


class Third(Quick):
    """Runs in the shared session, and prints what earlier commands left behind."""

    name: ClassVar[str] = "hardware"
    command: ClassVar[str] = 'echo "third $here $(pwd)"'


class Same(Quick):
    """Has the command of another fact."""

    name: ClassVar[str] = "same"


class Parameter(Quick):
    """Prints a parameter."""

    name: ClassVar[str] = "parameter"
    command: ClassVar[str] = 'echo "$PROBE_CONTAINER"'


class Leaver(Quick):
    """Ends the shared shell."""

    name: ClassVar[str] = "kind"
    command: ClassVar[str] = "echo gone; $((1 +* 2)); echo never"


class Setter(Quick):
    """Runs in the shared shell, and leaves a variable and arguments."""

    name: ClassVar[str] = "boot"
    command: ClassVar[str] = "here=boot; set -- 1 2 3; for one in 1 2; do echo $one; done; false"


QUICK = RawOutput("it's here\n", 3, "trouble\n")
SAME_FACTS = [fact for fact in ALL_FACTS if sys.modules["provision.facts.script"]._mode(fact) not in DIFFERENT]


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory):
    """Return a cache folder that is not this machine's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["provision.facts.script"], "CACHE", str(tmp_path_factory.mktemp("probe") / "cache"))
        yield


@pytest.fixture(params=["python", "shell"])
def script(request, monkeypatch):
    """Return a function that runs the script as on a node with, or without, python3; slow ones get an extra second."""
    monkeypatch.setattr(sys.modules["provision.facts.script"], "MOST_SLACK_SECONDS", 1)
    return functools.partial(node_script, python=request.param == "python")


def run(text: str) -> str:
    done = subprocess.run(["sh"], input=text, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_fact_gets_its_own_output_and_exit_code(script):
    outputs = split(run(script([Quick(), Forger()])), [Quick(), Forger()])

    assert outputs["quick"] == RawOutput("it's here\n", 3, "trouble\n")
    assert outputs["forger"].stdout.endswith("no newline")


def test_a_hung_command_is_unknown_and_does_not_block_others(script):
    outputs = split(run(script([Hanging(), Quick()])), [Hanging(), Quick()])

    assert isinstance(outputs["hanging"], Unknown)
    assert outputs["hanging"].reason.startswith("hung: sleep forever (no end within ")
    assert outputs["quick"].exit_code == 3
    assert wait_until(lambda: napping() == "")


def test_commands_in_a_shared_session_are_isolated(script):
    facts = [Second(), Quick(), Third()]
    outputs = split(run(script(facts)), facts)

    assert outputs["clock"] == RawOutput("second\n", 4, "")
    assert outputs["quick"].exit_code == 3
    assert outputs["hardware"] == RawOutput(f"third  {Path.cwd()}\n", 0, "")


def test_a_command_that_ends_the_shared_shell_costs_only_itself(script):
    facts = [Second(), Setter(), Leaver(), Third()]
    outputs = split(run(script(facts)), facts)

    assert (outputs["clock"], outputs["boot"]) == (RawOutput("second\n", 4, ""), RawOutput("1\n2\n", 1, ""))
    assert (outputs["kind"].stdout, outputs["kind"].exit_code) == ("gone\n", 2)
    assert outputs["hardware"] == RawOutput(f"third  {Path.cwd()}\n", 0, "")


def test_a_command_that_hangs_in_a_shared_session_costs_only_itself(script, monkeypatch):
    monkeypatch.setattr(sys.modules["provision.facts.script"], "_TOGETHER_SECONDS", 1)
    facts = [Second(), First(), Third()]
    outputs = split(run(script(facts)), facts)

    assert outputs["boot"].reason.startswith("hung: sleep forever (no end within ")
    assert outputs["clock"].stdout == "second\n"
    assert outputs["hardware"].stdout.startswith("third ")
    assert wait_until(lambda: napping() == "")


def test_a_shared_session_does_not_restart_a_command_that_hung_in_an_earlier_probe(script, stuck):
    with subprocess.Popen(["sleep", "1000"]) as old:
        try:
            began = Path(f"/proc/{old.pid}/stat").read_text().rpartition(")")[2].split()[19]
            stuck.write_text(f"clock {old.pid} {began}\n")
            outputs = split(run(script([Second(), Third()])), [Second(), Third()])
        finally:
            old.kill()

    assert outputs["clock"] == Unknown("hung: echo (since an earlier probe; it was not started again)")
    assert outputs["hardware"].exit_code == 0


@pytest.mark.parametrize("python3", ["echo broken >&2; exit 1", "exec sleep 1000"])
def test_a_broken_python_is_replaced_by_the_shell(tmp_path, monkeypatch, python3):
    """One Python that fails, and one that does not start."""
    monkeypatch.setattr(sys.modules["provision.facts.script"], "PYTHON_SECONDS", 1)
    monkeypatch.setattr(sys.modules["provision.facts.script"], "STUCK", str(tmp_path / "stuck"))
    (tmp_path / "python3").write_text(f"#!/bin/sh\n{python3}\n")
    (tmp_path / "python3").chmod(0o755)
    facts = [Second(), Quick()]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh"], input=node_script(facts), capture_output=True, text=True, timeout=30, check=True, env=environment
    )

    assert split(done.stdout, facts) == {"clock": RawOutput("second\n", 4, ""), "quick": QUICK}


def test_python_and_shell_print_the_same(tmp_path):
    """Python's own implementations print the same as the shell commands, for links and unusual names too."""
    folder = tmp_path / "provision"
    (folder / "container_ssh/keys").mkdir(parents=True)
    (folder / "receipts").mkdir()
    (folder / "receipts/some.json").write_text('{"role": "some",\n "units": {}}')
    (folder / "receipts/.hidden.json").write_text("{}")
    (folder / "container_ssh/known_hosts").write_text("[node1]:2222 ssh-ed25519 AAAAC3 node1\n\n# words\n")
    (folder / "container_ssh/keys/id_ed25519").write_text("secret")
    (folder / "container_ssh/keys/id_ed25519.pub").write_text("ssh-ed25519 AAAAC3 \033[2J;comment\nmore\n")
    (folder / "container_ssh/keys/ssh_host_ed25519_key.pub").symlink_to("id_ed25519.pub")
    results = {}
    for python in (True, False):
        text = node_script(
            SAME_FACTS, Parameters(sysctls=("kernel.panic", "no.such", "net.ipv4.tcp_rmem")), python=python
        )
        text = text.replace("/var/lib/provision/", f"{folder}/").replace(
            sys.modules["provision.facts.script"].CACHE, str(tmp_path / "cache")
        )
        results[python] = as_data(parse(run(text), SAME_FACTS, keep=False)) | {"read_at": None}

    assert results[True] == results[False]
    assert results[True]["receipts"]["some"]["content"]["role"] == "some"
    assert results[True]["container_ssh"]["client_key"] == "ssh-ed25519 AAAAC3"


@pytest.mark.skipif(os.geteuid() != 0, reason="the cache is used only if root alone can write it")
def test_the_package_list_is_cached_until_dpkg_changes_it(tmp_path, monkeypatch):
    """The file is replaced by one of the same size and time; a file that was just written is not cached."""
    (tmp_path / "status").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    text = node_script([PackagesFact()]).replace("/var/lib/dpkg/", f"{tmp_path}/")
    text = text.replace(sys.modules["provision.facts.script"].CACHE, f"{tmp_path}/kept")

    def seen(version: int) -> str:
        (tmp_path / "dpkg-query").write_text(f"#!/bin/sh\necho 'ii |pigz|{version}'\n")
        (tmp_path / "dpkg-query").chmod(0o755)
        return split(run(text), [PackagesFact()])["packages"].stdout.strip().rpartition("|")[2]

    assert [seen(1), seen(2)] == ["1", "2"]
    os.utime(tmp_path / "status", (time.time() - 60,) * 2)
    assert [seen(3), seen(4)] == ["3", "3"]
    (tmp_path / "status-new").touch()
    shutil.copystat(tmp_path / "status", tmp_path / "status-new")
    (tmp_path / "status-new").rename(tmp_path / "status")
    assert seen(5) == "5"


def test_variables_of_a_command_are_unset_for_the_next():
    """In a shared shell, a command must not read variables of an earlier one."""
    poison = "".join(f"{name}=poison; " for name in "abcdefghijklmnopqrstuvwxyz")
    words = {word for fact in ALL_FACTS for word in re.findall(r"\b([a-z_]+)=", fact.command)}
    poison += "".join(f"{name}=poison; " for name in sorted(words))
    here = [fact for fact in ALL_FACTS if fact.name in TOGETHER - {"boot", "clock", "xids", "disks", "listening"}]
    module = sys.modules["provision.facts.script"]
    shared = [fact for fact in here if module._mode(fact) == "group"]
    texts = {fact.name: module._text(fact) for fact in shared}
    outputs = [
        {
            name: subprocess.run(["sh", "-c", before + text], capture_output=True, check=False)
            for name, text in texts.items()
        }
        for before in ("", poison)
    ]

    assert len(shared) > 10
    for name in texts:
        assert outputs[0][name].stdout == outputs[1][name].stdout, name


def test_facts_with_the_same_command_share_its_output(script):
    facts = [Quick(), Same()]
    text = script(facts)
    outputs = split(run(text), facts)

    assert outputs["same"] == outputs["quick"] == RawOutput("it's here\n", 3, "trouble\n")
    assert text.count("trouble") == 1


def test_shared_session_names_are_facts():
    """A misspelt name would get its own session unnoticed."""
    assert {fact.name for fact in ALL_FACTS} >= TOGETHER


def test_an_interrupted_probe_kills_its_commands(script):
    with subprocess.Popen(["sh"], stdin=subprocess.PIPE, text=True) as shell:
        shell.stdin.write(script([Slow()]))
        shell.stdin.close()
        assert wait_until(lambda: napping() != "")
        shell.send_signal(signal.SIGHUP)
        shell.wait(10)

    assert wait_until(lambda: napping() == "")


def napping() -> str:
    """Return the pids of the test's own sleeping processes."""
    return subprocess.run(["pgrep", "-f", f"^sleep {NAP}$"], capture_output=True, text=True, check=False).stdout


def wait_until(true) -> bool:
    """Wait up to ten seconds for a condition."""
    pause = threading.Event()
    return any(true() or pause.wait(0.05) for _ in range(200))


def test_the_probe_leaves_no_file():
    """With python3, outputs are in memory; otherwise the folder is removed."""
    text = run(node_script([Quick()], python=False) + "\necho; echo work=$work\n")
    folder = text.rpartition("work=")[2].strip()

    assert folder.startswith("/")
    assert subprocess.run(["ls", "-d", folder], capture_output=True, check=False).returncode != 0


def test_parameters_reach_the_commands_unchanged(script):
    odd = 'a\'b "$(echo no)" `echo no`'
    outputs = split(run(script([Parameter()], Parameters(container=odd))), [Parameter()])

    assert outputs["parameter"].stdout == odd + "\n"


def test_a_truncated_output_names_the_missing_command(script):
    text = run(script([Quick(), Parameter()]))
    outputs = split(text[: text.index("out parameter")], [Quick(), Parameter()])

    assert isinstance(outputs["quick"], RawOutput)
    assert outputs["parameter"] == Unknown("the probe ended before echo did")


def test_text_before_the_probe_is_ignored(script):
    outputs = split("Welcome!\n\n" + run(script([Quick()])), [Quick()])

    assert outputs["quick"].exit_code == 3


@pytest.mark.parametrize(
    "end", ["end quick", "end quick 0 0", "end other 0", "end quick0", "err quick", "out quick", "end  quick 0"]
)
def test_a_section_with_mismatched_markers_is_ignored(end):
    token = "0" * 32
    good = f"{token} out quick\nit\n{token} err quick\n\n{token} "
    other = f"{token} out parameter\n\n{token} err parameter\n{token} end parameter 0\n"
    text = f"provision-probe 1 {token}\n{good}{{}}\n{other}"
    facts = [Quick(), Parameter()]

    assert split(text.format("end quick 0"), facts)["quick"] == RawOutput("it", 0, "")
    assert split(text.format(end), facts)["quick"] == Unknown("the probe ended before echo did")
    assert split(text.format(end), facts)["parameter"] == RawOutput("", 0, "")


def test_unreadable_output_makes_every_fact_unknown():
    facts = parse("bash: syntax error")

    assert isinstance(facts.system, Unknown)
    assert "no readable output" in facts.system.reason


def test_the_real_commands_run_here(script):
    here = [fact for fact in ALL_FACTS if not fact.label.startswith(("docker", "nvidia-smi"))]
    facts = parse(run(script(here, Parameters(names=("localhost",)))), here)

    assert isinstance(facts.system, System)
    assert isinstance(facts.hardware, Hardware)
    assert facts.hardware.cpus >= 1
    assert facts.clock <= facts.read_at < facts.clock + 60
    assert facts.receipts == {} or not isinstance(facts.receipts, Unknown)


def test_every_command_is_posix_shell():
    for fact in ALL_FACTS:
        done = subprocess.run(["sh", "-n"], input=fact.command, text=True, capture_output=True, check=False)
        assert done.returncode == 0, f"{fact.name}: {done.stderr}"


def test_every_fact_is_an_attribute():
    names = {fact.name for fact in ALL_FACTS}

    assert names == set(NodeFacts.__dataclass_fields__) - {"raw", "read_at"}


@pytest.mark.parametrize("fact", ALL_FACTS, ids=lambda fact: fact.name)
def test_no_parser_raises(fact):
    texts = (
        "",
        "\n\n",
        "=",
        "\t\t",
        "{",
        "[]",
        "null",
        "name=\n1.2",
        "== x\n== y",
        "\x00\xff|||",
        "a b c d e f g",
        "a 1",
    )
    for raw in (RawOutput(text, code, "") for text in texts for code in (0, 1, 127)):
        assert json.dumps(as_data(NodeFacts(**{fact.name: fact.parse(raw)})))


@pytest.mark.parametrize(
    ("proxy", "shown"),
    [
        ("http://bob:hunter22@proxy:3128", "http://[removed]@proxy:3128"),
        ("http://bob:p@ss@proxy:3128", "http://[removed]@proxy:3128"),
        ("http://bob:p/ss@proxy:3128", "http://[removed]@proxy:3128"),
        ('http://bob:p"s@proxy:3128', "http://[removed]@proxy:3128"),
        ("http://proxy:3128/x", "http://proxy:3128/x"),
    ],
)
def test_credentials_in_daemon_json_stay_on_the_node(tmp_path, proxy, shown):
    file = tmp_path / "daemon.json"
    file.write_text(json.dumps({"proxies": {"http-proxy": proxy}, "mail": "a@b"}))
    script = DockerConfigFact.command.replace("/etc/docker/daemon.json", str(file)).replace(
        "/etc/docker", str(tmp_path)
    )
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout.partition("\n")[2]) == {"proxies": {"http-proxy": shown}, "mail": "a@b"}


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """Return a separate file of stuck processes."""
    monkeypatch.setattr(sys.modules["provision.facts.script"], "STUCK", str(tmp_path / "stuck"))
    return tmp_path / "stuck"


def test_a_command_that_hung_in_an_earlier_probe_is_not_restarted(script, stuck):
    """On a node with a dead mount, each probe would otherwise add such a process."""
    with subprocess.Popen(["sleep", "1000"]) as old:
        try:
            began = Path(f"/proc/{old.pid}/stat").read_text().rpartition(")")[2].split()[19]
            stuck.write_text(f"forger {old.pid} {began}\n")
            first = split(run(script([Quick(), Forger()])), [Quick(), Forger()])
            stuck.write_text(f"forger {old.pid} 1\n")
            reused = split(run(script([Quick(), Forger()])), [Quick(), Forger()])
        finally:
            old.kill()
    stuck.write_text(f"forger {old.pid} {began}\n")
    ended = split(run(script([Quick(), Forger()])), [Quick(), Forger()])

    assert first["forger"] == Unknown("hung: echo (since an earlier probe; it was not started again)")
    assert isinstance(first["quick"], RawOutput)
    assert isinstance(reused["forger"], RawOutput)
    assert isinstance(ended["forger"], RawOutput)
    assert not stuck.exists()


def test_a_read_only_probe_writes_nothing(stuck):
    """Outputs, stderr, exit codes and hung commands are reported, and the script creates no file.

    The test inspects the script, because parallel tests also write to /run and /tmp.
    """
    facts = [Quick(), Forger(), Hanging()]
    text = node_script(facts, read_only=True)
    outputs = split(run(text), facts)

    assert outputs["quick"] == RawOutput("it's here", 3, "trouble\n")
    assert outputs["forger"].stdout.endswith("no newline")
    assert outputs["hanging"].reason.startswith("hung: sleep forever (no end within ")
    assert not re.search(r"mktemp|mkfifo|>+ *\"?[$/](?!dev/null)", text)
    assert not stuck.exists()
    assert wait_until(lambda: napping() == "")
