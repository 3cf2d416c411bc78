"""The probe's program, run on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from provision.facts import (
    ALL_FACTS,
    Fact,
    NodeFacts,
    Parameters,
    RawOutput,
    Unknown,
    as_data,
    parse,
    parse_system,
    probe_request,
    probe_seconds,
    request,
    system_script,
)
from provision.facts.docker import DockerConfigFact
from provision.facts.kernel import PackagesFact
from provision.facts.probe_request import ANSWER_LIMIT, OUTPUT_LIMIT, split
from provision.facts.system import Hardware, System
from provision.node.probe import NO_PROCESS
from provision.node.probe.engine import write_cache
from provision.node.probe.probe import functions_of, process_state, read_stuck, record_stuck
from provision.workflow.survey import PROBE_LIMIT
from tests.benchmarks import described_node
from tests.support.node.probe import probe_command, probe_output

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
    command: ClassVar[str] = Hanging.command.replace("echo begun", "echo begun in the row")


class Waiter(Quick):
    """Runs a command of the test in the shared session."""

    name: ClassVar[str] = "boot"

    def __init__(self, command: str) -> None:
        self.command = command


class Long(Quick):
    """Prints a number of bytes in a session of its own."""

    limit_seconds: ClassVar[int] = 40

    def __init__(self, name: str, size: int) -> None:
        self.name, self.command = name, f"head -c {size} /dev/zero | tr '\\0' x; : {name}"


class LongShared(Long):
    """Prints a number of bytes in the shared session."""

    limit_seconds: ClassVar[int] = 20


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
ENGINE = {"managed", "docker_info", "image", "container"}


class Probe:
    """The program of the probe, with files of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stuck, self.change = folder, folder / "stuck", ""

    def command(self) -> list[str]:
        """Return the command that starts the program."""
        own = f's,^STUCK = .*,STUCK = "{self.stuck}",;s,^CACHE = .*,CACHE = "{self.folder}/cache",'
        return probe_command(self.folder / "program", f"{own};{self.change}")

    def text(
        self, facts: list[Fact], parameters: Parameters | None = None, *, read_only: bool = False, **limits: int
    ) -> str:
        """Return what the program prints; `limits` replace those of the request."""
        asked = json.loads(request(facts, parameters, read_only=read_only))
        asked |= {"most_slack": 1, **limits}
        return probe_output(self.command(), json.dumps(asked).encode())

    def __call__(self, facts: list[Fact], parameters: Parameters | None = None, **options: object) -> dict:
        return split(self.text(facts, parameters, **options), facts)


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    """Return the program of the probe."""
    return Probe(tmp_path)


def test_each_fact_gets_its_own_output_and_exit_code(probe):
    outputs = probe([Quick(), Forger()])

    assert outputs["quick"] == RawOutput("it's here\n", 3, "trouble\n")
    assert outputs["forger"].stdout.endswith("no newline")


def test_a_hung_command_is_unknown_and_does_not_block_others(probe):
    outputs = probe([Hanging(), Quick()])

    assert isinstance(outputs["hanging"], Unknown)
    assert outputs["hanging"].reason.startswith("hung: sleep forever (no end within ")
    assert outputs["quick"].exit_code == 3
    assert wait_until(lambda: napping() == "")


def test_commands_in_a_shared_session_are_isolated(probe):
    facts = [Second(), Quick(), Third()]
    outputs = probe(facts)

    assert outputs["clock"] == RawOutput("second\n", 4, "")
    assert outputs["quick"].exit_code == 3
    assert outputs["hardware"] == RawOutput(f"third  {Path.cwd()}\n", 0, "")


def test_no_other_account_can_forge_the_end_of_a_command(probe):
    """Everyone can read the arguments of processes: they contain nothing that separates outputs.

    A command that prints the file of another account prints the request's token, or what was read from the arguments.
    """
    with subprocess.Popen(["sleep", "60"]) as waiting:
        facts = [Waiter(f"while kill -0 {waiting.pid}; do sleep 0.05; done"), Second()]
        asked = json.loads(request(facts))
        with subprocess.Popen(probe.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            program.stdin.write(json.dumps(asked).encode())
            program.stdin.close()
            assert wait_until(lambda: b"probe_ended" in arguments_below(program.pid))
            seen = arguments_below(program.pid)
            waiting.kill()
            waiting.wait()
            printed = program.stdout.read().decode()
        assert program.returncode == 0
    forger = Waiter(f"printf '\\n{asked['token']} clock 0\\n{asked['token']} boot 0\\n'; exit 3")
    forged = json.loads(request([forger, Second()])) | {"token": asked["token"]}

    assert split(printed, facts)["clock"] == RawOutput("second\n", 4, "")
    assert re.search(rb"[0-9a-f]{16}", seen) is None
    assert f"{asked['token']} end clock 4" in probe_output(probe.command(), json.dumps(forged).encode())


def arguments_below(pid: int) -> bytes:
    """Return the arguments of all descendants of a process."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    texts = []
    for child in children:
        with contextlib.suppress(OSError):
            texts += [Path(f"/proc/{child}/cmdline").read_bytes(), arguments_below(int(child))]
    return b"\n".join(texts)


def test_a_command_that_ends_the_shared_shell_costs_only_itself(probe):
    facts = [Second(), Setter(), Leaver(), Third()]
    outputs = probe(facts)

    assert (outputs["clock"], outputs["boot"]) == (RawOutput("second\n", 4, ""), RawOutput("1\n2\n", 1, ""))
    assert (outputs["kind"].stdout, outputs["kind"].exit_code) == ("gone\n", 2)
    assert outputs["hardware"] == RawOutput(f"third  {Path.cwd()}\n", 0, "")


def test_a_command_that_hangs_in_a_shared_session_costs_only_itself(probe):
    facts = [Second(), First(), Third()]
    outputs = probe(facts, shared_limit=1)

    assert outputs["boot"].reason.startswith("hung: sleep forever (no end within ")
    assert outputs["clock"].stdout == "second\n"
    assert outputs["hardware"].stdout.startswith("third ")
    assert wait_until(lambda: napping() == "")


@pytest.mark.parametrize("kind", [Long, LongShared])
def test_a_command_that_prints_too_much_costs_only_its_own_fact(probe, kind):
    """The output is limited on the node: one command can neither fill its memory nor the whole answer."""
    facts = [Second(), kind("gpus", 40_000_000), Third(), Quick()]
    text = probe.text(facts)
    outputs = split(text, facts)

    assert outputs["gpus"] == Unknown(f"the output of echo is too long (the limit is {OUTPUT_LIMIT} bytes)")
    assert outputs["clock"] == RawOutput("second\n", 4, "")
    assert outputs["hardware"].stdout.startswith("third ")
    assert outputs["quick"] == QUICK
    assert len(text) < 10_000


def test_the_answer_is_limited_by_leaving_out_the_longest_outputs(probe):
    facts = [Long("gpus", 9000), Long("nvlinks", 8000), Long("topology", 4000), Quick()]
    text = probe.text(facts, output_limit=10_000, answer_limit=14_000)
    outputs = split(text, facts)

    assert [name for name, output in outputs.items() if isinstance(output, Unknown)] == ["gpus"]
    assert len(text) < 14_000
    assert ANSWER_LIMIT < PROBE_LIMIT


def test_the_word_fork_in_an_output_is_no_lack_of_processes(probe):
    """A command whose session ends early costs only itself, whatever it prints."""
    facts = [Waiter("echo 'ls: /opt/forklift: no such file' >&2; kill -9 $$; sleep 1"), Second()]
    outputs = probe(facts)

    assert outputs["boot"].exit_code == 137
    assert outputs["clock"] == RawOutput("second\n", 4, "")


def test_a_node_without_free_processes_has_its_own_exit_status(probe):
    """The controller then names the cause; the node can be neither probed nor changed."""
    probe.change = 's,return os.posix_spawn(,raise OSError(11\\, "no process") or os.posix_spawn(,'
    done = subprocess.run(probe.command(), input=request([Quick()]), capture_output=True, check=False)

    assert (done.returncode, done.stdout) == (NO_PROCESS, b"")
    assert b"no process" in done.stderr


def test_a_slow_network_gives_commands_no_more_time(probe):
    """Only a node that is slow to load the program gets more; the delay before the request is not the node's."""
    probe.change = "s,^SLACK = .*,SLACK = 1,"
    asked = json.loads(request([Hanging()])) | {"most_slack": 100, "shared_limit": 1}
    with subprocess.Popen(probe.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        threading.Event().wait(6)
        program.stdin.write(json.dumps(asked).encode())
        program.stdin.close()
        printed = program.stdout.read().decode()
    seconds = int(re.search(r"end hanging hung:(\d+)", printed)[1])

    assert seconds - Hanging.limit_seconds < 6


def test_the_time_limit_of_a_probe_is_longer_than_any_hung_command(probe, monkeypatch):
    """The node's answer arrives, although two commands of the shared session hang on a slow node."""
    monkeypatch.setattr(probe_request, "SHARED_SECONDS", 1)
    probe.change = "s,^SLACK = .*,SLACK = 10**6,"
    facts = [First(), Hanging(), Second()]
    monkeypatch.setattr(probe_request, "MOST_SLACK_SECONDS", 1)
    text = probe_output(probe.command(), request(facts))
    seconds = [int(each) for each in re.findall("hung:([0-9]+)", text)]

    assert seconds == [2, 4]
    assert max(seconds) <= probe_seconds(facts) - probe_request.TRANSFER_SECONDS


def test_a_shared_session_does_not_restart_a_command_that_hung_in_an_earlier_probe(probe):
    with subprocess.Popen(["sleep", "1000"]) as old:
        try:
            began = Path(f"/proc/{old.pid}/stat").read_text().rpartition(")")[2].split()[19]
            probe.stuck.write_text(f"clock {old.pid} {began}\n")
            outputs = probe([Second(), Third()])
        finally:
            old.kill()

    assert outputs["clock"] == Unknown("hung: echo (since an earlier probe; it was not started again)")
    assert outputs["hardware"].exit_code == 0


def test_a_node_without_python_reports_its_system():
    """A shell script reports system, kernel, architecture and package manager; all else is unknown for that reason."""
    done = subprocess.run(["sh"], input=system_script(), capture_output=True, text=True, check=True)
    facts = parse_system(done.stdout, "there is no python3 on this node")

    assert isinstance(facts.system, System)
    assert (facts.system.kernel, facts.system.architecture) == (os.uname().release, os.uname().machine)
    assert facts.system.package_manager == "apt-get"
    assert facts.receipts == Unknown("there is no python3 on this node")


def test_functions_of_the_program_read_files_of_other_accounts_safely(probe):
    """Links are not followed, hidden files and private keys are not read."""
    folder = probe.folder / "provision"
    (folder / "container_ssh/keys").mkdir(parents=True)
    (folder / "receipts").mkdir()
    (folder / "receipts/some.json").write_text('{"role": "some",\n "units": {}}')
    (folder / "receipts/.hidden.json").write_text("{}")
    (folder / "container_ssh/known_hosts").write_text("[node1]:2222 ssh-ed25519 AAAAC3 node1\n\n# words\n")
    (folder / "container_ssh/keys/id_ed25519").write_text("secret")
    (folder / "container_ssh/keys/id_ed25519.pub").write_text("ssh-ed25519 AAAAC3 \033[2J;comment\nplanted line\n")
    (folder / "container_ssh/keys/ssh_host_ed25519_key.pub").symlink_to("id_ed25519.pub")
    probe.change = f"s,/var/lib/provision/,{folder}/,g"
    facts = [fact for fact in ALL_FACTS if fact.command.startswith("@") and fact.name not in ENGINE]
    text = probe.text(facts, Parameters(sysctls=("kernel.panic", "no.such", "net.ipv4.tcp_rmem")))
    result = as_data(parse(text, facts))

    assert list(result["receipts"]) == ["some"]
    assert result["receipts"]["some"]["content"]["role"] == "some"
    assert result["container_ssh"]["client_key"] == "ssh-ed25519 AAAAC3"
    assert result["container_ssh"]["host_key"] == ""
    assert list(result["container_trust"]["known_hosts"]) == ["[node1]:2222"]
    assert set(result["sysctls"]) == {"kernel.panic", "net.ipv4.tcp_rmem"}
    assert result["limits"]["init"]
    assert "secret" not in text
    assert "planted" not in text


def test_every_function_that_a_fact_names_exists():
    named = {fact.command[1:] for fact in ALL_FACTS if fact.command.startswith("@")}

    assert named == set(functions_of(""))


@pytest.mark.skipif(os.geteuid() != 0, reason="the cache is used only if root alone can write it")
def test_the_package_list_is_cached_until_dpkg_changes_it(tmp_path, probe, monkeypatch):
    """The file is replaced by one of the same size and time; a file that was just written is not cached."""
    (tmp_path / "status").write_text("Package: pigz\n")
    os.utime(tmp_path / "status", (time.time() + 600,) * 2)  # just written, however slow this machine is
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    probe.change = f"s,/var/lib/dpkg/,{tmp_path}/,"

    def seen(version: int, *, read_only: bool = False) -> str:
        (tmp_path / "dpkg-query").write_text(f"#!/bin/sh\necho 'ii |pigz|{version}'\n")
        (tmp_path / "dpkg-query").chmod(0o755)
        return probe([PackagesFact()], read_only=read_only)["packages"].stdout.strip().rpartition("|")[2]

    assert [seen(1), seen(2)] == ["1", "2"]
    os.utime(tmp_path / "status", (time.time() - 60,) * 2)
    assert [seen(3, read_only=True), seen(4), seen(5), seen(6, read_only=True)] == ["3", "4", "4", "6"]
    (tmp_path / "status-new").write_text("Package: pigz\n")
    shutil.copystat(tmp_path / "status", tmp_path / "status-new")
    (tmp_path / "status-new").rename(tmp_path / "status")
    assert seen(7) == "7"


def test_facts_with_the_same_command_share_its_output(probe):
    facts = [Quick(), Same()]
    outputs = probe(facts)

    assert outputs["same"] == outputs["quick"] == RawOutput("it's here\n", 3, "trouble\n")
    assert request(facts).count(b"trouble") == 1


def test_an_interrupted_probe_kills_its_commands(probe):
    with subprocess.Popen(probe.command(), stdin=subprocess.PIPE) as program:
        program.stdin.write(request([Slow()]))
        program.stdin.close()
        assert wait_until(lambda: napping() != "")
        program.send_signal(signal.SIGHUP)
        program.wait(10)

    assert wait_until(lambda: napping() == "")


def napping() -> str:
    """Return the pids of the test's own sleeping processes."""
    return subprocess.run(["pgrep", "-f", f"^sleep {NAP}$"], capture_output=True, text=True, check=False).stdout


def wait_until(true) -> bool:
    """Wait up to ten seconds for a condition."""
    pause = threading.Event()
    return any(true() or pause.wait(0.05) for _ in range(200))


def test_a_read_only_probe_stores_nothing(probe):
    """Outputs, stderr, exit codes and hung commands are reported as otherwise."""
    facts = [Quick(), Forger(), Hanging(), PackagesFact()]
    probe([Quick()], read_only=True)  # compiles the program
    before = sorted(probe.folder.rglob("*"))
    outputs = probe(facts, read_only=True)

    assert outputs["quick"] == QUICK
    assert outputs["hanging"].reason.startswith("hung: sleep forever (no end within ")
    assert sorted(probe.folder.rglob("*")) == before
    assert wait_until(lambda: napping() == "")


def test_parameters_reach_the_commands_unchanged(probe):
    odd = 'a\'b "$(echo no)" `echo no`'
    outputs = probe([Parameter()], Parameters(container=odd))

    assert outputs["parameter"].stdout == odd + "\n"


def test_a_truncated_output_names_the_missing_command(probe):
    text = probe.text([Quick(), Parameter()])
    outputs = split(text[: text.index("out parameter")], [Quick(), Parameter()])

    assert isinstance(outputs["quick"], RawOutput)
    assert outputs["parameter"] == Unknown("the probe ended before echo did")


def test_text_before_the_probe_is_ignored(probe):
    outputs = split("Welcome!\n\n" + probe.text([Quick()]), [Quick()])

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


def test_the_real_commands_run_here(probe):
    here = [fact for fact in ALL_FACTS if not fact.label.startswith(("docker", "nvidia-smi"))]
    facts = parse(probe.text(here, Parameters(names=("localhost",))), here)

    assert isinstance(facts.system, System)
    assert isinstance(facts.hardware, Hardware)
    assert facts.hardware.cpus >= 1
    assert facts.clock <= facts.read_at < facts.clock + 60
    assert facts.receipts == {} or not isinstance(facts.receipts, Unknown)


def test_every_command_is_posix_shell():
    for fact in (fact for fact in ALL_FACTS if not fact.command.startswith("@")):
        done = subprocess.run(["sh", "-n"], input=fact.command, text=True, capture_output=True, check=False)
        assert done.returncode == 0, f"{fact.name}: {done.stderr}"


def test_every_fact_is_an_attribute():
    names = {fact.name for fact in ALL_FACTS}

    assert names == set(NodeFacts.__dataclass_fields__) - {"raw", "read_at"}


def test_simulated_nodes_report_every_fact():
    """A check of a fact that they do not report fails on every one of them."""
    commands = {fact.command for fact in ALL_FACTS if fact.name in described_node.FACTS}

    assert {fact.name for fact in ALL_FACTS if fact.command not in commands} == described_node.NO_OUTPUT


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


def test_a_command_that_hung_in_an_earlier_probe_is_not_restarted(probe):
    """On a node with a dead mount, each probe would otherwise add such a process."""
    with subprocess.Popen(["sleep", "1000"]) as old:
        try:
            began = Path(f"/proc/{old.pid}/stat").read_text().rpartition(")")[2].split()[19]
            probe.stuck.write_text(f"forger {old.pid} {began}\n")
            first = probe([Quick(), Forger()])
            probe.stuck.write_text(f"forger {old.pid} 1\n")
            reused = probe([Quick(), Forger()])
        finally:
            old.kill()
    probe.stuck.write_text(f"forger {old.pid} {began}\n")
    ended = probe([Quick(), Forger()])

    assert first["forger"] == Unknown("hung: echo (since an earlier probe; it was not started again)")
    assert isinstance(first["quick"], RawOutput)
    assert isinstance(reused["forger"], RawOutput)
    assert isinstance(ended["forger"], RawOutput)
    assert not probe.stuck.exists()


def test_probes_at_the_same_time_record_all_hung_commands(probe):
    """Otherwise the next probe would start one of them again."""
    start = process_state("self")[2]
    names = [f"fact{number}" for number in range(12)]
    with ThreadPoolExecutor(len(names)) as pool:
        notes = list(pool.map(lambda name: record_stuck(str(probe.stuck), [(name, str(os.getpid()), start)]), names))

    assert notes == [""] * len(names)
    assert sorted(name for name, _, _ in read_stuck(str(probe.stuck))) == sorted(names)
    assert stat.S_IMODE(probe.stuck.stat().st_mode) == 0o600


def test_a_record_that_cannot_be_written_does_not_cost_the_answer(probe):
    """The answer has a note about it, for a support bundle."""
    probe.stuck.mkdir()
    text = probe.text([Quick()])

    assert split(text, [Quick()])["quick"] == QUICK
    assert re.search(r"^note: .*Is a directory", text, re.MULTILINE)


@pytest.mark.skipif(os.geteuid() != 0, reason="the cache is used only if root alone can write it")
def test_a_cache_that_cannot_be_written_leaves_no_file(tmp_path):
    (tmp_path / "cache/packages").mkdir(parents=True)
    write_cache(str(tmp_path / "cache/packages"), b"text")

    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["packages"]
