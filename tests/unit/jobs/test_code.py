"""Code of a job on its nodes, from a git server with a password, which is never left there."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from provision.batch.code import fetch_request
from provision.documents.jobs import CodeResult
from provision.errors import NodeError, UsageError
from provision.jobs.code import NotFetchedHere, pack_code, read_files, sync_code
from provision.jobs.node_ask import ask
from provision.model.job import CodeSource
from provision.node.code.git import find_commit
from provision.node.code.tools import Tools
from provision.node.code.tree import Failed
from tests.support.git_server import BACKEND, NodeFolder, certificate, commit, git, git_server
from tests.support.watch import Watch

MARKER = "m4rk/er:passw@rd"
LOGIN = {"GIT_SYNC_USERNAME": "alice", "GIT_SYNC_PASSWORD": MARKER}
FORMS = [MARKER, "m4rk%2Fer%3Apassw%40rd", base64.b64encode(f"alice:{MARKER}".encode()).decode()]

needs_server = pytest.mark.skipif(not Path(BACKEND).exists(), reason="git has no http-backend here")


@pytest.fixture(scope="module")
def forge(tmp_path_factory):
    """An HTTPS server with a project: two commits on main, a branch, a tag; its folder and certificate authority."""
    folder = tmp_path_factory.mktemp("forge")
    project = folder / "mnist.git"
    project.mkdir()
    git(project, "init", "-q")
    commits = {"first": commit(project, "train.py", "print(1)\n")}
    git(project, "tag", "-am", "first", "v1")
    git(project, "checkout", "-qb", "wide")
    commits["wide"] = commit(project, "wide.py", "")
    git(project, "checkout", "-q", "main")
    commits["main"] = commit(project, "train.py", "print(2)\n")
    pem, authority = certificate(folder)
    with git_server(folder, "alice", MARKER, pem) as address:
        yield f"{address}/mnist.git", commits, authority, project


@pytest.fixture
def nodes(tmp_path):
    """Two nodes that are folders."""
    return {name: NodeFolder(name, tmp_path) for name in ("gpu1", "gpu2")}


def source(forge, **options):
    return CodeSource("git", forge[0], options={"GIT_SSL_CAINFO": str(forge[2]), **options})


def brought(nodes, source, secrets=None, say=print, user="", *, fetch_here=True):
    """Copy code to nodes as a submission and a start do, and return its hash."""
    source, known = read_files(source, secrets or {})
    with pack_code(source, known, say) as (packed, archive):
        return sync_code(nodes, "job1", packed, known, say, user=user, archive=archive, fetch_here=fetch_here)


def code(node, repository="mnist"):
    return node.jobs / "job1" / "code" / repository


def files_with(folder, words):
    """Return the files below `folder` that contain one of these texts."""
    result = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in result if any(word.encode() in path.read_bytes() for word in words)]


TOOLS = ("cat", "mkdir", "mktemp", "mv", "rm", "sha256sum")


def bare_node(name, folder):
    """Return a node with a shell and Python, and without git and rsync."""
    programs = folder / "programs"
    programs.mkdir()
    for program, path in (
        ("sh", "/bin/sh"),
        ("python3", sys.executable),
        *((tool, shutil.which(tool)) for tool in TOOLS),
    ):
        (programs / program).symlink_to(os.path.realpath(path))
    return NodeFolder(name, folder, path=programs)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.row(23, 24)
@needs_server
def test_every_node_gets_the_same_commit_and_the_password_is_stored_nowhere(forge, nodes, tmp_path):
    """Not in a file, a process, a line of progress or an environment, in any spelling."""
    said = []
    pem = forge[2].parent / "server.pem"
    with Watch(FORMS) as watch, git_server(forge[3].parent, "alice", MARKER, pem, watch.inspect_all) as server:
        address = f"{server}/mnist.git"
        sha = brought(nodes, CodeSource("git", address, options=source(forge).options), LOGIN, said.append)

    assert sha == forge[1]["main"]
    assert [git(code(node), "rev-parse", "HEAD") for node in nodes.values()] == [sha, sha]
    assert (code(nodes["gpu2"]) / "train.py").read_text() == "print(2)\n"
    assert any(re.match("git (ls-remote|fetch)", program) for program in watch.programs), "it saw git at work"
    assert watch.leaks == set()
    assert files_with(tmp_path, FORMS) == []
    assert not any(form in line for form in FORMS for line in said)
    assert [names(node.run_folder) for node in nodes.values()] == [["code.lock"], ["code.lock"]]


@pytest.mark.row(24)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"GIT_SYNC_BRANCH": "wide"}, "wide"),
        ({"GIT_SYNC_REV": "v1"}, "first"),
        ({"GIT_SYNC_BRANCH": "wide", "GIT_SYNC_REV": "FIRST"}, "first"),
        ({"GIT_SYNC_REF": "refs/heads/main"}, "main"),
    ],
)
def test_a_revision_can_be_a_branch_a_tag_or_a_commit(forge, options, expected):
    """An annotated tag means its commit, and a revision overrides the branch."""
    options = {name: forge[1]["first"] if value == "FIRST" else value for name, value in options.items()}
    request = fetch_request(CodeSource("git", str(forge[3]), options=options), {}) | {"file": True}

    with Tools(request) as tools:
        assert find_commit(tools, request) == forge[1][expected]


def test_a_commit_that_is_not_the_tip_of_a_branch_is_fetched(forge, nodes):
    first = forge[1]["first"]
    result = brought({"gpu1": nodes["gpu1"]}, CodeSource("git", str(forge[3]), first))

    assert result == first
    assert (code(nodes["gpu1"]) / "train.py").read_text() == "print(1)\n"


@needs_server
def test_a_wrong_password_is_reported_without_the_password(forge, nodes):
    """The error has the node, the cause and a remedy; the output of git is cleaned."""
    wrong = {**LOGIN, "GIT_SYNC_PASSWORD": "wr0ng-m4rk"}

    with pytest.raises(NodeError) as caught:
        brought(nodes, source(forge), wrong)

    assert caught.value.node == "gpu1"
    assert "credentials" in caught.value.message
    assert "provision secret add git" in caught.value.remedy
    assert "wr0ng" not in f"{caught.value} {caught.value.remedy} {caught.value.output}"
    assert not code(nodes["gpu1"]).exists()


@pytest.mark.long
@needs_server
def test_an_untrusted_certificate_is_refused(forge, nodes):
    """The remedy names its certificate authority."""
    with pytest.raises(NodeError, match="certificate of the server is not trusted") as caught:
        brought(nodes, CodeSource("git", forge[0]), LOGIN)

    assert "GIT_SSL_CAINFO" in caught.value.remedy


def test_a_missing_branch_is_reported_by_name(forge):
    request = fetch_request(CodeSource("git", str(forge[3]), "nowhere"), {}) | {"file": True}

    with Tools(request) as tools, pytest.raises(Failed, match="no branch or tag nowhere"):
        find_commit(tools, request)


@needs_server
def test_a_node_without_git_gets_the_commit_from_the_controller(forge, nodes, tmp_path):
    """The commit is the same as on the other nodes, and the transfer is reported."""
    nodes["gpu2"] = bare_node("gpu2", tmp_path)
    said = []

    sha = brought(nodes, source(forge), LOGIN, said.append)

    assert git(code(nodes["gpu2"]), "rev-parse", "HEAD") == sha
    assert git(code(nodes["gpu2"]), "status", "--porcelain") == ""
    assert any("gpu2: there is no git program; it is sent from this machine" in line for line in said)
    assert files_with(tmp_path, FORMS) == []


def with_submodule(tmp_path, address):
    """Create a repository whose submodule has this URL plus its name."""
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    for folder in (inner, outer):
        folder.mkdir()
        git(folder, "init", "-q")
    commit(inner, "part.py", "")
    git(outer, "submodule", "--quiet", "add", str(inner), "inner")
    git(outer, "config", "--file", ".gitmodules", "submodule.inner.url", f"{address}/inner")
    git(outer, "commit", "-qam", "inner")
    return outer


@pytest.mark.long
@needs_server
def test_submodules_are_fetched_unless_they_are_disabled(nodes, tmp_path):
    """The settings are those of git-sync."""
    one, result = {"gpu1": nodes["gpu1"]}, []
    with git_server(tmp_path, "alice", MARKER) as address:
        with_submodule(tmp_path, address)
        for mode in ("recursive", "off"):
            brought(one, CodeSource("git", f"{address}/outer", options={"GIT_SYNC_SUBMODULES": mode}), LOGIN)
            result.append((code(nodes["gpu1"], "outer") / "inner" / "part.py").exists())

    assert result == [True, False]


def test_a_submodule_cannot_be_a_local_folder_of_the_fetching_machine(nodes, tmp_path):
    """Otherwise a repository could copy files of that machine, also if the submitter's own path names it."""
    outer = with_submodule(tmp_path, tmp_path)

    with pytest.raises(UsageError, match="outer") as caught:
        brought(nodes, CodeSource("git", str(outer)))

    assert "transport 'file' not allowed" in caught.value.output


@pytest.mark.parametrize("given", [True, False])
def test_an_unknown_ssh_host_key_is_refused_and_keys_of_the_node_are_not_used(tmp_path, given):
    """ssh checks host keys, the error has the remedy, and root's settings and keys are ignored."""
    trap = tmp_path / "bin"
    trap.mkdir()
    (trap / "ssh").write_text(
        f"#!/bin/sh\necho \"$@\" >> {tmp_path}/ssh.argv\necho 'Host key verification failed.' >&2\nexit 255\n"
    )
    (trap / "ssh").chmod(0o755)
    node = NodeFolder("gpu1", tmp_path, path=f"{trap}:{os.environ['PATH']}")
    key = {"GIT_SYNC_SSH_KEY": f"-----BEGIN\n{MARKER}\n"} if given else {}

    with pytest.raises(NodeError, match="the SSH key of the server is unknown") as caught:
        brought({"gpu1": node}, CodeSource("git", "git@127.0.0.1:group/mnist.git"), key)

    argv = (tmp_path / "ssh.argv").read_text()
    assert "GIT_SYNC_SSH_KNOWN_HOSTS_FILE" in caught.value.remedy
    assert "StrictHostKeyChecking=yes" in argv
    assert "BatchMode=yes" in argv
    assert "-F /dev/null" in argv
    assert "IdentityAgent=none" in argv
    assert ("IdentityFile=none" in argv) is not given
    assert "IdentitiesOnly=yes" in argv
    assert MARKER not in argv
    assert files_with(tmp_path, FORMS) == []


@pytest.mark.row(23)
def test_a_local_folder_is_copied_without_ignored_files(nodes, tmp_path):
    """Modes and links are preserved, .git is excluded, removed files are removed on nodes, and the hashes are equal."""
    project = tmp_path / "my-project"
    (project / "data").mkdir(parents=True)
    (project / ".gitignore").write_text("data/\n*.log\n")
    (project / "data" / "big.bin").write_text("x")
    (project / "run.log").write_text("x")
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o700)
    (project / "link").symlink_to("run.sh")
    (project / "private.py").write_text("1")
    (project / "private.py").chmod(0o600)
    os.link(project / "private.py", project / "twin.py")
    here = CodeSource("local", str(project))
    first = brought(nodes, here)
    (project / "twin.py").unlink()
    second = brought(nodes, here)

    there = code(nodes["gpu2"], "my-project")
    assert first != second
    assert names(there) == [".gitignore", "link", "private.py", "run.sh"]
    assert (there / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (there / "private.py").stat().st_mode & 0o777 == 0o644
    assert (there / "link").readlink() == Path("run.sh")
    assert names(there.parent) == ["my-project"]


@pytest.mark.row(23)
@pytest.mark.skipif(shutil.which("rsync") is None, reason="there is no rsync here")
def test_rsync_makes_the_nodes_equal_to_the_source(tmp_path):
    """Files that the source no longer has are removed, the hash covers contents, and special files are skipped."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "ssh").write_text('#!/bin/sh\nwhile [ "$1" != storage ]; do shift; done; shift\nexec "$@"\n')
    (tools / "ssh").chmod(0o755)
    nodes = {name: NodeFolder(name, tmp_path, path=f"{tools}:{os.environ['PATH']}") for name in ("gpu1", "gpu2")}
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    (tmp_path / "src" / "a.py").chmod(0o6755)
    os.mkfifo(tmp_path / "src" / "pipe")
    stale = code(nodes["gpu1"], "src") / "stale.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")

    sha = brought(nodes, CodeSource("rsync", f"storage:{tmp_path}/src"))

    assert len(sha) == 64
    assert [names(code(node, "src")) for node in nodes.values()] == [["a.py"], ["a.py"]]
    assert (code(nodes["gpu1"], "src") / "a.py").stat().st_mode & 0o7777 == 0o755


def test_a_node_without_rsync_is_reported_with_a_remedy(tmp_path):
    node = bare_node("gpu1", tmp_path)

    with pytest.raises(NodeError, match=r"gpu1: .*no rsync program") as caught:
        brought({"gpu1": node}, CodeSource("rsync", "storage:/srv/project"))

    assert "install rsync" in caught.value.remedy


def test_files_in_settings_are_read_at_submission(tmp_path):
    """A key becomes a secret, known hosts remain a setting, and a missing file is named."""
    (tmp_path / "key").write_text("KEY\n")
    (tmp_path / "hosts").write_text("h ssh-ed25519 A\n")
    options = {
        "GIT_SYNC_SSH_KEY_FILE": str(tmp_path / "key"),
        "GIT_SYNC_SSH_KNOWN_HOSTS_FILE": str(tmp_path / "hosts"),
        "GIT_SYNC_DEPTH": "3",
    }
    result, secrets = read_files(CodeSource("git", "git@h:p.git", options=options), {})

    assert result.options == {"GIT_SYNC_SSH_KNOWN_HOSTS": "h ssh-ed25519 A\n", "GIT_SYNC_DEPTH": "3"}
    assert secrets == {"GIT_SYNC_SSH_KEY": "KEY\n"}
    with pytest.raises(UsageError, match="/nowhere"):
        read_files(CodeSource("git", "git@h:p.git", options={"GIT_SSH_KEY_FILE": "/nowhere"}), {})


@pytest.mark.parametrize("form", [*FORMS[:2], "https://bob:other@h/p"])
def test_passwords_are_removed_from_the_output_of_git(form):
    """Git prints URLs, and some versions print them with their passwords."""
    with Tools({"password": MARKER, "server": "https://h"}) as tools:
        said = tools.redacted(f"fatal: unable to access '{form}': no\n")

    assert form not in said
    assert "other" not in said
    assert said.startswith("fatal: unable to access '")


def test_an_archive_cannot_write_outside_its_folder(nodes, tmp_path):
    """Whatever names it contains."""
    (tmp_path / "f").write_text("x")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "f", arcname="../../../escaped")
    request = {"do": "unpack", "job": "job1", "repository": "p", "content": ""}

    answer = ask(nodes["gpu1"], "code", request, CodeResult, archive=tmp_path / "a.tar")

    assert answer.error.kind == "damaged"
    assert not list(tmp_path.rglob("escaped"))


class LyingNode(NodeFolder):
    """A node that gives the same answer to every request."""

    answer = "{}"

    def start(self, script, *, become=True, limit=None):
        del script, limit
        return super().start(f"cat > /dev/null; echo {shlex.quote(self.answer)}", become=become)


def test_the_controller_does_not_fetch_code_of_another_submitter(nodes, tmp_path):
    """A source may be a server that only the controller can reach; the error has a reason and a remedy."""
    nodes["gpu1"] = bare_node("gpu1", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/mnist.git"
        asked = CodeSource("git", url, options={"GIT_SYNC_TIMEOUT": "5"})
        with pytest.raises(NodeError) as caught:
            brought(nodes, asked, fetch_here=False)
        with pytest.raises(BlockingIOError):
            server.accept()

    assert isinstance(caught.value, NotFetchedHere)
    assert caught.value.code == "code.not_fetched_here"
    assert caught.value.node == "gpu1"
    assert "no git program" in caught.value.message
    assert "--sync-mode local" in (caught.value.remedy or "")


@needs_server
def test_nodes_that_cannot_fetch_do_not_get_code_of_another_submitter_from_the_controller(forge, nodes, tmp_path):
    """Also if another node of the job can fetch it."""
    nodes["gpu2"] = bare_node("gpu2", tmp_path)

    with pytest.raises(NotFetchedHere) as caught:
        brought(nodes, source(forge), LOGIN, fetch_here=False)

    assert caught.value.node == "gpu2"
    assert not code(nodes["gpu2"]).exists()


@pytest.mark.parametrize("sha", ["--upload-pack=touch PROOF;true", "-c", "a" * 39, "a" * 40 + "\n", "A" * 40, "", 3])
def test_the_commit_in_the_answer_of_a_node_must_be_a_full_hash(nodes, tmp_path, monkeypatch, sha):
    """An option in its place starts no program on the controller or on other nodes."""
    proof, tools = tmp_path / "proof", tmp_path / "bin"
    tools.mkdir()
    (tools / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    (tools / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    liar = LyingNode("gpu1", tmp_path)
    liar.answer = json.dumps({"sha": sha.replace("PROOF", str(proof)) if isinstance(sha, str) else sha})

    with pytest.raises(NodeError) as caught:
        sync_code(
            {"gpu1": liar, "gpu2": nodes["gpu2"]}, "job1", CodeSource("git", "ssh://g@h/group/mnist.git"), {}, print
        )

    assert not proof.exists()
    assert caught.value.node == "gpu1"
    assert not code(nodes["gpu2"]).exists()


def test_git_and_ssh_do_not_use_settings_keys_or_agent_of_the_caller(tmp_path, monkeypatch):
    """A URL of a job cannot use the operator's credentials, aliases, hooks or rewrites, on controller and nodes."""
    trap = tmp_path / "trap"
    (tmp_path / ".gitconfig").write_text(f"[core]\n\tsshCommand = touch {trap}\n[alias]\n\tx = !touch {trap}\n")
    (tmp_path / ".config/git").mkdir(parents=True)
    (tmp_path / ".config/git/config").write_text("[user]\n\tname = operator\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    monkeypatch.setenv("GIT_SSH_COMMAND", f"touch {trap}")
    with Tools({"timeout": 60, "include": str(tmp_path / ".gitconfig")}) as tools:
        settings = tools.run(["git", "config", "--list", "--show-origin"])
        environment = tools.environment

    assert {line.split("\t")[0] for line in settings.splitlines()} == {f"file:{tools.folder}/.gitconfig"}
    assert "operator" not in settings
    assert "SSH_AUTH_SOCK" not in environment
    assert environment["GIT_ALLOW_PROTOCOL"] == "https:http:ssh:git"
    for word in ("-F /dev/null", "IdentityAgent=none", "IdentityFile=none"):
        assert word in environment["GIT_SSH_COMMAND"]
    assert not trap.exists()


@pytest.mark.parametrize("user", ["root", "with a folder in memory", "with a state folder"])
def test_the_next_fetch_removes_credentials_of_a_killed_fetch(tmp_path, monkeypatch, user):
    """A lock of the owner ends with it, also by SIGKILL; another process with its ID does not preserve them."""
    if user == "root":
        monkeypatch.setenv("PROVISION_RUN_ROOT", str(tmp_path))
    else:
        monkeypatch.setenv("PROVISION_RUN_ROOT", "/dev/null/run")  # as where the user may not write
        used, unused = (
            ("XDG_RUNTIME_DIR", "XDG_STATE_HOME") if "memory" in user else ("XDG_STATE_HOME", "XDG_RUNTIME_DIR")
        )
        monkeypatch.setenv(used, str(tmp_path))
        monkeypatch.setenv(unused, "/dev/null/other")
        tmp_path = tmp_path / "provision"
    words = "import sys, time; from provision.node.code.tools import Tools\n"
    words += (
        "with Tools({'password': 'hunter2', 'server': 'https://h'}) as t: print(t.folder, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True) as killed:
        left = Path(killed.stdout.readline().strip())
        with Tools({}):
            assert (left / "password").exists(), "its owner lives"
        killed.kill()
    reused = left.with_name(f"code-{os.getpid()}-reused")
    left.rename(reused)

    with Tools({}) as tools:
        assert [path for path in tmp_path.iterdir() if path.is_dir()] == [Path(tools.folder)]
