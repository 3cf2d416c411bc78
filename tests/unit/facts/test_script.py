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
    """Ends at once, with an exit code and a word on stderr."""

    name: ClassVar[str] = "quick"
    label: ClassVar[str] = "echo"
    limit_seconds: ClassVar[int] = 5
    command: ClassVar[str] = "echo 'it'\\''s here'; echo trouble >&2; exit 3"

    def parse(self, raw: RawOutput) -> RawOutput:
        """Keep the output as it is."""
        return raw


class Hanging(Quick):
    """Ignores the signal that asks it to end, and leaves a child behind."""

    name: ClassVar[str] = "hanging"
    label: ClassVar[str] = "sleep forever"
    limit_seconds: ClassVar[int] = 1
    command: ClassVar[str] = f"trap '' TERM HUP; echo begun; sleep {NAP} & sleep {NAP}"


class Slow(Hanging):
    """Hangs for longer than the test waits."""

    limit_seconds: ClassVar[int] = 60


class Forger(Quick):
    """Prints what looks like the end of its own output."""

    name: ClassVar[str] = "forger"
    command: ClassVar[str] = "echo '0123456789abcdef0123456789abcdef end forger 0'; printf 'no newline'"


class First(Hanging):
    """One of those that share a session, and hangs."""

    name: ClassVar[str] = "boot"


class Second(Quick):
    """Shares a session."""

    name: ClassVar[str] = "clock"
    command: ClassVar[str] = "cd /; here=clock; echo second; exit 4"


class Third(Quick):
    """Shares a session, and shows what those before it left behind."""

    name: ClassVar[str] = "hardware"
    command: ClassVar[str] = 'echo "third $here $(pwd)"'


class Same(Quick):
    """Has the command of another."""

    name: ClassVar[str] = "same"


class Parameter(Quick):
    """Prints a parameter."""

    name: ClassVar[str] = "parameter"
    command: ClassVar[str] = 'echo "$PROBE_CONTAINER"'


class Leaver(Quick):
    """Shares a session, and ends it for all."""

    name: ClassVar[str] = "kind"
    command: ClassVar[str] = "echo gone; $((1 +* 2)); echo never"


class Setter(Quick):
    """Shares a session and its shell with others, and leaves a variable and arguments."""

    name: ClassVar[str] = "boot"
    command: ClassVar[str] = "here=boot; set -- 1 2 3; for one in 1 2; do echo $one; done; false"


QUICK = RawOutput("it's here\n", 3, "trouble\n")
SAME_FACTS = [fact for fact in ALL_FACTS if sys.modules["provision.facts.script"]._how(fact) not in DIFFERENT]


@pytest.fixture(scope="module", autouse=True)
def kept(tmp_path_factory):
    """What looks keep, in a place that is not this machine's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["provision.facts.script"], "KEPT", str(tmp_path_factory.mktemp("probe") / "kept"))
        yield


@pytest.fixture(params=["python", "shell"])
def script(request, monkeypatch):
    """The script as a node with python3 gets along with it, and as one without does; a slow one has a second more."""
    monkeypatch.setattr(sys.modules["provision.facts.script"], "MOST_SLACK_SECONDS", 1)
    return functools.partial(node_script, python=request.param == "python")


def run(text: str) -> str:
    done = subprocess.run(["sh"], input=text, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_fact_gets_its_own_output_and_exit_code(script):
    """What a command prints and how it ends reach its own parser, and no other's."""
    found = split(run(script([Quick(), Forger()])), [Quick(), Forger()])

    assert found["quick"] == RawOutput("it's here\n", 3, "trouble\n")
    assert found["forger"].stdout.endswith("no newline")


def test_a_hung_command_is_a_value_and_holds_up_nobody(script):
    """A command that ignores TERM is named as hung, the others' outputs are there, and no process is left."""
    found = split(run(script([Hanging(), Quick()])), [Hanging(), Quick()])

    assert isinstance(found["hanging"], Unknown)
    assert found["hanging"].reason.startswith("hung: sleep forever (no end within ")
    assert found["quick"].exit_code == 3
    assert wait_until(lambda: napping() == "")


def test_those_that_share_a_session_know_nothing_of_each_other(script):
    """Each has its own outputs and exit code, and leaves no folder and no variable to the next."""
    facts = [Second(), Quick(), Third()]
    found = split(run(script(facts)), facts)

    assert found["clock"] == RawOutput("second\n", 4, "")
    assert found["quick"].exit_code == 3
    assert found["hardware"] == RawOutput(f"third  {Path.cwd()}\n", 0, "")


def test_one_that_ends_the_shared_shell_costs_only_itself(script):
    """An error of the shell's own ends it: the others are run all the same, with nothing of each other."""
    facts = [Second(), Setter(), Leaver(), Third()]
    found = split(run(script(facts)), facts)

    assert (found["clock"], found["boot"]) == (RawOutput("second\n", 4, ""), RawOutput("1\n2\n", 1, ""))
    assert (found["kind"].stdout, found["kind"].exit_code) == ("gone\n", 2)
    assert found["hardware"] == RawOutput(f"third  {Path.cwd()}\n", 0, "")


def test_one_that_hangs_in_a_shared_session_costs_only_itself(script, monkeypatch):
    """It is named and killed; those behind it are run all the same."""
    monkeypatch.setattr(sys.modules["provision.facts.script"], "_TOGETHER_SECONDS", 1)
    facts = [Second(), First(), Third()]
    found = split(run(script(facts)), facts)

    assert found["boot"].reason.startswith("hung: sleep forever (no end within ")
    assert found["clock"].stdout == "second\n"
    assert found["hardware"].stdout.startswith("third ")
    assert wait_until(lambda: napping() == "")


def test_a_shared_session_does_not_start_again_what_hangs_since_an_earlier_look(script, stuck):
    """The others of the session are run."""
    with subprocess.Popen(["sleep", "1000"]) as old:
        try:
            began = Path(f"/proc/{old.pid}/stat").read_text().rpartition(")")[2].split()[19]
            stuck.write_text(f"clock {old.pid} {began}\n")
            found = split(run(script([Second(), Third()])), [Second(), Third()])
        finally:
            old.kill()

    assert found["clock"] == Unknown("hung: echo (since an earlier look; it was not started again)")
    assert found["hardware"].exit_code == 0


@pytest.mark.parametrize("python3", ["echo broken >&2; exit 1", "exec sleep 1000"])
def test_a_python_that_is_of_no_use_is_done_without(tmp_path, monkeypatch, python3):
    """One that is broken, and one that does not begin: the shell runs all commands itself."""
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


def test_python_and_the_shell_tell_the_same(tmp_path):
    """What Python does itself is what the shell's words print, as the parsers read it; links and odd names too."""
    folder = tmp_path / "provision"
    (folder / "container_ssh/keys").mkdir(parents=True)
    (folder / "receipts").mkdir()
    (folder / "receipts/some.json").write_text('{"role": "some",\n "units": {}}')
    (folder / "receipts/.hidden.json").write_text("{}")
    (folder / "container_ssh/known_hosts").write_text("[node1]:2222 ssh-ed25519 AAAAC3 node1\n\n# words\n")
    (folder / "container_ssh/keys/id_ed25519").write_text("secret")
    (folder / "container_ssh/keys/id_ed25519.pub").write_text("ssh-ed25519 AAAAC3 \033[2J;comment\nmore\n")
    (folder / "container_ssh/keys/ssh_host_ed25519_key.pub").symlink_to("id_ed25519.pub")
    told = {}
    for python in (True, False):
        text = node_script(
            SAME_FACTS, Parameters(sysctls=("kernel.panic", "no.such", "net.ipv4.tcp_rmem")), python=python
        )
        text = text.replace("/var/lib/provision/", f"{folder}/").replace(
            sys.modules["provision.facts.script"].KEPT, str(tmp_path / "kept")
        )
        told[python] = as_data(parse(run(text), SAME_FACTS, keep=False)) | {"read_at": None}

    assert told[True] == told[False]
    assert told[True]["receipts"]["some"]["content"]["role"] == "some"
    assert told[True]["container_ssh"]["client_key"] == "ssh-ed25519 AAAAC3"


@pytest.mark.skipif(os.geteuid() != 0, reason="nothing is kept but what root alone can write")
def test_the_list_of_packages_is_kept_until_dpkg_has_another(tmp_path, monkeypatch):
    """A list in the other's place of the same size and time is another; one just written may change unseen."""
    (tmp_path / "status").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    text = node_script([PackagesFact()]).replace("/var/lib/dpkg/", f"{tmp_path}/")
    text = text.replace(sys.modules["provision.facts.script"].KEPT, f"{tmp_path}/kept")

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


def test_what_a_command_sets_is_unset_for_the_next():
    """In a shared shell a fact must not read what one before it has left: each begins as in a shell of its own."""
    poison = "".join(f"{name}=poison; " for name in "abcdefghijklmnopqrstuvwxyz")
    words = {word for fact in ALL_FACTS for word in re.findall(r"\b([a-z_]+)=", fact.command)}
    poison += "".join(f"{name}=poison; " for name in sorted(words))
    here = [fact for fact in ALL_FACTS if fact.name in TOGETHER - {"boot", "clock", "xids", "disks", "listening"}]
    module = sys.modules["provision.facts.script"]
    shared = [fact for fact in here if module._how(fact) == "group"]
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


def test_facts_with_one_command_share_its_output(script):
    """It runs once."""
    facts = [Quick(), Same()]
    text = script(facts)
    found = split(run(text), facts)

    assert found["same"] == found["quick"] == RawOutput("it's here\n", 3, "trouble\n")
    assert text.count("trouble") == 1


def test_those_that_share_a_session_are_facts():
    """A name that is misspelt there would have a session of its own, unnoticed."""
    assert {fact.name for fact in ALL_FACTS} >= TOGETHER


def test_a_probe_that_is_cut_off_takes_its_commands_along(script):
    """When the connection goes in the middle, no command is left running on the node."""
    with subprocess.Popen(["sh"], stdin=subprocess.PIPE, text=True) as shell:
        shell.stdin.write(script([Slow()]))
        shell.stdin.close()
        assert wait_until(lambda: napping() != "")
        shell.send_signal(signal.SIGHUP)
        shell.wait(10)

    assert wait_until(lambda: napping() == "")


def napping() -> str:
    """The ids of the test's own sleeping processes."""
    return subprocess.run(["pgrep", "-f", f"^sleep {NAP}$"], capture_output=True, text=True, check=False).stdout


def wait_until(true) -> bool:
    """Wait up to ten seconds for something to come true."""
    pause = threading.Event()
    return any(true() or pause.wait(0.05) for _ in range(200))


def test_the_probe_leaves_no_file():
    """The folder with the outputs is gone when the script ends; where there is python3 they are in memory."""
    text = run(node_script([Quick()], python=False) + "\necho; echo work=$work\n")
    folder = text.rpartition("work=")[2].strip()

    assert folder.startswith("/")
    assert subprocess.run(["ls", "-d", folder], capture_output=True, check=False).returncode != 0


def test_parameters_reach_the_commands_whatever_they_hold(script):
    """A name with quotes and dollar signs is passed on as it is and runs nothing."""
    odd = 'a\'b "$(echo no)" `echo no`'
    found = split(run(script([Parameter()], Parameters(container=odd))), [Parameter()])

    assert found["parameter"].stdout == odd + "\n"


def test_a_cut_output_says_which_command_is_missing(script):
    """When the connection breaks in the middle, what came is used and the rest is named."""
    text = run(script([Quick(), Parameter()]))
    found = split(text[: text.index("out parameter")], [Quick(), Parameter()])

    assert isinstance(found["quick"], RawOutput)
    assert found["parameter"] == Unknown("the probe ended before echo did")


def test_text_before_the_probe_does_no_harm(script):
    """A banner or a lecture of sudo before the output is passed over."""
    found = split("Welcome!\n\n" + run(script([Quick()])), [Quick()])

    assert found["quick"].exit_code == 3


@pytest.mark.parametrize(
    "end", ["end quick", "end quick 0 0", "end other 0", "end quick0", "err quick", "out quick", "end  quick 0"]
)
def test_an_output_whose_marks_do_not_fit_is_none(end):
    """What is cut or made up is named as missing, and the next fact has its own."""
    token = "0" * 32
    good = f"{token} out quick\nit\n{token} err quick\n\n{token} "
    other = f"{token} out parameter\n\n{token} err parameter\n{token} end parameter 0\n"
    text = f"provision-probe 1 {token}\n{good}{{}}\n{other}"
    facts = [Quick(), Parameter()]

    assert split(text.format("end quick 0"), facts)["quick"] == RawOutput("it", 0, "")
    assert split(text.format(end), facts)["quick"] == Unknown("the probe ended before echo did")
    assert split(text.format(end), facts)["parameter"] == RawOutput("", 0, "")


def test_nothing_readable_makes_every_fact_unknown():
    """Output of anything else than the probe gives facts that say so, and no exception."""
    facts = parse("bash: syntax error")

    assert isinstance(facts.system, Unknown)
    assert "nothing readable" in facts.system.reason


def test_the_real_commands_run_here(script):
    """The commands that need neither docker nor a GPU run on this machine and give its system and its sizes."""
    here = [fact for fact in ALL_FACTS if not fact.label.startswith(("docker", "nvidia-smi"))]
    facts = parse(run(script(here, Parameters(names=("localhost",)))), here)

    assert isinstance(facts.system, System)
    assert isinstance(facts.hardware, Hardware)
    assert facts.hardware.cpus >= 1
    assert facts.clock <= facts.read_at < facts.clock + 60
    assert facts.receipts == {} or not isinstance(facts.receipts, Unknown)


def test_every_command_is_posix_shell():
    """No command needs bash: the shell that nodes have parses them all."""
    for fact in ALL_FACTS:
        done = subprocess.run(["sh", "-n"], input=fact.command, text=True, capture_output=True, check=False)
        assert done.returncode == 0, f"{fact.name}: {done.stderr}"


def test_every_fact_is_an_attribute():
    """NodeFacts has exactly the facts that are asked for."""
    names = {fact.name for fact in ALL_FACTS}

    assert names == set(NodeFacts.__dataclass_fields__) - {"raw", "read_at"}


@pytest.mark.parametrize("fact", ALL_FACTS, ids=lambda fact: fact.name)
def test_no_parser_raises(fact):
    """Whatever a node prints, a parser gives a value."""
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
    """The node itself takes out user and password, up to the last @, and leaves the rest as it is."""
    file = tmp_path / "daemon.json"
    file.write_text(json.dumps({"proxies": {"http-proxy": proxy}, "mail": "a@b"}))
    script = DockerConfigFact.command.replace("/etc/docker/daemon.json", str(file)).replace(
        "/etc/docker", str(tmp_path)
    )
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout.partition("\n")[2]) == {"proxies": {"http-proxy": shown}, "mail": "a@b"}


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """The list of processes that no signal could end, in a place of its own."""
    monkeypatch.setattr(sys.modules["provision.facts.script"], "STUCK", str(tmp_path / "stuck"))
    return tmp_path / "stuck"


def test_a_command_that_hangs_since_an_earlier_look_is_not_started_again(script, stuck):
    """A node with a dead mount would collect one more such process with every look; the other facts are had."""
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

    assert first["forger"] == Unknown("hung: echo (since an earlier look; it was not started again)")
    assert isinstance(first["quick"], RawOutput)
    assert isinstance(reused["forger"], RawOutput)
    assert isinstance(ended["forger"], RawOutput)
    assert not stuck.exists()


def test_a_look_can_write_nothing_at_all(stuck):
    """Outputs, words on stderr, exit codes and a hung command are told as ever; nothing in the script makes a file.

    What is seen in /run and /tmp would be that of tests which run beside this one, too.
    """
    facts = [Quick(), Forger(), Hanging()]
    text = node_script(facts, read_only=True)
    found = split(run(text), facts)

    assert found["quick"] == RawOutput("it's here", 3, "trouble\n")
    assert found["forger"].stdout.endswith("no newline")
    assert found["hanging"].reason.startswith("hung: sleep forever (no end within ")
    assert not re.search(r"mktemp|mkfifo|>+ *\"?[$/](?!dev/null)", text)
    assert not stuck.exists()
    assert wait_until(lambda: napping() == "")
