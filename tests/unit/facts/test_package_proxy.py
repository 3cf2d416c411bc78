"""What the probe reports of the package cache, by the program that runs on nodes."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from provision.facts import Unknown
from provision.facts.base import RawOutput
from provision.facts.package_proxy import PackageProxy, PackageProxyFact
from provision.node.probe import package_proxy as program


@contextmanager
def proxy(status, asked):
    """Answer each request with a status."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append((self.path, self.headers["Cache-Control"]))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def answer_of(tmp_path, monkeypatch):
    """Return the fact for a node with a receipt of the role platform, and with repositories."""
    sources = tmp_path / "debian.sources"
    sources.write_text("# URIs: http://old.example\nURIs: http://deb.example.org/debian http://b.example:8080/x\n")
    monkeypatch.setattr(program, "SOURCES", (str(sources),))
    monkeypatch.setattr(program, "REPOSITORIES", str(tmp_path / "*.repo"))
    monkeypatch.setattr(program, "OWN_REPOSITORIES", str(tmp_path / "provision-*.repo"))

    def answer(url, hosts):
        inputs = {"package_cache": {"url": url, "hosts": hosts}} if url else {}
        (tmp_path / "platform.json").write_text(json.dumps({"inputs": inputs}))
        text = json.dumps(program.package_proxy(str(tmp_path)))
        return PackageProxyFact().parse(RawOutput(text, 0))

    return answer


@pytest.mark.parametrize(("status", "answer"), [(504, "ok"), (200, "ok"), (403, "refused")])
def test_the_cache_is_asked_without_a_download(answer_of, status, answer) -> None:
    """A thousand nodes that are probed cause no traffic to the outside."""
    asked: list[tuple[str, str]] = []
    with proxy(status, asked) as url:
        state = answer_of(url, ["deb.example.org:80", "b.example:8080"])

    assert state == PackageProxy(url, answer)
    assert asked == [("http://deb.example.org:80/", "only-if-cached")]


def test_a_cache_that_does_not_answer_is_reported_with_the_cause(answer_of) -> None:
    """And so are the repositories that bypass it."""
    with proxy(200, []) as url:
        pass
    state = answer_of(url, ["deb.example.org"])

    assert state == PackageProxy(url, "unreachable", "Connection refused", ("b.example:8080",))


def test_a_node_without_a_cache_reports_nothing(answer_of) -> None:
    """Its probe opens no connection."""
    assert answer_of("", []) == PackageProxy()
    assert PackageProxyFact().parse(RawOutput("", 0)) == PackageProxy()
    assert isinstance(PackageProxyFact().parse(RawOutput('{"answer": "maybe"}', 0)), Unknown)


def test_repositories_of_dnf_are_seen_too(answer_of, tmp_path) -> None:
    """Only enabled ones with http."""
    (tmp_path / "a.repo").write_text("[a]\nbaseurl=http://a.example/x\n[b]\nenabled=0\nbaseurl=http://no.example/\n")
    (tmp_path / "provision-c.repo").write_text("[c]\nbaseurl=http://bob:x@c.example:80/y\n")

    with proxy(200, []) as url:
        state = answer_of(url, ["deb.example.org", "b.example:8080"])

    assert state.others == ("a.example", "c.example")
