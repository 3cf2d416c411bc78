"""What `docs/architecture.md` promises: how many files a thing to add touches.

Each test adds one in a copy of the program, and uses it.
"""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.new_role import FOLDER, add_role
from tests.unit.launchers.test_launchers import MODULE as LAUNCHER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")

VERB = '''"""Greet the user."""

from __future__ import annotations

import typer

from provision.cli.common import JsonOption, print_json, say


def greet_me(name: str = typer.Argument("you", help="Name to greet."), as_json: JsonOption = False) -> None:
    """Greet the user.

    \\b
    Example:
      provision greet-me gpu1
    """
    if as_json:
        print_json({"name": name})
    else:
        say(f"hello {name}")
'''
FACT = '''"""The name of the node's terminal database."""

from __future__ import annotations

from typing import ClassVar

from provision.facts.base import RawOutput


class GreetingFact:
    """Reads a greeting."""

    name: ClassVar[str] = "greeting"
    label: ClassVar[str] = "echo"
    limit_seconds: ClassVar[int] = 20
    command: ClassVar[str] = "echo hello"

    def parse(self, raw: RawOutput) -> str:
        """Return the greeting."""
        return raw.stdout.strip()
'''
CHECK = '''"""Greetings."""

from __future__ import annotations

from provision.checks.base import check
from provision.components.check import Scene, Verdict, fail, known, passed

__all__: list[str] = []


@check("greeting.kernel")
def _kernel(scene: Scene) -> Verdict:
    system = known(scene.facts.system)
    if system.kernel.startswith("6."):
        return fail("greeting.kernel.quiet", kernel=system.kernel)
    return passed("greeting.kernel.ok")
'''
SESSION = """
import contextlib, io, json, sys
from provision.cli.main import main
exec(sys.argv[1])

answers = []
for words in json.loads(sys.argv[2]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            answers.append((end.code or 0, out, err))
print(json.dumps([(code, out.getvalue(), err.getvalue()) for code, out, err in answers]))
"""
"""Commands in one process, after statements that prepare it."""
NODE = """
from provision import connectors
from provision.errors import ProvisionError
from provision.testing import FakeConnector
from tests.support.probe import DEBIAN, answer

name, version = SYSTEM.split()
system = DEBIAN.replace("ID=debian", f"ID={name}").replace('"12"', f'"{version}"')
programs = {
    ".pyz probe": answer({"system": system}),
    ".pyz package-preflight": json.dumps({"packages": {}, "install": [], "sources": [], "conflict": ""}),
    "sha256sum": "",
}

def each(nodes, function, **_):
    results = {}
    for node in nodes:
        try:
            results[node.name] = function(FakeConnector(programs, node.name))
        except ProvisionError as error:
            results[node.name] = error
    return results

connectors.each = each
"""
"""Every node is a bare one of a system."""
SYSTEM = {
    "trixie": "anvil",
    "Debian 13": "AcmeOS 7.4",
    "linux/debian": "linux/acmeos",
    "docker.io": "docker-acme",
}
"""The differences between the file of a new system and that of Debian 13."""
SYSTEM_ROW = (
    '    "acmeos7": Row("acmeos_7.4", Archive("acmeos", ("main", "more"), "linux-image-acme"), stand_in="debian13"),\n'
)
HEALTHY = """
from provision.jobs.engines import ENGINES
from provision.workflow import survey
from tests.unit.checks.conftest import healthy

ENGINES["memory"] = "tests.support.memory_engine"
survey.probe = lambda nodes, **_: {node.name: healthy() for node in nodes}
"""
"""Every node is healthy, and there is an engine that needs none."""
ENGINE = """
from provision.jobs.engines.base import Capability
from tests.support.memory_engine import MemoryEngine, job_of


class GreetingEngine(MemoryEngine):
    name = "greeting"


def create(context):
    gpus = {node.name: 1 for node in context.cluster.nodes}
    return GreetingEngine((job_of("hello"),), gpus=gpus, lacks=[Capability.DRAIN])
"""
LAUNCHER_ROWS = r"""
    "acme": Row(
        r"host (?P<name>\S+) (?P<slots>\d+)",
        argv=("mpirun", "--tasks", "12"),
        environment=frozenset({"ACME_HOSTS", "ACME_SSH"}),
        typed="acmerun",
    ),
    "acmenode": Row(r"host (?P<name>\S+) (?P<slots>\d+)", on_node=("acmenode", "train.py", "--x")),
    "acmeonce": Row(),
"""
READ = """
import subprocess
from provision.facts import ALL_FACTS, parse, request
from provision.node_archive import archive, memory_script
asked = archive() + request(ALL_FACTS, read_only=True)
text = subprocess.run(["sh", "-c", memory_script("probe")], input=asked, capture_output=True, check=True).stdout
print(parse(text.decode(errors="replace")).greeting)
"""


def files_of(what: str) -> str:
    """Return the number of files that the page gives for a thing to add."""
    row = re.search(rf"^\| {re.escape(what)} \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE)
    assert row, what
    return row[1].strip()


def edited(tree: Path) -> set[str]:
    """Return the files of the copy that the program does not have, or has with another content."""
    folders = ("provision", "roles", "playbooks", "tests")
    files = [path.relative_to(tree) for folder in folders for path in (tree / folder).rglob("*") if path.is_file()]
    return {
        str(path)
        for path in files
        if path.suffix != ".pyc" and not ((ROOT / path).is_file() and filecmp.cmp(tree / path, ROOT / path))
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the program, without its tests."""
    for name in ("provision", "roles", "playbooks"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return tmp_path


def rows(tree: Path, file: str, new: str) -> None:
    """Copy a file of tests, with more rows."""
    target = tree / file
    target.parent.mkdir(parents=True)
    shutil.copy2(ROOT / file, target)
    insert(target, "ROWS = {\n", new)


def edit(file: Path, old: str, new: str) -> None:
    """Replace the only occurrence of a text."""
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, (file, old)
    file.write_text(text.replace(old, new), encoding="utf-8")


def insert(file: Path, line: str, new: str) -> None:
    """Insert a text after a line."""
    edit(file, line, line + new)


def python(tree: Path, *words: str, **variables: str) -> str:
    """Return the output of a Python that imports the copy."""
    paths = {
        "PYTHONPATH": f"{tree}:{ROOT}",
        "XDG_STATE_HOME": str(tree / "state"),
        "XDG_CACHE_HOME": str(tree / "cache"),
    }
    environment = {**os.environ, **paths, **variables}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=tree, env=environment
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def session(tree: Path, prepare: str, *lines: str) -> list[tuple[int, str, str]]:
    """Return exit code, output and errors of each command."""
    return [
        tuple(one) for one in json.loads(python(tree, "-c", SESSION, prepare, json.dumps([*map(str.split, lines)])))
    ]


def completed(tree: Path, line: str) -> list[str]:
    """Return what a shell offers for the last word of a line."""
    call = "import sys; sys.argv[0] = 'provision'; from provision.cli.main import main; main()"
    shell = {"_PROVISION_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    return python(tree, "-c", call, **shell).split()


def test_a_new_verb_requires_a_module_and_an_entry(tree: Path) -> None:
    """It is in the help, has its options and answers in JSON."""
    (tree / "provision/cli/greet_me.py").write_text(VERB, encoding="utf-8")
    edit(tree / "provision/cli/main.py", '"bench lab demo"', '"bench lab demo greet-me"')
    answers = session(tree, "", "--help", "greet-me --help", "greet-me gpu1 --json")

    assert [code for code, *_ in answers] == [0, 0, 0]
    assert "greet-me" in answers[0][1]
    assert "provision greet-me gpu1" in answers[1][1]
    assert json.loads(answers[2][1]) == {"name": "gpu1"}
    assert edited(tree) == {"provision/cli/greet_me.py", "provision/cli/main.py"}
    assert files_of("a verb") == "2"


def test_a_new_fact_requires_a_module_and_its_registration(tree: Path) -> None:
    """The probe runs its command in the node's shell, and the snapshot of the node has its value."""
    (tree / "provision/facts/greeting.py").write_text(FACT, encoding="utf-8")
    node = tree / "provision/facts/node.py"
    edit(
        node,
        "from provision.facts.kernel import",
        "from provision.facts.greeting import GreetingFact\nfrom provision.facts.kernel import",
    )
    edit(
        node,
        "    clock: int | Unknown",
        "    greeting: str | Unknown = _value_of(GreetingFact())\n    clock: int | Unknown",
    )

    assert python(tree, "-c", READ).strip() == "hello"
    assert edited(tree) == {"provision/facts/greeting.py", "provision/facts/node.py"}
    assert files_of("a fact") == "2"


def test_a_new_operating_system_requires_a_file_of_variables_and_a_row_of_the_lab(tree: Path) -> None:
    """It is planned with its packages, and the lab simulates it."""
    text = (tree / "roles/platform/vars/debian_13.yml").read_text(encoding="utf-8")
    for old, new in SYSTEM.items():
        assert old in text
        text = text.replace(old, new)
    (tree / "roles/platform/vars/acmeos_7.4.yml").write_text(text, encoding="utf-8")
    insert(tree / "provision/lab/systems.py", "SYSTEMS: Mapping[str, Row] = {\n", SYSTEM_ROW)
    (tree / "hosts.yml").write_text("all: {hosts: {gpu1: {}}}\n", encoding="utf-8")
    lines = ("plan -i hosts.yml --json", "lab up --help", "lab up x --system arch --json")
    answers = session(tree, f"SYSTEM = 'acmeos 7.4'{NODE}", *lines)

    assert [code for code, *_ in answers] == [1, 0, 1]
    plan, refused = json.loads(answers[0][1]), json.loads(answers[2][1])
    assert plan["nodes"][0]["error"] is None
    missing = {problem["role"]: problem["object"] for problem in plan["problems"]}
    assert "docker-acme" in missing["docker_engine"]
    assert "acmeos7" in answers[1][1]
    assert "acmeos7" in refused["error"]["remedy"]
    (tree / "tests/unit").mkdir(parents=True)
    shutil.copy2(ROOT / "tests/unit/test_operating_systems.py", tree / "tests/unit")
    verified = python(tree, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", "acmeos", "tests")
    assert "test_nodes_with_the_system_are_supported[acmeos_7.4] PASSED" in verified
    assert "test_a_simulated_system_has_its_own_identity_and_says_so[acmeos7] PASSED" in verified
    assert edited(tree) == {"roles/platform/vars/acmeos_7.4.yml", "provision/lab/systems.py"}
    assert files_of("an operating system") == "2"


def test_a_new_role_requires_its_folder_a_module_and_a_line(tree: Path) -> None:
    """It is planned and verified; `tests/integration/test_new_role.py` also applies, repairs and resets it."""
    add_role(tree)
    (tree / "hosts.yml").write_text("all: {hosts: {gpu1: {}}}\n", encoding="utf-8")
    lines = ("plan -i hosts.yml --only hello_world --json", "verify -i hosts.yml --json")
    plan, verified = (json.loads(out) for _, out, _ in session(tree, f"SYSTEM = 'debian 12'{NODE}", *lines))

    assert [step["role"] for step in plan["nodes"][0]["steps"]] == ["hello_world"]
    assert "hello_world.greeting" in {check["id"] for check in verified["nodes"][0]["checks"]}
    folder = {f"roles/hello_world/{file}" for file in FOLDER}
    assert edited(tree) - folder == {"provision/components/hello_world.py", "playbooks/nodes.yml"}
    assert files_of("a role") == "the folder and 2"


def test_a_new_check_requires_a_module_and_its_wording(tree: Path) -> None:
    """`verify` judges it, and prints and documents its message and remedy."""
    (tree / "provision/checks/greeting.py").write_text(CHECK, encoding="utf-8")
    wording = tree / "provision/checks/reasons.py"
    described = '    "greeting.kernel": ("the kernel greets", "fail"),\n'
    insert(wording, "DESCRIPTIONS: Mapping[str, tuple[str, str]] = {\n", described)
    quiet = '    "greeting.kernel.quiet": Wording("kernel {kernel} is quiet", "Run on {node}: echo hello"),\n'
    insert(wording, "REASONS: Mapping[str, Wording] = {\n", f'{quiet}    "greeting.kernel.ok": Wording("it greets"),\n')
    (tree / "hosts.yml").write_text("all: {hosts: {gpu1: {}}}\n", encoding="utf-8")
    answers = session(tree, f"SYSTEM = 'debian 12'{NODE}", "verify -i hosts.yml --json", "verify -i hosts.yml")

    [node] = json.loads(answers[0][1])["nodes"]
    [judged] = [one for one in node["checks"] if one["id"] == "greeting.kernel"]
    assert (judged["status"], judged["reason"]) == ("fail", "kernel 6.1.0-40-amd64 is quiet")
    assert "Run on gpu1: echo hello" in answers[1][1]
    page = python(tree, "-m", "provision.report.reasons_page")
    assert "## Check `greeting.kernel`" in page
    assert "Passes when: the kernel greets. Otherwise: fail." in page
    assert edited(tree) == {"provision/checks/greeting.py", "provision/checks/reasons.py"}
    assert files_of("a check") == "2 or 1"


def test_a_new_launcher_requires_a_module_and_its_row(tree: Path) -> None:
    """`run`, `submit` and `hostfile` use it, and shells complete it; the row tests it."""
    (tree / "provision/launchers/acme.py").write_text(LAUNCHER, encoding="utf-8")
    rows(tree, "tests/unit/launchers/test_launchers.py", LAUNCHER_ROWS.lstrip("\n"))
    hosts = "all: {vars: {cluster_mpi: acme, cluster_gpus: 8}, hosts: {gpu1: {cluster_data_address: 10.77.0.1}}}\n"
    (tree / "hosts.yml").write_text(hosts, encoding="utf-8")
    job = "--name=j --image=i --launcher=acmeonce --engine=memory --dry-run -o yaml"
    answers = session(
        tree,
        HEALTHY,
        "run -i hosts.yml --offline --dry-run -- train",
        "run -i hosts.yml --offline --dry-run --launcher acmenode -- train.py",
        "hostfile -i hosts.yml --launcher acme",
        f"submit mpi --inventory hosts.yml {job} -- train",
    )

    assert [code for code, *_ in answers] == [0, 0, 0, 0]
    by_mpi, by_node, host_file, spec = (out for _, out, _ in answers)
    assert by_mpi.startswith("mpirun --tasks 8 -x PROVISION_JOB ")
    assert by_node.splitlines()[0].endswith(" acmenode train.py")
    assert host_file == "host gpu1 1\n"
    assert "launcher: acmeonce\n" in spec
    for verb in ("run", "submit mpi"):
        assert completed(tree, f"provision {verb} --launcher acme") == ["acmenode", "acmeonce"]
    assert completed(tree, "provision hostfile --launcher acme") == ["acme", "acmenode"]
    python(tree, "-m", "pytest", "-p", "no:cacheprovider", "tests", "-k", "acme or every_launcher")
    assert edited(tree) == {"provision/launchers/acme.py", "tests/unit/launchers/test_launchers.py"}
    assert files_of("a launcher") == "2"


def test_a_new_job_engine_requires_a_folder_and_its_registration(tree: Path) -> None:
    """The inventory and `--engine` choose it, and the commands for jobs use it; errors list it."""
    folder = tree / "provision/jobs/engines/greeting"
    folder.mkdir()
    (folder / "__init__.py").write_text(ENGINE, encoding="utf-8")
    registrations = tree / "provision/jobs/engines/__init__.py"
    insert(registrations, "ENGINES: dict[str, str] = {\n", '    "greeting": "provision.jobs.engines.greeting",\n')
    (tree / "hosts.yml").write_text("all: {hosts: {gpu1: {}}}\n", encoding="utf-8")
    (tree / "greeting.yml").write_text("all: {vars: {cluster_engine: greeting}, hosts: {gpu1: {}}}\n", encoding="utf-8")
    lines = (
        "list --engine greeting --inventory hosts.yml --json",
        "list --engine none --inventory hosts.yml --json",
        "submit run --name=j --image=i --gpus=1 true --inventory greeting.yml --json",
        "node drain gpu1 --inventory greeting.yml --json",
    )
    answers = session(tree, "", *lines)

    assert [code for code, *_ in answers] == [0, 2, 0, 2]
    jobs, unknown, job, lacking = (json.loads(out) for _, out, _ in answers)
    assert [one["name"] for one in jobs] == ["hello"]
    assert "greeting" in unknown["error"]["remedy"]
    assert (job["engine"], job["status"]) == ("greeting", "RUNNING")
    assert lacking["error"]["code"] == "engine.no_drain"
    assert edited(tree) == {"provision/jobs/engines/greeting/__init__.py", "provision/jobs/engines/__init__.py"}
    assert files_of("a job engine") == "the folder and 1"
