"""The part of the package preflight for dnf: what it would install, and which repositories cannot be used.

Python 3.6 and nothing else. dnf uses a temporary folder: the node's repositories, cache and packages do not change.
"""

import glob
import os
import re
from typing import Any, Callable, Dict, List, Tuple

from provision.node.rpm_sources import configuration, enabled_addresses, normalized

REPOSITORIES = "/etc/yum.repos.d"
MODULES = "/etc/dnf/modules.d"
CACHE = "/var/cache/dnf"
CACHE_SECONDS = 300
"""Time limit of commands that only read the cache."""
REFUSALS = re.compile(r"GPG|[Ss]ignature|Status code: 40[0-9]|checksum|certificate|Bad |repomd\.xml parser")
MOST = 2000
Run = Callable[[List[str], int], Tuple[int, str]]
"""Runs a command with a time limit; returns its exit code and output."""


class Dnf:
    """dnf with separate folders: the node's repositories, and those that are not configured yet."""

    def __init__(self, folder: str, repositories: List[Dict[str, Any]], seconds: int, run: Run) -> None:
        """Write the repositories into `folder`, and link the node's cache, which dnf would fetch again otherwise."""
        self.folder, self.seconds, self.run = folder, seconds, run
        known = enabled_addresses(REPOSITORIES + "/*.repo", self.release)
        self.repositories = [
            item for item in repositories if item["written"] or normalized(item["uri"], self.release) not in known
        ]
        for name in ("repositories", "cache"):
            os.makedirs(os.path.join(folder, name), mode=0o755)
        replaced = {"provision-{}.repo".format(item["name"]) for item in self.repositories}
        for path in sorted(glob.glob(REPOSITORIES + "/*.repo")):
            if os.path.basename(path) not in replaced:
                os.symlink(path, os.path.join(folder, "repositories", os.path.basename(path)))
        for item in self.repositories:
            key = os.path.join(folder, "key-{}".format(item["name"]))
            source = re.sub(r"^gpgkey=.*$", "gpgkey=file://" + key, item["source"], flags=re.MULTILINE)
            self.write(key, item["key"])
            self.write(os.path.join(folder, "repositories", "provision-{}.repo".format(item["name"])), source)
        self.link_cache()

    def release(self) -> str:
        """Return the release of the system, without which dnf's variable stays in addresses."""
        match = re.search(r"^\d+$", self.run(["rpm", "--eval", "%{?rhel}"], CACHE_SECONDS)[1], re.MULTILINE)
        return match.group() if match else ""

    def write(self, path: str, text: str) -> None:
        """Write a file that only root can read."""
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(text)

    def link_cache(self) -> None:
        """Link the files of the node's cache: dnf replaces files, so it writes through no link."""
        for place, _, names in os.walk(CACHE):
            target = os.path.join(self.folder, "cache", os.path.relpath(place, CACHE))
            os.makedirs(target, exist_ok=True)
            for name in names:
                if not name.endswith((".rpm", ".pid")):
                    os.symlink(os.path.join(place, name), os.path.join(target, name))

    def check(self, names: List[str], streams: List[str]) -> Dict[str, Any]:
        """Return candidates, the whole transaction, and problems of repositories."""
        code, output = self.dnf(["makecache"], 60 * self.seconds)
        if code != 0:
            return {"packages": None, "sources": [self.problem(output)], "install": [], "conflict": ""}
        words = ["--disable-modular-filtering"] if streams else []
        versions = self.offered("%{name}", ["--latest-limit=1", *words], names)
        rest = [name for name in names if name not in versions]
        if rest:  # the name of a package for one kernel has a version; the newest of these packages can be another one
            versions.update(self.offered("%{name}-%{evr}.%{arch}", words, rest))
        packages = {name: versions.get(name) for name in names}
        there = [name for name in names if packages[name]]
        conflict, install = "", []  # type: Tuple[str, List[Dict[str, str]]]
        if there and all(map(is_enabled, streams)):  # a stream that is not enabled hides its packages
            code, output = self.dnf(
                ["--assumeno", "--setopt=install_weak_deps=0", "--setopt=best=1", "install", *there]
            )
            install = transaction(output)
            if code != 0 and "Operation aborted" not in output:
                conflict = errors(output)
        return {"packages": packages, "sources": [], "install": install, "conflict": conflict}

    def offered(self, form: str, options: List[str], names: List[str]) -> Dict[str, str]:
        """Return the version of each package that repositories offer, by its name in this form."""
        command = ["-q", "repoquery", "--available", *options, "--qf", form + " %{evr}", *names]
        return dict(line.split(" ") for line in self.dnf(command)[1].splitlines() if line.count(" ") == 1)

    def dnf(self, words: List[str], limit: int = CACHE_SECONDS) -> Tuple[int, str]:
        """Run dnf in the folder; without a terminal it answers no question."""
        options = {
            "reposdir": os.path.join(self.folder, "repositories"),
            "cachedir": os.path.join(self.folder, "cache"),
            "logdir": self.folder,
            "timeout": str(self.seconds),
            "retries": "1",
        }
        return self.run(["dnf", "-y", *("--setopt={}={}".format(*pair) for pair in options.items()), *words], limit)

    def problem(self, output: str) -> Dict[str, str]:
        """Return why a repository cannot be used: it does not answer, or its answer is not a trusted repository."""
        match = re.search(r"repo(?:sitory)? '([^']+)'", output)
        name = match.group(1) if match else ""
        ours = next((item for item in self.repositories if "provision-" + item["name"] == name), None)
        return {
            "uri": ours["uri"] if ours else name,
            "repository": ours["name"] if ours else "",
            "code": "invalid" if REFUSALS.search(errors(output)) else "unreachable",
            "reason": errors(output),
        }


def is_enabled(stream: str) -> bool:
    """Return whether a module stream NAME:STREAM is enabled."""
    module, _, name = stream.partition(":")
    parser = configuration(os.path.join(MODULES, module + ".module"))
    values = [parser.get(module, key, fallback="") for key in ("state", "stream")]
    return values == ["enabled", name]


def transaction(output: str) -> List[Dict[str, str]]:
    """Return the packages in dnf's table of a transaction. A long name stands on a line of its own."""
    table, rows = False, []
    words: List[str] = []
    for line in output.splitlines():
        if re.match(r"(Installing|Upgrading|Downgrading|Reinstalling)[ \w]*:$", line):
            table, words = True, []
        elif re.match(r"(Transaction Summary|Removing[ \w]*:|=+$)", line):
            table, words = False, []
        elif table and line.startswith(" "):
            words += line.split()
            if len(words) >= 5:
                rows.append({"name": words[0], "version": words[2]})
                words = []
    return rows


def errors(output: str) -> str:
    """Return the errors in the output of dnf, as one text."""
    lines = [line.strip() for line in output.splitlines()]
    messages = [line for line in lines if re.match(r"Error|Problem|- |Failed|Unable|GPG|Curl|E: ", line)]
    return "; ".join(dict.fromkeys(messages))[:MOST] or output.strip()[-300:]
