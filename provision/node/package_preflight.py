"""Checks on a node, before any change, whether its packages and its training image are available.

Standard input is one line of JSON. The program runs as root, and needs Python 3.6 and nothing else. apt uses a
temporary folder: the node's sources, lists and packages do not change.
Answer: one line of JSON, `PreflightAnswer` of the controller.
"""

import base64
import functools
import glob
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import traceback
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Optional, Tuple

from provision.node.dnf_preflight import Dnf
from provision.node.probe.managed import uses_dpkg

LISTS = "/var/lib/apt/lists"
SOURCES = "/etc/apt/sources.list"
PARTS = "/etc/apt/sources.list.d"
SETTINGS = "/etc/apt/apt.conf.d"
CACHE_SETTINGS = "90-provision-package-cache"
"""The file by which apt uses the package cache."""
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
DOCKER_LOGINS = "/root/.docker/config.json"
HUB, HUB_HOST, HUB_LOGIN = "docker.io", "registry-1.docker.io", "https://index.docker.io/v1/"
FORMS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"
)
ANSWERS = re.compile(
    r"NO_PUBKEY|not signed|signature|BADSIG|EXPKEYSIG|KEYEXPIRED|Signed-By|not valid yet|[Ee]xpired|Conflicting values"
    r"|Hash Sum|Release file|Malformed| 40[0-9] |Unauthorized|Forbidden|Missing key|[Vv]erif"
)
INTERRUPTED = re.compile(r"dpkg was interrupted|--fix-broken|not configured yet|reinstall it before")
MOST = 2000
CACHE_SECONDS = 300
"""Time limit of commands that only read the lists; an emulated node needs more than a minute to build apt's cache."""


def main() -> None:
    """Print the answer and exit at once: a thread that waits for a name server would keep the session open."""
    try:
        answer = check_node()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    print(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)


def check_node() -> Dict[str, Any]:
    """Check packages and image at the same time."""
    request = json.loads(sys.stdin.readline())
    os.environ.update(LC_ALL="C", LANGUAGE="C", **request.get("environment") or {})
    answer: Dict[str, Any] = {}
    image = request.get("image")

    def ask() -> None:
        answer["image"] = check_image(image, request["seconds"])

    asking = threading.Thread(target=ask, daemon=True)
    if image:
        asking.start()
    if request["packages"]:
        answer.update(check_packages(request))
    if image:
        asking.join(6 * request["seconds"])
        answer.setdefault("image", {"code": "unreachable", "reason": "no answer in time"})
    return answer


# Packages


def check_packages(request: Dict[str, Any]) -> Dict[str, Any]:
    """Return what the package manager would install, and which of its sources cannot be used."""
    manager = next((name for name in ("apt-get", "dnf")[0 if uses_dpkg() else 1 :] if shutil.which(name)), None)
    if manager is None:
        return {}
    names, repositories, seconds = request["packages"], request["repositories"], request["seconds"]
    cache = request.get("cache") or {}
    folder = tempfile.mkdtemp(prefix="provision-preflight.", dir="/var/tmp")  # nosec B108 # mkdtemp makes a new folder

    def leave(*_: Any) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, leave)
    try:
        os.chmod(folder, 0o755)  # nosec B103 # apt's own account reads in it
        if manager == "dnf":
            with_cache = functools.partial(run, more={"http_proxy": cache["url"]} if cache else {})
            return Dnf(folder, repositories, seconds, with_cache).check(names, request.get("streams") or [])
        return Apt(folder, repositories, seconds, cache).check(names, request.get("versions") or {})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Apt:
    """apt with separate lists: those of the node, and those of repositories that are not configured yet."""

    def __init__(
        self, folder: str, repositories: List[Dict[str, Any]], seconds: int, cache: Optional[Dict[str, Any]] = None
    ) -> None:
        """Write the sources into `folder`. `cache` is the package cache, which the node may not be set up for yet."""
        known, hosts = other_sources(), cache["hosts"] if cache else []
        self.proxies = {"Acquire::http::Proxy::" + host.partition(":")[0]: cache["url"] for host in hosts if cache}
        self.repositories = [item for item in repositories if item["written"] or address(item["uri"]) not in known]
        self.folder, self.seconds = folder, seconds
        for name in ("old", "all", "lists", "release", "cache", "auth", "conf"):
            os.makedirs(os.path.join(folder, name), mode=0o755)
        self.write_settings()
        replaced = {"provision-{}.sources".format(item["name"]) for item in self.repositories}
        for path in sorted(glob.glob(PARTS + "/*.list") + glob.glob(PARTS + "/*.sources")):
            if os.path.basename(path) not in replaced:
                for part in ("old", "all"):
                    os.symlink(path, os.path.join(folder, part, os.path.basename(path)))
        for path in sorted(glob.glob("/etc/apt/auth.conf.d/*.conf")):
            os.symlink(path, os.path.join(folder, "auth", os.path.basename(path)))
        for number, item in enumerate(self.repositories):
            os.makedirs(os.path.join(folder, "new{}".format(number)), mode=0o755)
            for part in ("all", "new{}".format(number)):
                self.write(os.path.join(part, "provision-{}.sources".format(item["name"])), item["source"], 0o644)
            if item.get("auth"):
                self.write(os.path.join("auth", "provision-{}.conf".format(item["name"])), item["auth"], 0o600)

    def write_settings(self) -> None:
        """Use the node's settings of apt without the package cache: an apply moves or removes one that has failed."""
        for path in glob.glob(SETTINGS + "/*"):
            if os.path.basename(path) != CACHE_SETTINGS:
                os.symlink(path, os.path.join(self.folder, "conf", os.path.basename(path)))
        self.write("apt.conf", 'Dir::Etc::parts "{}/conf";\n'.format(self.folder), 0o644)

    def write(self, name: str, text: str, mode: int) -> None:
        """Write a file below the folder."""
        path = os.path.join(self.folder, name)
        if os.path.islink(path):
            os.unlink(path)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as stream:
            stream.write(text)

    def check(self, names: List[str], exact: Dict[str, str]) -> Dict[str, Any]:
        """Return candidates, the whole transaction, and problems of sources. `exact` is package -> version."""
        problems = self.update_old()
        for number, item in enumerate(self.repositories):
            code, output = self.update("new{}".format(number), "lists")
            if code != 0:
                problems.append(problem_of(output, item["uri"], item["name"]))
        code, output = self.run(["apt-cache", "policy", *names], "all", "lists", CACHE_SECONDS)
        if code != 0 and not problems:
            problems.append(problem_of(output, "", ""))
        versions, offered = candidates(output), version_tables(output)
        versions.update({name: version if version in offered.get(name, ()) else "" for name, version in exact.items()})
        packages = {name: versions.get(name) or None for name in names}
        there = [name for name in names if packages[name]]
        conflict, install = "", []  # type: Tuple[str, List[Dict[str, str]]]
        if there and not problems:
            words = ["{}={}".format(name, exact[name]) if name in exact else name for name in there]
            options = ["--no-install-recommends", *(["--allow-downgrades"] if exact else [])]
            command = ["apt-get", "-s", "-q", *options, "install", *words]
            code, output = self.run(command, "all", "lists", CACHE_SECONDS)
            install = [
                {"name": n, "version": v}
                for n, v in re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", output, re.MULTILINE)
            ]
            if code != 0 and not INTERRUPTED.search(output):
                conflict = errors(output)
        return {"packages": packages, "sources": problems, "install": install, "conflict": conflict}

    def update_old(self) -> List[Dict[str, str]]:
        """Fetch the release files of the node's own sources; all of their lists if the node has none yet."""
        known = glob.glob(LISTS + "/*Packages*")
        if known:
            for path in glob.glob(LISTS + "/*"):
                if os.path.isfile(path) and os.path.basename(path) != "lock":
                    os.symlink(path, os.path.join(self.folder, "lists", os.path.basename(path)))
        lists, more = (
            ("release", ["-o", "Acquire::IndexTargets::deb::Packages::DefaultEnabled=false"])
            if known
            else ("lists", [])
        )
        code, output = self.update("old", lists, more)
        if code == 0:
            return []
        failed = list(dict.fromkeys(re.findall(r"^Err:\d+ (\S+)", output, re.MULTILINE)))
        return [problem_of(output, uri, "") for uri in failed] or [problem_of(output, "", "")]

    def update(self, sources: str, lists: str, more: Optional[List[str]] = None) -> Tuple[int, str]:
        """Fetch the lists of some sources."""
        wait = str(self.seconds)
        options = ["-o", "Acquire::http::Timeout=" + wait, "-o", "Acquire::https::Timeout=" + wait]
        options += ["-o", "Acquire::Retries=1", "-o", "APT::Update::Error-Mode=any", "-o", "APT::Get::List-Cleanup=0"]
        options += [
            "-o",
            "Acquire::IndexTargets::deb::Translations::DefaultEnabled=false",
            "-o",
            "Acquire::Languages=none",
        ]
        return self.run(["apt-get", "-q", *options, *(more or []), "update"], sources, lists, 30 * self.seconds)

    def run(self, command: List[str], sources: str, lists: str, limit: int) -> Tuple[int, str]:
        """Run an apt program in the folder."""
        main = SOURCES if sources in ("old", "all") and os.path.exists(SOURCES) else "/dev/null"
        places = {
            "Dir::Etc::sourcelist": main,
            "Dir::Etc::sourceparts": os.path.join(self.folder, sources),
            "Dir::Etc::netrcparts": os.path.join(self.folder, "auth"),
            "Dir::State::lists": os.path.join(self.folder, lists),
            "Dir::Cache": os.path.join(self.folder, "cache"),
            "Dir::Cache::archives": os.path.join(self.folder, "cache"),
            "Debug::NoLocking": "1",
            **self.proxies,
        }
        options = [word for name, value in places.items() for word in ("-o", "{}={}".format(name, value))]
        more = {"APT_CONFIG": os.path.join(self.folder, "apt.conf")}
        return run([command[0], *options, *command[1:]], limit, more=more)


def address(uri: str) -> str:
    """Return the normalized address of a source."""
    machine = os.uname().machine
    return uri.replace("$(ARCH)", {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)).rstrip("/")


def other_sources() -> List[str]:
    """Return the addresses of the node's sources that provision did not write; the role platform preserves them."""
    addresses: List[str] = []
    for path in [SOURCES, *glob.glob(PARTS + "/*.list"), *glob.glob(PARTS + "/*.sources")]:
        if "/provision-" in path or not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = [line for line in stream if not line.lstrip().startswith("#")]
        addresses += [address(word) for line in lines for word in re.findall(r"https?://\S+", line)]
    return addresses


def run(command: List[str], limit: int, more: Optional[Dict[str, str]] = None) -> Tuple[int, str]:
    """Run a command and return its code and output; kill it after the time limit. `more` are environment variables."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", **(more or {})},
    )
    try:
        out, _ = process.communicate(timeout=limit)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        code, out = 124, out + "\nE: {} did not end within {} seconds\n".format(command[0], limit).encode()
    return code, out.decode(errors="replace")


def candidates(output: str) -> Dict[str, str]:
    """Return the versions that ``apt-cache policy`` would install."""
    versions: Dict[str, str] = {}
    name = ""
    for line in output.splitlines():
        if line and not line.startswith(" ") and line.endswith(":"):
            name = line[:-1]
        match = re.match(r"  Candidate: (\S+)$", line)
        if match and match.group(1) != "(none)":
            versions[name] = match.group(1)
    return versions


def version_tables(output: str) -> Dict[str, List[str]]:
    """Return all versions of each package in the output of ``apt-cache policy``."""
    tables: Dict[str, List[str]] = {}
    name = ""
    for line in output.splitlines():
        if line and not line.startswith(" ") and line.endswith(":"):
            name = line[:-1]
        match = re.match(r" (?:\*\*\*|   ) (\S+) -?[0-9]+$", line)
        if match:
            tables.setdefault(name, []).append(match.group(1))
    return tables


def errors(output: str) -> str:
    """Return the errors in the output of apt, as one text."""
    lines = [line.strip() for line in output.splitlines()]
    messages = [line for line in lines if re.match(r"E:|W: (GPG|Failed)|Err:", line)]
    messages += [line for line in lines if re.search(r" (Depends|Conflicts|Breaks): ", line)]
    return "; ".join(dict.fromkeys(messages))[:MOST] or output.strip()[-300:]


def problem_of(output: str, uri: str, name: str) -> Dict[str, str]:
    """Return why a source cannot be used: it does not answer, or its answer is not a trusted repository."""
    lines = [line for line in output.splitlines() if not uri or uri in line] or output.splitlines()
    about = errors("\n".join(lines)) or errors(output)
    code = "invalid" if ANSWERS.search(errors(output)) else "unreachable"
    return {"uri": uri, "repository": name, "code": code, "reason": about}


# The image


class Refused(Exception):
    """The registry has refused the request."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def check_image(image: Dict[str, Any], seconds: int) -> Dict[str, str]:
    """Return whether the registry, or a mirror of Docker Hub, has the image for this node."""
    places = image["mirrors"] if image["registry"] == HUB else []
    registry = HUB_HOST if image["registry"] == HUB else image["registry"]
    answer = {"code": "unreachable", "reason": ""}
    for place in 2 * [*places, "https://" + registry]:  # twice each, because of lost packets
        answer = check_place(place.rstrip("/"), image, seconds)
        if answer["code"] == "ok" or (answer["code"] != "unreachable" and not places):
            break
    return answer


def check_place(place: str, image: Dict[str, Any], seconds: int) -> Dict[str, str]:
    """Return whether one registry has the image."""
    try:
        Registry(place, image, seconds).manifest()
    except Refused as error:
        return {"code": error.code, "reason": str(error)}
    except Exception as error:  # noqa: BLE001 - the answer of a strange server ends no check
        return failure(error)
    return {"code": "ok", "reason": ""}


def failure(error: BaseException) -> Dict[str, str]:
    """Return why a registry did not answer."""
    cause = getattr(error, "reason", error)
    untrusted = getattr(ssl, "SSLCertVerificationError", ssl.SSLError)  # Python 3.7
    if isinstance(cause, untrusted):
        return {"code": "untrusted" if os.path.exists(CA_BUNDLE) else "unchecked", "reason": str(cause)[:MOST]}
    return {"code": "unreachable", "reason": (str(cause) or type(cause).__name__)[:MOST]}


class Registry:
    """The part of a registry's HTTP interface that reports whether it has an image."""

    def __init__(self, place: str, image: Dict[str, Any], seconds: int) -> None:
        """Use the same certificates as the node's docker."""
        self.place, self.image, self.seconds = place, image, seconds
        context = ssl.create_default_context()
        host = urllib.parse.urlsplit(place).netloc
        if image.get("ca"):
            context.load_verify_locations(cadata=image["ca"])
        for path in glob.glob("/etc/docker/certs.d/{}/*.crt".format(glob.escape(host))):
            context.load_verify_locations(cafile=path)
        if image.get("insecure"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))

    def manifest(self) -> None:
        """Request the image's manifest; Refused if the registry refuses it."""
        path, reference = self.image["path"], self.image["digest"] or self.image["tag"]
        url = "{}/v2/{}/manifests/{}".format(self.place, path, reference)
        try:
            self.ask(url, {})
        except urllib.error.HTTPError as error:
            if error.code != 401:
                raise refused(error) from error
            try:
                self.ask(url, {"Authorization": self.authorization(error.headers.get("WWW-Authenticate", ""))})
            except urllib.error.HTTPError as again:
                raise refused(again) from again

    def ask(self, url: str, headers: Dict[str, str]) -> bytes:
        """Return the beginning of a document."""
        request = urllib.request.Request(url, headers={"Accept": FORMS, **headers})
        with self.opener.open(request, timeout=self.seconds) as response:
            return bytes(response.read(1 << 16))

    def authorization(self, challenge: str) -> str:
        """Return the authorization for a challenge of the registry: a login, or a token of its token server."""
        basic = login(self.image)
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            if not basic:
                raise Refused("refused", "the registry requires a login")
            return "Basic " + basic
        fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        realm = fields.get("realm", "")
        if kind.lower() != "bearer" or urllib.parse.urlsplit(realm).scheme != "https":
            raise Refused("unchecked", "the registry asks for {!r}".format(challenge[:200]))
        query = {"scope": "repository:{}:pull".format(self.image["path"]), "service": fields.get("service", "")}
        answer = self.ask(
            realm + "?" + urllib.parse.urlencode(query), {"Authorization": "Basic " + basic} if basic else {}
        )
        token = json.loads(answer.decode())
        return "Bearer " + str(token.get("token") or token.get("access_token"))


def refused(error: urllib.error.HTTPError) -> Refused:
    """Return the error of a registry's status."""
    reason = "the registry answered {} {}".format(error.code, error.reason)
    if error.code == 404:
        return Refused("missing", reason)
    if error.code in (401, 403):
        return Refused("refused", reason)
    return Refused("unchecked" if error.code == 429 else "unreachable", reason)


def login(image: Dict[str, Any]) -> str:
    """Return the encoded login for the registry: the inventory's, else that of the node's docker."""
    given = image.get("login")
    if given:
        return base64.b64encode("{username}:{password}".format(**given).encode()).decode()
    try:
        with open(DOCKER_LOGINS, encoding="utf-8") as stream:
            auths = json.load(stream).get("auths", {})
        name = HUB_LOGIN if image["registry"] == HUB else image["registry"]
        return str(auths[name].get("auth", ""))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ""
