"""Answers one request about batch jobs on this node, and ends. README.md of `provision/jobs` has the requests.

It arrives over SSH on standard input, followed by the request as one line of JSON, and is root's. The keeper of a job
imports it for what both need: files, leases, docker's engine. Python 3.6 or newer, and nothing else; what few requests
need is imported by them, because each request starts this program anew.
"""

import errno
import fcntl
import json
import os
import re
import signal
import sys
import time

ROOT = os.environ.get("PROVISION_JOBS_ROOT") or "/var/lib/provision/jobs"
RUN = os.environ.get("PROVISION_JOBS_RUN") or "/run/provision"
PROC = os.environ.get("PROVISION_PROC") or "/proc"
DOCKER_SOCKET = os.environ.get("PROVISION_DOCKER_SOCKET") or "/run/docker.sock"
FOR_TESTS = ("PROVISION_JOBS_ROOT", "PROVISION_JOBS_RUN", "PROVISION_PROC", "PROVISION_DOCKER_SOCKET")

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?\Z")
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}\Z")
UNIT_FILES = "/run/systemd/system"
PORT = "port-"
PORTS = (20000, 32000)  # below the kernel's own choice of ports
HOLD_SECONDS = 120  # a lease stands so long without a keeper: whoever starts the job renews it as long as that takes
START_SECONDS = 60  # a keeper that was not there so long after its start will not come
LOCK_SECONDS = 30
BEAT_SECONDS = 60  # of a command that said that it gives a sign of life, and gives none, the connection is half dead
LINGER_SECONDS = 60  # what a job of `run` may take to end when nobody holds its leases any more
SMI_SECONDS = 20
REMOVE_SECONDS = 600
FOLLOW_MILLISECONDS = 50
ENGINE_SECONDS = 20
STOP_SIGNAL = signal.SIGUSR2  # to a keeper: stop, where that cannot be written down
OVER = ("Completed", "Error", "Stopped", "Lost")
STAMP = 27  # 2026-01-31T12:00:00.123456Z
PREFIX = STAMP + 3  # and " o "
BRIEF = ("kind", "gpus", "workers", "priority", "labels", "tensorboard", "exclusive", "depends", "retry")
BRIEF += ("ttl_after_finished",)
NO_INSTANCES = ("attempt", "result", "keeper", "state", "stop")
CONTAINER = re.compile(r"[0-9a-f]{64}")


class Refused(Exception):
    """What was asked for cannot be done; the text is for a person."""

    def __init__(self, message, remedy="", output=""):
        super().__init__(message)
        self.answer = {"error": {"message": message, "remedy": remedy, "output": output}}


# Files


def read_text(path):
    """Return a file as text, empty when there is none."""
    try:
        with open(path, "rb") as stream:
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def read_json(path):
    """Return a file's JSON object; an empty one when there is none, or something else."""
    try:
        found = json.loads(read_text(path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_whole(path, text, mode=0o600):
    """Write a file so that it is there whole or not at all."""
    new = "{}.{}.new".format(path, os.getpid())
    remove(new)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(handle, mode)
            stream.write(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)
            stream.flush()
            os.fsync(handle)
        os.rename(new, path)
    except BaseException:
        remove(new)
        raise


def write_json(path, value, mode=0o600):
    """Write a JSON document whole."""
    write_whole(path, json.dumps(value, sort_keys=True) + "\n", mode)


def remove(path):
    """Remove a file; return whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def names_in(folder):
    """Return the names in a folder, none when it is not there."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def remove_tree(path):
    """Remove a folder with all that is in it: by a program that no depth of folders, which jobs make, brings down."""
    if os.path.lexists(path):
        program(["/bin/rm", "-rf", "--", path], REMOVE_SECONDS)


def boot_id():
    """Return what tells this boot of the node from any other; of a node that is a container, its own."""
    return "{}.{}".format(read_text(PROC + "/sys/kernel/random/boot_id").strip(), init_ticks())


def boot_time():
    """Return when the node was booted, in seconds since the epoch."""
    found = re.search(r"^btime (\d+)", read_text(PROC + "/stat"), re.MULTILINE)
    return int(found.group(1)) + init_ticks() // os.sysconf("SC_CLK_TCK") if found else 0


def init_ticks():
    """Return when the first process began, in the kernel's ticks after its own beginning."""
    words = read_text(PROC + "/1/stat").rpartition(")")[2].split()
    return int(words[19]) if len(words) > 19 and words[19].isdigit() else 0


def stamp(seconds):
    """Return a time as the logs have it."""
    whole = int(seconds // 1)
    micro = min(int((seconds - whole) * 1e6), 999999)
    return "{}.{:06d}Z".format(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)), micro)


# Names and places


def job_name(request, key="name"):
    """Return a job's name, which becomes a part of paths."""
    name = request.get(key)
    if not isinstance(name, str) or not NAME.match(name):
        raise Refused("{!r} is no name of a job".format(name), "lower-case letters, digits and - are")
    return name


def number_of(request):
    """Return the number of an attempt."""
    attempt = request.get("attempt")
    if isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 1:
        raise Refused("{!r} is no number of an attempt".format(attempt))
    return attempt


def job_folder(name):
    """Return where a job is kept."""
    return os.path.join(ROOT, name)


def attempt_folder(name, attempt):
    """Return where an attempt is kept."""
    return os.path.join(ROOT, name, "attempts", str(attempt))


def attempts_of(name):
    """Return the numbers of a job's attempts here, in order."""
    return sorted(int(item) for item in names_in(os.path.join(ROOT, name, "attempts")) if item.isdigit())


def unit_name(name, attempt):
    """Return the name of the keeper's unit."""
    return "provision-job-{}-{}.service".format(name, attempt)


def known_job(name):
    """Return a job's folder, or refuse."""
    folder = job_folder(name)
    if not os.path.isdir(folder):
        raise Refused("this node knows no job {}".format(name))
    return folder


def make_folders():
    """Make the folders of all jobs."""
    for path in (ROOT, os.path.join(RUN, "leases")):
        if not os.path.isdir(path):
            os.makedirs(path, mode=0o700, exist_ok=True)
            os.chmod(path, 0o700)


def add_event(name, source, message, kind="Normal", when=None):
    """Append an event to a job's list; one write, so that events of two writers do not mix."""
    line = {"time": time.time() if when is None else when, "source": source, "type": kind, "message": message}
    path = os.path.join(ROOT, name, "events.jsonl")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)


# The docker engine, asked by its socket: starting its client would take longer than all else


def engine(method, path, timeout=ENGINE_SECONDS):
    """Return (HTTP status, body) of one question to docker's engine; OSError when it does not answer."""
    head, stream = engine_stream(method, path, timeout)
    try:
        body = stream.rest + b"".join(iter(lambda: stream.connection.recv(65536), b""))
    finally:
        stream.connection.close()
    return head, body


class Stream:
    """An answer of the engine of which the head was read."""

    def __init__(self, connection, rest):
        self.connection, self.rest = connection, rest


def engine_stream(method, path, timeout):
    """Ask the engine, and return the status and the answer to come; `timeout` is for each piece of it."""
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(DOCKER_SOCKET)
        lines = "{} {} HTTP/1.0\r\nHost: docker\r\nContent-Length: 0\r\n\r\n".format(method, path)
        connection.sendall(lines.encode())
        answer = b""
        piece = b" "
        while piece and b"\r\n\r\n" not in answer:
            piece = connection.recv(65536)
            answer += piece
        head, _, rest = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), Stream(connection, rest)
    except (ValueError, IndexError):
        connection.close()
        raise OSError(errno.EPROTO, "docker's engine broke off") from None
    except BaseException:
        connection.close()
        raise


def engine_json(path):
    """Return an object of the engine, None where it has none; OSError when it does not answer."""
    status, body = engine("GET", path)
    if status == 404:
        return None
    if status != 200:
        raise OSError(errno.EIO, "docker's engine: {}".format(engine_words(body)))
    try:
        return json.loads(body.decode(errors="replace"))
    except ValueError:
        raise OSError(errno.EPROTO, "docker's engine broke off") from None


def engine_words(body):
    """Return what an answer of the engine says that it refused."""
    try:
        return str(json.loads(body.decode(errors="replace"))["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:400]


def quoted(text):
    """Return a text as a part of an address."""
    plain = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/:@._-"
    return "".join(chr(byte) if byte in plain else "%{:02X}".format(byte) for byte in text.encode())


def job_containers(label="provision.job"):
    """Return all containers of jobs as the engine lists them; None when it does not answer."""
    filters = quoted(json.dumps({"label": [label]}))
    try:
        return engine_json("/containers/json?all=1&filters=" + filters) or []
    except OSError:
        return None


def labels_of(container):
    """Return (job, id, attempt) of a container by its labels."""
    labels = container.get("Labels") or {}
    return tuple(str(labels.get("provision." + key, "")) for key in ("job", "id", "attempt"))


def running_attempts(containers):
    """Return the (id, attempt) that have a running container."""
    return {labels_of(item)[1:] for item in containers if item.get("State") in ("running", "paused", "restarting")}


# Keepers


def keeper_holds(folder):
    """Return whether a living keeper has the lock of its attempt."""
    try:
        handle = os.open(os.path.join(folder, "keeper.lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def keepers(attempts):
    """Return which of some (name, attempt) have a keeper: one that lives, or one that systemd starts anew."""
    active, asked = set(), {}
    for name, attempt in attempts:
        folder = attempt_folder(name, attempt)
        if not os.path.exists(os.path.join(folder, "keeper.json")):
            continue
        if keeper_holds(folder):
            active.add((name, attempt))
        else:
            asked[unit_name(name, attempt)] = (name, attempt)
    if asked:
        code, out, _ = program(["systemctl", "show", "--property=Id,ActiveState", "--", *asked], 10)
        found = dict(re.findall(r"^Id=(.*)\nActiveState=(.*)$", out, re.MULTILINE)) if code == 0 else {}
        found.update((unit, state) for state, unit in re.findall(r"^ActiveState=(.*)\nId=(.*)$", out, re.MULTILINE))
        living = ("active", "activating", "reloading", "deactivating")
        active.update(attempt for unit, attempt in asked.items() if found.get(unit) in living)
    return active


def program(argv, seconds, env=None):
    """Run a program; return (exit code, its output, its errors). One that hangs is killed, and not waited for."""
    import subprocess

    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=dict(os.environ, LC_ALL="C", **(env or {})),
        )
    except OSError as problem:
        return 127, "", "{}: {}".format(argv[0], problem.strerror)
    return outcome(child, argv[0], time.monotonic() + seconds)


def outcome(child, title, deadline):
    """Wait for a program until a time."""
    import subprocess

    try:
        out, err = child.communicate(timeout=max(deadline - time.monotonic(), 0.05))
    except subprocess.TimeoutExpired:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            pass
        return 124, "", "{} did not end in time".format(title)
    return child.returncode, out.decode(errors="replace"), err.decode(errors="replace").strip()


def unwatched(active=None):
    """Yield (name, attempt, why) of each attempt that nothing watches over any more and that is not closed."""
    here = boot_id()
    open_ones = [
        (name, attempt)
        for name in job_names()
        for attempt in attempts_of(name)[-1:]
        if os.path.exists(os.path.join(attempt_folder(name, attempt), "keeper.json"))
    ]
    active = keepers(open_ones) if active is None else active
    for name, attempt in open_ones:
        path = os.path.join(attempt_folder(name, attempt), "keeper.json")
        told = read_json(path)
        if (name, attempt) in active or not told:
            continue
        node = told.get("node", "")
        if told.get("boot_id") != here:
            yield name, attempt, "node {} rebooted at {} during the job".format(node, stamp(boot_time())[:19] + "Z")
        elif time.time() - os.stat(path).st_mtime > START_SECONDS:
            yield name, attempt, "the keeper on node {} is gone, and so are its containers".format(node)


def close_unwatched(containers):
    """Write down how attempts ended that have no keeper and no running container, and take away what they left."""
    if containers is None:
        return
    running = running_attempts(containers)
    for name, attempt, why in list(unwatched()):
        told = read_json(os.path.join(attempt_folder(name, attempt), "keeper.json"))
        if (str(told.get("id")), str(attempt)) not in running:
            closed = close_attempt(name, attempt, {"status": "FAILED", "reason": why}, "Lost")
            if closed and told.get("boot_id") != boot_id() and told.get("clean") in ("All", "Running"):
                remove_containers(containers, told, attempt)


def remove_containers(containers, told, attempt):
    """Remove the containers of an attempt that a reboot has ended: no keeper is there to do so."""
    for item in containers:
        if labels_of(item) == (str(told.get("name")), str(told.get("id")), str(attempt)):
            try:
                engine("DELETE", "/containers/{}?force=1&v=1".format(item["Id"]))
            except OSError:
                return


def close_attempt(name, attempt, result, word):
    """End the record of an attempt without its keeper; a keeper that has begun meanwhile goes on."""
    folder = attempt_folder(name, attempt)
    try:
        handle = os.open(os.path.join(folder, "keeper.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        told = read_json(os.path.join(folder, "keeper.json"))
        for instance, record in instances_of(folder).items():
            if record.get("status") not in OVER:
                record.update(status=word, reason=result["reason"])
                write_json(os.path.join(folder, instance + ".json"), record)
        if not os.path.exists(os.path.join(folder, "result.json")):
            whole = {"exit_code": None, "first_failure": "", "first_rank": None, "ended": time.time()}
            whole.update(result, chief=bool(told.get("chief")))
            write_json(os.path.join(folder, "result.json"), whole)
            add_event(name, "node {}".format(told.get("node", "")), result["reason"], "Warning")
        take_away_secrets(folder)
        try:
            release_all(str(read_json(os.path.join(folder, "attempt.json")).get("id")), attempt)
        except Refused:
            pass  # what has a result loses its leases to the next that looks
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def take_away_secrets(folder):
    """Remove what an attempt needed and nobody may see: what the keeper was told, variables, private keys."""
    remove(os.path.join(folder, "keeper.json"))
    for item in names_in(folder):
        if item.startswith("env-") or item.endswith(".new"):
            remove(os.path.join(folder, item))
    remove(os.path.join(folder, "stop.json"))
    for item in ("ssh", "config", "programs"):
        remove_tree(os.path.join(folder, item))


# Leases


class Locked:
    """Holds the lock around every change of leases."""

    def __enter__(self):
        make_folders()
        self.handle = os.open(os.path.join(RUN, "jobs.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not locked_within(self.handle, LOCK_SECONDS):
            os.close(self.handle)
            raise Refused("another command has held the leases of this node for {} s".format(LOCK_SECONDS))
        return self

    def __exit__(self, *_):
        os.close(self.handle)


def locked_within(handle, seconds):
    """Wait for a lock; return whether we have it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def lease_path(name):
    """Return the file of a lease; the UUID of an old MIG instance has slashes."""
    return os.path.join(RUN, "leases", name.replace("%", "%25").replace("/", "%2F"))


def all_leases():
    """Return GPU or port -> its lease."""
    found = {}
    for item in names_in(os.path.join(RUN, "leases")):
        if not item.endswith(".new"):
            name = item.replace("%2F", "/").replace("%25", "%")
            found[name] = read_json(os.path.join(RUN, "leases", item))
    return found


def gpu_leases(leases):
    """Return those of GPUs."""
    return {name: lease for name, lease in leases.items() if not name.startswith(PORT)}


def write_lease(name, request, instance):
    """Write one lease down; the caller has the lock."""
    lease = {"job": request["job"], "id": request["id"], "attempt": request["attempt"], "instance": instance}
    write_json(lease_path(name), dict(lease, time=time.time(), monotonic=time.monotonic()))


def mine(lease, token, attempt):
    """Return whether a lease is that attempt's."""
    return str(lease.get("id")) == str(token) and str(lease.get("attempt")) == str(attempt)


def release_all(token, attempt=None):
    """Give back all leases of an attempt, or of a whole job with TensorBoard's port; return their names."""
    with Locked():
        held = all_leases().items()
        of_job = [(name, lease) for name, lease in held if str(lease.get("id")) == str(token)]
        names = [name for name, lease in of_job if attempt is None or mine(lease, token, attempt)]
        for name in names:
            remove(lease_path(name))
    return names


def doubtful(leases, containers):
    """Return (job, attempt) -> its leases, of attempts without a running container."""
    running, found = running_attempts(containers), {}
    for name, lease in leases.items():
        if (str(lease.get("id")), str(lease.get("attempt"))) not in running:
            job, attempt = str(lease.get("job")), str(lease.get("attempt"))
            known = (job, int(attempt)) if NAME.match(job) and attempt.isdigit() else ("", 0)
            found.setdefault(known, []).append(name)
    return found


def keepers_of_leases(containers):
    """Return which (job, attempt) that have leases and no container have a keeper: systemd is asked without the lock.

    Whoever takes a lease or begins to keep it after that has a lease so new that it stands by itself.
    """
    return keepers([one for one in doubtful(all_leases(), containers) if one[0]]) if containers is not None else set()


def reaped(containers, living):
    """Give back the leases of attempts that are over, or that never came to be; return the others. Under the lock.

    Args:
        containers: as the engine lists them; None when it does not answer, and then nothing is given back.
        living: the (job, attempt) that had a keeper a moment ago.
    """
    leases = all_leases()
    for one, names in doubtful(leases, containers).items() if containers is not None else ():
        held = one[0] and (one in living or keeper_holds(attempt_folder(*one)))
        for name in names:
            if not held and not stands(leases[name], *one):
                remove(lease_path(name))
                del leases[name]
    return leases


def stands(lease, job, attempt):
    """Return whether a lease without a keeper and without a container may still become a job's."""
    folder = attempt_folder(job, attempt) if job else ""
    record = read_json(os.path.join(folder, "attempt.json")) if folder else {}
    prepared = bool(record) and str(record.get("id")) == str(lease.get("id"))
    if prepared and os.path.exists(os.path.join(folder, "result.json")):
        return False
    return is_fresh(lease)


def is_fresh(lease):
    """Return whether a lease was taken or renewed a short while ago, since the node was booted."""
    try:
        age = time.monotonic() - float(lease.get("monotonic", -1e9))
    except (TypeError, ValueError):
        return False
    return 0 <= age < HOLD_SECONDS


def reap_old():
    """Give back what nobody holds any more; where all old leases have a keeper, docker's engine is not even asked."""
    old = {name: lease for name, lease in all_leases().items() if not is_fresh(lease)}
    if any(not one[0] or not keeper_holds(attempt_folder(*one)) for one in doubtful(old, ())):
        containers = job_containers()
        living = keepers_of_leases(containers)
        with Locked():
            reaped(containers, living)


# GPUs


class Gpus:
    """The node's GPUs and who uses them; its programs run beside what is asked between `__init__` and `answer`."""

    def __init__(self):
        self.deadline = time.monotonic() + SMI_SECONDS
        self.children = {}
        if not any(os.access(os.path.join(folder, "nvidia-smi"), os.X_OK) for folder in os.get_exec_path()):
            return
        import subprocess

        form = "--format=csv,noheader,nounits"
        wanted = {
            "gpus": ["--query-gpu=index,uuid,name,memory.total", form],
            "uses": ["--query-compute-apps=gpu_uuid,pid", form],
        }
        if has_mig():
            wanted["list"] = ["-L"]
        for title, words in wanted.items():
            self.children[title] = subprocess.Popen(
                ["nvidia-smi", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=dict(os.environ, LC_ALL="C"),
            )

    def answer(self, containers):
        """Return ``gpus`` (None when they are not known), ``gpu_error`` and ``foreign``."""
        said = {title: outcome(child, "nvidia-smi", self.deadline) for title, child in self.children.items()}
        if not said:
            error = "the driver is loaded, but there is no nvidia-smi" if has_driver() else ""
            return {"gpus": None if error else [], "gpu_error": error, "foreign": {}}
        for code, out, err in said.values():
            if code and "No devices were found" in out + err:
                return {"gpus": [], "gpu_error": "", "foreign": {}}
            if code:
                return {
                    "gpus": None,
                    "gpu_error": (err or out.strip() or "nvidia-smi: exit {}".format(code))[-400:],
                    "foreign": {},
                }
        gpus = gpu_rows(said["gpus"][1])
        for gpu in gpus:
            gpu["mig"] = mig_of(said.get("list", (0, "", ""))[1], gpu["uuid"])
        ours = {item["Id"]: labels_of(item)[1:] for item in containers or () if isinstance(item.get("Id"), str)}
        return {"gpus": gpus, "gpu_error": "", "foreign": foreign_uses(said["uses"][1], gpus, ours)}


def has_driver():
    """Return whether NVIDIA's kernel module is loaded."""
    return os.path.exists(PROC + "/driver/nvidia/version")


def has_mig():
    """Return whether a GPU of the node is cut into instances."""
    import glob

    return bool(glob.glob(PROC + "/driver/nvidia/capabilities/gpu*/mig/gi*"))


def gpu_rows(text):
    """Return the GPUs that nvidia-smi lists; memory in MiB."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) >= 4 and words[0].isdigit():
            memory = int(words[-1]) if words[-1].isdigit() else 0
            name = ", ".join(words[2:-1])
            found.append({"index": int(words[0]), "uuid": words[1], "name": name, "memory": memory, "mig": []})
    return found


def mig_of(text, uuid):
    """Return the UUIDs of a GPU's MIG instances in what ``nvidia-smi -L`` prints."""
    found, inside = [], False
    for line in text.splitlines():
        if line.startswith("GPU "):
            inside = uuid in line
        elif inside:
            found += re.findall(r"UUID: (MIG-[^)\s]+)\)", line)
    return found


def foreign_uses(text, gpus, ours):
    """Return UUID -> a process on it that is not in a container of the attempt that has a lease of it.

    A process is told with its GPU alone, so that one on an instance of MIG speaks for all instances of that GPU.

    Args:
        text: GPU and process of each line, as nvidia-smi tells them.
        gpus: as `gpu_rows` returns them.
        ours: container -> (id, attempt) of those of jobs.
    """
    parts = {gpu["uuid"]: [gpu["uuid"], *gpu["mig"]] for gpu in gpus}
    found, leases = {}, all_leases()
    for line in text.splitlines():
        uuid, _, pid = (word.strip() for word in line.partition(","))
        if not pid.isdigit() or not os.path.isdir("{}/{}".format(PROC, pid)):
            continue
        inside = CONTAINER.findall(read_text("{}/{}/cgroup".format(PROC, pid)))
        users = [ours[container] for container in inside if container in ours]
        family = parts.get(uuid, [uuid])
        if not any(part in leases and mine(leases[part], *user) for part in family for user in users):
            for part in family:
                found.setdefault(part, who(pid))
    return found


def who(pid):
    """Return a process by program, number and account; never its arguments, which can hold passwords."""
    import pwd

    try:
        owner = os.stat("{}/{}".format(PROC, pid)).st_uid
        try:
            owner = pwd.getpwuid(owner).pw_name
        except KeyError:
            owner = "uid {}".format(owner)
    except OSError:
        owner = "unknown"
    comm = read_text("{}/{}/comm".format(PROC, pid)).strip() or "unknown program"
    return "{} (pid {} of {})".format(comm, pid, owner)


# Requests about names, the queue and secrets


def reserve(request):
    """Take a job's name and write the job down; a name that is taken stays as it is.

    When it was submitted is told by this node's clock, which is one for all who submit, and under a lock: whoever sees
    a job sees all that came before it.
    """
    import uuid

    name = job_name(request)
    make_folders()
    sweep()
    new = os.path.join(ROOT, ".new-{}-{}".format(name, uuid.uuid4().hex))
    os.mkdir(new, 0o700)
    try:
        write_json(os.path.join(new, "queue.json"), dict(request.get("queue") or {}, time=time.time()))
        if any((request.get("secrets") or {}).values()):
            write_json(os.path.join(new, "secrets.json"), request["secrets"])
        with Locked():
            write_json(os.path.join(new, "job.json"), dict(request["job"], submitted=time.time()))
            os.rename(new, job_folder(name))
    except OSError as problem:
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return {"reserved": False, "job": brief_report(name)}
    finally:
        remove_tree(new)
    return {"reserved": True}


def sweep():
    """Remove what was never finished, or not wholly removed; what goes meanwhile by other hands is fine."""
    for item in names_in(ROOT):
        path = os.path.join(ROOT, item)
        try:
            old = item.startswith(".new-") and time.time() - os.stat(path).st_mtime > 3600
        except OSError:
            continue
        if old:
            remove_tree(path)


def hold_queue(request):
    """Hold the lock of whoever starts jobs until our input ends."""
    make_folders()
    path = os.path.join(RUN, "queue.lock")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not locked_within(handle, float(request.get("seconds") or 0)):
        by = read_json(path)
        since = by.get("monotonic")
        seconds = int(time.monotonic() - since) if isinstance(since, (int, float)) else None
        return {"held": False, "by": {"who": str(by.get("who", "")), "seconds": seconds, "time": by.get("time")}}
    told = {"who": str(request.get("who", "")), "time": time.time(), "monotonic": time.monotonic()}
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(told).encode(), 0)
    print(json.dumps({"held": True}), flush=True)
    wait_for_end(BEAT_SECONDS if request.get("beats") else None)
    return None


def wait_for_end(silence):
    """Wait until our input ends, or nothing came by it for so many seconds; None: for ever."""
    import select

    while select.select([0], [], [], silence)[0]:
        if not os.read(0, 4096):
            return


def queue(request):
    """Write down how a job stands in the queue; ``over`` takes its secrets away, ``secrets`` puts them back.

    With ``if_id``, ``if_state`` or ``if_attempt`` only where it stands so until now.
    """
    name = job_name(request)
    folder = known_job(name)
    with QueueLock(folder):
        before = read_json(os.path.join(folder, "queue.json"))
        if not stands_so(request, before, read_json(os.path.join(folder, "job.json"))):
            return {"written": False, "queue": before}
        now = dict(before if request.get("merge") else {}, **request["queue"])
        write_json(os.path.join(folder, "queue.json"), dict(now, time=time.time()))
    if request.get("event"):
        event(request)
    if any((request.get("secrets") or {}).values()):
        write_json(os.path.join(folder, "secrets.json"), request["secrets"])
    if request.get("over"):
        remove(os.path.join(folder, "secrets.json"))
    return {"written": True}


class QueueLock:
    """Holds one job's queue.json against other writers; the lock is of its folder."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        self.handle = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        if not locked_within(self.handle, LOCK_SECONDS):
            os.close(self.handle)
            raise Refused("another command has held the job's place in the queue for {} s".format(LOCK_SECONDS))
        return self

    def __exit__(self, *_):
        os.close(self.handle)


def stands_so(request, queue, job):
    """Return whether a job stands in the queue as a request takes it to."""
    if request.get("if_id") is not None and str(job.get("id")) != str(request["if_id"]):
        return False
    if request.get("if_state") is not None and queue.get("state") not in request["if_state"]:
        return False
    return request.get("if_attempt") is None or int(queue.get("attempt") or 0) == int(request["if_attempt"])


def secrets(request):
    """Return a job's secrets, none when it had none or is over."""
    return read_json(os.path.join(known_job(job_name(request)), "secrets.json"))


def event(request):
    """Append an event."""
    name, told = job_name(request), request["event"]
    known_job(name)
    kind = "Warning" if told.get("type") == "Warning" else "Normal"
    add_event(name, str(told.get("source", "")), str(told.get("message", "")), kind, told.get("time"))
    return {"written": True}


def drain(request):
    """Take no new jobs, or with an empty reason take them again."""
    make_folders()
    path = os.path.join(ROOT, ".drained")
    if request.get("reason"):
        write_whole(path, str(request["reason"]) + "\n")
    else:
        remove(path)
    return {"drained": drained()}


def drained():
    """Return why the node takes no new jobs, empty when it does."""
    return read_text(os.path.join(ROOT, ".drained")).strip()


# Requests about what there is


def look(request):
    """Return what a node has for jobs, and what it knows of them."""
    gpus = Gpus()
    containers = job_containers()
    close_unwatched(containers)
    living = keepers_of_leases(containers)
    with Locked():
        leases = reaped(containers, living)
    found = reports({"names": request.get("names"), "brief": request.get("brief", True)})
    found.update(gpus.answer(containers))
    ports = {name[len(PORT) :]: lease for name, lease in leases.items() if name.startswith(PORT)}
    waits = {job["name"]: job["queue"] for job in found["jobs"] if job["queue"]}
    found.update(leases=gpu_leases(leases), ports=ports, cpus=cpus(), drained=drained(), queue=waits)
    found["docker_error"] = "" if containers is not None else "docker's engine does not answer"
    if request.get("topology"):
        found["topology"] = program(["nvidia-smi", "topo", "-m"], SMI_SECONDS)[1]
    return found


def cpus():
    """Return how many CPUs there are for jobs."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return os.cpu_count() or 1


def job_names():
    """Return the names of the jobs that this node knows."""
    return [item for item in names_in(ROOT) if NAME.match(item)]


def reports(request):
    """Return what this node knows of its jobs."""
    names = request.get("names")
    known = job_names() if names is None else [name for name in names if isinstance(name, str) and NAME.match(name)]
    open_ones, found, here = [], [], boot_id()
    for name in known:
        told = brief_report(name) if request.get("brief") else full_report(name)
        if told:
            told["boot_id"] = here
            found.append(told)
            if told.pop("open"):
                open_ones.append((name, told["attempt"]))
    active = keepers(open_ones)
    for told in found:
        without = "gone" if told.pop("begun") or told["result"] else "none"
        told["keeper"] = "active" if (told["name"], told["attempt"]) in active else without
    return {"boot_id": here, "now": time.time(), "jobs": found, "leases": gpu_leases(all_leases())}


def report(request):
    """Return what this node knows of its jobs, after it has closed those that nothing watches over any more."""
    if next(unwatched(), None):
        close_unwatched(job_containers())
    reap_old()
    return reports(request)


def brief_report(name):
    """Return a job without what only a look at it alone needs; nothing where there is none."""
    told = full_report(name, brief=True)
    if told:
        spec = told["spec"]
        told["spec"] = {key: spec[key] for key in BRIEF if spec.get(key)}
    return told


def full_report(name, *, brief=False):
    """Return all that this node knows of a job, nothing where there is none."""
    folder = job_folder(name)
    job = read_json(os.path.join(folder, "job.json"))
    if not job:
        return {}
    attempts = attempts_of(name)
    attempt = attempts[-1] if attempts else 0
    there = attempt_folder(name, attempt)
    names = set(names_in(there)) if attempt else set()
    told = {
        "name": name,
        "id": job.get("id"),
        "owner": job.get("owner"),
        "submitted": job.get("submitted"),
        "spec": job.get("spec") if isinstance(job.get("spec"), dict) else {},
        "queue": read_json(os.path.join(folder, "queue.json")),
        "attempt": attempt,
        "attempt_record": read_json(os.path.join(there, "attempt.json")) if attempt else {},
        "instances": instances_of(there, names),
        "result": (read_json(os.path.join(there, "result.json")) or None) if "result.json" in names else None,
        "open": "keeper.json" in names,
        "begun": "state.json" in names,
    }
    if not brief:
        told["events"] = events_of(name)
        told["attempts"] = attempts
    return told


def events_of(name):
    """Return a job's events; a line that was cut off is left out."""
    found = []
    for line in read_text(os.path.join(ROOT, name, "events.jsonl")).splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def instances_of(folder, names=None):
    """Return instance -> its record, of those that live on this node."""
    found = {}
    for item in sorted(names_in(folder) if names is None else names):
        instance, ending = os.path.splitext(item)
        if ending == ".json" and instance not in NO_INSTANCES:
            found[instance] = read_json(os.path.join(folder, item))
    return found


# Requests about leases


def lease(request):
    """Lease GPUs to a job's instances: all of them, or none."""
    job, attempt, wanted = job_name(request, "job"), number_of(request), request["leases"]
    if drained() and not request.get("force"):
        raise Refused("the node is drained: {}".format(drained()), "`provision node resume` lets it take jobs again")
    if not wanted:
        return {"taken": {}}
    gpus, containers = Gpus(), job_containers()
    seen = gpus.answer(containers)
    if seen["gpus"] is None:
        raise Refused("what the GPUs are doing is not known: {}".format(seen["gpu_error"]))
    family = families(seen["gpus"])
    unknown = sorted(set(wanted) - set(family))
    if unknown:
        raise Refused("there is no GPU {} on this node (any more)".format(unknown[0]))
    living = keepers_of_leases(containers)
    with Locked():
        leases = {
            name: held for name, held in reaped(containers, living).items() if not mine(held, request["id"], attempt)
        }
        taken = {uuid: held for uuid in wanted for held in [taken_by(uuid, family, leases, seen["foreign"])] if held}
        for uuid, instance in sorted(wanted.items()) if not taken else ():
            write_lease(uuid, {"job": job, "id": request["id"], "attempt": attempt}, instance)
    return {"taken": taken}


def hold(request):
    """Lease GPUs, the first ``count`` of this node unless ``leases`` names them, for as long as our input is open.

    Then, when no process carries the job's mark any more (its supervisor may still end it), they are given back.
    """
    if not request.get("leases"):
        gpus = Gpus().answer(job_containers())["gpus"] or []
        first = sorted(gpus, key=lambda gpu: gpu["index"])[: int(request.get("count") or 0)]
        request = dict(request, leases={gpu["uuid"]: "" for gpu in first})
    answer = lease(request)
    print(json.dumps(answer), flush=True)
    if answer["taken"]:
        return
    renewal = Renewal(request["id"], number_of(request))
    try:
        while os.read(0, 4096):
            pass
        deadline = time.monotonic() + LINGER_SECONDS
        while time.monotonic() < deadline and is_marked(str(request["job"])):
            time.sleep(0.2)
    finally:
        renewal.end()
        release_all(request["id"], number_of(request))
    return


def is_marked(job):
    """Return whether a process of a job that `provision run` has started is left on this node."""
    mark = "PROVISION_JOB={}".format(job).encode()
    for pid in names_in(PROC):
        if pid.isdigit():
            try:
                with open("{}/{}/environ".format(PROC, pid), "rb") as stream:
                    if mark in stream.read().split(b"\0"):
                        return True
            except OSError:
                continue
    return False


def taken_by(uuid, family, leases, foreign):
    """Return whose a GPU is: the lease of another job, or a process of others; None when it is free."""
    held = next((leases[other] for other in family[uuid] if other in leases), None)
    return held or ({"job": foreign[uuid], "foreign": foreign[uuid]} if uuid in foreign else None)


def families(gpus):
    """Return UUID -> all that cannot be leased beside it: itself, and for MIG the GPU and its instances."""
    found = {}
    for gpu in gpus:
        found[gpu["uuid"]] = [gpu["uuid"], *gpu["mig"]]
        for part in gpu["mig"]:
            found[part] = [part, gpu["uuid"]]
    return found


def renew(request):
    """Keep the leases that an attempt has fresh; none is taken."""
    return {"renewed": renew_leases(request["id"], number_of(request), job_name(request, "job"))}


def renew_leases(token, attempt, job=None):
    """Make the leases of an attempt (and of that job, where it is named) as new; return how many there are."""
    with Locked():
        names = {name: held for name, held in all_leases().items() if mine(held, token, attempt)}
        names = {name: held for name, held in names.items() if job in (None, held.get("job"))}
        for name, held in names.items():
            write_json(lease_path(name), dict(held, monotonic=time.monotonic()))
    return len(names)


def release(request):
    """Give back an attempt's leases, and take away what was prepared for it; not while it runs."""
    job, attempt = job_name(request, "job"), number_of(request)
    if keepers([(job, attempt)]):
        raise Refused("attempt {} of {} runs on this node".format(attempt, job), "stop it")
    folder = attempt_folder(job, attempt)
    if str(read_json(os.path.join(folder, "attempt.json")).get("id")) == str(request["id"]):
        take_away_secrets(folder)
    names = release_all(request["id"], attempt)
    return {"released": [name for name in names if not name.startswith(PORT)]}


# Requests that make ready and start


def prepare(request):
    """Make everything ready for an attempt: folders, images, keys, ports."""
    name, attempt = job_name(request), number_of(request)
    record = request["attempt_record"]
    look_for(request.get("data") or [], request.get("free_disk") or 0)
    folder = new_attempt(name, attempt, request["job"], record)
    renewal = Renewal(request["job"]["id"], attempt)
    try:
        images = {
            reference: ready_image(reference, policy, request.get("registry") or {})
            for reference, policy in sorted((request.get("images") or {}).items())
        }
    finally:
        renewal.end()
    keys = make_keys(folder, name, request.get("uid") or user_of(images)) if request.get("mpi") else {}
    for image in images.values():
        del image["user"]
    who_for = {"job": name, "id": request["job"]["id"], "attempt": attempt}
    ports = lease_ports(who_for, int(request.get("ports") or 0))
    return {"images": images, "keys": keys, "ports": ports}


def look_for(data, free_disk):
    """Refuse where data is missing, or space."""
    for item in data:
        if not os.path.isdir(item["path"]):
            raise Refused(
                "the data {} should be at {}, where there is no folder".format(item["name"], item["path"]),
                "mount it there, or leave this node out",
            )
    free = os.statvfs(os.path.dirname(ROOT) if os.path.isdir(os.path.dirname(ROOT)) else "/")
    there = free.f_bavail * free.f_frsize
    if there < free_disk:
        short = "{:.1f} GiB free for jobs, where {:.1f} are wanted".format(there / 2**30, free_disk / 2**30)
        raise Refused(short, "`docker system prune` and `provision prune` make room")


def new_attempt(name, attempt, job, record):
    """Make the folder of an attempt and its first records; one that was started is left alone."""
    make_folders()
    known = read_json(os.path.join(job_folder(name), "job.json"))
    if known and str(known.get("id")) != str(job.get("id")):
        raise Refused("there is another job {} on this node".format(name), "provision delete {}".format(name))
    folder = attempt_folder(name, attempt)
    for item in ("result.json", "keeper.json"):
        if os.path.exists(os.path.join(folder, item)):
            raise Refused("attempt {} of {} has been started before".format(attempt, name))
    for path in (job_folder(name), os.path.dirname(folder), folder):
        if not os.path.isdir(path):
            os.makedirs(path, mode=0o700, exist_ok=True)
    mount = os.path.join(folder, "mount")
    os.makedirs(mount, exist_ok=True)
    os.chmod(mount, 0o755)  # noqa: S103 - read by the job's own account, and nothing in it is secret
    if not known:
        write_json(os.path.join(job_folder(name), "job.json"), job)
    for seat in record.get("seats") or ():
        if seat.get("node") == record.get("node") and FILE.match(str(seat.get("instance"))):
            write_json(os.path.join(folder, seat["instance"] + ".json"), new_record(seat["instance"]))
    write_json(os.path.join(folder, "attempt.json"), dict(record, id=job.get("id"), attempt=attempt, boot_id=boot_id()))
    return folder


def new_record(instance):
    """Return the record of an instance that has not begun."""
    return {
        "instance": instance,
        "status": "Pending",
        "exit_code": None,
        "signal": None,
        "reason": "",
        "started": 0.0,
        "ended": 0.0,
        "container_id": "",
        "last_lines": [],
    }


class Renewal:
    """Keeps an attempt's leases fresh while an image comes."""

    def __init__(self, token, attempt):
        import threading

        self.over = threading.Event()
        self.thread = threading.Thread(target=self._renew, args=(token, attempt), daemon=True)
        self.thread.start()

    def _renew(self, token, attempt):
        while True:
            try:
                renew_leases(token, attempt)
            except (Refused, OSError):  # the next time, perhaps: they stand for longer than one
                pass
            if self.over.wait(HOLD_SECONDS / 4):
                return

    def end(self):
        """Keep them no longer."""
        self.over.set()
        self.thread.join()


def ready_image(reference, policy, registry):
    """Have an image as the policy says; return its id and digest."""
    try:
        found = engine_json("/images/{}/json".format(quoted(reference)))
    except OSError as problem:
        raise Refused("docker's engine does not answer: {}".format(problem), "systemctl status docker") from None
    if policy == "always" or (found is None and policy != "never"):
        pull(reference, registry)
        found = engine_json("/images/{}/json".format(quoted(reference)))
    if found is None:
        raise Refused("there is no image {} on this node".format(reference), "pull it, or submit with --pull missing")
    digests = [item.rpartition("@")[2] for item in found.get("RepoDigests") or ()]
    user = str((found.get("Config") or {}).get("User") or "")
    return {"id": found.get("Id", ""), "digest": digests[0] if digests else "", "user": user}


def user_of(images):
    """Return the UID[:GID] that images run as by themselves, empty for root: the keys in their containers are its."""
    users = {image["user"] for image in images.values()} - {"", "root", "root:root"}
    for user in sorted(users):
        if not re.match(r"\d+(:\d+)?\Z", user):
            raise Refused(
                "the image runs as {!r}, and only a number says whose the keys of mpi are to be".format(user),
                "submit with --user UID:GID",
            )
    if len(users) > 1:
        raise Refused("the images run as several accounts: {}".format(", ".join(sorted(users))), "submit with --user")
    return users.pop() if users else ""


def pull(reference, registry):
    """Pull an image; what logs in to its registry is in a folder that goes again."""
    import base64
    import tempfile

    words, folder = ["docker"], ""
    host = reference.partition("/")[0] if re.match(r"[^/]*[.:][^/]*/|localhost/", reference) else "docker.io"
    if registry.get("username") and registry.get("server", host) == host:
        login = "{}:{}".format(registry["username"], registry.get("password", "")).encode()
        folder = tempfile.mkdtemp(dir=RUN)
        place = "https://index.docker.io/v1/" if host == "docker.io" else host
        auths = {place: {"auth": base64.b64encode(login).decode()}}
        write_json(os.path.join(folder, "config.json"), {"auths": auths})
        words += ["--config", folder]
    try:
        code, out, err = program([*words, "pull", "--quiet", "--", reference], 6 * 3600)
    finally:
        if folder:
            remove_tree(folder)
    if code:
        last = "\n".join((err or out).splitlines()[-6:])
        raise Refused("the image {} could not be pulled".format(reference), "is it there, and may this node?", last)


def make_keys(folder, name, uid):
    """Make the keys of an attempt's containers; the public halves are returned, the others stay here."""
    user, group = account(uid)
    there = os.path.join(folder, "ssh")
    remove_tree(there)
    os.mkdir(there, 0o700)
    found = {}
    for kind in ("client", "host"):
        path = os.path.join(there, kind)
        code, out, err = program(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "job " + name, "-f", path], 30)
        if code:
            raise Refused("ssh-keygen made no key", "install OpenSSH's client on the node", err or out)
        found[kind] = read_text(path + ".pub").strip()
        for item in (path, path + ".pub"):
            os.chmod(item, 0o600)
            os.chown(item, user, group)
    os.chown(there, user, group)
    return found


def account(uid):
    """Return (user, group) of ``UID[:GID]``; root's where nothing is said."""
    words = str(uid if uid not in (None, "") else 0).split(":")
    if not all(word.isdigit() for word in words) or len(words) > 2:
        raise Refused("{!r} is no UID:GID".format(uid))
    return int(words[0]), int(words[-1])


def lease_ports(request, count):
    """Lease ports of this node on which nobody listens."""
    import random

    ports = []
    with Locked():
        leases = all_leases()
        low, high = PORTS
        first = random.randrange(low, high)  # noqa: S311 - where to begin, no secret
        for step in range(high - low):
            if len(ports) == count:
                break
            port = low + (first - low + step) % (high - low)
            if PORT + str(port) not in leases and is_free(port):
                write_lease(PORT + str(port), request, "")
                ports.append(port)
    if len(ports) < count:
        raise Refused("there are no free ports from {} to {}".format(*PORTS))
    return ports


def is_free(port):
    """Return whether nobody listens on a port, on any address."""
    import socket

    for family, address in ((socket.AF_INET, ""), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as problem:
            if problem.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                return False
    return True


def start(request):
    """Start the keeper of an attempt that was prepared; return once it has read what it is told."""
    name, attempt = job_name(request), number_of(request)
    folder = attempt_folder(name, attempt)
    record = read_json(os.path.join(folder, "attempt.json"))
    told = dict(request["keeper"], boot_id=boot_id(), attempt=attempt, name=name)
    if not record or str(record.get("id")) != str(told.get("id")):
        raise Refused("attempt {} of {} was not prepared on this node".format(attempt, name))
    if os.path.exists(os.path.join(folder, "result.json")):
        raise Refused("attempt {} of {} is over".format(attempt, name))
    if record.get("boot_id") != told["boot_id"]:
        raise Refused("the node was rebooted while the job was made ready", "start it again")
    if keepers([(name, attempt)]):
        return {"unit": unit_name(name, attempt)}
    hold_all(told)
    write_files(os.path.join(folder, "mount"), request.get("files") or {}, 0o644)
    for item, files, mode in (
        ("programs", request["programs"], 0o600),
        ("config", request.get("configs") or {}, 0o644),
    ):
        os.makedirs(os.path.join(folder, item), mode=0o700, exist_ok=True)
        write_files(os.path.join(folder, item), files, mode)
    write_json(os.path.join(folder, "attempt.json"), dict(record, **(request.get("record") or {})))
    write_json(os.path.join(folder, "keeper.json"), told)
    try:
        run_keeper(name, attempt, folder)
    except BaseException:
        if not keeper_holds(folder):
            remove(os.path.join(folder, "keeper.json"))
        raise
    return {"unit": unit_name(name, attempt)}


def write_files(folder, files, mode):
    """Write files into a folder; a name is no path."""
    for item, content in files.items():
        if not FILE.match(item):
            raise Refused("{!r} is no name of a file".format(item))
        write_whole(os.path.join(folder, item), content, mode)


def hold_all(told):
    """See to it that all leases of an attempt are still its own: one that was given back meanwhile is taken again."""
    request = {"job": told["name"], "id": told["id"], "attempt": told["attempt"]}
    with Locked():
        leases = all_leases()
        for name in told.get("leases") or ():
            held = leases.get(name)
            if held is not None and not mine(held, told["id"], told["attempt"]):
                raise Refused("{} was taken by {} meanwhile".format(name, held.get("job")))
        for name in told.get("leases") or ():
            if name not in leases:
                write_lease(name, request, "")


def run_keeper(name, attempt, folder):
    """Start the keeper as a unit of its own, which outlives our SSH session, and wait until it has begun."""
    unit = unit_name(name, attempt)
    argv = [sys.executable or "/usr/bin/python3", "-I", os.path.join(folder, "programs", "keeper.py"), folder]
    words = ["systemd-run", "--quiet", "--collect", "--unit", unit, "--description", "provision job " + name]
    words += ["--property=" + setting for setting in UNIT_SETTINGS]
    words += ["--setenv={}={}".format(key, os.environ[key]) for key in FOR_TESTS if os.environ.get(key)]
    code, out, err = program([*words, "--", *argv], 60)
    if code and re.search(r"[Uu]nknown assignment|unrecognized option|[Cc]annot set property", err):
        code, out, err = start_unit_file(unit, argv)
    if code:
        raise Refused("systemd did not start the keeper of the job", "systemctl status " + unit, err or out)
    deadline = time.monotonic() + 20
    while not os.path.exists(os.path.join(folder, "state.json")):
        if time.monotonic() > deadline:
            _, out, _ = program(["journalctl", "--no-pager", "-n", "12", "-u", unit], 10)
            said = read_text(os.path.join(folder, "keeper.out")) or out
            raise Refused("the keeper of the job did not begin", "systemctl status " + unit, said[-2000:])
        time.sleep(0.02)


UNIT_SETTINGS = (
    "KillMode=process",
    "Restart=on-failure",
    "RestartSec=1",
    "StartLimitIntervalSec=300",
    "StartLimitBurst=20",
    "TimeoutStopSec=120",
    "OOMScoreAdjust=-500",
    "After=docker.service",  # so that a shutdown lets the keeper end its containers while docker still answers
)


def start_unit_file(unit, argv):
    """Start the keeper where systemd is so old that a transient unit cannot be started anew when it fails."""
    others = ("StartLimit", "OOMScoreAdjust", "After")
    lines = ["[Unit]", "Description=provision job", "After=docker.service", "[Service]"]
    lines += [setting for setting in UNIT_SETTINGS if not setting.startswith(others)]
    lines += ["StartLimitInterval=300", "StartLimitBurst=20", "ExecStart=" + " ".join(argv)]
    write_whole(os.path.join(UNIT_FILES, unit), "\n".join(lines) + "\n", 0o644)
    return program(["systemctl", "start", unit], 60)


# The request for output


def logs(request):
    """Write an instance's lines to standard output; with ``follow`` until it has ended and everything is out."""
    name = job_name(request)
    known_job(name)
    attempts = attempts_of(name)
    attempt = request.get("attempt") or (attempts[-1] if attempts else 0)
    folder = attempt_folder(name, attempt)
    instance = str(request.get("instance"))
    record = read_json(os.path.join(folder, instance + ".json")) if FILE.match(instance) else {}
    if attempt not in attempts or not record:
        there = ", ".join(instances_of(folder)) or "none"
        message = "attempt {} of {} has no instance {} on this node".format(attempt, name, instance)
        raise Refused(message, "its instances here: {}".format(there))
    output = Output(request)
    path = log_path(folder, record)
    if request.get("follow"):
        output.follow(folder, instance, (name, attempt))
    else:
        output.begin(path)


def log_path(folder, record):
    """Return the file with an instance's output; instances of one container share it."""
    log = str(record.get("log") or record["instance"])
    return os.path.join(folder, (log if FILE.match(log) else record["instance"]) + ".log")


class Output:
    """Writes lines of a log as they were asked for."""

    def __init__(self, request):
        tail = request.get("tail", -1)
        self.tail = -1 if tail is None else int(tail)
        self.since = stamp(float(request["since"])) if request.get("since") else ""
        self.timestamps = bool(request.get("timestamps"))
        self.position = 0
        self.rest = b""

    def begin(self, path):
        """Write what is there."""
        try:
            stream = open(path, "rb")  # noqa: SIM115 - closed below
        except OSError:
            return
        with stream:
            if self.tail >= 0:
                self.write(self._last(stream))
            else:
                self.copy(stream)
            self.position = stream.tell()

    def copy(self, stream):
        """Write from where the file stands to its end; return whether there was anything."""
        found = False
        while True:
            piece = stream.read(1 << 18)
            if not piece:
                return found
            found = True
            lines = (self.rest + piece).split(b"\n")
            self.rest = lines.pop()
            self.write(lines)

    def _last(self, stream):
        """Return the last lines, and stand behind them."""
        if self.since:
            import collections

            last = collections.deque(maxlen=self.tail)
            for line in stream:
                if not line.endswith(b"\n"):
                    self.rest = line
                elif self._fits(line):
                    last.append(line[:-1])
            return list(last)
        end = at = stream.seek(0, os.SEEK_END)
        data = b""
        while at and data.count(b"\n") <= self.tail:
            step = min(at, 1 << 16)
            at -= step
            stream.seek(at)
            data = stream.read(step) + data
        stream.seek(end)
        lines = data.split(b"\n")
        self.rest = lines.pop()
        return lines[-self.tail :] if self.tail else []

    def _fits(self, line):
        return not self.since or line[:STAMP].decode(errors="replace") >= self.since

    def write(self, lines):
        """Write lines of the log as they are wanted."""
        fitting = [line for line in lines if self._fits(line)] if self.since else lines
        if self.timestamps:
            data = b"".join(line[: STAMP + 1] + line[PREFIX:] + b"\n" for line in fitting)
        else:
            data = b"".join(line[PREFIX:] + b"\n" for line in fitting)
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]

    def follow(self, folder, instance, attempt):
        """Write what is there and what comes; whoever asked may go away at any time."""
        import select

        reader = select.poll()
        reader.register(1, 0)
        path, first, checked = "", True, time.monotonic()
        while True:
            record = read_json(os.path.join(folder, instance + ".json"))
            over = record.get("status") in OVER or os.path.exists(os.path.join(folder, "result.json"))
            if time.monotonic() - checked > 5 and not over:
                checked = time.monotonic()
                over = not os.path.isdir(folder) or self._unwatched(folder, attempt)
            path = log_path(folder, record) if record else path
            moved = self._more(path, first)
            first = first and not os.path.exists(path)
            if over and not moved:
                return
            if reader.poll(0 if moved else FOLLOW_MILLISECONDS) and not moved:
                return

    @staticmethod
    def _unwatched(folder, attempt):
        return os.path.exists(os.path.join(folder, "keeper.json")) and not keepers([attempt])

    def _more(self, path, first):
        if first:
            self.begin(path)
            return self.position > 0
        try:
            if os.stat(path).st_size == self.position:
                return False
            with open(path, "rb") as stream:
                stream.seek(self.position)
                self.copy(stream)
                moved = stream.tell() != self.position
                self.position = stream.tell()
                return moved
        except OSError:
            return False


# Requests that end


def stop(request):
    """Ask for the end of a job's last attempt: its keeper ends it everywhere; without one its containers end here.

    With ``attempt`` only where the last one here is that one.
    """
    name = job_name(request)
    attempts = attempts_of(name)
    if not attempts:
        return {"asked": False}
    attempt = attempts[-1]
    if request.get("attempt") is not None and number_of(request) != attempt:
        return {"asked": False}
    folder = attempt_folder(name, attempt)
    if os.path.exists(os.path.join(folder, "result.json")) and not keepers([(name, attempt)]):
        return {"asked": False}
    grace = request.get("grace")
    told = {"reason": str(request.get("reason") or "stopped"), "grace": grace, "time": time.time()}
    unwatched_ones = {(job, number) for job, number, _ in unwatched()}
    if os.path.exists(os.path.join(folder, "keeper.json")) and (name, attempt) not in unwatched_ones:
        try:
            write_json(os.path.join(folder, "stop.json"), told)
        except OSError:  # the disk is full
            if not signal_keeper(folder, STOP_SIGNAL):
                raise
            return {"asked": True}
        signal_keeper(folder, signal.SIGUSR1)
        return {"asked": True}
    token = str(read_json(os.path.join(folder, "attempt.json")).get("id"))
    end_containers(token, attempt, 15 if grace is None else float(grace))
    return {"asked": close_attempt(name, attempt, {"status": "STOPPED", "reason": told["reason"]}, "Stopped")}


def signal_keeper(folder, number):
    """Send a signal to a living keeper: SIGUSR1 has it look at its folder now, which it does by itself a little later.

    Returns whether it was sent.
    """
    pid = read_text(os.path.join(folder, "keeper.lock")).strip()
    if pid.isdigit() and keeper_holds(folder):
        try:
            os.kill(int(pid), number)
        except OSError:
            return False
        return True
    return False


def end_containers(token, attempt, grace):
    """End an attempt's running containers: SIGTERM, the grace time, SIGKILL."""
    containers = job_containers("provision.id={}".format(token))
    if containers is None:
        raise Refused("docker's engine does not answer", "systemctl status docker")
    running = [item for item in containers if item.get("State") != "exited" and labels_of(item)[2] == str(attempt)]
    for item in running:
        terminate(item["Id"])
    deadline = time.monotonic() + grace
    while running and time.monotonic() < deadline:
        running = [item for item in running if is_running(item["Id"])]
        time.sleep(0.1)
    for item in running:
        engine("POST", "/containers/{}/kill?signal=KILL".format(item["Id"]))


def is_running(container):
    """Return whether a container runs."""
    found = engine_json("/containers/{}/json".format(container))
    return bool(found and found["State"].get("Running"))


SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh", "docker-init", "tini", "docker-entrypoin")


def terminate(container):
    """Send SIGTERM to what a container was started for: not to the shells around it, whose end would be all's.

    Returns the processes that were asked.
    """
    found = engine_json("/containers/{}/json".format(container))
    if not found or not found["State"].get("Running"):
        return []
    pids = programs_below(int(found["State"].get("Pid") or 0))
    for pid in pids:
        try:
            os.kill(pid, signal.SIGTERM)
        except OSError:
            pass
    if not pids:
        terminate_all(container)
    return pids


def terminate_all(container):
    """Send SIGTERM to a container's first process, as docker does: a shell in a loop outlives what it started."""
    engine("POST", "/containers/{}/kill?signal=TERM".format(container))


def programs_below(first):
    """Return the uppermost processes of a container that are no shells: they know how to end what they started."""
    children, comm = {}, {}
    for item in names_in(PROC) if first > 1 else ():
        if item.isdigit():
            head, _, rest = read_text("{}/{}/stat".format(PROC, item)).rpartition(")")
            words = rest.split()
            if len(words) > 1 and words[0] != "Z":
                comm[int(item)] = head.partition("(")[2]
                children.setdefault(int(words[1]), []).append(int(item))
    found, rest = [], [first] if first in comm else []
    while rest:
        pid = rest.pop()
        below = children.get(pid, [])
        if comm[pid] in SHELLS and below:
            rest += below
        else:
            found.append(pid)
    return found


def delete(request):
    """Forget a job: its containers, keys, leases and folder; not while a keeper watches over it."""
    name = job_name(request)
    folder = job_folder(name)
    job = read_json(os.path.join(folder, "job.json"))
    token = str(request.get("id") or job.get("id") or "")
    if not os.path.isdir(folder) or (job and str(job.get("id")) != token):
        return {"deleted": False}
    if keepers([(name, attempt) for attempt in attempts_of(name)]):
        raise Refused("the job {} still runs on this node".format(name), "provision stop {}".format(name))
    containers = job_containers("provision.job={}".format(name))
    if containers is None:
        raise Refused("docker's engine does not answer", "systemctl status docker")
    for item in containers:
        if labels_of(item)[1] in ("", token):
            engine("DELETE", "/containers/{}?force=1&v=1".format(item["Id"]))
    for attempt in attempts_of(name):
        remove(os.path.join(UNIT_FILES, unit_name(name, attempt)))
    release_all(token)
    gone = os.path.join(ROOT, ".new-{}-{}-{}".format(name, os.getpid(), int(time.time())))
    os.rename(folder, gone)
    remove_tree(gone)
    return {"deleted": True}


REQUESTS = {
    "reserve": reserve,
    "hold_queue": hold_queue,
    "look": look,
    "lease": lease,
    "hold": hold,
    "release": release,
    "renew": renew,
    "prepare": prepare,
    "start": start,
    "report": report,
    "logs": logs,
    "stop": stop,
    "delete": delete,
    "queue": queue,
    "secrets": secrets,
    "event": event,
    "drain": drain,
}


def main():
    """Answer the request on standard input."""
    try:
        request = json.loads(request_line().decode())
        answer = REQUESTS[request["do"]](request)
    except Refused as refusal:
        print(json.dumps(refusal.answer))
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as problem:
        print(json.dumps(Refused("{}".format(problem)).answer))
        return 1
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as problem:
        print(json.dumps(Refused("the request makes no sense: {!r}".format(problem)).answer))
        return 1
    if answer is not None:
        print(json.dumps(answer))
    return 0


def request_line():
    """Return our input up to a newline or its end."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            break
        line += piece
    return line


if __name__ == "__main__":
    sys.exit(main())
