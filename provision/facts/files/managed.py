"""What is there now of what the roles' receipts name: files, packages, units, kernel modules, images, containers.

The module that writes receipts imports it (as platform_managed), and the probe sends its text: so both see the same.
Python 3.6 or newer, and nothing else. It writes nothing, and of what is in a file it tells hashes only. A program that
does not answer in time is killed and not waited for; what it was asked for is then left out, and so is what only the
engine knows while it does not run.
"""

import json
import os
import select
import signal
import socket
import stat
import time
from hashlib import sha256

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
ASK_PACKAGES = (
    ("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status} ${Version}\\n", "--"),
    ("rpm", "-q", "--qf", "%{NAME} installed %{VERSION}-%{RELEASE}\\n", "--"),
)


def survey(folder):
    """Return for all receipts in `folder`: does the seal fit, what is there now, and which programs did not answer."""
    key = content_of(os.path.join(folder, "key")) or b""
    sealed, receipts = {}, {}
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
    found, hung = observe_all(receipts, key)
    brought = brought_by(os.path.join(os.path.dirname(folder), "origins"))
    return {"sealed": sealed, "observed": found, "hung": hung, "brought": brought}


def brought_by(origins):
    """Return the packages that transactions of ours were to bring, whether they came to an end or not."""
    folder, brought = os.path.join(origins, "packages"), set()
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        try:
            note = json.loads((content_of(os.path.join(folder, name)) or b"").decode())
            brought.update(set(note["requested"]) - set(note["installed"]))
        except (ValueError, LookupError, TypeError):
            continue
    return sorted(brought)


def seal(key, content):
    """Return what is kept beside a receipt of this content, so that a change by other hands is seen."""
    return sha256(key + content).hexdigest()


def observe(receipt, key):
    """Return what is there of what one receipt names, in its own form; `hung` where a program did not answer."""
    found, hung = observe_all({"": receipt}, key)
    return dict(found[""], hung=hung) if hung else found[""]


def observe_all(receipts, key):
    """Return role -> what is there, and the programs that did not answer. Each is started once for all roles."""
    wanted = {name: {item for receipt in receipts.values() for item in names(receipt, name)} for name in SECTIONS}
    units = Units(wanted["units"] | ({ENGINE} if wanted["images"] or wanted["containers"] else set()))
    packages = Packages(wanted["packages"])
    files = {role: files_of(receipt, key) for role, receipt in receipts.items()}
    seen = {
        "packages": packages.answer(),
        "units": units.answer(),
        "modules": {name: os.path.isdir(SYS_MODULES + "/" + name.replace("-", "_")) for name in wanted["modules"]},
    }
    engine = Engine(running=units.found.get(ENGINE, {}).get("active") == "active")
    seen["images"] = engine.answer(engine.image, wanted["images"])
    seen["containers"] = engine.answer(engine.container, wanted["containers"])
    found = {}
    for role, receipt in receipts.items():
        known = {section: value for section, value in seen.items() if value is not None}
        found[role] = {section: {name: known[section][name] for name in names(receipt, section)} for section in known}
        found[role]["files"] = files[role]
    return found, [program.title for program in (packages, units, engine) if program.hung]


def names(receipt, section):
    """Return the names that a receipt lists in a section, whatever has become of the receipt."""
    listed = receipt.get(section)
    return [name for name in listed if isinstance(name, str)] if isinstance(listed, (dict, list)) else []


# Files


def files_of(receipt, key):
    """Return what is at each path of the receipt."""
    listed = receipt["files"] if isinstance(receipt.get("files"), dict) else {}
    recorded = {path: listed.get(path) for path in names(receipt, "files")}
    return {path: look_at(path, item if isinstance(item, dict) else {}, key) for path, item in recorded.items()}


def look_at(path, recorded, key):
    """Return type, mode, owner and hash of a file, or of what in it is ours: a marked block, or keys of a JSON object.

    Only a block is looked for behind a link, because only a block is written there; its file's mode is not ours.
    """
    marker = recorded.get("block")
    found = {"block": marker} if marker else {}
    try:
        status = os.stat(path) if marker else os.lstat(path)
    except (OSError, ValueError):
        return dict(found, type="missing")
    found["type"] = KINDS.get(stat.S_IFMT(status.st_mode), "other")
    if not marker:
        found["mode"] = f"{stat.S_IMODE(status.st_mode):04o}"
        found["owner"] = ":".join(map(account, ACCOUNT_FILES, (status.st_uid, status.st_gid)))
    if found["type"] != "file":
        return found
    content, public = content_of(path, follow=bool(marker)), bool(status.st_mode & stat.S_IROTH)
    if recorded.get("keys"):
        before = recorded["keys"] if isinstance(recorded["keys"], dict) else dict.fromkeys(recorded["keys"])
        present = parts_of(content)
        if present is None:
            found["invalid"] = True
            present = {}
        found["keys"] = {name: hash_of(present.get(name), key, before[name], public=public) for name in before}
    else:
        ours = block_of(content, marker) if marker else content
        found["sum"] = hash_of(ours, key, recorded.get("sum"), public=public)
    return found


def hash_of(content, key, recorded, *, public):
    """Return the hash of a file's content: with the node's key where not everybody may read the file.

    Without the key, guesses of what is in a private file could be tested. A recorded hash that fits is told as it is,
    whichever of the two it is: a change of the mode alone is no change of the content.
    """
    if content is None or not (key or public):
        return None
    plain, keyed = sha256(content).hexdigest(), sha256(key + content).hexdigest()
    return recorded if recorded in (plain, keyed) else plain if public else keyed


def content_of(path, *, follow=False):
    """Return a regular file's bytes, None when there is none or it is larger than any of ours. Never waits."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except (OSError, ValueError):
        return None
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        return stream.read(MOST_BYTES) if stat.S_ISREG(status.st_mode) and status.st_size < MOST_BYTES else None


def block_of(content, marker):
    """Return the lines between a block's markers and the markers themselves, None when there is no such block."""
    begin, end = f"# BEGIN {marker}".encode(), f"# END {marker}".encode()
    lines, inside = [], False
    for line in (content or b"").splitlines():
        inside = inside or line == begin
        if inside:
            lines.append(line + b"\n")
        inside = inside and line != end
    return b"".join(lines) or None


def parts_of(content):
    """Return each top-level value of a JSON object as bytes, nothing of an empty file; None for all else."""
    if content is not None and not content.strip():
        return {}
    try:
        value = json.loads((content or b"").decode())
    except ValueError:
        return None
    return {key: json.dumps(value[key], sort_keys=True).encode() for key in value} if isinstance(value, dict) else None


ACCOUNTS = {}


def account(path, number):
    """Return an account's or a group's name by the node's own file: a directory service may hang."""
    if path not in ACCOUNTS:
        lines = [line.split(b":") for line in (content_of(path, follow=True) or b"").splitlines()]
        ACCOUNTS[path] = {words[2]: words[0].decode(errors="replace") for words in reversed(lines) if len(words) > 2}
    return ACCOUNTS[path].get(str(number).encode(), str(number))


# Programs


class Program:
    """A program that was started and is asked for its answer later; in a process group of its own, with a limit."""

    title, pid, hung = "", None, False

    def start(self, command):
        """Start it; return whether there is such a program."""
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

    def said(self):
        """Return what it printed; empty when it did not end in time, or was never started."""
        if self.pid is None:
            return ""
        parts = [b""]
        with os.fdopen(self.stream, "rb", 0) as stream:
            while select.select([stream], [], [], left(self.deadline))[0]:
                parts.append(stream.read(65536))
                if not parts[-1]:
                    return b"".join(parts).decode(errors="replace")
        self.hung = True
        try:
            os.killpg(self.pid, KILL)
        except OSError:
            pass
        return ""


def program_of(name):
    """Return where a program is, empty where there is none of that name."""
    paths = (os.path.join(folder, name) for folder in os.get_exec_path())
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def spawn(path, command, output, errors=None, *, leads="group"):
    """Start a program that prints into the file `output`; return its pid.

    What it says on stderr is dropped unless there is a file for it. It leads a process group or a session of its own,
    or nothing.
    """
    environment = dict(os.environ, LC_ALL="C")
    if hasattr(os, "posix_spawn"):  # Python 3.8; it copies nothing of this process, which fork does
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)]
        actions += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, 0 if errors is None else errors, 2)]
        own = {"session": {"setsid": True}, "group": {"setpgroup": 0}}.get(leads, {})
        try:
            return os.posix_spawn(path, command, environment, file_actions=actions, setsigmask=(), **own)
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
            os.execve(path, command, environment)
        finally:
            os._exit(127)
    return pid


def left(deadline):
    """Return the seconds until then, a little where there are none."""
    return max(deadline - time.monotonic(), 0.1)


LISTED = {}  # all packages that dpkg has installed -> version, where they were listed before


class Packages(Program):
    """The versions of packages, by dpkg or rpm."""

    def __init__(self, wanted):
        self.wanted = sorted(wanted)
        for command in ASK_PACKAGES if wanted and not LISTED else ():
            self.title = command[0]
            if self.start([*command, *self.wanted]):
                break

    def answer(self):
        """Return the installed version of each package, None for one that is not installed."""
        if LISTED:
            return {name: LISTED.get(name) for name in self.wanted}
        lines = [line.split() for line in self.said().splitlines()]
        there = {words[0]: words[2] for words in lines if len(words) == 3 and words[1] == "installed"}
        return None if self.hung else {name: there.get(name) for name in self.wanted}


class Units(Program):
    """The states of systemd units."""

    title = "systemctl show"

    def __init__(self, wanted):
        self.wanted, self.found = sorted(wanted), {}
        self.deadline = time.monotonic() + LIMIT_SECONDS

    def answer(self):
        """Return the state of each unit, None when systemd does not tell."""
        blocks = self.shown()
        if len(blocks) != len(self.wanted):
            return None
        for name, block in zip(self.wanted, blocks):
            self.found[name] = self._state(name, block)
        return self.found

    def shown(self):
        """Return what systemctl would show of each unit: to start it takes longer than to ask in its place."""
        if not self.wanted:
            return []
        try:
            return systemd_shows(self.wanted, self.deadline)
        except socket.timeout:
            self.hung = True
            return []
        except (OSError, ValueError, IndexError):
            pass
        self.start(["systemctl", "show", "--property=" + ",".join(key for _, key in ASK_UNITS), "--", *self.wanted])
        blocks = [block.splitlines() for block in self.said().split("\n\n") if block.strip()]
        return [dict(line.split("=", 1) for line in block if "=" in line) for block in blocks]

    @staticmethod
    def _state(name, said):
        active = said.get("ActiveState", "")
        # Of a unit that just does something and ends, whether it is at it right now is no state.
        if said.get("Type") == "oneshot" and said.get("RemainAfterExit") == "no" and active != "failed":
            active = "inactive"
        return {"load": said.get("LoadState", ""), "active": active, "enabled": enabled(name, said)}


def enabled(name, said):
    """Return whether a unit starts at boot, by the links that are there: systemd tells what it last read of them."""
    for folder, word in UNIT_FOLDERS:
        if os.path.realpath(os.path.join(folder, name)) == os.devnull:
            return "masked"
        below = os.listdir(folder) if os.path.isdir(folder) else ()
        wanted_by = [item for item in below if item.endswith((".wants", ".requires"))]
        if any(os.path.lexists(os.path.join(folder, item, name)) for item in wanted_by):
            return word
    last = said.get("UnitFileState", "")
    return "disabled" if last.startswith(("enabled", "masked")) else last


def systemd_shows(names, deadline):
    """Return the properties ASK_UNITS of each unit, asked as systemctl does: by D-Bus at systemd's own socket.

    Raises an OSError, ValueError or IndexError where that does not work.
    """
    calls = b""
    for name in names:
        path = "/org/freedesktop/systemd1/unit/" + "".join(map(escaped, name.encode()))
        for interface, key in ASK_UNITS:
            calls += call(path, "org.freedesktop.systemd1." + interface, key)
    connection = BUS.pop() if BUS else let_in(deadline)  # for each, systemd sets up all that can be asked
    try:
        connection.sendall(calls)
        answers = list(replies(connection, len(names) * len(ASK_UNITS), deadline))
    except (OSError, ValueError, IndexError):
        connection.close()
        raise
    BUS.append(connection)
    rows = [answers[at : at + len(ASK_UNITS)] for at in range(0, len(answers), len(ASK_UNITS))]
    return [{key: value for (_, key), value in zip(ASK_UNITS, row) if value is not None} for row in rows]


BUS = []


def let_in(deadline):
    """Return a connection with systemd that takes calls."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(left(deadline))
        connection.connect(SYSTEMD)
        connection.sendall(b"\0AUTH EXTERNAL %s\r\n" % str(os.geteuid()).encode().hex().encode())
        said = connection.recv(512)
        connection.sendall(b"BEGIN\r\n")
    except OSError:
        connection.close()
        raise
    if not said.startswith(b"OK "):
        connection.close()
        raise ValueError("systemd does not let us in")
    return connection


def escaped(byte):
    """Return a byte of a unit's name as it stands in its D-Bus path."""
    return chr(byte) if chr(byte).isalnum() and byte < 128 else f"_{byte:02x}"


def call(path, interface, key):
    """Return a D-Bus message that asks for a property."""
    fields = b""
    for code, kind, text in ((1, "o", path), (2, "s", PROPERTIES), (3, "s", "Get"), (8, "g", "ss")):
        fields += bytes(-len(fields) % 8) + bytes((code, 1, ord(kind), 0)) + worded(text, 1 if kind == "g" else 4)
    body = worded(interface)
    body += bytes(-len(body) % 4) + worded(key)
    head = b"l\1\0\1" + number(len(body)) + number(1) + number(len(fields)) + fields
    return head + bytes(-len(head) % 8) + body


def worded(text, size=4):
    """Return a text as D-Bus writes it: behind its length, and before a zero."""
    return number(len(text.encode()), size) + text.encode() + b"\0"


def number(value, size=4):
    """Return a number as D-Bus writes it."""
    return value.to_bytes(size, "little")


def replies(connection, count, deadline):
    """Yield the text, yes or no of each property, None where a unit has none; systemd answers one after the other."""
    buffer = b""
    while count:
        size, fields = 16, int.from_bytes(buffer[12:16], "little")
        if len(buffer) >= size:
            start = size + fields + -fields % 8
            size = start + int.from_bytes(buffer[4:8], "little")
        if len(buffer) < size:
            connection.settimeout(left(deadline))
            part = connection.recv(65536)
            if not part or buffer[:1] not in (b"l", b""):
                raise ValueError("systemd says something odd")
            buffer += part
            continue
        kind, body, buffer = buffer[1], buffer[start:size], buffer[size:]
        if kind in (2, 3):  # an answer or an error, and no signal
            count -= 1
            yield value_of(body) if kind == 2 else None


def value_of(body):
    """Return what a D-Bus variant holds, as systemctl prints it."""
    end = int.from_bytes(body[4:8], "little")
    return ("no", "yes")[end] if body[1:2] == b"b" else body[8 : 8 + end].decode(errors="replace")


class Engine:
    """The docker engine, asked by its socket: starting its client would take longer than all else."""

    title, hung = "docker", False

    def __init__(self, *, running):
        self.running = running  # to touch the socket of an engine that is stopped would start it
        self.deadline = time.monotonic() + LIMIT_SECONDS

    def answer(self, look, wanted):
        """Return what `look` finds of each name, None when the engine does not tell."""
        if not wanted or not self.running or self.hung:
            return None if wanted else {}
        try:
            return {name: look(name) for name in sorted(wanted)}
        except socket.timeout:
            self.hung = True
        except (OSError, ValueError, LookupError, TypeError):
            pass
        return None

    def image(self, name):
        """Return an image's ID, None when there is none of that name."""
        return (self.get(f"/images/{quoted(name)}/json") or {}).get("Id")

    def container(self, name):
        """Return what tells a container from another of its name, None when there is none."""
        found = self.get(f"/containers/{quoted(name)}/json")
        if not found:
            return found
        seen = {"id": found["Id"], "image": found["Image"], "status": found["State"]["Status"]}
        # The role's own label: an apply that is interrupted leaves a container of its own and no receipt of it.
        ours = ((found.get("Config") or {}).get("Labels") or {}).get("provision.role") == "training_container"
        return dict(seen, ours=True) if ours else seen

    def get(self, path):
        """Return an object of the engine, None where it has none."""
        said = self.said(path)
        return None if said is None else json.loads(said)

    def said(self, path):
        """Return what the engine answers, None where it has no such thing."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(left(self.deadline))
            connection.connect(DOCKER_SOCKET)
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            answer = part = connection.recv(65536)
            while part:
                connection.settimeout(left(self.deadline))
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


def quoted(name):
    """Return a name as a part of an address."""
    return "".join(chr(byte) if byte in PLAIN else f"%{byte:02X}" for byte in name.encode())
