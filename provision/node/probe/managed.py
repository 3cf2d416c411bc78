"""Reads the current state of objects in receipts: files, packages, units, kernel modules, images, containers.

The module that writes receipts imports it (as platform_managed), and so does the probe: both report the same.
Python 3.6 or newer and the standard library only. It writes nothing, and reports only hashes of file contents. A
program that does not answer in time is killed, and its section is left out, as are images and containers while the
engine does not run.
"""

import json
import os
import re
import select
import signal
import socket
import stat
import time
from hashlib import sha256
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

LIMIT_SECONDS = 10
KILL = 9
MOST_BYTES = 2**24
SECTIONS = ("files", "packages", "units", "modules", "images", "containers")
ENGINE = "docker.service"
PROPERTIES = "org.freedesktop.DBus.Properties"
DOCKER_SOCKET = "/run/docker.sock"
SYS_MODULES = "/sys/module"
UNIT_FOLDERS = (("/etc/systemd/system", "enabled"), ("/run/systemd/system", "enabled-runtime"))
ACCOUNT_FILES = ("/etc/passwd", "/etc/group")
PLAIN = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/:@._-"
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
SYSTEMD = "/run/systemd/private"
ASK_UNITS = (
    ("Unit", "Id"), ("Unit", "LoadState"), ("Unit", "ActiveState"), ("Unit", "UnitFileState"), ("Service", "Type"),
    ("Service", "RemainAfterExit"),
)  # fmt: skip
State = Dict[str, Any]
"""A part of a receipt, or the current state in its format; both are JSON objects that anybody may have edited."""

RPM_FORM = "%{NAME} installed %{EVR} %{ARCH}\\n"
SEGMENT = re.compile(r"[~^]|[A-Za-z]+|[0-9]+")
Segment = Tuple[int, int, str]
SEVERAL = ("gpg-pubkey", "kernel", "kmod-")
"""Beginnings of names of packages that rpm installs several versions of."""
PENDING = "/var/lib/provision/package-transaction.json"
"""The transaction of the roles with rpm that did not end, or in which scripts of packages failed."""
DPKG_STATUS = "/var/lib/dpkg/status"
ASK_PACKAGES = (
    ("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status} ${Version}\\n", "--"),
    ("rpm", "-q", "--qf", RPM_FORM, "--"),
)


def managed_state(folder: str, answers: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """Return for all receipts in `folder`: whether the seal matches, current state, and hung programs.

    `answers` caches the answers of the Docker engine.
    """
    key = content_of(os.path.join(folder, "key")) or b""
    sealed: Dict[str, bool] = {}
    receipts: Dict[str, State] = {}
    for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):
        role, ending = os.path.splitext(name)
        content = content_of(os.path.join(folder, name)) if ending == ".json" else None
        if content is None:
            continue
        sealed[role] = (content_of(os.path.join(folder, role + ".seal")) or b"").strip() == seal(key, content).encode()
        try:
            receipt = json.loads(content.decode())
        except ValueError:
            continue
        if isinstance(receipt, dict):
            receipts[role] = receipt
    observed, hung = observe_all(receipts, key, answers)
    brought = brought_by(os.path.join(os.path.dirname(folder), "origins"))
    return {"sealed": sealed, "observed": observed, "hung": hung, "brought": brought}


def brought_by(origins: str) -> List[str]:
    """Return the packages that our transactions installed or were going to install."""
    folder = os.path.join(origins, "packages")
    brought: Set[str] = set()
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        try:
            note = json.loads((content_of(os.path.join(folder, name)) or b"").decode())
            brought.update(set(note["requested"]) - set(note["installed"]))
        except (ValueError, LookupError, TypeError):
            continue
    return sorted(brought)


def seal(key: bytes, content: bytes) -> str:
    """Return the seal of a receipt with this content, by which changes by others are detected."""
    return sha256(key + content).hexdigest()


def observe(receipt: State, key: bytes) -> State:
    """Return the current state of the objects in one receipt, in its format; `hung` if a program did not answer."""
    observed, hung = observe_all({"": receipt}, key)
    return dict(observed[""], hung=hung) if hung else observed[""]


def observe_all(
    receipts: Dict[str, State], key: bytes, answers: Optional[Dict[str, Any]] = None
) -> Tuple[Dict[str, State], List[str]]:
    """Return role -> current state, and the programs that did not answer. Each is started once for all roles."""
    requested = {name: {item for receipt in receipts.values() for item in names(receipt, name)} for name in SECTIONS}
    units = Units(requested["units"] | ({ENGINE} if requested["images"] or requested["containers"] else set()))
    packages = Packages(requested["packages"])
    files = {role: files_of(receipt, key) for role, receipt in receipts.items()}
    states: Dict[str, Optional[Dict[str, Any]]] = {
        "packages": packages.answer(),
        "units": units.answer(),
        "modules": {name: os.path.isdir(SYS_MODULES + "/" + name.replace("-", "_")) for name in requested["modules"]},
    }
    engine = Engine(running=units.states.get(ENGINE, {}).get("active") == "active", answers=answers)
    states["images"] = engine.answer(engine.image, requested["images"])
    states["containers"] = engine.answer(engine.container, requested["containers"])
    observed: Dict[str, State] = {}
    for role, receipt in receipts.items():
        available = {section: value for section, value in states.items() if value is not None}
        observed[role] = {
            section: {name: available[section][name] for name in names(receipt, section)} for section in available
        }
        observed[role]["files"] = files[role]
    return observed, [program.title for program in (packages, units, engine) if program.hung]


def names(receipt: State, section: str) -> List[str]:
    """Return the names in a section of a receipt, which may be invalid."""
    listed = receipt.get(section)
    return [name for name in listed if isinstance(name, str)] if isinstance(listed, (dict, list)) else []


# Files


def files_of(receipt: State, key: bytes) -> Dict[str, State]:
    """Return the state of each path in the receipt."""
    listed = receipt["files"] if isinstance(receipt.get("files"), dict) else {}
    recorded = {path: listed.get(path) for path in names(receipt, "files")}
    return {path: file_state(path, item if isinstance(item, dict) else {}, key) for path, item in recorded.items()}


def file_state(path: str, recorded: State, key: bytes) -> State:
    """Return type, mode, owner and hash of a file, or of our part of it: a marked block, or keys of a JSON object.

    Links are followed only for a block, because blocks are also written through links; the mode is then not ours.
    """
    marker = recorded.get("block")
    state: State = {"block": marker} if marker else {}
    try:
        status = os.stat(path) if marker else os.lstat(path)
    except (OSError, ValueError):
        return dict(state, type="missing")
    state["type"] = KINDS.get(stat.S_IFMT(status.st_mode), "other")
    if not marker:
        state["mode"] = f"{stat.S_IMODE(status.st_mode):04o}"
        state["owner"] = ":".join(map(account, ACCOUNT_FILES, (status.st_uid, status.st_gid)))
    if state["type"] != "file":
        return state
    content, public = content_of(path, follow=bool(marker)), bool(status.st_mode & stat.S_IROTH)
    if recorded.get("keys"):
        before = recorded["keys"] if isinstance(recorded["keys"], dict) else dict.fromkeys(recorded["keys"])
        present = parts_of(content)
        if present is None:
            state["invalid"] = True
            present = {}
        state["keys"] = {name: hash_of(present.get(name), key, before[name], public=public) for name in before}
    else:
        part = block_of(content, marker) if marker else content
        state["sum"] = hash_of(part, key, recorded.get("sum"), public=public)
    return state


def hash_of(content: Optional[bytes], key: bytes, recorded: Any, *, public: bool) -> Any:
    """Return the hash of a file's content, keyed with the node's key if the file is not world-readable.

    Without the key, guesses of a private file's content could be verified. A recorded hash that matches is returned
    whichever of the two it is, so that a change of the mode alone does not change the hash.
    """
    if content is None or not (key or public):
        return None
    plain, keyed = sha256(content).hexdigest(), sha256(key + content).hexdigest()
    return recorded if recorded in (plain, keyed) else plain if public else keyed


def content_of(path: str, *, follow: bool = False) -> Optional[bytes]:
    """Return a regular file's bytes, None if it does not exist or is too large. Never blocks."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except (OSError, ValueError):
        return None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size >= MOST_BYTES:
        os.close(handle)
        return None
    with os.fdopen(handle, "rb") as stream:
        return stream.read(MOST_BYTES)


def block_of(content: Optional[bytes], marker: str) -> Optional[bytes]:
    """Return the lines of a block including its markers, None if there is no such block."""
    begin, end = f"# BEGIN {marker}".encode(), f"# END {marker}".encode()
    lines: List[bytes] = []
    inside = False
    for line in (content or b"").splitlines():
        inside = inside or line == begin
        if inside:
            lines.append(line + b"\n")
        inside = inside and line != end
    return b"".join(lines) or None


def parts_of(content: Optional[bytes]) -> Optional[Dict[str, bytes]]:
    """Return each top-level value of a JSON object as bytes; empty for an empty file, None for all else."""
    if content is not None and not content.strip():
        return {}
    try:
        value = json.loads((content or b"").decode())
    except ValueError:
        return None
    return {key: json.dumps(value[key], sort_keys=True).encode() for key in value} if isinstance(value, dict) else None


ACCOUNTS: Dict[str, Dict[bytes, str]] = {}


def account(path: str, number: int) -> str:
    """Return the name of an account or group from the node's own file, because a directory service may hang."""
    if path not in ACCOUNTS:
        lines = [line.split(b":") for line in (content_of(path, follow=True) or b"").splitlines()]
        ACCOUNTS[path] = {words[2]: words[0].decode(errors="replace") for words in reversed(lines) if len(words) > 2}
    return ACCOUNTS[path].get(str(number).encode(), str(number))


# Programs


class Program:
    """A started program whose output is read later; it has its own process group and a time limit."""

    title = ""
    pid: Optional[int] = None
    hung = False

    def start(self, command: Sequence[str]) -> bool:
        """Start the program; return whether it exists."""
        self.deadline = time.monotonic() + LIMIT_SECONDS
        path = program_of(command[0])
        if not path:
            return False
        self.stream, output = os.pipe()
        try:
            self.pid = spawn(path, command, output)
        except OSError:
            os.close(self.stream)
            return False
        finally:
            os.close(output)
        return True

    def output(self) -> str:
        """Return its output; empty if it did not end in time or was never started."""
        if self.pid is None:
            return ""
        parts = [b""]
        with os.fdopen(self.stream, "rb", 0) as stream:
            while select.select([stream], [], [], seconds_until(self.deadline))[0]:
                parts.append(stream.read(65536))
                if not parts[-1]:
                    return b"".join(parts).decode(errors="replace")
        self.hung = True
        try:
            os.killpg(self.pid, KILL)
        except OSError:
            pass
        return ""


def program_of(name: str) -> str:
    """Return the path of a program, empty if it does not exist."""
    paths = (os.path.join(folder, name) for folder in os.get_exec_path())
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def spawn(
    path: str,
    command: Sequence[str],
    output: int,
    errors: Optional[int] = None,
    *,
    leads: str = "group",
    variables: Optional[Dict[str, str]] = None,
) -> int:
    """Start a program that writes to the file `output`; return its pid.

    Its stderr is dropped unless `errors` is a file. `leads` selects whether it leads a process group, a session, or
    neither. `variables` are added to its environment.
    """
    environment = dict(os.environ, LC_ALL="C", **(variables or {}))
    if hasattr(os, "posix_spawn"):  # novermin # Python 3.8; unlike fork, it copies nothing of this process
        actions: List[Tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, 0 if errors is None else errors, 2)]
        options: Dict[str, Dict[str, Any]] = {"session": {"setsid": True}, "group": {"setpgroup": 0}}
        try:
            return os.posix_spawn(
                path, list(command), environment, file_actions=actions, setsigmask=(), **options.get(leads, {})
            )
        except NotImplementedError:  # no setsid, before glibc 2.26
            pass
    pid = os.fork()
    if not pid:
        try:
            if leads == "session":
                os.setsid()
            elif leads == "group":
                os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            nothing = os.open(os.devnull, os.O_RDWR)
            for number, handle in enumerate((nothing, output, nothing if errors is None else errors)):
                os.dup2(handle, number)
            os.execve(path, list(command), environment)
        finally:
            os._exit(127)
    return pid


def seconds_until(deadline: float) -> float:
    """Return the seconds until a deadline, at least 0.1."""
    return max(deadline - time.monotonic(), 0.1)


LISTED: Dict[str, str] = {}  # name -> version of all completely installed packages, if they were listed before


class Packages(Program):
    """The versions of packages, from dpkg or rpm."""

    def __init__(self, packages: Set[str]) -> None:
        self.packages = sorted(packages)
        for command in ASK_PACKAGES[0 if uses_dpkg() else 1 :] if packages and not LISTED else ():
            self.title = command[0]
            if self.start([*command, *self.packages]):
                break

    def answer(self) -> Optional[Dict[str, Optional[str]]]:
        """Return the installed version of each package, None for a package that is not installed."""
        if LISTED:
            return {name: LISTED.get(name) for name in self.packages}
        text = self.output()
        installed = rpm_versions(text) if self.title == "rpm" else dpkg_versions(text)
        return None if self.hung else {name: installed.get(name) for name in self.packages}


def uses_dpkg() -> bool:
    """Return whether dpkg manages the node's packages. Others offer dpkg and apt too, with an empty database."""
    try:
        return os.path.getsize(DPKG_STATUS) > 0
    except OSError:
        return False


def dpkg_versions(text: str) -> Dict[str, str]:
    """Return name -> version of the packages that dpkg lists as completely installed."""
    lines = [line.split() for line in text.splitlines()]
    return {words[0]: words[2] for words in lines if len(words) == 3 and words[1] == "installed"}


def rpm_versions(text: str) -> Dict[str, str]:
    """Return name -> version of the packages that rpm lists in `RPM_FORM`, without those that are incomplete.

    rpm itself knows no incomplete packages. Those of a transaction that did not end are incomplete, and those of which
    an interrupted upgrade left two versions. Of packages that rpm installs several times the newest version counts, and
    each one is listed by its full name too (NAME-VERSION-RELEASE.ARCH), by which the roles install those of one kernel.
    """
    listed: Dict[Tuple[str, str], Set[str]] = {}
    for words in (line.split() for line in text.splitlines()):
        if len(words) == 4 and words[1] == "installed":
            listed.setdefault((words[0], words[3]), set()).add(without_epoch_zero(words[2]))
    pending, versions = pending_packages(), {}  # type: Set[str], Dict[str, str]
    twice = {name for (name, _), every in listed.items() if len(every) > 1 and not name.startswith(SEVERAL)}
    for (name, architecture), every in listed.items():
        if name not in pending | twice:
            versions[name] = max([*every, versions.get(name, "")], key=rpm_order)
            if name.startswith("kernel"):
                full = {"{}-{}.{}".format(name, version, architecture): version for version in every}
                versions.update({key: version for key, version in full.items() if key not in pending})
    return versions


def without_epoch_zero(version: str) -> str:
    """Return a version of rpm in the only form that receipts and facts use: a stated epoch of 0 is no epoch."""
    return version[2:] if version.startswith("0:") else version


def pending_packages() -> Set[str]:
    """Return the packages whose installation did not end, or whose scripts failed."""
    try:
        return {str(name) for name in json.loads((content_of(PENDING) or b"{}").decode())["packages"]}
    except (ValueError, LookupError, TypeError, AttributeError):
        return set()


def rpm_order(version: str) -> Tuple[int, List[Segment], List[Segment]]:
    """Return a key that orders versions EPOCH:VERSION-RELEASE as rpm does."""
    epoch, mark, rest = version.partition(":")
    upstream, _, release = (rest if mark else version).partition("-")
    return int(epoch) if mark and epoch.isdecimal() else 0, _segments(upstream), _segments(release)


def _segments(text: str) -> List[Segment]:
    """Return the segments of a version in rpm's order: ``~``, the end, ``^``, letters, numbers."""
    segments = []
    for word in SEGMENT.findall(text):
        kind = 0 if word == "~" else 2 if word == "^" else 4 if word.isdecimal() else 3
        digits = word.lstrip("0") if kind == 4 else ""
        segments.append((kind, len(digits), digits if kind == 4 else word))
    return [*segments, (1, 0, "")]


class Units(Program):
    """The states of systemd units."""

    title = "systemctl show"

    def __init__(self, units: Set[str]) -> None:
        self.units = sorted(units)
        self.states: Dict[str, Dict[str, str]] = {}
        self.deadline = time.monotonic() + LIMIT_SECONDS

    def answer(self) -> Optional[Dict[str, Dict[str, str]]]:
        """Return the state of each unit, None if systemd does not answer."""
        blocks = self.properties()
        if len(blocks) != len(self.units):
            return None
        for name, block in zip(self.units, blocks):
            self.states[name] = self._state(name, block)
        return self.states

    def properties(self) -> List[Dict[str, str]]:
        """Return the properties of each unit over D-Bus, because systemctl takes longer to start; else by systemctl."""
        if not self.units:
            return []
        try:
            return systemd_properties(self.units, self.deadline)
        except socket.timeout:
            self.hung = True
            return []
        except (OSError, ValueError, IndexError):
            pass
        self.start(["systemctl", "show", "--property=" + ",".join(key for _, key in ASK_UNITS), "--", *self.units])
        blocks = [block.splitlines() for block in self.output().split("\n\n") if block.strip()]
        return [dict(line.split("=", 1) for line in block if "=" in line) for block in blocks]

    @staticmethod
    def _state(name: str, properties: Dict[str, str]) -> Dict[str, str]:
        active = properties.get("ActiveState", "")
        # A oneshot unit that does not remain active is inactive, even if it is running now.
        if properties.get("Type") == "oneshot" and properties.get("RemainAfterExit") == "no" and active != "failed":
            active = "inactive"
        return {"load": properties.get("LoadState", ""), "active": active, "enabled": enabled(name, properties)}


def enabled(name: str, properties: Dict[str, str]) -> str:
    """Return whether a unit starts at boot, from its links: systemd reports only those that it read last."""
    for folder, word in UNIT_FOLDERS:
        if os.path.realpath(os.path.join(folder, name)) == os.devnull:
            return "masked"
        below = os.listdir(folder) if os.path.isdir(folder) else ()
        wanted_by = [item for item in below if item.endswith((".wants", ".requires"))]
        if any(os.path.lexists(os.path.join(folder, item, name)) for item in wanted_by):
            return word
    last = properties.get("UnitFileState", "")
    return "disabled" if last.startswith(("enabled", "masked")) else last


def systemd_properties(names: Sequence[str], deadline: float) -> List[Dict[str, str]]:
    """Return the properties ASK_UNITS of each unit, over D-Bus at systemd's own socket, as systemctl does.

    Raises an OSError, ValueError or IndexError if that fails.
    """
    calls = b""
    for name in names:
        path = "/org/freedesktop/systemd1/unit/" + "".join(map(escaped, name.encode()))
        for interface, key in ASK_UNITS:
            calls += call(path, "org.freedesktop.systemd1." + interface, key)
    connection = BUS.pop() if BUS else systemd_connection(deadline)  # reused, because systemd prepares each for long
    try:
        connection.sendall(calls)
        answers = list(replies(connection, len(names) * len(ASK_UNITS), deadline))
    except (OSError, ValueError, IndexError):
        connection.close()
        raise
    BUS.append(connection)
    rows = [answers[at : at + len(ASK_UNITS)] for at in range(0, len(answers), len(ASK_UNITS))]
    return [{key: value for (_, key), value in zip(ASK_UNITS, row) if value is not None} for row in rows]


BUS: List[socket.socket] = []


def systemd_connection(deadline: float) -> socket.socket:
    """Return an authenticated connection to systemd."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds_until(deadline))
        connection.connect(SYSTEMD)
        connection.sendall(b"\0AUTH EXTERNAL %s\r\n" % str(os.geteuid()).encode().hex().encode())
        reply = connection.recv(512)
        connection.sendall(b"BEGIN\r\n")
    except OSError:
        connection.close()
        raise
    if not reply.startswith(b"OK "):
        connection.close()
        raise ValueError("systemd rejects the connection")
    return connection


def escaped(byte: int) -> str:
    """Return a byte of a unit's name, escaped for its D-Bus path."""
    return chr(byte) if chr(byte).isalnum() and byte < 128 else f"_{byte:02x}"


def call(path: str, interface: str, key: str) -> bytes:
    """Return a D-Bus message that requests a property."""
    fields = b""
    for code, kind, text in ((1, "o", path), (2, "s", PROPERTIES), (3, "s", "Get"), (8, "g", "ss")):
        fields += bytes(-len(fields) % 8) + bytes((code, 1, ord(kind), 0)) + dbus_string(text, 1 if kind == "g" else 4)
    body = dbus_string(interface)
    body += bytes(-len(body) % 4) + dbus_string(key)
    head = b"l\1\0\1" + number(len(body)) + number(1) + number(len(fields)) + fields
    return head + bytes(-len(head) % 8) + body


def dbus_string(text: str, size: int = 4) -> bytes:
    """Return a string in D-Bus format: after its length, and before a zero byte."""
    return number(len(text.encode()), size) + text.encode() + b"\0"


def number(value: int, size: int = 4) -> bytes:
    """Return a number in D-Bus format."""
    return value.to_bytes(size, "little")


def replies(connection: socket.socket, count: int, deadline: float) -> Iterator[Optional[str]]:
    """Yield each property as text, yes or no, or None if a unit does not have it; systemd answers in order."""
    buffer = b""
    while count:
        size, fields = 16, int.from_bytes(buffer[12:16], "little")
        if len(buffer) >= size:
            start = size + fields + -fields % 8
            size = start + int.from_bytes(buffer[4:8], "little")
        if len(buffer) < size:
            connection.settimeout(seconds_until(deadline))
            part = connection.recv(65536)
            if not part or buffer[:1] not in (b"l", b""):
                raise ValueError("systemd sent an invalid message")
            buffer += part
            continue
        kind, body, buffer = buffer[1], buffer[start:size], buffer[size:]
        if kind in (2, 3):  # a reply or an error, not a signal
            count -= 1
            yield value_of(body) if kind == 2 else None


def value_of(body: bytes) -> str:
    """Return the value of a D-Bus variant, as systemctl prints it."""
    end = int.from_bytes(body[4:8], "little")
    return ("no", "yes")[end] if body[1:2] == b"b" else body[8 : 8 + end].decode(errors="replace")


class Engine:
    """The Docker engine, queried over its socket, because its client takes longer to start than all else."""

    title, hung = "docker", False

    def __init__(self, *, running: bool, answers: Optional[Dict[str, Any]] = None) -> None:
        self.answers = answers
        self.running = running  # opening the socket of a stopped engine would start it
        self.deadline = time.monotonic() + LIMIT_SECONDS

    def answer(self, lookup: Callable[[str], Any], requested: Set[str]) -> Optional[Dict[str, Any]]:
        """Return the result of `lookup` for each name, None if the engine does not answer."""
        if not requested or not self.running or self.hung:
            return None if requested else {}
        try:
            return {name: lookup(name) for name in sorted(requested)}
        except socket.timeout:
            self.hung = True
        except (OSError, ValueError, LookupError, TypeError):
            pass
        return None

    def image(self, name: str) -> Optional[str]:
        """Return an image's ID, None if it does not exist."""
        return (self.get(f"/images/{quoted(name)}/json") or {}).get("Id")

    def container(self, name: str) -> Optional[State]:
        """Return values that identify a container, None if it does not exist."""
        answer = self.get(f"/containers/{quoted(name)}/json")
        if not answer:
            return None
        container: State = {"id": answer["Id"], "image": answer["Image"], "status": answer["State"]["Status"]}
        # The role's own label: an interrupted apply leaves its container without a receipt.
        ours = ((answer.get("Config") or {}).get("Labels") or {}).get("provision.role") == "training_container"
        return dict(container, ours=True) if ours else container

    def get(self, path: str) -> Any:
        """Return an object of the engine, None if it does not exist."""
        if self.answers is not None and path in self.answers:
            return self.answers[path]
        text = self.request(path)
        answer = None if text is None else json.loads(text)
        if self.answers is not None:
            self.answers[path] = answer
        return answer

    def request(self, path: str) -> Optional[str]:
        """Return the engine's answer, None if the object does not exist."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(seconds_until(self.deadline))
            connection.connect(DOCKER_SOCKET)
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            answer = part = connection.recv(65536)
            while part:
                connection.settimeout(seconds_until(self.deadline))
                part = connection.recv(65536)
                answer += part
        finally:
            connection.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        if head.split()[1] == b"404":
            return None
        if head.split()[1] != b"200":
            raise ValueError(head[:80])
        return body.decode()


def quoted(name: str) -> str:
    """Return a name quoted for a URL."""
    return "".join(chr(byte) if byte in PLAIN else f"%{byte:02X}" for byte in name.encode())
