"""git, rsync and ssh with the credentials of one request.

Passwords and keys are in files of mode 0600 in a folder of mode 0700 under /run while git or rsync runs; never in
arguments, in the environment, in an answer, or on disk afterwards.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from typing import Any, Dict, List, Optional
from urllib.parse import quote

from provision.node.code.folders import private_folder
from provision.node.code.tree import Failed, remove

PROTOCOLS = "https:http:ssh:git"
REMOVED = "[removed]"
TAIL_LINES = 12
"""Maximum number of output lines of a failed program in an error."""
_GIT_SSH_COMMAND = (2, 3)
"""The first version of git that uses this variable."""


class Tools:
    """git, rsync and ssh with these credentials only; their files are removed at the end."""

    def __init__(self, request: Dict[str, Any]) -> None:
        self.request = request
        self.deadline = time.monotonic() + request.get("timeout", 600)
        self.files: Dict[str, str] = {}
        self.ssh = "ssh"
        self.environment: Dict[str, str] = {}
        self.folder, self.lock = "", -1

    def __enter__(self) -> "Tools":  # noqa: PYI034 - typing.Self is of Python 3.11
        self.folder, self.lock = private_folder()
        try:
            self.prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_ignored: object) -> None:
        try:
            remove(self.folder)
        finally:
            os.close(self.lock)

    def prepare(self) -> None:
        """Write the files, and set the variables that refer to them."""
        request = self.request
        for name in ("ssh_key", "known_hosts", "ca"):
            if request.get(name):
                self.write(name, request[name].rstrip("\n") + "\n")
        if request.get("password"):
            self.write("password", request["password"] + "\n")
        if request.get("password") and request.get("server"):
            login = "username=%s\npassword=%s\n" % (request.get("username") or "git", request["password"])
            self.write("credential", login)
        self.ssh = self.ssh_command()
        self.write(".gitconfig", self.git_config())
        prefixes = ("GIT_", "SSH_", "DISPLAY", "XDG_CONFIG_HOME", "RSYNC_")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}
        self.environment.update(
            HOME=self.folder,
            GIT_CONFIG_NOSYSTEM="1",
            GIT_CONFIG_GLOBAL=self.files[".gitconfig"],
            GIT_ATTR_NOSYSTEM="1",
            LC_ALL="C",
            LANGUAGE="C",
            GIT_TERMINAL_PROMPT="0",
            GIT_ALLOW_PROTOCOL=PROTOCOLS,
            GIT_SSH_COMMAND=self.ssh,
        )

    def write(self, name: str, text: str) -> None:
        """Write one file that only this account can read."""
        path = os.path.join(self.folder, name)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as out:
            out.write(text)
        self.files[name] = path

    def ssh_command(self) -> str:
        """Return the ssh command of git and rsync: without prompts, only with known host keys."""
        words = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=15"]
        # Without the settings, the keys or the agent of the account that runs this, on a node or on the controller.
        words += ["-o", "ServerAliveInterval=15", "-F", "/dev/null", "-o", "IdentityAgent=none"]
        words += ["-o", "IdentitiesOnly=yes", "-o", "IdentityFile=" + self.files.get("ssh_key", "none")]
        if "known_hosts" in self.files:
            words += ["-o", "UserKnownHostsFile=" + self.files["known_hosts"]]
        return " ".join(map(shlex.quote, words))

    def git_config(self) -> str:
        """Return git's settings; the password is used for its own server only."""
        lines = ["[core]", "\thooksPath = /dev/null", "\tfsmonitor = false", "[credential]", "\thelper ="]
        lines += ['[protocol "file"]', "\tallow = never", '[protocol "ext"]', "\tallow = never"]
        if "credential" in self.files:
            helper = '!f() { test "$1" != get || cat %s; }; f' % shlex.quote(self.files["credential"])
            lines += ["[credential %s]" % quoted(self.request["server"]), "\thelper = " + quoted(helper)]
        lines += ["[http]", "\tlowSpeedLimit = 100", "\tlowSpeedTime = 60"]
        if "ca" in self.files:
            lines.append("\tsslCAInfo = " + quoted(self.files["ca"]))
        return "\n".join([*lines, "[gc]", "\tauto = 0"]) + "\n"

    def need_git(self) -> None:
        """Raise if git is missing, or too old for a key of its own."""
        if shutil.which("git") is None:
            raise Failed("no-git", "there is no git program")
        if self.request.get("over_ssh"):
            version = self.run(["git", "--version"]).strip()
            if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < _GIT_SSH_COMMAND:
                raise Failed("no-git", "%s is too old: it ignores GIT_SSH_COMMAND" % version)

    def run(self, argv: List[str], folder: Optional[str] = None, *, quiet: bool = False, local: bool = True) -> str:
        """Run a program and return its output; it is killed with its children after the time limit and at our end.

        A repository of this machine can be read only by its submitter's own command, and never as a submodule
        (`local` false).
        """
        environment = self.environment
        if local and self.request.get("file"):
            environment = dict(environment, GIT_ALLOW_PROTOCOL=PROTOCOLS + ":file")
        out = subprocess.DEVNULL if quiet else subprocess.PIPE
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            cwd=folder or self.folder,
            env=environment,
            start_new_session=True,
        )
        try:
            printed, errors = child.communicate(timeout=max(0.1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            seconds = self.request.get("timeout", 600)
            raise Failed("timeout", "%s did not end within %d s" % (" ".join(argv[:2]), seconds)) from None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if child.returncode != 0:
            text = self.redacted(errors.decode(errors="replace"))
            what = "%s failed (exit %d)" % (" ".join(argv[:2]), child.returncode)
            raise Failed("failed", what, "\n".join(text.strip().splitlines()[-TAIL_LINES:]))
        return printed.decode(errors="replace") if printed else ""

    def redacted(self, text: str) -> str:
        """Remove the password, in all forms in which git prints it, and credentials in addresses."""
        password = self.request.get("password")
        for value in (password, quote(password, safe="")) if password else ():
            text = text.replace(value, REMOVED)
        return re.sub(r"(\w://)[^\s/@']{0,255}:[^\s@']{0,255}@", r"\1%s@" % REMOVED, text)


def quoted(value: str) -> str:
    """Return a value in the syntax of git's settings."""
    return '"%s"' % value.replace("\\", "\\\\").replace('"', '\\"')
