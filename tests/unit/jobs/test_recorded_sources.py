"""Local files that a recorded job names: a start reads and sends none of them, signed or not."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision.jobs.engines.common.queue_host import owner
from provision.jobs.extras import JobExtras
from provision.model.job import CodeSource, JobSpec, JobStatus, Kind, as_document
from provision.testing import make_cluster
from tests.support.git_server import NodeFolder, commit, git
from tests.support.node.direct import direct_engine, recorded, signing_keys
from tests.support.node.node import FakeNode

MARK = "the operator's own"


class Opened:
    """Records the files and folders below a folder that this process opens or lists."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.paths, self.watches = str(folder), list[str](), True
        sys.addaudithook(self.hook)

    def hook(self, event: str, given: tuple[Any, ...]) -> None:
        """Handle one audit event of the interpreter."""
        if self.watches and event in {"open", "os.listdir", "os.scandir"} and str(given[0]).startswith(self.folder):
            self.paths.append(str(given[0]))


class Code(JobExtras):
    """The real extras; the node program for code runs on nodes that are folders."""

    def __init__(self, folder: Path) -> None:
        super().__init__(make_cluster("a"))
        self._folder = folder

    def before(self, attempt: Any, connectors: Any, *more: Any) -> str:
        """Copy the code."""
        return super().before(attempt, {name: NodeFolder(name, self._folder) for name in connectors}, *more)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[FakeNode]:
    with FakeNode(tmp_path / "head", "a") as made:
        yield made.with_docker()


@pytest.fixture
def operator(tmp_path: Path) -> Path:
    """A folder of the operator's machine: a project with a repository, and a key."""
    folder = tmp_path / "operator"
    (folder / "project").mkdir(parents=True)
    (folder / "key").write_text(MARK)
    git(folder / "project", "init", "-q")
    commit(folder / "project", "secret.txt", MARK)
    return folder


SOURCES = {
    "local": ("local", "{}/project", {}),
    "repository": ("git", "{}/project", {}),
    "file URL": ("git", "file://{}/project", {}),
    "key": ("git", "ssh://git@127.0.0.1:1/p.git", {"GIT_SYNC_SSH_KEY_FILE": "{}/key"}),
    "password": ("git", "https://127.0.0.1:1/p.git", {"GIT_SYNC_PASSWORD_FILE": "{}/key"}),
    "known hosts": ("git", "ssh://git@127.0.0.1:1/p.git", {"GIT_SYNC_SSH_KNOWN_HOSTS_FILE": "{}/key"}),
    "authority": ("git", "https://127.0.0.1:1/p.git", {"GIT_SSL_CAINFO": "{}/key"}),
    "rsync key": ("rsync", "h@127.0.0.1:/p", {"GIT_SYNC_SSH_KEY_FILE": "{}/key"}),
}


@pytest.mark.parametrize("is_signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("name", SOURCES)
def test_local_files_are_not_read_or_sent_for_a_recorded_job(
    monkeypatch: pytest.MonkeyPatch, head: FakeNode, operator: Path, tmp_path: Path, name: str, *, is_signed: bool
) -> None:
    """Root on the queue host records it, and it may have a valid signature; the operator's pass refuses it."""
    mode, source, options = SOURCES[name]
    about = {key: value.format(operator) for key, value in options.items()}
    sync = CodeSource(mode, source.format(operator), options={**about, "GIT_SYNC_TIMEOUT": "5"} if about else {})
    spec = JobSpec("forged", Kind.RUN, ("true",), image="image", sync=sync)
    plain = {"id": "id-forged", "owner": owner(), "spec": as_document(spec)}
    job = recorded(signing_keys(head), spec) if is_signed else plain
    (head.root / "forged").mkdir(parents=True)
    queue = {"state": "pending", "attempt": 0, "time": time.time()}
    for file, document in (("job", {**job, "submitted": 1.0}), ("queue", queue)):
        (head.root / "forged" / f"{file}.json").write_text(json.dumps(document))
    jobs = direct_engine(monkeypatch, head, extras=Code(tmp_path / "nodes"))
    opened = Opened(operator)
    try:
        assert jobs.start_pending([].append).started == ()
    finally:
        opened.watches = False

    assert opened.paths == []
    written = [path for top in (head.root, tmp_path / "nodes") for path in top.rglob("*") if path.is_file()]
    assert not [path for path in written if MARK.encode() in path.read_bytes()]
    assert jobs.get("forged").status is JobStatus.PENDING
