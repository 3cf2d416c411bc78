"""The packages that are installed: pinned with hashes, checked for known vulnerabilities, listed in an SBOM."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = f"idna==3.20 \\\n    --hash=sha256:{'0' * 64}\nrich==15.0.0 \\\n    --hash=sha256:{'1' * 64}\n"
ADVISORY = {
    "id": "PYSEC-2026-1",
    "summary": "planted",
    "affected": [{"package": {"name": "rich", "ecosystem": "PyPI"}, "ranges": [], "versions": ["15.0.0"]}],
}


def locked(name):
    """Return name -> (version, hashes) of a lock file, which contains nothing else but comments."""
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    entries = [entry for entry in re.split(r"\n(?=\S)", text.strip().replace("\\\n", " ")) if entry]
    packages = {}
    for entry in entries:
        match = re.fullmatch(r"([a-z0-9-]+)==(\S+)( ; [^#]+?)?((?:\s+--hash=sha256:[0-9a-f]{64})+)\s*", entry)
        assert match, entry
        packages[match[1]] = (match[2], frozenset(match[4].split()))
    return packages


def required(groups):
    """Return what pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    words = list(project["project"]["dependencies"])
    words += [word for extra in project["project"]["optional-dependencies"].values() for word in extra]
    for group in groups:
        words += [word for word in project["dependency-groups"][group] if isinstance(word, str)]
    return [Requirement(word) for word in words]


@pytest.mark.parametrize(
    ("name", "groups"),
    [("requirements.lock", ()), ("requirements-dev.lock", ("test", "lint", "audit", "release"))],
)
def test_every_requirement_is_locked_with_hashes(name, groups):
    """A lock file has an exact version and hashes of each package, no address, and fits pyproject.toml."""
    pins = locked(name)

    for requirement in required(groups):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)][0]), requirement


def imports(*folders):
    """Return the names of the packages that the Python files of some folders import."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    texts = (path.read_text(encoding="utf-8") for path in paths)
    return {name for text in texts for name in re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE)}


def modules_of(requirement):
    """Return the top-level packages that an installed distribution has."""
    distributions = importlib.metadata.packages_distributions().items()
    name = canonicalize_name(requirement.name)
    return {module for module, owners in distributions if name in map(canonicalize_name, owners)}


def test_every_requirement_is_used():
    """The command imports each of its packages; the extra `collections` is for inventories of users."""
    used = {*imports("provision", "roles"), "ansible_collections"}

    assert [requirement.name for requirement in required(()) if not modules_of(requirement) & used] == []


def test_every_development_tool_is_used():
    """Tests import it, make runs it, or it is a plugin or the types of what is used."""
    used = imports("tests")
    run = "".join(path.read_text() for path in (ROOT / "Makefile", *ROOT.glob("tools/*.py")))
    own = {requirement.name for requirement in required(())}

    for requirement in required(("test", "lint", "audit", "release")):
        if requirement.name in own or requirement.name.startswith("types-"):
            continue
        points = importlib.metadata.distribution(requirement.name).entry_points
        scripts = {point.name for point in points if point.group == "console_scripts"} | modules_of(requirement)
        plugin = any(point.group == "pytest11" for point in points)
        assert plugin or modules_of(requirement) & used or any(name in run for name in scripts), requirement


def test_the_tests_that_make_leaves_out_exist():
    """A variable without a value would leave out nothing."""
    left_out = re.findall(r"--ignore=(?!,)(\S+)", (ROOT / "Makefile").read_text())

    assert left_out
    assert [path for path in left_out if not (ROOT / path).exists()] == []


def test_both_locks_have_the_same_packages():
    """Tests run with the very files that users install."""
    everything = locked("requirements-dev.lock")

    assert {name: pin for name, pin in locked("requirements.lock").items() if everything.get(name) != pin} == {}


@pytest.fixture
def advisories():
    """Serve OSV's query interface on loopback; `answer` decides about each question."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, document = server.answer(question["package"]["name"])
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def audit(tmp_path, advisories):
    """Return a function that audits a lock file of two packages; it returns exit code and output."""
    (tmp_path / "some.lock").write_text(LOCK)
    url = f"http://127.0.0.1:{advisories.server_port}/v1/query"

    def run(answer, **environment):
        advisories.answer = answer
        done = subprocess.run(
            [sys.executable, ROOT / "tools/audit.py", tmp_path / "some.lock"],
            env={**os.environ, "NO_PROXY": "*", "AUDIT_OSV_URL": url, "AUDIT_STRICT": "", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_packages_without_vulnerabilities_pass(audit):
    """Each package is looked up, and the number of them is reported."""
    asked = []

    code, output = audit(lambda name: (asked.append(name), (200, {}))[1])

    assert code == 0
    assert output.startswith("checked: 2 packages")
    assert {"idna", "rich"} <= set(asked)


@pytest.mark.parametrize("strict", ["", "1"])
def test_a_vulnerability_is_a_failure(audit, strict):
    """A package with a known vulnerability fails the audit and is named, whatever AUDIT_STRICT is."""
    code, output = audit(lambda name: (200, {"vulns": [ADVISORY]} if name == "rich" else {}), AUDIT_STRICT=strict)

    assert code == 1
    assert re.search(r"rich +15\.0\.0 +PYSEC-2026-1", output)


@pytest.mark.parametrize(("strict", "expected"), [("", 0), ("1", 1)])
@pytest.mark.parametrize("url", ["", "http://127.0.0.1:1/v1/query", "http://osv.invalid/v1/query"])
def test_an_unreachable_service_is_reported_as_not_checked(audit, url, strict, expected):
    """Without the service nothing is known: the output says so, and AUDIT_STRICT=1 makes it a failure."""
    given = {"AUDIT_OSV_URL": url} if url else {}

    code, output = audit(lambda _name: (503, {}), AUDIT_STRICT=strict, **given)

    assert code == expected
    assert output.startswith("not checked: 2 packages of ")


@pytest.mark.parametrize("status", [404, 500])
def test_an_invalid_answer_is_a_failure(audit, status):
    """A service that answers something else, at once or after the first question, does not count as checked."""
    code, output = audit(lambda name: (200, {}) if name == "pip" and status != 404 else (status, {}))

    assert code == 1
    assert "checked: 2" not in output


def make_sbom(path):
    """Run `make sbom` as it is, in the environment of the tests."""
    words = ["make", "-o", "setup", "sbom", f"VENV={sys.prefix}", f"SBOM={path}"]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    return path.read_text()


def test_the_sbom_is_valid_complete_and_reproducible(tmp_path):
    """It follows the schema of CycloneDX, has each locked package with its hashes, and is the same in every run."""
    text = make_sbom(tmp_path / "one.json")
    document = json.loads(text)
    components = {
        each["name"]: (
            each["version"],
            frozenset(f"--hash=sha256:{h['content']}" for ref in each["externalReferences"] for h in ref["hashes"]),
        )
        for each in document["components"]
    }

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert components == locked("requirements.lock")
    assert document["metadata"]["component"]["name"] == "gpu-provision"
    assert make_sbom(tmp_path / "two.json") == text
