"""A git server with a login and a certificate of its own authority, and nodes that are folders of this machine."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import os
import ssl
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from provision.connectors.local import LocalConnector
from provision.model import Connection, Node

BACKEND = "/usr/lib/git-core/git-http-backend"


class NodeFolder(LocalConnector):
    """This machine as a node whose jobs are below a folder."""

    def __init__(self, name, folder, path=None):
        super().__init__(Node(name, Connection("localhost", local=True, become=False)))
        self.jobs, self.run_folder = folder / name / "jobs", folder / name / "run"
        self.head = f"export PROVISION_JOBS_ROOT='{self.jobs}' PROVISION_RUN_ROOT='{self.run_folder}' HOME='{folder}'\n"
        self.head += f"export PROVISION_JOBS_RUN='{self.run_folder}'\n"
        if path is not None:
            self.head += f"export PATH='{path}'\n"

    def start(self, script, *, become=True, limit=None):  # noqa: ARG002 - as connectors have it
        return super().start(self.head + script, become=become)


def git(folder, *words):
    """Run git as somebody with a name, and return what it printed."""
    settings = ["-c", "user.name=T", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]
    quiet = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)}
    argv = ["git", *settings, "-c", "protocol.file.allow=always", *words]
    return subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True, env=quiet).stdout.strip()


def commit(folder, name, text):
    """Write a file and commit it; return the commit."""
    (folder / name).write_text(text)
    git(folder, "add", "--", name)
    git(folder, "commit", "-qm", name)
    return git(folder, "rev-parse", "HEAD")


def certificate(folder, address="127.0.0.1"):
    """Make a certificate that is its own authority; return the file of it and its key, and that of it alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's own")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    pem = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain) + made.public_bytes(encoding)
    (folder / "server.pem").write_bytes(pem)
    (folder / "ca.pem").write_bytes(made.public_bytes(encoding))
    return folder / "server.pem", folder / "ca.pem"


@contextmanager
def git_server(projects, user, password, pem=None, before=lambda: None, address="127.0.0.1"):
    """Serve the repositories below `projects` to those who log in; yield the address. `before` precedes each answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
            if self.headers.get("Authorization") != expected:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            before()
            self.answer()

        do_POST = do_GET  # noqa: N815 - the base class's name

        def answer(self):
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            environment = {
                "PATH": os.environ["PATH"],
                "HOME": str(projects),
                "GIT_PROJECT_ROOT": str(projects),
                "GIT_HTTP_EXPORT_ALL": "1",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
                "REMOTE_USER": user,
            }
            said = subprocess.run([BACKEND], input=body, capture_output=True, env=environment, check=False).stdout
            head, _, data = said.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().splitlines() if ": " in line)
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_words):
            pass

    server = ThreadingHTTPServer((address, 0), Handler)
    server.daemon_threads = True
    if pem is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    scheme = "https" if pem is not None else "http"
    try:
        yield f"{scheme}://{address}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
