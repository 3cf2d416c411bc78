"""Brings a batch job's code to all its nodes, the same on each: by git, by rsync, or as an archive.

Code of the submitter's machine is packed when the job is submitted (`pack_code`); a start only relays the archive.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision.batch.code import FALLBACK_KINDS, FILES, explain, fetch_request, is_here, plain_warning
from provision.connectors import Connector
from provision.documents.jobs import CodeProblem, CodeResult, PackedCode
from provision.errors import NodeError, ProvisionError, UsageError
from provision.jobs.node_ask import ask
from provision.jobs.syncing import add_member
from provision.model.job import CodeSource
from provision.node.code import git as code_git
from provision.node.code import tools as code_tools
from provision.node.code import tree as code_tree
from provision.threads import outcomes

Say = Callable[[str], None]

_PROGRAM = "code"
_ANSWER_SECONDS = 60.0
"""Beyond what fetching may take."""
_MOST_BYTES = 2 * 1024**3
"""Of a folder that is sent from here; more is data, and belongs on a volume."""


@dataclass(frozen=True)
class Archive:
    """Packed code in a file of this machine."""

    path: Path
    about: PackedCode


def read_files(source: CodeSource, secrets: Mapping[str, str]) -> tuple[CodeSource, dict[str, str]]:
    """Put the contents of the files that settings name (keys, known hosts) in the place of their names.

    Another controller may start the job later, so this is done at submission. Secret contents are in the second
    result, which is `Secrets.sync`.

    Raises:
        UsageError: a file that is not there, or cannot be read.
    """
    options, remaining = dict(source.options), dict(secrets)
    for name, value in source.options.items():
        short = next((item for item in FILES if name.endswith(item)), None)
        if short is None:
            continue
        try:
            text = Path(value).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise UsageError(f"{name}={value}: the file cannot be read: {why}") from error
        del options[name]
        into = remaining if FILES[short] in ("SSH_KEY", "PASSWORD") else options
        into[f"GIT_SYNC_{FILES[short]}"] = text.rstrip("\n") if FILES[short] == "PASSWORD" else text
    return replace(source, options=options), remaining


def sync_code(
    connectors: Mapping[str, Connector],
    name: str,
    source: CodeSource,
    secrets: Mapping[str, str],
    say: Say,
    *,
    user: str = "",
    archive: Archive | None = None,
    fetch_here: bool = False,
) -> str:
    """Bring the code of job `name` to every node, into ``/var/lib/provision/jobs/<name>/code/<source.name>/``.

    Args:
        connectors: the way to each node of the job.
        name: the job's.
        source: where the code is.
        secrets: `Secrets.sync`: GIT_SYNC_USERNAME, GIT_SYNC_PASSWORD, GIT_SYNC_SSH_KEY, RSYNC_PASSWORD, ...
        say: takes lines of progress.
        user: ``UID:GID`` that shall own the code; empty: root, readable for all.
        archive: the code, where it was packed when the job was submitted.
        fetch_here: whether this machine fetches the code for nodes that cannot: only where its own user chose the
            source, as it can reach servers that the submitter of the job cannot.

    Returns:
        The commit for git; else the SHA-256 of names and contents. Equal on all nodes.

    Raises:
        NodeError: the first node on which it could not be done, with the others' names.
        NotFetchedHere: a node cannot fetch it, and this machine must not.
        UsageError: the source, or a setting of it.
    """
    if is_here(source) != (archive is not None):
        raise UsageError(f"--sync-source {source.source}: code of the submitter's machine is packed at submission")
    request = fetch_request(source, secrets) | {"job": name, "repository": source.name, "user": user}
    task = _Task(connectors, source, request, say, fetch_here)
    if archive is not None:
        content = archive.about.content
        task.send(list(connectors), archive)
        which = f"at {source.revision[:12]}" if source.mode == "git" else f"(sha256 {content[:12]})"
        say(f"code: {source.name} {which} on {_nodes(connectors)}")
        return source.revision if source.mode == "git" else content
    warning = plain_warning(source)
    if warning:
        say(f"warning: {warning}")
    return task.rsync() if source.mode == "rsync" else task.git()


@contextmanager
def pack_code(
    source: CodeSource | None, secrets: Mapping[str, str], say: Say
) -> Iterator[tuple[CodeSource | None, Archive | None]]:
    """Pack code of this machine, a folder or a git repository; yield the source, with its commit, and the archive.

    Yields no archive where the nodes fetch the code themselves.

    Raises:
        UsageError: it cannot be read, or is too large.
    """
    if source is None or not is_here(source):
        yield source, None
        return
    if source.mode == "local":
        folder = Path(source.source)
        names = _listed(folder, say)
        with _packed(folder, names) as archive:
            say(f"code: {len(names)} file{'s' if names[1:] else ''} of {folder} packed")
            yield source, archive
        return
    request = fetch_request(source, secrets) | {"file": True}
    with _fetched(source, request, "") as (folder, sha), _packed(folder, list(code_tree.walk(str(folder)))) as archive:
        yield replace(source, revision=sha), archive


@dataclass(frozen=True)
class _Task:
    """The code of one job on its way."""

    connectors: Mapping[str, Connector]
    source: CodeSource
    request: Mapping[str, Any]
    say: Say
    fetch_here: bool = False

    def git(self) -> str:
        first = next(iter(self.connectors))
        try:
            sha = self._ask(first, {"do": "resolve"})
        except _Refused as error:
            if error.kind not in FALLBACK_KINDS:
                raise
            if not self.fetch_here:
                raise NotFetchedHere(error) from error
            self.say(f"code: {first}: {error.why}; it is fetched on this machine and sent")
            sha = self._fetch_here_and_send(list(self.connectors), "")
            self.say(f"code: {self.source.name} at {sha[:12]} on {_nodes(self.connectors)}")
            return sha
        answers = self._everywhere(list(self.connectors), lambda node: self._ask(node, {"do": "git", "sha": sha}))
        unable = {
            node: error
            for node, error in answers.items()
            if isinstance(error, _Refused) and error.kind in FALLBACK_KINDS
        }
        self._raise_first({node: error for node, error in answers.items() if node not in unable})
        if unable and not self.fetch_here:
            raise NotFetchedHere(next(iter(unable.values())))
        if unable:
            for node, refused in unable.items():
                self.say(f"code: {node}: {refused.why}; it is sent from this machine")
            self._fetch_here_and_send(list(unable), sha)
        self.say(f"code: {self.source.name} at {sha[:12]} on {_nodes(self.connectors)}")
        return sha

    def rsync(self) -> str:
        answers = self._everywhere(list(self.connectors), lambda node: self._ask(node, {"do": "rsync"}))
        self._raise_first(answers)
        first, *others = answers
        for node in others:
            if answers[node] != answers[first]:
                raise NodeError(
                    f"{self.source.source} gave it other code than {first}: the source changed meanwhile",
                    node=node,
                    remedy="Run it again when no program writes there.",
                )
        sha = str(answers[first])
        self.say(f"code: {self.source.name} (sha256 {sha[:12]}) on {_nodes(self.connectors)}")
        return sha

    def send(self, nodes: Sequence[str], archive: Archive) -> None:
        """Send an archive to `nodes`, which unpack it and compare its content."""
        more = {"do": "unpack", "content": archive.about.content}
        self._raise_first(self._everywhere(nodes, lambda node: self._ask(node, more, archive.path)))

    def _fetch_here_and_send(self, nodes: Sequence[str], sha: str) -> str:
        try:
            with (
                _fetched(self.source, self.request, sha) as (folder, commit),
                _packed(folder, list(code_tree.walk(str(folder)))) as archive,
            ):
                self.send(nodes, archive)
                return commit
        except _FetchFailed as error:
            raise NodeError(
                f"the code of {self.source.source} can be fetched neither there nor on this machine: {error.message}",
                node=nodes[0],
                remedy=error.remedy,
                output=error.output,
            ) from error

    def _ask(self, node: str, more: Mapping[str, Any], archive: Path | None = None) -> str:
        seconds = self.request["timeout"] + _ANSWER_SECONDS
        request = dict(self.request, **more)
        if archive is not None:  # nothing is fetched, so no password is needed there
            request = {key: request[key] for key in ("do", "job", "repository", "user", "content")}
        answer = ask(self.connectors[node], _PROGRAM, request, CodeResult, archive=archive, seconds=seconds)
        if answer.error is not None or not answer.sha:
            raise _Refused(node, self.source, answer.error or CodeProblem(what="it named no commit"))
        wanted = more.get("sha") or more.get("content")
        if wanted and answer.sha != wanted:
            raise _Refused(node, self.source, CodeProblem(what="it has other code than it was asked to get"))
        return answer.sha

    def _everywhere(self, nodes: Sequence[str], work: Callable[[str], Any]) -> dict[str, Any]:
        return dict(zip(nodes, outcomes(work, nodes, limit=len(nodes)), strict=True))

    @staticmethod
    def _raise_first(answers: Mapping[str, Any]) -> None:
        failed = {node: error for node, error in answers.items() if isinstance(error, Exception)}
        for node, error in failed.items():
            if not isinstance(error, ProvisionError):
                raise error
            others = [other for other in failed if other != node]
            error.node = error.node or node
            error.message += f" (so it is on {', '.join(others)})" if others else ""
            raise error


class _Refused(NodeError):
    """A node could not get the code."""

    def __init__(self, node: str, source: CodeSource, error: CodeProblem) -> None:
        trouble = explain(error.kind, error.what, error.output)
        self.kind, self.why = trouble.kind, trouble.why
        what = "sent to it" if is_here(source) else f"fetched from {source.source}"
        super().__init__(
            f"the code could not be {what}: {trouble.why}", node=node, remedy=trouble.remedy, output=error.output
        )


class NotFetchedHere(NodeError):
    """A node could not fetch the code, and this machine does not fetch what somebody else has chosen."""

    code = "code.not_fetched_here"

    def __init__(self, refused: _Refused) -> None:
        remedy = f"{refused.remedy}; or submit the job from a clone: --sync-mode local --sync-source FOLDER"
        super().__init__(
            f"{refused.message}; the controller does not fetch it instead, as somebody else submitted the job",
            node=refused.node,
            remedy=remedy,
            output=refused.output,
        )


class _FetchFailed(UsageError):
    """This machine could not fetch the code."""


@contextmanager
def _fetched(source: CodeSource, request: Mapping[str, Any], sha: str) -> Iterator[tuple[Path, str]]:
    """Fetch one commit with the job's own credentials alone; yield its folder and its hash."""
    with tempfile.TemporaryDirectory(prefix="provision-code-") as place:
        folder, request = Path(place, source.name), dict(request)
        try:
            with code_tools.Tools(request) as tools:
                request["sha"] = sha = sha or code_git.find_commit(tools, request)
                code_git.clone(tools, request, str(folder))
        except code_tree.Failed as error:
            trouble = explain(error.kind, error.what, error.output)
            raise _FetchFailed(
                f"--sync-source {source.source}: {trouble.why}", remedy=trouble.remedy, output=error.output
            ) from error
        yield folder, sha


def _nodes(names: Mapping[str, Any] | Sequence[str]) -> str:
    items = list(names)
    return ", ".join(items) if len(items) < 4 else f"{len(items)} nodes"  # noqa: PLR2004 - what fits a line


@contextmanager
def _packed(folder: Path, names: Sequence[str]) -> Iterator[Archive]:
    """Yield an archive of these files."""
    with tempfile.TemporaryDirectory(prefix="provision-code-") as place:
        path = Path(place, "code.tar.gz")
        try:
            content = code_tree.tree_sha(str(folder), names)
            with tarfile.open(path, "w:gz", compresslevel=1) as archive:
                for name in names:
                    add_member(archive, folder, name)
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise UsageError(f"the code cannot be read: {error.filename}: {error.strerror}") from error
        yield Archive(path, PackedCode(content, digest, path.stat().st_size))


def _listed(folder: Path, say: Say) -> list[str]:
    """Return the files and links of a folder that are code: without what its ``.gitignore`` names, without ``.git``."""
    if not folder.is_dir():
        raise UsageError(f"--sync-source {folder}: there is no such folder here")
    try:
        names = _by_git(folder)
    except FileNotFoundError:
        say("code: there is no git here, so .gitignore is not heeded")
        names = list(code_tree.walk(str(folder)))
    names = [name for name in names if not {".git", "__pycache__"} & set(name.split("/"))]
    if not names:
        raise UsageError(f"--sync-source {folder}: there is no file in it", remedy="does .gitignore name all of it?")
    size = sum((folder / name).lstat().st_size for name in names)
    if size > _MOST_BYTES:
        raise UsageError(
            f"--sync-source {folder}: it holds {size / 1024**3:.1f} GiB, which is more than code",
            remedy="keep data on a volume (`provision data add`), or name it in .gitignore",
        )
    return names


def _by_git(folder: Path) -> list[str]:
    """Ask git which files it would take; FileNotFoundError where there is no git."""
    listing = ["ls-files", "-z", "--others", "--exclude-standard"]
    inside = _git(["-C", str(folder), "rev-parse", "--is-inside-work-tree"])
    if inside is not None and inside.strip() == b"true":
        said = _git(["-C", str(folder), *listing, "--cached"])
    else:
        with tempfile.TemporaryDirectory(prefix="provision-code-") as place:
            _git(["init", "--quiet", place])
            said = _git(["-C", str(folder), "--git-dir", f"{place}/.git", "--work-tree", ".", *listing])
    if said is None:
        raise UsageError(f"--sync-source {folder}: git cannot list it", remedy=f"see: git -C {folder} status")
    names: list[str] = []
    for name in dict.fromkeys(os.fsdecode(item).rstrip("/") for item in said.split(b"\0") if item):
        path = folder / name
        if path.is_dir() and not path.is_symlink():  # a repository within this one
            names += [f"{name}/{inner}" for inner in _by_git(path)]
        elif path.is_symlink() or path.is_file():
            names.append(name)
    return sorted(names)


def _git(arguments: Sequence[str]) -> bytes | None:
    """Return what git printed; None where it failed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    quiet = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    done = subprocess.run(["git", *quiet, *arguments], capture_output=True, check=False, env=environment)
    return done.stdout if done.returncode == 0 else None
