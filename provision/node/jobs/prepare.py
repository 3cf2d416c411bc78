"""The request prepare: folders, images, SSH keys and ports of an attempt."""

import errno
import os
import re
import time
from typing import Dict, List, Mapping, Tuple

from provision.node.docker import engine_json, quoted
from provision.node.files import Record, Refused, boot_id, program, read_json, read_text, remove_tree, write_json
from provision.node.jobs.leases import PORT, LeaseLock, Renewal, all_leases, write_lease
from provision.node.jobs.records import (
    FILE,
    RUN,
    add_event,
    attempt_folder,
    attempt_number,
    job_folder,
    job_name,
    make_folders,
    new_record,
)
from provision.node.probe.images import config_digest

PORTS = (20000, 32000)  # below the ports that the kernel assigns
NO_LOGIN = "no basic auth credentials|[Uu]nauthorized|authentication required|access denied|access forbidden"
PULL_SECONDS = 1800


def prepare(request: Record) -> Record:
    """Create the folders and keys of an attempt, pull its images and lease its ports.

    With ``lease``, its GPUs are leased before; ``taken`` of the answer reports those that others have.
    """
    if request.get("lease"):
        from provision.node.jobs.leasing import lease_in_time

        answer = lease_in_time(request["lease"])
        if answer["taken"]:
            return answer
    name, attempt = job_name(request), attempt_number(request)
    record = request["attempt_record"]
    folder = new_attempt(name, attempt, request["job"], record)
    renewal = Renewal(name, request["job"]["id"], attempt)
    puller = Puller(name, record.get("node", ""), request)
    try:
        images = {
            reference: ready_image(reference, policy, puller)
            for reference, policy in sorted((request.get("images") or {}).items())
        }
    finally:
        renewal.end()
    keys = make_keys(folder, request.get("uid") or user_of(images)) if request.get("mpi") else {}
    for image in images.values():
        del image["user"]
    owner = {"job": name, "id": request["job"]["id"], "attempt": attempt}
    ports = lease_ports(owner, int(request.get("ports") or 0))
    return {"images": images, "keys": keys, "ports": ports}


def new_attempt(name: str, attempt: int, job: Record, record: Record) -> str:
    """Create the folder of an attempt with its first records, and return it; refuse an attempt that was started."""
    make_folders()
    known = read_json(os.path.join(job_folder(name), "job.json"))
    if known and str(known.get("id")) != str(job.get("id")):
        raise Refused(
            "there is another job {} on this node".format(name), "Delete it: provision delete {}".format(name)
        )
    folder = attempt_folder(name, attempt)
    for item in ("result.json", "keeper.json"):
        if os.path.exists(os.path.join(folder, item)):
            raise Refused("attempt {} of {} has been started before".format(attempt, name))
    for path in (job_folder(name), os.path.dirname(folder), folder):
        if not os.path.isdir(path):
            os.makedirs(path, mode=0o700, exist_ok=True)
    mount = os.path.join(folder, "mount")
    os.makedirs(mount, exist_ok=True)
    os.chmod(mount, 0o755)  # nosec B103 # the job's account reads it, and it contains no secrets
    if not known:
        write_json(os.path.join(job_folder(name), "job.json"), job)
    for assignment in record.get("seats") or ():
        instance = str(assignment.get("instance"))
        if assignment.get("node") == record.get("node") and FILE.match(instance):
            write_json(os.path.join(folder, instance + ".json"), new_record(instance))
    write_json(os.path.join(folder, "attempt.json"), dict(record, id=job.get("id"), attempt=attempt, boot_id=boot_id()))
    return folder


class Puller:
    """Pulls a job's images within the time limit of its start."""

    def __init__(self, job: str, node: str, request: Record) -> None:
        self.job, self.node, self.registry = job, node, request.get("registry") or {}
        self.seconds = float(request.get("seconds") or PULL_SECONDS)
        self.deadline = time.monotonic() + self.seconds

    def pull(self, reference: str) -> None:
        """Pull an image, with the credential of its registry in a temporary folder."""
        add_event(self.job, "node {}".format(self.node), "pulling the image {}".format(reference))
        words, folder = ["docker"], self.login(reference)
        try:
            words += ["--config", folder] if folder else []
            left = max(self.deadline - time.monotonic(), 1)
            code, out, err = program([*words, "pull", "--quiet", "--", reference], left)
        finally:
            if folder:
                remove_tree(folder)
        if code and time.monotonic() > self.deadline:
            raise Refused(
                "the image {} was not pulled within {:.0f} s".format(reference, self.seconds),
                "Check its registry, extend --starting-timeout, or pull the image before: provision image pull",
            )
        if code:
            last = "\n".join((err or out).splitlines()[-6:])
            remedy = "Check that the registry has this image and that the nodes can reach the registry."
            if re.search(NO_LOGIN, last):
                remedy = "Add a credential that may pull it: provision secret add registry --server {} --username NAME"
                remedy = remedy.format(registry_of(reference))
            raise Refused("the image {} could not be pulled".format(reference), remedy, last)

    def login(self, reference: str) -> str:
        """Return a new folder with a Docker configuration for the image's registry, empty without a credential."""
        import base64
        import tempfile

        host = registry_of(reference)
        if not self.registry.get("username") or self.registry.get("server", host) != host:
            return ""
        credential = "{}:{}".format(self.registry["username"], self.registry.get("password", "")).encode()
        folder = tempfile.mkdtemp(dir=RUN)
        server = "https://index.docker.io/v1/" if host == "docker.io" else host
        auths = {server: {"auth": base64.b64encode(credential).decode()}}
        write_json(os.path.join(folder, "config.json"), {"auths": auths})
        return folder


def ready_image(reference: str, policy: str, puller: Puller) -> Dict[str, str]:
    """Pull an image if the policy requires it; return its ID (in Docker's own store), digest and user."""
    path = "/images/{}/json".format(quoted(reference))
    try:
        image = engine_json(path)
    except OSError as problem:
        raise Refused("docker's engine does not answer: {}".format(problem), "systemctl status docker") from None
    if policy == "always" or (image is None and policy != "never"):
        puller.pull(reference)
        image = engine_json(path)
    if image is None:
        raise Refused("there is no image {} on this node".format(reference), "Pull it, or submit with --pull missing")
    digests = [item.rpartition("@")[2] for item in image.get("RepoDigests") or ()]
    user = str((image.get("Config") or {}).get("User") or "")
    return {"id": config_digest(image), "digest": digests[0] if digests else "", "user": user}


def user_of(images: Mapping[str, Dict[str, str]]) -> str:
    """Return the UID[:GID] that images run as by default, empty for root; it owns the SSH keys in their containers."""
    users = {image["user"] for image in images.values()} - {"", "root", "root:root"}
    for user in sorted(users):
        if not re.match(r"\d+(:\d+)?\Z", user):
            raise Refused(
                "the image runs as {!r}, which is not numeric, so that the owner of its SSH keys is unknown".format(
                    user
                ),
                "Submit with --user UID:GID",
            )
    if len(users) > 1:
        raise Refused("the images run as several accounts: {}".format(", ".join(sorted(users))), "Submit with --user")
    return users.pop() if users else ""


def registry_of(reference: str) -> str:
    """Return the registry of an image, as credentials name it."""
    return reference.partition("/")[0] if re.match(r"[^/]*[.:][^/]*/|localhost/", reference) else "docker.io"


def make_keys(folder: str, uid: str) -> Dict[str, str]:
    """Create the SSH keys of an attempt's containers; return the public keys."""
    user, group = parse_account(uid)
    key_folder = os.path.join(folder, "ssh")
    remove_tree(key_folder)
    os.mkdir(key_folder, 0o700)
    public = {}
    for kind in ("client", "host"):
        path = os.path.join(key_folder, kind)
        code, out, err = program(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], 30)
        if code:
            raise Refused("ssh-keygen failed", "Install the OpenSSH client on the node", err or out)
        public[kind] = read_text(path + ".pub").strip()
        for item in (path, path + ".pub"):
            os.chmod(item, 0o600)
            os.chown(item, user, group)
    os.chown(key_folder, user, group)
    return public


def parse_account(uid: str) -> Tuple[int, int]:
    """Return user and group of ``UID[:GID]``, root's for an empty text."""
    words = str(uid or 0).split(":")
    if not all(word.isdigit() for word in words) or len(words) > 2:
        raise Refused("{!r} is not of the form UID[:GID]".format(uid))
    return int(words[0]), int(words[-1])


def lease_ports(owner: Record, count: int) -> List[int]:
    """Lease free ports of this node."""
    import random

    ports: List[int] = []
    with LeaseLock():
        leases = all_leases()
        low, high = PORTS
        first = random.randrange(low, high)  # nosec B311 # not a secret
        for step in range(high - low):
            if len(ports) == count:
                break
            port = low + (first - low + step) % (high - low)
            if PORT + str(port) not in leases and is_free(port):
                write_lease(PORT + str(port), owner, "")
                ports.append(port)
    if len(ports) < count:
        raise Refused("there are no free ports from {} to {}".format(*PORTS))
    return ports


def is_free(port: int) -> bool:
    """Return whether no process listens on a port, on any address."""
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
