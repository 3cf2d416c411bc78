"""Brings the code of a batch job to this node: by git, by rsync, or from an archive in the request.

Standard input is one line of JSON, the request, and for ``unpack`` a tar archive. The program runs as root, needs
Python 3.6 and nothing else, and answers with one JSON document: exit 0, or ``{"error": {"kind", "what", "output"}}``
and exit 1. The submitter's machine uses the same modules when it fetches code for the nodes.
"""

import json
import os
import re
import signal
import sys
import tarfile
from typing import IO, Any, Dict

from provision.node.code.git import checkout, resolve
from provision.node.code.tools import Tools
from provision.node.code.tree import Failed, extract, places, publish, remove, removed_at_failure, tree_sha

REMOTE = re.compile(r"rsync://[A-Za-z0-9_\[]|([A-Za-z0-9_][\w.+-]*@)?[A-Za-z0-9_\[][\w.:\[\]-]*:")
"""The beginning of an rsync source on another machine; a local path is refused."""


def main() -> None:
    """Execute the request on the first line of standard input."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    source = os.fdopen(0, "rb")
    request = json.loads(source.readline().decode())
    os.umask(0o022)
    try:
        answer, code = work(request, source), 0
    except Failed as error:
        answer, code = {"error": {"kind": error.kind, "what": error.what, "output": error.output}}, 1
    except (OSError, EOFError, tarfile.TarError) as error:
        answer, code = {"error": {"kind": "io", "what": str(error), "output": ""}}, 1
    while source.read(1 << 20):  # the sender of a refused archive must not get a broken connection
        pass
    print(json.dumps(answer))
    sys.exit(code)


def work(request: Dict[str, Any], source: IO[bytes]) -> Dict[str, Any]:
    """Execute a request."""
    if request["do"] == "unpack":
        return unpack(request, source)
    return {"resolve": resolve, "git": checkout, "rsync": rsync}[request["do"]](request)


def rsync(request: Dict[str, Any]) -> Dict[str, Any]:
    """Make the job's folder equal to the source; only differences are transferred.

    The code of an account is always created in a new folder: its processes may have the folder of an earlier attempt
    open, and could replace a folder in it by a link while root writes there.
    """
    part, target = places(request)
    if not REMOTE.match(request["url"]):
        raise Failed("failed", "%.200r is not an rsync source of another machine" % request["url"])
    if request.get("user"):
        with removed_at_failure(part):
            transfer(request, part)
            sha = tree_sha(part)
            publish(part, target, request)
        return {"sha": sha}
    if os.path.islink(target) or not os.path.isdir(target):
        remove(target)
    transfer(request, target)
    return {"sha": tree_sha(target)}


def transfer(request: Dict[str, Any], target: str) -> None:
    """Run rsync into a folder, which is created if it is missing."""
    with Tools(request) as tools:
        # Without owners, modes and device files of the source: the account would own a special file or set-uid program.
        argv = ["rsync", "-rltEP", "--delete", "-e", tools.ssh]
        if "password" in tools.files:
            argv.append("--password-file=" + tools.files["password"])
        os.makedirs(target, 0o755, exist_ok=True)
        try:
            tools.run([*argv, "--", request["url"].rstrip("/") + "/", target + "/"], quiet=True)
        except FileNotFoundError:
            raise Failed("no-rsync", "there is no rsync program") from None


def unpack(request: Dict[str, Any], source: IO[bytes]) -> Dict[str, Any]:
    """Extract an archive into the job's folder after its hash was verified."""
    part, target = places(request)
    with removed_at_failure(part):
        os.mkdir(part, 0o755)
        with tarfile.open(fileobj=source, mode="r|*") as archive:
            for member in archive:
                extract(archive, member, part)
        content = tree_sha(part)
        if content != request["content"]:
            raise Failed("damaged", "the received code differs from the code that was sent")
        publish(part, target, request)
    return {"sha": content}
