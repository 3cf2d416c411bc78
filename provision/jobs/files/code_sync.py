"""Brings the code of a batch job to this node: by git, by rsync, or out of an archive that comes with the request.

It arrives over SSH on standard input as root, followed by one line of JSON that says what to do and, for ``unpack``, by
a tar archive. It needs Python 3.6 and nothing else, and answers with one JSON document: exit 0, or
``{"error": {"kind", "what", "output"}}`` and exit 1. The submitter's machine runs the same functions where it fetches
for the nodes.

Passwords and keys are in files of mode 0600 in a folder of mode 0700 under /run, for as long as git or rsync runs;
never in arguments, in the environment, in an answer, or in what is left on disk.
"""

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import IO, Any, Dict, Iterator, List, Optional, Sequence, Tuple
from urllib.parse import quote

REMOVED = "[removed]"
TAIL_LINES = 12
"""Of what a program said when it failed."""
SUBMODULES = {"recursive": ["--init", "--recursive"], "shallow": ["--init"]}
_SERVER_HAS_NO_TIP = "unadvertised object|not our ref|find remote ref|no such remote ref"
"""How servers and clients say that a commit cannot be asked for by its number."""
_GIT_SSH_COMMAND = (2, 3)
"""Git takes this variable from this version on."""


class Failed(Exception):
    """Something did not work; `kind` is for programs, `what` for people."""

    def __init__(self, kind: str, what: str, output: str = "") -> None:
        Exception.__init__(self, what)
        self.kind, self.what, self.output = kind, what, output


def main() -> None:
    """Do what the first line of standard input says."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _frame: sys.exit(128 + got))
    source = os.fdopen(0, "rb")
    request = json.loads(source.readline().decode())
    os.umask(0o022)
    try:
        answer, code = work(request, source), 0
    except Failed as error:
        answer, code = {"error": {"kind": error.kind, "what": error.what, "output": error.output}}, 1
    except (OSError, EOFError, tarfile.TarError) as error:
        answer, code = {"error": {"kind": "io", "what": str(error), "output": ""}}, 1
    while source.read(1 << 20):  # an archive that nobody wants any more: its sender is not to be cut off
        pass
    print(json.dumps(answer))  # noqa: T201
    sys.exit(code)


def resolve(request: Dict[str, Any]) -> Dict[str, Any]:
    """Find the commit that a branch, a tag or nothing at all means now."""
    with Tools(request) as tools:
        return {"sha": find_commit(tools, request)}


def find_commit(tools: "Tools", request: Dict[str, Any]) -> str:
    """Ask the server; a whole commit number is what it is."""
    wanted = request["ref"]  # type: str
    if re.match(r"([0-9a-f]{40}|[0-9a-f]{64})$", wanted):
        return wanted
    tools.need_git()
    lines = tools.run(["git", "ls-remote", request["url"]]).splitlines()
    pairs = (line.split("\t", 1) for line in lines if "\t" in line)
    there = {reference: commit for commit, reference in pairs}
    tags = ["refs/tags/%s^{}" % wanted, "refs/tags/%s" % wanted]
    heads = ["refs/heads/%s" % wanted]
    named = [wanted + "^{}", wanted] if wanted.startswith("refs/") or wanted == "HEAD" else []
    for reference in named or (heads + tags if request.get("branch") else tags + heads):
        if reference in there:
            return there[reference]
    raise Failed("no-ref", "there is no branch or tag %s" % wanted if there else "the repository is empty")


def checkout(request: Dict[str, Any]) -> Dict[str, Any]:
    """Put one commit into the job's folder."""
    part, target = places(request)
    with Tools(request) as tools, removed_at_failure(part):
        clone(tools, request, part)
        publish(part, target, request)
    return {"sha": request["sha"]}


def clone(tools: "Tools", request: Dict[str, Any], folder: str) -> None:
    """Make a work tree of exactly one commit."""
    tools.need_git()
    sha = request["sha"]
    depth = ["--depth", str(request["depth"])] if request.get("depth") else []
    tools.run(["git", "init", "--quiet", "--template=", folder])
    tools.run(["git", "remote", "add", "origin", request["url"]], folder)
    try:
        tools.run(["git", "fetch", "--quiet", "--no-tags", *depth, "origin", sha], folder)
    except Failed as error:
        if not re.search(_SERVER_HAS_NO_TIP, error.output):
            raise
        tools.run(["git", "fetch", "--quiet", "--tags", "origin", "+refs/heads/*:refs/remotes/origin/*"], folder)
    try:
        tools.run(["git", "checkout", "--quiet", "--force", "--detach", sha], folder)
    except Failed as error:
        if re.search("not a tree|did not match any|unable to read tree", error.output):
            raise Failed("no-ref", "there is no commit %s in any branch or tag" % sha) from None
        raise
    modules = SUBMODULES.get(request.get("submodules", "recursive"))
    if modules and os.path.lexists(os.path.join(folder, ".gitmodules")):
        tools.run(["git", "submodule", "--quiet", "update", *modules], folder)
    if tools.run(["git", "rev-parse", "HEAD"], folder).strip() != sha:
        raise Failed("failed", "git checked out another commit than %s" % sha)


def rsync(request: Dict[str, Any]) -> Dict[str, Any]:
    """Make the job's folder equal to the source; what is there already needs no transfer."""
    _part, target = places(request)
    if os.path.islink(target) or not os.path.isdir(target):
        remove(target)
    with Tools(request) as tools:
        argv = ["rsync", "-aP", "--delete", "-e", tools.ssh]
        if "password" in tools.files:
            argv.append("--password-file=" + tools.files["password"])
        os.makedirs(target, 0o755, exist_ok=True)
        try:
            tools.run([*argv, request["url"].rstrip("/") + "/", target + "/"], quiet=True)
        except FileNotFoundError:
            raise Failed("no-rsync", "there is no rsync program") from None
    own(target, request)
    return {"sha": tree_sha(target)}


def unpack(request: Dict[str, Any], source: IO[bytes]) -> Dict[str, Any]:
    """Put an archive into the job's folder, when it arrived as it was sent."""
    part, target = places(request)
    with removed_at_failure(part):
        os.mkdir(part, 0o755)
        with tarfile.open(fileobj=source, mode="r|*") as archive:
            for member in archive:
                extract(archive, member, part)
        content = tree_sha(part)
        if content != request["content"]:
            raise Failed("damaged", "the code that arrived is not the code that was sent")
        publish(part, target, request)
    return {"sha": content}


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    """Write one member, which lies in `folder` whatever its name says."""
    path = os.path.join(folder, member.name)
    inside = os.path.realpath(os.path.dirname(path)) + os.sep
    if os.path.isabs(member.name) or ".." in member.name.split("/") or not inside.startswith(folder + os.sep):
        raise Failed("damaged", "the archive holds a name that leads out of it: %r" % member.name)
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    if member.issym():
        os.symlink(member.linkname, path)
    elif member.isdir():
        os.makedirs(path, 0o755, exist_ok=True)
    elif member.isfile():
        data = archive.extractfile(member)
        with open(path, "xb") as out:
            shutil.copyfileobj(data, out)  # type: ignore[arg-type]
        os.chmod(path, 0o755 if member.mode & 0o100 else 0o644)


def tree_sha(folder: str, names: Optional[Sequence[str]] = None) -> str:
    """Return the SHA-256 of the files and links under `folder`: names, contents, and whether they can be executed."""
    total = hashlib.sha256()
    for name in sorted(walk(folder) if names is None else names, key=os.fsencode):
        path = os.path.join(folder, name)
        about = os.lstat(path)
        if stat.S_ISLNK(about.st_mode):
            kind, content = "l", hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest()
        elif stat.S_ISREG(about.st_mode):
            kind, content = "x" if about.st_mode & 0o100 else "f", file_sha(path)
        else:
            continue
        total.update(("%s %s " % (kind, content)).encode() + os.fsencode(name) + b"\0")
    return total.hexdigest()


def file_sha(path: str) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as source:
        for chunk in iter(lambda: source.read(1 << 20), b""):
            found.update(chunk)
    return found.hexdigest()


def walk(folder: str) -> Iterator[str]:
    """Yield files, links and empty folders under `folder`, as paths within it."""
    for root, folders, files in os.walk(folder, onerror=fail):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        for name in files + links:
            yield os.path.relpath(os.path.join(root, name), folder)
        if not folders and not files and root != folder:
            yield os.path.relpath(root, folder)


def fail(error: OSError) -> None:
    """A folder that cannot be listed is not an empty one."""
    raise error


def places(request: Dict[str, Any]) -> Tuple[str, str]:
    """Return where the code is made, and where it belongs; what an earlier try left half done is removed."""
    root = os.environ.get("PROVISION_JOBS_ROOT") or "/var/lib/provision/jobs"
    job, repository = request["job"], request["repository"]
    for name in (job, repository):
        if not re.match(r"[A-Za-z0-9_][A-Za-z0-9._+-]*$", name):
            raise Failed("failed", "%r is no name of a folder" % name)
    folder = os.path.realpath(os.path.join(root, job))
    os.makedirs(folder, 0o700, exist_ok=True)
    code = os.path.join(folder, "code")
    os.makedirs(code, 0o755, exist_ok=True)
    for name in os.listdir(code):
        if name.startswith(".part-"):
            remove(os.path.join(code, name))
    return os.path.join(code, ".part-%d" % os.getpid()), os.path.join(code, repository)


@contextlib.contextmanager
def removed_at_failure(part: str) -> Iterator[None]:
    """Leave nothing half done."""
    try:
        yield
    except BaseException:
        remove(part)
        raise


def publish(part: str, target: str, request: Dict[str, Any]) -> None:
    """Let the code appear at its place, whole."""
    own(part, request)
    os.chmod(part, 0o755)  # noqa: S103 - the containers' users read it
    old = part + ".old"
    if os.path.lexists(target):
        os.rename(target, old)
    os.rename(part, target)
    remove(old)


def own(folder: str, request: Dict[str, Any]) -> None:
    """Give the code to the user that the containers run as, where that is not root."""
    found = re.match(r"(\d+):(\d+)", request.get("user") or "")
    if found is None:
        return
    user, group = int(found.group(1)), int(found.group(2))
    os.lchown(folder, user, group)
    for root, folders, files in os.walk(folder):
        for name in folders + files:
            os.lchown(os.path.join(root, name), user, group)


def remove(path: str) -> None:
    """Remove a file, a link or a folder, or nothing."""
    if os.path.isdir(path) and not os.path.islink(path):
        done = subprocess.run(
            ["/bin/rm", "-rf", "--", path], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
        if done.returncode:  # a program, because jobs make folders deeper than Python can follow
            raise OSError(done.stderr.decode(errors="replace").strip()[-400:])
    elif os.path.lexists(path):
        os.unlink(path)


class Tools:
    """git, rsync and ssh with these credentials and, on a node, no others; at the end every trace of them is gone."""

    def __init__(self, request: Dict[str, Any]) -> None:
        self.request = request
        self.deadline = time.monotonic() + request.get("timeout", 600)
        self.files = {}  # type: Dict[str, str]
        self.ssh, self.environment = "ssh", {}  # type: str, Dict[str, str]
        self.folder = ""

    def __enter__(self) -> "Tools":  # noqa: PYI034 - typing.Self is of Python 3.11
        self.folder = private_folder()
        try:
            self.prepare()
        except BaseException:
            remove(self.folder)
            raise
        return self

    def __exit__(self, *_ignored: object) -> None:
        remove(self.folder)

    def prepare(self) -> None:
        """Write the files, and tell the programs of them."""
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
        ours = ("GIT_", "SSH_ASKPASS", "DISPLAY", "XDG_CONFIG_HOME")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        protocols = "https:http:ssh:git" + (":file" if request.get("file") else "")
        self.environment.update(
            HOME=self.folder,
            LC_ALL="C",
            LANGUAGE="C",
            GIT_TERMINAL_PROMPT="0",
            GIT_ALLOW_PROTOCOL=protocols,
            GIT_SSH_COMMAND=self.ssh,
        )

    def write(self, name: str, text: str) -> None:
        """Write one file that nobody else can read."""
        path = os.path.join(self.folder, name)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as out:
            out.write(text)
        self.files[name] = path

    def ssh_command(self) -> str:
        """Return ssh as git and rsync shall call it: never asking, never trusting a key that nobody gave."""
        words = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=15"]
        words += ["-o", "ServerAliveInterval=15"]
        on_node = "include" not in self.request
        if on_node:  # not by root's settings there, its keys or its agent
            words += ["-F", "/dev/null"]
        if "ssh_key" in self.files:
            words += ["-o", "IdentitiesOnly=yes", "-i", self.files["ssh_key"]]
        elif on_node:
            words += ["-o", "IdentitiesOnly=yes", "-o", "IdentityFile=none"]
        if "known_hosts" in self.files:
            words += ["-o", "UserKnownHostsFile=" + self.files["known_hosts"]]
        return " ".join(map(shlex.quote, words))

    def git_config(self) -> str:
        """Return git's settings; the password is only for the server that it was given for."""
        own_config = self.request.get("include")
        lines = ["[include]", "\tpath = " + quoted(own_config)] if own_config else []
        if "credential" in self.files or not own_config:
            lines += ["[credential]", "\thelper ="]
        if "credential" in self.files:
            helper = '!f() { test "$1" != get || cat %s; }; f' % shlex.quote(self.files["credential"])
            lines += ["[credential %s]" % quoted(self.request["server"]), "\thelper = " + quoted(helper)]
        lines += ["[http]", "\tlowSpeedLimit = 100", "\tlowSpeedTime = 60"]
        if "ca" in self.files:
            lines.append("\tsslCAInfo = " + quoted(self.files["ca"]))
        return "\n".join([*lines, "[gc]", "\tauto = 0"]) + "\n"

    def need_git(self) -> None:
        """Raise where git is missing, or too old to be told which key to use."""
        if shutil.which("git") is None:
            raise Failed("no-git", "there is no git program")
        if self.request.get("over_ssh"):
            said = self.run(["git", "--version"]).strip()
            if tuple(int(number) for number in re.findall(r"\d+", said)[:2]) < _GIT_SSH_COMMAND:
                raise Failed("no-git", "%s cannot be told how to use SSH" % said)

    def run(self, argv: List[str], folder: Optional[str] = None, *, quiet: bool = False) -> str:
        """Run a program to its end and return what it printed; it and its children end with the time, and with us."""
        out = subprocess.DEVNULL if quiet else subprocess.PIPE
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            cwd=folder or self.folder,
            env=self.environment,
            start_new_session=True,
        )
        try:
            printed, said = child.communicate(timeout=max(0.1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            seconds = self.request.get("timeout", 600)
            raise Failed("timeout", "%s did not end within %d s" % (" ".join(argv[:2]), seconds)) from None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if child.returncode != 0:
            text = self.redacted(said.decode(errors="replace"))
            what = "%s failed (exit %d)" % (" ".join(argv[:2]), child.returncode)
            raise Failed("failed", what, "\n".join(text.strip().splitlines()[-TAIL_LINES:]))
        return printed.decode(errors="replace") if printed else ""

    def redacted(self, text: str) -> str:
        """Take out the password in all the ways in which git writes it, and what addresses hold."""
        password = self.request.get("password")
        for value in (password, quote(password, safe="")) if password else ():
            text = text.replace(value, REMOVED)
        return re.sub(r"(\w://)[^\s/@']*:[^\s@']*@", r"\1%s@" % REMOVED, text)


def quoted(value: str) -> str:
    """Return a value as git's settings want it."""
    return '"%s"' % value.replace("\\", "\\\\").replace('"', '\\"')


def private_folder() -> str:
    """Make a folder that only we can read, in memory where there is /run; those that the dead left behind go."""
    base = os.environ.get("PROVISION_RUN_ROOT") or "/run/provision"
    try:
        os.makedirs(base, 0o755, exist_ok=True)
        for name in os.listdir(base):
            found = re.match(r"code-(\d+)-", name)
            if found and not os.path.exists("/proc/" + found.group(1)):
                remove(os.path.join(base, name))
        return tempfile.mkdtemp(prefix="code-%d-" % os.getpid(), dir=base)
    except OSError:  # a submitter who is not root
        return tempfile.mkdtemp(prefix="provision-code-")


def work(request: Dict[str, Any], source: IO[bytes]) -> Dict[str, Any]:
    """Do what is asked for."""
    if request["do"] == "unpack":
        return unpack(request, source)
    return {"resolve": resolve, "git": checkout, "rsync": rsync}[request["do"]](request)


if __name__ == "__main__":
    main()
