"""The wheel in a clean virtual environment: from `lab up` and `init` to a job, as root and as an unprivileged user.

Nothing of the checkout is used: the command runs in another folder, without PYTHONPATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from provision import __version__
from tests.integration.conftest import ENGINES
from tests.support.command import ROOT, Provision
from tests.support.engine import engine_host
from tests.support.wheel import build_wheel
from tools.collection import build

LAB = f"installed{os.getpid()}"
NOBODY = 65534
_AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs", "env"]
# The program that setpriv starts itself can still be in root's home: the capabilities end with its start.
_FILES = ("--key", "--known-hosts", "--registry-ca", "--nvidia-key")
"""Options of ``init`` with a file of the lab."""


class Installed(Provision):
    """The installed command, of root or of an unprivileged user with a home folder of its own."""

    def __init__(self, program: Path, home: Path, user: tuple[str, ...] = ()) -> None:
        super().__init__(home)
        self.program, self.user = program, user
        inherited = ("http_proxy", "https_proxy", "no_proxy", "PROVISION_DEBIAN_MIRROR")
        self.environment = {
            "HOME": str(home),
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "NO_COLOR": "1",
            **{name: os.environ[name] for name in inherited if name in os.environ},
        }

    def argv(self, *words: str) -> list[str]:
        """The command line of one call."""
        return [*self.user, str(self.program), *words]


def interpreter() -> str:
    """Return a Python that every user can run; that of the tests can be in root's home."""
    for program in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        check = [*_AS_NOBODY, program, "-c", "import sys, venv; sys.exit(sys.version_info < (3, 11))"]
        if subprocess.run(check, capture_output=True, check=False).returncode == 0:
            return program
    pytest.fail("no Python 3.11 or newer that every user can run; install python3 and python3-venv")


@pytest.fixture(scope="module")
def site() -> Iterator[Path]:
    """A folder that every user can enter."""
    with tempfile.TemporaryDirectory(prefix="prov-installed-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def program(site: Path) -> Path:
    """The command in a clean environment: the locked packages, then the wheel, whose requirements pip finds there."""
    wheel, venv = build_wheel(site), site / "venv"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    locked = ["--require-hashes", "--no-deps", "--no-compile", "-r", str(ROOT / "requirements.lock")]
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet"]
    for words in (
        [interpreter(), "-m", "venv", str(venv)],
        [*pip, *locked],
        [*pip, "--no-index", f"{wheel}[lab]"],
    ):
        done = subprocess.run(words, env=environment, cwd=site, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stderr[-3000:]}"
    return venv / "bin/provision"


@pytest.fixture(scope="module")
def root(site: Path, program: Path) -> Installed:
    """The command of root; built images and the docker engine are shared with every other lab."""
    (site / "root").mkdir()
    command = Installed(program, site / "root")
    command.environment["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return command


@pytest.fixture(scope="module")
def init_words(root: Installed) -> Iterator[list[str]]:
    """The options of `init` for the two nodes of a lab that the installed command creates."""
    try:
        root.ok("lab", "up", LAB, "--driver", "container", "--distro", "debian13", "--nodes", "2", "--machine", "pair")
        folder = root.folder / ".local/state/provision/labs" / LAB
        ENGINES.add(engine_host(folder))
        status = root.ok("lab", "status", LAB, "--json").document
        lab = yaml.safe_load(Path(status["inventory"]).read_text(encoding="utf-8"))
        network = lab["all"]["children"]["gpu_nodes"]["vars"]["cluster_data_networks"][0]
        yield [*status["init"][2:], "--data-network", network, "--yes"]
    finally:
        down = root("lab", "down", LAB)
    assert down.code == 0, str(down)


@pytest.fixture
def nobody(site: Path, program: Path, init_words: list[str]) -> Installed:
    """The command of an unprivileged user, who has copies of the lab's keys."""
    home = site / "nobody"
    home.mkdir()
    for option in _FILES:
        source = Path(init_words[init_words.index(option) + 1])
        copy = shutil.copy(source, home / source.name)
        os.chown(copy, NOBODY, NOBODY)
    os.chown(home, NOBODY, NOBODY)
    return Installed(program, home, tuple(_AS_NOBODY))


def whole_way(command: Installed, words: list[str], node: int) -> None:
    """Write an inventory of one node, apply it, run a job there, and plan again."""
    hosts = [word for word in words if word.startswith(f"{LAB}-")]
    others = [word for word in words if word not in hosts]
    command.ok("init", hosts[node], *others)
    applied = command.ok("apply", "--yes", "--json").document
    assert [entry["status"] for entry in applied["nodes"]] == ["changed"]
    assert command.ok("verify", "--json").document["ok"]
    assert "right: the sum" in command.ok("run", "--", "provision-smoke").out
    assert command("plan", "--exit-code").code == 0


def test_the_version_is_printed(root: Installed) -> None:
    """That of the wheel; a build outside git knows no commit."""
    assert root.ok("--version").out == f"provision {__version__}\n"


def test_root_sets_up_a_node_and_runs_a_job(root: Installed, init_words: list[str]) -> None:
    """From the inventory to the job, and the second plan is empty."""
    whole_way(root, init_words, 0)


def test_an_unprivileged_user_sets_up_a_node_and_runs_a_job(nobody: Installed, init_words: list[str]) -> None:
    """The same without any right to write outside the home folder."""
    copies = {words: str(nobody.folder / Path(words).name) for words in init_words if words.startswith("/")}
    whole_way(nobody, [copies.get(word, word) for word in init_words], 1)

    written = subprocess.run(
        ["find", "/", "-xdev", "-user", str(NOBODY), "-newer", nobody.program, "-not", "-path", f"{nobody.folder}*"],
        capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    assert [path for path in written if not re.match(r"/(proc|dev)/", path)] == []


@pytest.mark.slow
def test_a_role_runs_from_the_collection(program: Path, root: Installed, init_words: list[str], site: Path) -> None:
    """Ansible alone restores a file that the role manages, with modules and filters of the installed collection."""
    archive = build(site)
    environment = {**root.environment, "ANSIBLE_COLLECTIONS_PATH": str(site / "collections")}
    inventory = root.ok("lab", "status", LAB, "--json").document["inventory"]
    limits = "/etc/security/limits.d/90-provision.conf"
    node = next(word for word in init_words if word.startswith(f"{LAB}-")).partition("=")[0]
    remove = root.ok("lab", "ssh", LAB, node, "--", f"rm {limits}; ls /etc/security/limits.d").out
    assert limits not in remove
    for words in (
        ["ansible-galaxy", "collection", "install", "--offline", str(archive)],
        ["ansible-playbook", "-i", inventory, "provision.cluster.nodes", "--tags", "base_system", "--limit", node],
    ):
        argv = [str(program.with_name(words[0])), *words[1:]]
        done = subprocess.run(
            argv, cwd=root.folder, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]

    assert "memlock" in root.ok("lab", "ssh", LAB, node, "--", f"cat {limits}").out
