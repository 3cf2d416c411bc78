"""The program that checks packages and the training image on a node, run on this machine."""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from provision.commands.signing_keys import nvidia_key
from provision.documents.preflight import PreflightAnswer
from provision.jobs.node_ask import ask
from provision.lab.services.ca import ensure_certificates
from provision.node import package_preflight
from provision.planning.requirements import Repository
from provision.workflow.apply_preflight import Requested
from tests.support.git_server import NodeFolder

IMAGE = {"registry": "r", "path": "team/train", "tag": "1", "digest": "", "mirrors": []}
LOGIN = {"username": "bob", "password": "pass:word"}
MANIFEST = "/v2/team/train/manifests/1"
POLICY = """docker.io:
  Installed: (none)
  Candidate: 20.10.24
  Version table:
     20.10.24 500
nothing:
  Installed: (none)
  Candidate: (none)
"""


@contextmanager
def registry(answer, certificates=None):
    """Serve HTTP, or HTTPS with certificates: `answer` gets path and headers, and returns status, headers and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, headers, body = answer(self.path, self.headers)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificates:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{'https' if certificates else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def check(place, **more):
    """Ask one registry for the image."""
    return package_preflight.check_place(place, {**IMAGE, **more}, 5)["code"]


@pytest.mark.parametrize(
    ("status", "code"),
    [(200, "ok"), (404, "missing"), (403, "refused"), (401, "refused"), (429, "unchecked"), (500, "unreachable")],
)
def test_the_status_of_a_registry_is_reported(status, code):
    challenge = {"WWW-Authenticate": 'Basic realm="r"'}
    with registry(lambda path, _: (status if path == MANIFEST else 400, challenge, b"{}")) as place:
        assert check(place) == code


def test_a_closed_port_is_reported_as_unreachable():
    """With the reason."""
    with registry(lambda *_: (200, {}, b"")) as place:
        pass

    answer = package_preflight.check_place(place, IMAGE, 5)

    assert answer["code"] == "unreachable"
    assert "refused" in answer["reason"]


def test_a_credential_is_sent_if_the_registry_requires_one():
    """In the header that HTTP defines."""
    expected = "Basic " + base64.b64encode(b"bob:pass:word").decode()

    def answer(_path, headers):
        good = headers.get("Authorization") == expected
        return (200 if good else 401), {"WWW-Authenticate": 'Basic realm="r"'}, b"{}"

    with registry(answer) as place:
        assert check(place, login=LOGIN) == "ok"
        assert check(place, login={**LOGIN, "password": "other"}) == "refused"
        assert check(place) == "refused"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Certificates of a CA that is not trusted yet."""
    return ensure_certificates(tmp_path_factory.mktemp("ca"), "test", ["127.0.0.1", "localhost"])


def test_a_certificate_is_valid_only_with_its_ca(certificates):
    """That of the inventory, which Docker gets too."""
    with registry(lambda *_: (200, {}, b"{}"), certificates) as place:
        untrusted = "untrusted" if Path(package_preflight.CA_BUNDLE).exists() else "unchecked"
        assert check(place) == untrusted
        assert check(place, ca=certificates.authority.read_text()) == "ok"
        assert check(place, insecure=True) == "ok"


def test_a_token_is_fetched_from_the_server_that_the_registry_names(certificates):
    """For example Docker Hub; a server without HTTPS gets no credential."""
    asked = []

    def answer(path, headers):
        if path.startswith("/token"):
            asked.append((path, headers.get("Authorization", "")))
            return 200, {}, json.dumps({"token": "abc"}).encode()
        if headers.get("Authorization") == "Bearer abc":
            return 200, {}, b"{}"
        return 401, {"WWW-Authenticate": f'Bearer realm="{realm}/token",service="reg"'}, b""

    with registry(answer, certificates) as place:
        realm, ca = place, certificates.authority.read_text()
        assert check(place, ca=ca, login=LOGIN) == "ok"
        assert "scope=repository%3Ateam%2Ftrain%3Apull" in asked[0][0]
        assert asked[0][1].startswith("Basic ")
        realm = place.replace("https", "http")
        assert check(place, ca=ca, login=LOGIN) == "unchecked"
        assert len(asked) == 1


def test_a_mirror_is_used_for_docker_hub_only():
    """Docker asks mirrors for no other registry."""
    with registry(lambda path, _: (200 if "/v2/library/x/" in path else 404, {}, b"{}")) as place:
        hub = {**IMAGE, "registry": "docker.io", "path": "library/x", "mirrors": [place]}
        assert package_preflight.check_image(hub, 5)["code"] == "ok"
        closed = place.removeprefix("http://").rpartition(":")[0] + ":9"
        other = {**hub, "registry": closed}
        assert package_preflight.check_image(other, 2)["code"] == "unreachable"


def test_reported_versions_are_those_that_apt_would_install():
    """A package without a source has no version."""
    assert package_preflight.candidates(POLICY) == {"docker.io": "20.10.24"}


UNREACHABLE = (
    """Err:1 http://m x InRelease
  Could not connect to m:80. - connect (111: Connection refused)
E: Failed to fetch http://m/x/InRelease  Could not connect to m:80.""",
    "E: Failed to fetch http://m/x  Temporary failure resolving 'm'",
    "E: apt-get did not end within 300 seconds",
)
INVALID = (
    """W: GPG error: http://m ./ InRelease: The following signatures couldn't be verified: NO_PUBKEY 0F9E9307B2628BFC
E: The repository 'http://m ./ InRelease' is not signed.""",
    "E: The repository 'http://m ./ Release' does not have a Release file.",
    "E: Failed to fetch http://m/InRelease  401  Unauthorized [IP: 1.2.3.4 80]",
    "E: Conflicting values set for option Signed-By regarding source http://m/ /: /a != /b",
)


@pytest.mark.parametrize(
    ("output", "code"), [*((text, "unreachable") for text in UNREACHABLE), *((text, "invalid") for text in INVALID)]
)
def test_unreachable_and_invalid_sources_have_different_remedies(output, code):
    problem = package_preflight.problem_of(output, "http://m", "site")

    assert problem["code"] == code
    assert problem["reason"]


def test_package_sources_of_other_tools_are_identified_by_their_urls(tmp_path, monkeypatch):
    """In both formats of apt; comments and sources of provision are ignored."""
    parts = tmp_path / "parts"
    parts.mkdir()
    (tmp_path / "sources.list").write_text("deb http://deb.example.org/debian/ bookworm main\n# deb http://old/ x\n")
    (parts / "nvidia.list").write_text("deb [signed-by=/k.gpg] https://n.example.org/deb/$(ARCH) /\n")
    (parts / "docker.sources").write_text("Types: deb\nURIs: https://d.example.org/linux\nSuites: x\n")
    (parts / "provision-site.sources").write_text("URIs: https://ours.example.org\n")
    monkeypatch.setattr(package_preflight, "SOURCES", str(tmp_path / "sources.list"))
    monkeypatch.setattr(package_preflight, "PARTS", str(parts))

    assert sorted(package_preflight.other_sources()) == [
        "http://deb.example.org/debian",
        "https://d.example.org/linux",
        package_preflight.address("https://n.example.org/deb/$(ARCH)/"),
    ]


VERSIONS = """docker.io:
  Installed: 20.10.24
  Candidate: 29.1
  Version table:
     29.1 500
        500 http://deb.example.org bookworm/main amd64 Packages
     1:26.1~ds1+b2 1001
        500 http://deb.example.org bookworm/main amd64 Packages
 *** 20.10.24 100
        100 /var/lib/dpkg/status
"""


def test_all_versions_of_a_package_are_known():
    """With priorities of any kind; addresses are no versions."""
    assert package_preflight.version_tables(VERSIONS) == {"docker.io": ["29.1", "1:26.1~ds1+b2", "20.10.24"]}


@pytest.mark.parametrize(
    ("version", "results", "word"),
    [("20.10.24", "20.10.24", "docker.io=20.10.24"), ("1.0", None, None)],
)
def test_a_locked_version_is_asked_for(monkeypatch, version, results, word):
    """An older one, too. One that no source has is missing, whatever the candidate is."""
    commands = []
    apt = object.__new__(package_preflight.Apt)
    apt.repositories = []
    monkeypatch.setattr(package_preflight.Apt, "update_old", lambda _self: [])

    def run(_self, command, *_):
        commands.append(command)
        return 0, VERSIONS

    monkeypatch.setattr(package_preflight.Apt, "run", run)

    answer = apt.check(["docker.io"], {"docker.io": version})

    assert answer["packages"] == {"docker.io": results}
    simulated = [command for command in commands if "install" in command]
    assert [command[-1] for command in simulated] == ([word] if word else [])
    assert all("--allow-downgrades" in command for command in simulated)


@pytest.mark.skipif(shutil.which("apt-config") is None, reason="this machine has no apt")
def test_a_configured_cache_that_does_not_answer_can_be_moved_or_removed(tmp_path, monkeypatch):
    """apt in the preflight has the node's settings, without the file of the package cache; an apply replaces it."""
    settings = tmp_path / "settings"
    settings.mkdir()
    (settings / "10-own").write_text('Acquire::Retries "7";\n')
    (settings / package_preflight.CACHE_SETTINGS).write_text('Acquire::http::Proxy::h "http://dead:3128";\n')
    monkeypatch.setattr(package_preflight, "SETTINGS", str(settings))
    folder = tmp_path / "work"
    folder.mkdir()

    code, output = package_preflight.Apt(str(folder), [], 5).run(["apt-config", "dump"], "old", "lists", 30)
    assert (code, 'Acquire::Retries "7";' in output, "dead:3128" in output) == (0, True, False)


@pytest.mark.skipif(shutil.which("apt-get") is None or os.geteuid() != 0, reason="apt needs Debian and root")
def test_the_program_accepts_the_request_of_the_controller(tmp_path):
    """It reports an unreachable repository; it uses apt of this machine, and leaves no files."""
    address, role = "http://127.0.0.1:9/x", "platform"
    repository = Repository("site", (address,), ("/",), (), nvidia_key().text, "x", role)
    request = Requested({"docker_engine": ("no-such-package-anywhere",)}, (repository,)).request()

    answer = ask(NodeFolder("gpu1", tmp_path), "package-preflight", request, PreflightAnswer)

    assert answer.packages == {"no-such-package-anywhere": None}
    assert ("unreachable", "site", address) in {(item.code, item.repository, item.uri) for item in answer.sources}
    assert list(Path("/var/tmp").glob("provision-preflight.*")) == []
