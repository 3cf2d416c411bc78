"""A node on which the contract suite runs, and how its package manager is disturbed."""

from __future__ import annotations

import base64
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.commands.package_repositories import repository_files, repository_paths
from tests.support.packages.build import stop_place

ROOT = Path(__file__).resolve().parents[3]
ROLES = ROOT / "roles"
REPOSITORY = "/srv/contract"
"""The folder of the node that has the repository."""
NAME = "contract"
KILLER = """
import os, signal, sys
programs = ["apt-get", "dpkg", "dnf", "rpm"] + ["python3"] * int(sys.argv[1])
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open("/proc/" + pid + "/comm") as name, open("/proc/" + pid + "/cmdline") as line:
            name, line = name.read().strip(), line.read()
        script = "/var/lib/dpkg/info/" in line or "/var/lib/dpkg/tmp.ci/" in line or "/var/tmp/rpm-tmp" in line
        chosen = name in programs or script or (name.startswith("python3") and "python3" in programs)
        if chosen and int(pid) != os.getpid():
            os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""
"""Kills the package manager and the scripts of packages, and with the argument 1 also the programs of Python."""
RETRIES = """
import os, time

def name_and_parent(pid):
    with open("/proc/" + pid + "/stat") as stream:
        name, _, rest = stream.read().partition("(")[2].rpartition(")")
    return name, rest.split()[1]

seen = set()
while len(seen) < 5:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name, parent = name_and_parent(pid)
            if name in ("apt-get", "dpkg", "dnf") and "python" in name_and_parent(parent)[0]:
                seen.add(pid)
        except OSError:
            pass
    time.sleep(0.02)
"""
"""Ends after a program of Python has started so many package managers that some of them are retries."""
SERVER = """
import base64, http.server, os, sys, urllib.parse

kind, folder, password = sys.argv[1:]
name = "Proxy-Authorization" if kind == "proxy" else "Authorization"
login = "Basic " + base64.b64encode(b"me:" + base64.b64decode(password)).decode()
os.chdir(folder)


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        with open("/run/contract-server.log", "a") as stream:
            stream.write(self.path + "\\n")
        if self.headers.get(name) != login:
            self.send_response(407 if kind == "proxy" else 401)
            self.send_header("Proxy-Authenticate" if kind == "proxy" else "WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        path = urllib.parse.urlsplit(self.path).path
        self.path = path.replace("/repository", "", 1) if kind == "proxy" else path
        super().do_GET()

    def log_message(self, *words):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
for part, text in (("pid", os.getpid()), ("port", server.server_address[1])):
    with open("/run/contract-server." + part, "w") as stream:
        stream.write(str(text))
server.serve_forever()
"""
"""Serves a folder. Its password is an argument in base64, so that a search for the password does not match it."""
VERSIONLOCK = "/etc/dnf/plugins/versionlock.{}"
SECONDS = 120
"""Time limit of a command on the node."""


@dataclass(frozen=True)
class Result:
    """A finished command."""

    code: int
    out: str


@dataclass
class Node:
    """A node that commands reach as root.

    A lab's node is reached by ssh; any other program that runs the last word as a shell command as root will do.
    """

    manager: str
    """``apt`` or ``dnf``."""
    argv: Sequence[str]
    """The program that runs the shell command after it as root on the node."""
    name: str
    """The node's name in `inventory`."""
    inventory: Path
    """An Ansible inventory."""

    def shell(self, command: str, *, data: bytes = b"", seconds: float = SECONDS) -> Result:
        """Run a shell command as root."""
        words = [*self.argv, f"export LC_ALL=C.UTF-8; {command}"]
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(words, input=data, timeout=seconds, check=False, **output)  # type: ignore[call-overload]
        return Result(done.returncode, done.stdout.decode(errors="replace"))

    def ok(self, command: str, *, data: bytes = b"") -> str:
        """Run a shell command that must succeed; return its output."""
        done = self.shell(command, data=data)
        assert done.code == 0, f"{command}: {done}"
        return done.out

    def put(self, path: str, content: bytes | str, mode: str = "0644") -> None:
        """Write a file."""
        data = content.encode() if isinstance(content, str) else content
        place = shlex.quote(path)
        folder = shlex.quote(str(Path(path).parent))
        self.ok(f"mkdir -p {folder} && cat >{place} && chmod {mode} {place}", data=data)

    def start(self, module: str, **arguments: Any) -> subprocess.Popen[str]:
        """Start a module of the role platform; `result_of` returns its result."""
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "playbooks/ansible.cfg"),
            "ANSIBLE_ROLES_PATH": str(ROLES),
            "ANSIBLE_LIBRARY": str(ROLES / "platform/library"),
            "ANSIBLE_MODULE_UTILS": str(ROLES / "platform/module_utils"),
            "ANSIBLE_ACTION_PLUGINS": str(ROLES / "platform/action_plugins"),
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
            "ANSIBLE_NOCOLOR": "1",
        }
        program = str(Path(sys.executable).with_name("ansible"))
        words = [program, self.name, "-i", str(self.inventory), "-m", module]
        words += ["-a", json.dumps(arguments)] if arguments else []
        return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def module(self, module: str, **arguments: Any) -> dict[str, Any]:
        """Run a module of the role platform; return its result."""
        return result_of(self.start(module, **arguments))

    def install(self, *names: str, **arguments: Any) -> dict[str, Any]:
        """Install packages."""
        return self.module("platform_packages", packages=list(names), **arguments)

    # Repositories

    def publish(self, folder: Path) -> None:
        """Replace the content of the node's repository."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            archive.add(folder, arcname=".")
        self.ok(f"rm -rf {REPOSITORY} && mkdir -p {REPOSITORY} && tar -xC {REPOSITORY}", data=stream.getvalue())

    def configure(self, key: str, uri: str = f"file://{REPOSITORY}", **options: Any) -> None:
        """Write the files of the repository, as the role does."""
        item = {"name": NAME, "uris": uri, "suites": "/", "key": key, **options}
        for file in repository_files(item, self.manager):
            self.put(file["path"], file["content"], file.get("mode", "0644"))

    # State

    def version(self, package: str) -> str:
        """Return the versions of a package in the database, however incomplete it is; empty without any."""
        if self.manager == "apt":
            form, absent = "${db:Status-Status} ${Version}\\n", ("not-installed", "config-files")
            query = f"dpkg-query -W -f '{form}' {package} 2>/dev/null"
        else:
            absent, query = (), f"rpm -q --qf 'installed %{{EVR}}\\n' {package} | grep ^installed"
        rows = [line.split() for line in self.shell(query).out.splitlines()]
        return " ".join(sorted(words[1] for words in rows if words[0] not in absent))

    def facts(self) -> dict[str, Any]:
        """Return the facts that the roles use."""
        facts: dict[str, Any] = self.module("platform_node")["node"]
        return facts

    def hold(self, package: str) -> None:
        """Hold a package at its version, as an operator does."""
        if self.manager == "apt":
            self.ok(f"apt-mark hold {package}")
        else:
            version = self.version(package)
            lock = f"{package}-{version if ':' in version else f'0:{version}'}.*"
            self.put(VERSIONLOCK.format("list"), f"# a lock of the operator\n{lock}\n")
            self.put(VERSIONLOCK.format("conf"), f"[main]\nenabled = 1\nlocklist = {VERSIONLOCK.format('list')}\n")

    def holds(self) -> str:
        """Return the holds, in the words of the package manager."""
        return self.shell("apt-mark showhold" if self.manager == "apt" else f"cat {VERSIONLOCK.format('list')}").out

    def forget(self, packages: Sequence[str]) -> None:
        """Remove everything that a test left, whatever state it is in."""
        names = " ".join(packages) or "none"
        commands = [
            "rm -rf /run/stop-*",
            f"umount /opt/{NAME}",
            f"rm -rf /opt/{NAME} {REPOSITORY} /var/lib/provision /run/provision /etc/{NAME}",
        ]
        if self.manager == "apt":
            commands += [
                f"apt-mark unhold {names}",
                *(f"rm -f /var/lib/dpkg/info/{package}.p*" for package in packages),
                f"dpkg --force-all --purge {names}",
                "dpkg --configure -a",
                f"rm -f {' '.join(repository_paths(NAME, 'apt', has_login=True))}",
                "rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb",
            ]
        else:
            commands += [
                *(f"rpm -e --nodeps --noscripts --allmatches {package}" for package in packages),
                "rpm -e --allmatches gpg-pubkey",
                f"rm -f {' '.join(repository_paths(NAME, 'dnf'))}",
                f"rm -f /etc/dnf/modules.d/{NAME}*.module",
                f"[ ! -e {VERSIONLOCK.format('list')} ] || : >{VERSIONLOCK.format('list')}",
                "rm -rf /var/cache/dnf/*",
            ]
        self.shell("\n".join(f"{{ {command}; }} >/dev/null 2>&1 </dev/null" for command in commands))

    # Disturbances

    @contextmanager
    def stopped_at(self, package: str, point: str) -> Iterator[str]:
        """Provide a FIFO at which the script of a package blocks; the script continues at the end."""
        place = stop_place(package, point)
        self.ok(f"rm -f {place} {place}-reached; mkfifo {place}")
        try:
            yield place
        finally:
            self.release(place)

    def start_shell(self, command: str) -> None:
        """Start a shell command in the background."""
        self.ok(f"setsid sh -c {shlex.quote(command)} </dev/null >/dev/null 2>&1 &")

    @contextmanager
    def server(self, kind: str, password: str) -> Iterator[int]:
        """Run the repository's server on the node, as a proxy or with a login; provide its port."""
        self.put("/run/contract-server", SERVER)
        self.start_shell(
            f"python3 /run/contract-server {kind} {REPOSITORY} {base64.b64encode(password.encode()).decode()}"
        )
        self.ok("timeout 30 sh -c 'until [ -s /run/contract-server.port ]; do sleep 0.1; done'")
        try:
            yield int(self.ok("cat /run/contract-server.port"))
        finally:
            self.shell("kill $(cat /run/contract-server.pid); rm -f /run/contract-server*")

    def release(self, place: str) -> None:
        """Let a script continue."""
        self.shell(f"[ ! -p {place} ] || timeout 2 sh -c 'echo go >{place}'; rm -f {place}")

    def wait_for(self, place: str) -> None:
        """Wait until a script blocks."""
        self.ok(f"timeout {SECONDS - 10} sh -c 'until [ -e {place}-reached ]; do sleep 0.1; done'")

    def wait_for_retries(self) -> None:
        """Wait until a package manager was started several times beside one that holds the lock."""
        self.ok(f"timeout {SECONDS - 10} python3 -", data=RETRIES.encode())

    def kill(self, *, module: bool) -> None:
        """Kill the package manager and its scripts at once, and with `module` the module too, as a power cut does."""
        self.ok(f"python3 - {int(module)}", data=KILLER.encode())


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the result of a module that `Node.start` started."""
    out, _ = process.communicate(timeout=10 * SECONDS)
    text = out.partition("=> ")[2]
    try:
        result: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    except ValueError:
        return {"failed": True, "msg": out, "reason": ""}
    return {**result, "failed": "| FAILED! => " in out}
