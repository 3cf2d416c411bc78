"""The request prepare: folders, images, keys and ports of an attempt."""

import errno
import os
import re
import time

from provision.node.docker import engine_json, quoted
from provision.node.files import Refused, boot_id, program, read_json, read_text, remove_tree, write_json
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

PORTS = (20000, 32000)  # below the kernel's own choice of ports
NO_LOGIN = "no basic auth credentials|unauthorized|authentication required|access denied|access forbidden"
PULL_SECONDS = 1800


def prepare(request):
    """Make everything ready for an attempt: folders, images, keys, ports."""
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
    who_for = {"job": name, "id": request["job"]["id"], "attempt": attempt}
    ports = lease_ports(who_for, int(request.get("ports") or 0))
    return {"images": images, "keys": keys, "ports": ports}


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
    os.chmod(mount, 0o755)  # nosec B103 # read by the job's own account, and nothing in it is secret
    if not known:
        write_json(os.path.join(job_folder(name), "job.json"), job)
    for seat in record.get("seats") or ():
        if seat.get("node") == record.get("node") and FILE.match(str(seat.get("instance"))):
            write_json(os.path.join(folder, seat["instance"] + ".json"), new_record(seat["instance"]))
    write_json(os.path.join(folder, "attempt.json"), dict(record, id=job.get("id"), attempt=attempt, boot_id=boot_id()))
    return folder


def ready_image(reference, policy, puller):
    """Have an image as the policy says; return its id and digest."""
    try:
        found = engine_json("/images/{}/json".format(quoted(reference)))
    except OSError as problem:
        raise Refused("docker's engine does not answer: {}".format(problem), "systemctl status docker") from None
    if policy == "always" or (found is None and policy != "never"):
        puller.pull(reference)
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


def registry_of(reference):
    """Return the registry that an image comes from, as logins name it."""
    return reference.partition("/")[0] if re.match(r"[^/]*[.:][^/]*/|localhost/", reference) else "docker.io"


class Puller:
    """Pulls a job's images, all of them in the time that its start may take."""

    def __init__(self, job, node, request):
        self.job, self.node, self.registry = job, node, request.get("registry") or {}
        self.seconds = float(request.get("seconds") or PULL_SECONDS)
        self.deadline = time.monotonic() + self.seconds

    def pull(self, reference):
        """Pull an image; what logs in to its registry is in a folder that goes again."""
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
                "is its registry well? --starting-timeout gives it longer; `provision image pull` pulls it before",
            )
        if code:
            last = "\n".join((err or out).splitlines()[-6:])
            remedy = "Check that the registry has this image and that the nodes can reach the registry."
            if re.search(NO_LOGIN, last):
                remedy = "give a login that may pull it: provision secret add registry --server {} --username NAME"
                remedy = remedy.format(registry_of(reference))
            raise Refused("the image {} could not be pulled".format(reference), remedy, last)

    def login(self, reference):
        """Return a folder with docker's settings that log in to the image's registry, empty where there is no login."""
        import base64
        import tempfile

        host = registry_of(reference)
        if not self.registry.get("username") or self.registry.get("server", host) != host:
            return ""
        login = "{}:{}".format(self.registry["username"], self.registry.get("password", "")).encode()
        folder = tempfile.mkdtemp(dir=RUN)
        place = "https://index.docker.io/v1/" if host == "docker.io" else host
        auths = {place: {"auth": base64.b64encode(login).decode()}}
        write_json(os.path.join(folder, "config.json"), {"auths": auths})
        return folder


def make_keys(folder, uid):
    """Make the keys of an attempt's containers; the public halves are returned, the others stay here."""
    user, group = account(uid)
    there = os.path.join(folder, "ssh")
    remove_tree(there)
    os.mkdir(there, 0o700)
    found = {}
    for kind in ("client", "host"):
        path = os.path.join(there, kind)
        code, out, err = program(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path], 30)
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
    with LeaseLock():
        leases = all_leases()
        low, high = PORTS
        first = random.randrange(low, high)  # nosec B311 # where to begin, no secret
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
