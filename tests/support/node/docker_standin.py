"""A STAND-IN for docker, its engine and its client: a container is a process of this machine, in nothing of its own.

As the engine (`docker_standin.py engine SOCKET`) it answers the few questions on a Unix socket that our programs ask;
as the client (`docker_standin.py create ...`) it asks that engine. Whatever it starts is killed when it ends.
"""

import contextlib
import http.server
import io
import json
import os
import secrets
import signal
import socket
import socketserver
import subprocess
import sys
import tarfile
import threading
import time
import urllib.parse

PIECE = 16384  # docker cuts longer lines into messages of this length, all with the time of the first
NO_VALUE = ("--init", "--privileged", "--quiet")


def now():
    nanoseconds = time.time_ns()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 10**9)) + f".{nanoseconds % 10**9:09d}Z"


class Container:
    def __init__(self, name, request):
        self.id = secrets.token_hex(32)
        self.name, self.labels, self.image = name, request.get("Labels") or {}, request["Image"]
        self.environment = dict(item.split("=", 1) for item in request.get("Env") or ())
        self.mounts = [{"Destination": bind.split(":")[1]} for bind in request["HostConfig"].get("Binds") or ()]
        self.words = [*(request.get("Entrypoint") or ()), *(request.get("Cmd") or ())]
        self.state = {"Status": "created", "Running": False, "Pid": 0, "ExitCode": 0, "OOMKilled": False, "Error": ""}
        self.state.update(StartedAt="0001-01-01T00:00:00Z", FinishedAt="0001-01-01T00:00:00Z")
        self.messages = []
        self.files = {"/etc/passwd": b"root:x:0:0:root:/root:/bin/bash\n"}
        self.changed = threading.Condition()
        self.open = 0

    def start(self):
        if self.state["Status"] != "created":
            return
        self.process = subprocess.Popen(
            self.words,
            env={"PATH": os.environ["PATH"], **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.state.update(Status="running", Running=True, Pid=self.process.pid, StartedAt=now())
        self.open = 2
        for number, stream in ((1, self.process.stdout), (2, self.process.stderr)):
            threading.Thread(target=self.read_output, args=(number, stream), daemon=True).start()
        threading.Thread(target=self.wait, daemon=True).start()

    def read_output(self, number, stream):
        """As docker's copier does: whole lines at once, longer ones and a last one without an end as they come."""
        rest, first = b"", None
        while True:
            piece = os.read(stream.fileno(), PIECE)
            rest += piece
            with self.changed:
                while rest:
                    line, newline, _ = rest.partition(b"\n")
                    if not newline and len(line) < PIECE and piece:
                        break
                    message = (line + newline)[:PIECE]
                    rest = rest[len(message) :]
                    when = first or now()
                    first = None if message.endswith(b"\n") else when
                    self.messages.append((number, when, message))
                self.open -= not piece
                self.changed.notify_all()
            if not piece:
                return

    def wait(self):
        code = self.process.wait()
        with self.changed:
            ended = now()
            self.changed.wait_for(lambda: not self.open, timeout=2)
            self.state.update(Status="exited", Running=False, Pid=0, FinishedAt=ended)
            self.state["ExitCode"] = code if code >= 0 else 128 - code
            self.state["OOMKilled"] = "STANDIN_OOM" in self.environment
            self.changed.notify_all()

    def kill(self, number):
        if self.state["Running"]:
            send = os.killpg if number == signal.SIGKILL else os.kill
            with contextlib.suppress(ProcessLookupError):  # it may end at this moment
                send(self.process.pid, number)

    def document(self):
        labels = {"Labels": self.labels, "Image": self.image, "Env": [f"{k}={v}" for k, v in self.environment.items()]}
        head = {"Id": self.id, "Name": "/" + self.name, "Mounts": self.mounts}
        return {**head, "State": self.state, "Config": labels}


class Engine(http.server.BaseHTTPRequestHandler):
    containers: dict = {}
    requests: list = []

    def log_message(self, *_):
        pass

    def address_string(self):
        return "local"

    def answer(self, status, value=None):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def find(self, reference):
        for item in list(self.containers.values()):
            if reference in (item.id, item.name):
                return item
        return None

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        words = url.path.strip("/").split("/")
        if words == ["containers", "json"]:
            wanted = json.loads(query.get("filters", "{}")).get("label", [])
            matches = [item for item in self.containers.values() if all(self.fits(item, label) for label in wanted)]
            return self.answer(
                200,
                [
                    {"Id": item.id, "Names": ["/" + item.name], "Labels": item.labels, "State": item.state["Status"]}
                    for item in matches
                ],
            )
        if words[0] == "images":
            name = urllib.parse.unquote("/".join(words[1:-1]))
            if name.startswith("missing"):
                return self.answer(404, {"message": "No such image: " + name})
            digest = "sha256:" + "12" * 32
            user = {"User": name.partition(":")[2] if name.startswith("user:") else ""}
            answer = {"Id": "sha256:" + "ab" * 32, "RepoDigests": [f"{name}@{digest}"], "Config": user}
            return self.answer(200, answer)
        container = self.find(words[1])
        if container is None:
            return self.answer(404, {"message": "No such container: " + words[1]})
        if words[2] == "archive":
            self.packed(container, query["path"])
            return None
        return self.logs(container, query) if words[2] == "logs" else self.answer(200, container.document())

    def packed(self, container, path):
        """As `docker cp` does: one file, under its last name."""
        if path not in container.files:
            self.answer(404, {"message": f"Could not find the file {path}"})
            return
        self.send_response(200)
        self.end_headers()
        with tarfile.open(fileobj=self.wfile, mode="w|") as stream:
            file = tarfile.TarInfo(path.rpartition("/")[2])
            file.size = len(container.files[path])
            stream.addfile(file, io.BytesIO(container.files[path]))

    def do_PUT(self):
        url = urllib.parse.urlparse(self.path)
        container = self.find(url.path.split("/")[2])
        root = dict(urllib.parse.parse_qsl(url.query))["path"]
        body = io.BytesIO(self.rfile.read(int(self.headers["Content-Length"])))
        with tarfile.open(fileobj=body) as stream:
            for file in stream:
                content = stream.extractfile(file)
                container.files[root + file.name] = content.read() if content else b"%d:%d" % (file.uid, file.gid)
        return self.answer(200)

    @staticmethod
    def fits(container, label):
        key, equals, value = label.partition("=")
        return key in container.labels and (not equals or container.labels[key] == value)

    def logs(self, container, query):
        self.send_response(200)
        self.end_headers()
        since, at = query.get("since", ""), 0
        if since:
            whole, _, part = since.partition(".")
            since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(int(whole))) + f".{part:0<9}Z"
        while True:
            with container.changed:
                news = container.messages[at:]
                running = container.state["Running"]
                if not news and running and query.get("follow") == "1":
                    container.changed.wait(timeout=0.5)
                    continue
            at += len(news)
            for number, when, data in news:
                text = when.encode() + b" " + data
                if when >= since:
                    self.wfile.write(bytes([number, 0, 0, 0]) + len(text).to_bytes(4, "big") + text)
            self.wfile.flush()
            if not running or query.get("follow") != "1":
                return

    def do_POST(self):
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        words = url.path.strip("/").split("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if words == ["reset"]:
            for item in list(self.containers.values()):
                item.kill(signal.SIGKILL)
            self.containers.clear()
            return self.answer(204)
        if words == ["containers", "create"]:
            assert self.headers["Content-Type"] == "application/json"
            return self.create(query["name"], json.loads(body))
        container = self.find(words[1])
        if container is None:
            return self.answer(404, {"message": "No such container: " + words[1]})
        if words[2] == "start":
            try:
                container.start()
            except OSError as problem:
                return self.answer(500, {"message": f"failed to start: {problem.strerror}"})
        elif words[2] == "kill":
            container.kill(signal.Signals["SIG" + query["signal"].replace("SIG", "")])
        elif words[2] == "wait":
            self.send_response(200)
            self.end_headers()
            self.wfile.flush()
            with container.changed:
                container.changed.wait_for(lambda: not container.state["Running"])
            self.wfile.write(json.dumps({"StatusCode": container.state["ExitCode"]}).encode())
            return None
        return self.answer(204)

    def create(self, name, request):
        container = Container(name, request)
        if self.find(container.name):
            return self.answer(409, {"message": f'Conflict. The name "{container.name}" is already in use'})
        if container.image.startswith("missing"):
            return self.answer(404, {"message": "No such image: " + container.image})
        self.containers[container.id] = container
        return self.answer(201, {"Id": container.id})

    def do_DELETE(self):
        container = self.find(urllib.parse.urlparse(self.path).path.split("/")[2])
        if container is None:
            return self.answer(404, {"message": "No such container"})
        container.kill(signal.SIGKILL)
        del self.containers[container.id]
        return self.answer(204)


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


def serve(path):
    server = Server(path, Engine)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    server.serve_forever(poll_interval=0.05)
    for container in Engine.containers.values():
        container.kill(signal.SIGKILL)


def read(words):
    """Return the name and the request of ``docker create``, as far as tests use it."""
    name, request = "", {"Labels": {}, "HostConfig": {"Binds": []}}
    while words and words[0].startswith("--"):
        option, equals, value = words.pop(0).partition("=")
        if option in NO_VALUE:
            continue
        value = value if equals else words.pop(0)
        if option == "--name":
            name = value
        elif option == "--label":
            key, _, request["Labels"][key] = value.partition("=")
        elif option == "--volume":
            request["HostConfig"]["Binds"].append(value)
        elif option == "--entrypoint":
            request["Entrypoint"] = [value]
    return name, {**request, "Image": words[0], "Cmd": words[1:]}


def client(argv):
    if argv[0] == "pull":
        return 0 if not argv[-1].startswith("missing") else sys.exit(f"Error: no such image: {argv[-1]}")
    assert argv[0] == "create", argv
    name, request = read(argv[1:])
    body = json.dumps(request).encode()
    head = "POST /containers/create?name={} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["PROVISION_DOCKER_SOCKET"])
        connection.sendall(head.format(name, len(body)).encode() + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 201 " not in head.splitlines()[0]:
        sys.exit("Error response from daemon: " + json.loads(body)["message"])
    print(json.loads(body)["Id"])
    return 0


if __name__ == "__main__":
    sys.exit(serve(sys.argv[2]) if sys.argv[1] == "engine" else client(sys.argv[1:]))
