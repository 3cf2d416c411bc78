"""Code of a job from a git server: one commit."""

import os
import re
from typing import Any, Dict

from provision.node.code.tools import Tools
from provision.node.code.tree import Failed, places, publish, removed_at_failure

COMMIT = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})\Z")
SUBMODULES = {"recursive": ["--init", "--recursive"], "shallow": ["--init"]}
_SERVER_HAS_NO_TIP = "unadvertised object|not our ref|find remote ref|no such remote ref"
"""Messages of servers and clients that a commit cannot be requested by its hash."""


def resolve(request: Dict[str, Any]) -> Dict[str, Any]:
    """Return the current commit of a branch, a tag or the default branch."""
    with Tools(request) as tools:
        return {"sha": find_commit(tools, request)}


def find_commit(tools: Tools, request: Dict[str, Any]) -> str:
    """Ask the server, unless the reference is a complete hash."""
    name: str = request["ref"]
    if COMMIT.match(name):
        return name
    tools.need_git()
    lines = tools.run(["git", "ls-remote", "--", request["url"]]).splitlines()
    pairs = (line.split("\t", 1) for line in lines if "\t" in line)
    commits = {reference: commit for commit, reference in pairs}
    tags = ["refs/tags/%s^{}" % name, "refs/tags/%s" % name]
    heads = ["refs/heads/%s" % name]
    named = [name + "^{}", name] if name.startswith("refs/") or name == "HEAD" else []
    for reference in named or (heads + tags if request.get("branch") else tags + heads):
        if reference in commits and COMMIT.match(commits[reference]):
            return commits[reference]
    raise Failed("no-ref", "there is no branch or tag %s" % name if commits else "the repository is empty")


def checkout(request: Dict[str, Any]) -> Dict[str, Any]:
    """Put one commit into the job's folder."""
    part, target = places(request)
    with Tools(request) as tools, removed_at_failure(part):
        clone(tools, request, part)
        publish(part, target, request)
    return {"sha": request["sha"]}


def clone(tools: Tools, request: Dict[str, Any], folder: str) -> None:
    """Create a work tree of one commit."""
    tools.need_git()
    sha = request["sha"]
    if not isinstance(sha, str) or not COMMIT.match(sha):
        raise Failed("failed", "%.100r is not the hash of a commit" % (sha,))
    depth = ["--depth", str(int(request["depth"]))] if request.get("depth") else []
    tools.run(["git", "init", "--quiet", "--template=", folder])
    tools.run(["git", "remote", "add", "--", "origin", request["url"]], folder)
    try:
        tools.run(["git", "fetch", "--quiet", "--no-tags", *depth, "--", "origin", sha], folder)
    except Failed as error:
        if not re.search(_SERVER_HAS_NO_TIP, error.output):
            raise
        tools.run(["git", "fetch", "--quiet", "--tags", "--", "origin", "+refs/heads/*:refs/remotes/origin/*"], folder)
    try:
        tools.run(["git", "checkout", "--quiet", "--force", "--detach", sha, "--"], folder)
    except Failed as error:
        if re.search("not a tree|did not match any|unable to read tree", error.output):
            raise Failed("no-ref", "there is no commit %s in any branch or tag" % sha) from None
        raise
    modules = SUBMODULES.get(request.get("submodules", "recursive"))
    if modules and os.path.lexists(os.path.join(folder, ".gitmodules")):
        tools.run(["git", "submodule", "--quiet", "update", *modules], folder, local=False)
    if tools.run(["git", "rev-parse", "HEAD"], folder).strip() != sha:
        raise Failed("failed", "git checked out another commit than %s" % sha)
