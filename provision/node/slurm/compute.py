"""Requests to compute nodes of Slurm: the starter of jobs, the node's key for sealed secrets, GPUs, the job's mark."""

import contextlib
import glob
import os
import re
import sys
from typing import Any, List, Optional, Tuple

from provision.node import slurm as marks
from provision.node.files import (
    PROC,
    Record,
    Refused,
    copy_input,
    names_in,
    program,
    read_json,
    read_text,
    remove,
    remove_tree,
    write_file,
    write_json,
)
from provision.node.jobs.records import attempt_folder, attempt_number, job_name
from provision.node.slurm.controller import job_number, slurm

STARTERS = os.environ.get("PROVISION_STARTERS") or "/usr/local/lib/provision/starter"
OUTPUT = os.environ.get("PROVISION_SLURM_OUTPUT") or "/var/lib/provision/slurm"
"""The folder of the starter's messages, on the first node of each job."""
KEYS = os.environ.get("PROVISION_SEAL") or "/var/lib/provision/seal"
SHA = re.compile(r"[0-9a-f]{64}\Z")
STARTER_BYTES = 32 * 1024 * 1024
MOST_OLD_STARTERS = 3
STARTER_SECONDS = 30 * 86400
"""Starters that a submission or a running job has used within this time stay: waiting jobs need them."""
BROKEN_SECONDS = 86400
"""Older unfinished starters are those of requests that were killed."""
OUTPUT_SECONDS = 30 * 86400
"""Messages of starters stay as long."""
OPENSSL_SECONDS = 30
GUARD_GRACE_SECONDS = 10
SMI_SECONDS = 20
MARK_SECONDS = 3600
"""Younger marks of attempts without a folder stay: pulling images takes less."""
ENDED_SECONDS = 60
"""Marks stay so long after the end of their attempts: the epilog, which removes them, may not have run yet."""
REQUEUE_SECONDS = 120
"""How long a job may take to be pending again while slurmctld answers."""
CONTROLLER_SECONDS = 3600
"""How long the starter waits for slurmctld before it requeues a job."""


def slurm_node(request: Record) -> Record:
    """Prepare this compute node for jobs; return its Python, its certificate, and whether it has the starter."""
    os.makedirs(OUTPUT, mode=0o700, exist_ok=True)
    remove_old_output()
    sha = checked_sha(request.get("starter") or "0" * 64)
    touch(os.path.join(STARTERS, sha))
    return {
        "python": [sys.version_info[0], sys.version_info[1]],
        "machine": os.uname().machine,
        "starter": os.path.exists(os.path.join(STARTERS, sha, "start.py")),
        "certificate": certificate() if request.get("seal") else "",
    }


def checked_sha(value: Any) -> str:
    """Return the name of a starter: the SHA-256 of its archive."""
    if not isinstance(value, str) or not SHA.match(value):
        raise Refused("{!r:.80} is not a SHA-256".format(value))
    return value


def slurm_store(request: Record) -> Record:
    """Store a starter: an archive of the bytes that follow the request. Remove all but the newest ones."""
    import hashlib

    sha, size = checked_sha(request["starter"]), int(request["size"])
    if not 0 < size <= STARTER_BYTES:
        raise Refused("the starter has {} bytes; at most {} are possible".format(size, STARTER_BYTES))
    os.makedirs(STARTERS, mode=0o755, exist_ok=True)
    target, new = os.path.join(STARTERS, sha), os.path.join(STARTERS, ".new-{}-{}".format(os.getpid(), sha))
    path = new + ".tar.gz"
    try:
        with open(path, "wb") as stream:
            missing = copy_input(stream, size)
        if missing:
            raise Refused("the transfer of the starter broke off {} bytes before its end".format(missing))
        digest = hashlib.sha256()
        with open(path, "rb") as archive:
            for piece in iter(lambda: archive.read(1 << 20), b""):
                digest.update(piece)
        if digest.hexdigest() != sha:
            raise Refused("the starter arrived changed")
        os.mkdir(new, 0o755)
        unpack(path, new)
        if not os.path.isdir(target):
            os.rename(new, target)
    finally:
        remove(path)
        remove_tree(new)
    touch(target)
    remove_old_starters(sha)
    return {"stored": True}


def unpack(path: str, folder: str) -> None:
    """Write the files of an archive into a folder; links, devices and paths outside of it are left out."""
    import shutil
    import tarfile

    with tarfile.open(path) as packed:
        for member in packed:
            content = packed.extractfile(member) if member.isreg() and is_inside(member.name) else None
            if content is None:
                continue
            target = os.path.join(folder, member.name)
            os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
            with open(target, "wb") as stream:
                shutil.copyfileobj(content, stream)


def is_inside(name: str) -> bool:
    """Return whether the path of an archive's member stays in the folder."""
    return not name.startswith("/") and ".." not in name.split("/")


def remove_old_starters(sha: str) -> None:
    """Remove starters of other versions except those used lately and the newest ones, which waiting jobs may need."""
    others = [os.path.join(STARTERS, name) for name in names_in(STARTERS) if SHA.match(name) and name != sha]
    others.sort(key=changed, reverse=True)
    for path in others[MOST_OLD_STARTERS:]:
        if is_older(path, STARTER_SECONDS):
            remove_tree(path)
    for path in glob.glob(os.path.join(glob.escape(STARTERS), ".new-*")):
        if is_older(path, BROKEN_SECONDS):
            remove_tree(path)


def changed(path: str) -> float:
    """Return when a folder was changed; 0 if another request has removed it."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def touch(path: str) -> None:
    """Record the use of a starter; do nothing if it does not exist."""
    try:
        os.utime(path, None)
    except OSError:
        pass


def remove_old_output() -> None:
    """Remove old messages of starters."""
    for path in glob.glob(os.path.join(glob.escape(OUTPUT), "job-*.out")):
        if is_older(path, OUTPUT_SECONDS):
            remove(path)


# Sealed secrets


def certificate() -> str:
    """Return the certificate of this node's key for sealed secrets; make the key if there is none."""
    if not os.path.isdir(KEYS):
        new = "{}.{}.new".format(KEYS, os.getpid())
        os.makedirs(new, mode=0o700)
        words = [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "36500",
        ]
        words += ["-subj", "/CN=provision", "-keyout", new + "/key.pem", "-out", new + "/certificate.pem"]
        try:
            openssl(words)
            os.chmod(new + "/key.pem", 0o600)
            os.rename(new, KEYS)
        except OSError:
            if not os.path.isdir(KEYS):  # else another request has made the key at the same time
                raise
        finally:
            remove_tree(new)
    return read_text(key_paths()[1])


def key_paths() -> Tuple[str, str]:
    """Return the files of this node's key and of its certificate."""
    return os.path.join(KEYS, "key.pem"), os.path.join(KEYS, "certificate.pem")


def openssl(words: List[str], stdin: bytes = b"") -> bytes:
    """Return the output of openssl."""
    import subprocess

    try:
        child = subprocess.Popen(
            ["openssl", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = child.communicate(stdin, timeout=OPENSSL_SECONDS)
    except OSError as problem:
        raise Refused("openssl: {}".format(problem.strerror), "Install openssl on the node.") from None
    except subprocess.TimeoutExpired:
        child.kill()
        raise Refused("openssl did not end in time") from None
    if child.returncode:
        lines = err.decode(errors="replace").strip().splitlines()
        raise Refused("openssl: {}".format(lines[-1] if lines else "exit {}".format(child.returncode)))
    return out


def slurm_seal(request: Record) -> Record:
    """Encrypt a text for the keys of nodes; only root of these nodes can read it."""
    import tempfile

    certificates = request["certificates"]
    if not isinstance(certificates, list) or not certificates or len(certificates) > 10000:
        raise Refused("no certificates of nodes")
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for index, text in enumerate(certificates):
            paths.append(os.path.join(folder, "{}.pem".format(index)))
            write_file(paths[-1], text)
        sealed = openssl(
            ["cms", "-encrypt", "-binary", "-aes-256-cbc", "-outform", "PEM", *paths], request["text"].encode()
        )
    return {"sealed": sealed.decode()}


# GPUs of a job


def slurm_gpus(request: Record) -> Record:
    """Return the minor numbers of the GPUs of this step, and the UUID and minor number of each GPU of the node.

    With ``mark``, the attempt is recorded as by `slurm_mark`.
    """
    if request.get("mark"):
        slurm_mark(request["mark"])
    numbers = os.environ.get("SLURM_STEP_GPUS") or ""
    return {
        "minors": [int(one) for one in numbers.split(",") if one.isdigit()],
        "devices": [{"uuid": uuid, "minor": minor, "index": index} for index, (uuid, minor) in enumerate(devices())],
    }


def devices() -> List[Tuple[str, int]]:
    """Return UUID and minor number of each GPU, in the order of nvidia-smi (of the PCI bus)."""
    listed = []
    for path in sorted(glob.glob(PROC + "/driver/nvidia/gpus/*/information")):
        text = read_text(path)
        uuid, minor = field(text, r"GPU UUID"), field(text, r"Device Minor")
        if uuid and minor and minor.isdigit():
            listed.append((uuid, int(minor)))
    return listed or queried_devices()


def queried_devices() -> List[Tuple[str, int]]:
    """Return the same of `nvidia-smi -q`, where the driver has no files in /proc."""
    code, out, _ = program(["nvidia-smi", "-q"], SMI_SECONDS)
    listed = []
    for part in re.split(r"^GPU ", out if not code else "", flags=re.MULTILINE)[1:]:
        uuid, minor = field(part, r"GPU UUID"), field(part, r"Minor Number")
        if uuid and minor and minor.isdigit():
            listed.append((uuid, int(minor)))
    return listed


def field(text: str, title: str) -> Optional[str]:
    """Return the value of a line ``TITLE : VALUE``."""
    match = re.search(r"^\s*{}\s*:[ \t]*(\S+)".format(title), text, re.MULTILINE)
    return match.group(1) if match else None


# Marks, and the next attempt


def slurm_mark(request: Record) -> Record:
    """Record on this node which attempt a job of Slurm runs, for Slurm's epilog, which removes the record."""
    path = os.path.join(marks.RUN, str(job_number(request["job"])))
    os.makedirs(marks.RUN, mode=0o700, exist_ok=True)
    remove_old_marks()
    mark = {"name": job_name(request), "id": str(request["id"]), "attempt": attempt_number(request)}
    write_json(path, mark, durable=False)
    return {"written": True}


def remove_old_marks() -> None:
    """Remove the marks of attempts that have ended: without an epilog they stay, as when slurmd was lost."""
    for name in names_in(marks.RUN):
        path = os.path.join(marks.RUN, name)
        if not name.isdigit():  # starters have their folders here too
            continue
        mark = read_json(path)
        try:
            folder = attempt_folder(job_name(mark), attempt_number(mark))
        except (Refused, LookupError, TypeError, ValueError):
            continue
        was_deleted = not os.path.isdir(folder) and is_older(path, MARK_SECONDS)
        if was_deleted or is_older(os.path.join(folder, "result.json"), ENDED_SECONDS):
            remove(path)


def is_older(path: str, seconds: float) -> bool:
    """Return whether a file or folder was changed at least this long ago; False if it does not exist."""
    import time

    try:
        return time.time() - os.stat(path).st_mtime >= seconds
    except OSError:
        return False


def slurm_guard(request: Record) -> Record:
    """Wait for the end of the starter ``pid``, and stop its attempt if that has not ended: Slurm has killed the job."""
    import time

    from provision.node.files import start_of
    from provision.node.jobs.ending import stop

    pid, started = job_number(request["pid"]), request["start"]
    while start_of(pid) == started:
        time.sleep(0.5)
    return stop(dict(request, reason="killed in Slurm", grace=GUARD_GRACE_SECONDS))


def slurm_retry(request: Record) -> Record:
    """Wait until a job that is requeued is pending, and let it start at once, without the nodes ``exclude``.

    With ``any_node``, it no longer requires the nodes that were chosen at its submission. slurmctld may be away
    meanwhile: the starter waits for it, too.
    """
    import time

    from provision.node.slurm.controller import slurm_job_update

    number = job_number(request["job"])
    changes = {"exclude": request.get("exclude") or [], "any_node": request.get("any_node") is True}
    begun = answered = time.monotonic()
    while time.monotonic() < min(answered + REQUEUE_SECONDS, begun + CONTROLLER_SECONDS + REQUEUE_SECONDS):
        code, out, err = slurm(["squeue", "-h", "-j", str(number), "-o", "%T"])
        if "Invalid job id" in err:
            break
        if code:
            answered = time.monotonic()
        elif out.strip() == "PENDING":
            with contextlib.suppress(Refused):
                return slurm_job_update(dict(changes, job=number, start_now=True))
        time.sleep(0.5)
    return {"written": False}
