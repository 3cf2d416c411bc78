"""Writes down on a node which jobs' containers there are with which GPUs, and to whom those are leased.

A line of JSON for each: {"event": "create" | "destroy", "container", "job", "time", "gpus", "leases": {GPU: lease}} and
{"event": "lease", "gpu", "lease"} when a lease is seen for the first time. What jobs' own programs say is not asked:
the docker engine and the leases' files are.
"""

import http.client
import json
import socket
import sys
import threading
import time
import urllib.parse
from pathlib import Path

LEASES = Path("/run/provision/leases")
SEEN = Path(sys.argv[1])
EVERY_SECONDS = 0.1


class Engine(http.client.HTTPConnection):
    """Docker's engine by its socket."""

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect("/run/docker.sock")


def ask(path):
    engine = Engine("docker")
    engine.request("GET", path)
    return engine.getresponse()


def lease_of(gpu):
    try:
        return json.loads((LEASES / gpu).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def write(**entry):
    with SEEN.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def watch_leases():
    seen = set()
    while True:
        for gpu in [path.name for path in LEASES.glob("GPU-*")]:
            lease = lease_of(gpu)
            if lease and (gpu, lease["id"], lease["attempt"]) not in seen:
                seen.add((gpu, lease["id"], lease["attempt"]))
                write(event="lease", gpu=gpu, lease=lease)
        time.sleep(EVERY_SECONDS)


def gpus_of(container):
    document = json.load(ask(f"/containers/{container}/json"))
    return [gpu for one in document["HostConfig"].get("DeviceRequests") or () for gpu in one.get("DeviceIDs") or ()]


def watch_containers():
    wanted = {"type": ["container"], "label": ["provision.job"], "event": ["create", "destroy"]}
    gpus = {}
    for line in ask("/events?filters=" + urllib.parse.quote(json.dumps(wanted))):
        event = json.loads(line)
        actor, action = event["Actor"], event["Action"]
        if action == "create":
            gpus[actor["ID"]] = gpus_of(actor["ID"])
        mine = gpus.get(actor["ID"], [])
        write(
            event=action, container=actor["ID"], job=actor["Attributes"]["provision.job"],
            time=event["timeNano"] / 1e9, gpus=mine, leases={gpu: lease_of(gpu) for gpu in mine},
        )  # fmt: skip


threading.Thread(target=watch_leases, daemon=True).start()
watch_containers()
