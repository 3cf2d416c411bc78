"""Check the documentation site in Chromium: `make site-check`.

Every page is laid out at the width of a desktop and of a phone, in light and dark colours, chosen by the browser's
preference and by the theme's button. Problems are pages wider than the window, elements that are cut off, errors in the
console, requests that fail or leave this machine, links without a target, searches without a result, and every
violation that axe-core reports.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import http.server
import itertools
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote, urldefrag

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")
SEARCHES = {"drain": "how-to/drain.html", "cluster_drain": "reference/variables.html"}
"""Search words -> a page that the results contain."""
TALLEST_SCREENSHOT = 3000
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *(
        "--disable-component-update",
        "--remote-debugging-pipe",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ),
)

LAYOUT = """((width) => {
  const problems = [], page = document.documentElement;
  width = Math.min(width, page.clientWidth);
  if (page.scrollWidth > width) problems.push(`page is ${page.scrollWidth} pixels wide, window ${width}`);
  const scrolls = (part) =>
    part && (["auto", "scroll"].includes(getComputedStyle(part).overflowX) || scrolls(part.parentElement));
  for (const part of document.querySelectorAll(".md-content *, .md-footer *")) {
    const box = part.getBoundingClientRect();
    if (box.width > 1 && box.right > width + 1 && !scrolls(part.parentElement))
      problems.push(`cut off: ${part.outerHTML.slice(0, 80)}`);
  }
  for (const image of document.images) if (!image.naturalWidth) problems.push(`no image: ${image.src}`);
  for (const part of document.querySelectorAll("td code"))
    if (part.textContent.includes("\\\\|")) problems.push(`backslash before a pipe: ${part.textContent.slice(0, 80)}`);
  const prose = document.querySelector(".md-content").cloneNode(true);
  prose.querySelectorAll("pre, code").forEach((part) => part.remove());
  for (const [markup] of prose.textContent.matchAll(/.{0,20}(```|[*]{2}|[\\]][(]|[\\\\][^ \\w]).{0,20}/g))
    problems.push(`Markdown that was not rendered: ${markup}`);
  if (document.querySelector(".md-content").innerText.trim().length < 10) problems.push("page is empty");
  return problems;
})"""
AXE = """axe.run(document, {resultTypes: ["violations"], preload: false}).then((result) =>
  result.violations.flatMap((rule) => rule.nodes.map((node) =>
    `axe ${rule.impact}: ${rule.id}: ${node.target.join(" ")}` +
    (rule.id === "color-contrast" ? ` (${node.any[0].message})` : ""))))"""
AXE_CONTRAST = AXE.replace("{", "{runOnly: ['color-contrast'], ", 1)
LINKS = """({
  anchors: [...document.querySelectorAll("[id], a[name]")].map((part) => part.id || part.name),
  links: [...document.querySelectorAll("a[href]")].map((link) => link.href),
})"""
SWITCH_COLOURS = "document.querySelector('[data-md-component=palette] label:not([hidden])').click()"
COLOURS = "document.body.getAttribute('data-md-color-scheme')"
OPEN_SEARCH = "document.querySelector('[for=__search].md-header__button, .md-search__input').click()"
RESULTS = """new Promise((done) => {
  const started = Date.now();
  const timer = setInterval(() => {
    const links = [...document.querySelectorAll(".md-search-result__link")].map((link) => link.href);
    if (links.length || Date.now() - started > 20000) { clearInterval(timer); done(links); }
  }, 100);
})"""


class Browser:
    """Chromium, controlled by the DevTools protocol through a pipe."""

    def __init__(self, profile: str) -> None:
        """Start Chromium; it resolves no host names.

        Raises:
            SystemExit: Chromium is not installed.
        """
        program = next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            sys.exit("chromium: not installed\nRun: make setup")
        words = ["sh", "-c", 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1', "sh"]
        words += [program, *FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._answers = cast("IO[bytes]", self._process.stdout)
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []
        self._session: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **self._session}
        self._requests.write(json.dumps(message).encode() + b"\0")
        self._requests.flush()
        while (answer := self._read()).get("id") != number:
            self._events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        """Return the next message."""
        data = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("chromium ended")
            data += byte
        message: dict[str, Any] = json.loads(data)
        return message

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression[:80]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def show(self, size: str, scheme: str) -> None:
        """Set the size of the window and the preferred colours."""
        width, height = SIZES[size]
        phone = size == "phone"
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features_list = [{"name": name, "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=features_list)

    def open(self, url: str) -> None:
        """Load a page and wait until its scripts ran."""
        self._events.clear()
        self.call("Page.navigate", url="about:blank")
        self._wait("Page.loadEventFired")
        self._events.clear()
        self.call("Page.navigate", url=url)
        self._wait("Page.loadEventFired")
        self.settle()

    def settle(self) -> None:
        """Wait until the page is drawn."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 100)))")

    def _wait(self, event: str) -> None:
        while not any(message.get("method") == event for message in self._events):
            self._events.append(self._read())

    def problems(self, base: str) -> list[str]:
        """Return failed requests, requests outside a base URL and errors since the page was opened."""
        return [text for event in self._events if (text := _problem(event, base))]

    def screenshot(self, file: Path) -> None:
        """Write a screenshot of the page, from its top."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], TALLEST_SCREENSHOT), "scale": 1}
        data = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End Chromium."""
        with contextlib.suppress(RuntimeError):
            self._session = {}
            self.call("Browser.close")
        self._process.wait(timeout=30)


def _problem(event: dict[str, Any], base: str) -> str:
    """Return what is wrong according to an event, or nothing."""
    params, problem = event.get("params", {}), ""
    match event.get("method"):
        case "Network.requestWillBeSent" if not params["request"]["url"].startswith((base, "data:", "blob:")):
            problem = f"request: {params['request']['url']}"
        case "Network.responseReceived" if params["response"]["status"] >= HTTPStatus.BAD_REQUEST:
            problem = f"HTTP {params['response']['status']}: {params['response']['url']}"
        case "Network.loadingFailed" if not params.get("canceled"):
            problem = f"request failed: {params['errorText']}"
        case "Log.entryAdded" if params["entry"]["level"] == "error":
            problem = f"console: {params['entry']['text']}"
        case "Runtime.consoleAPICalled" if params["type"] in {"error", "assert"}:
            problem = f"console: {params['args'][0].get('value')}"
        case "Runtime.exceptionThrown":
            problem = f"exception: {params['exceptionDetails'].get('exception', {}).get('description')}"
    return problem


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on this machine and return its URL."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


class SiteCheck:
    """The pages of a site, and the problems of each."""

    def __init__(self, browser: Browser, site: Path, axe: str, screenshots: Path | None) -> None:
        """Take the built site, the source of axe-core and a folder for screenshots."""
        self._browser, self._site, self._axe, self._screenshots = browser, site, axe, screenshots
        self.pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
        self.states = 0
        self.problems: dict[str, list[str]] = {}
        self._anchors: dict[str, set[str]] = {}
        self._links: dict[str, set[str]] = {}

    def _add(self, where: str, problems: list[str]) -> None:
        for problem in problems:
            if problem not in self.problems:
                print(f"{where}: {problem}", flush=True)
            self.problems.setdefault(problem, []).append(where)

    def visit(self, base: str, page: str, scheme: str) -> None:
        """Check a page in the preferred colours at each width, and in the other ones after a click on the button."""
        self._browser.show("desktop", scheme)
        self._browser.open(base + page)
        self._browser.evaluate(self._axe)
        other = SCHEMES[scheme == "light"]
        self._check_state(page, "phone", scheme, "preferred")
        self._check_state(page, "desktop", scheme, "preferred")
        self._browser.evaluate(SWITCH_COLOURS)
        self._check_state(page, "desktop", other, "button")
        self._browser.evaluate("localStorage.clear()")
        self._add(f"{page} {scheme}", self._browser.problems(base))
        page_links = self._browser.evaluate(LINKS)
        self._anchors[base + page] = set(page_links["anchors"])
        self._links[base + page] = set(page_links["links"])

    def _check_state(self, page: str, size: str, colours: str, chosen_by: str) -> None:
        self._browser.show(size, SCHEMES[(colours == "light") == (chosen_by == "button")])
        self._browser.settle()
        where = f"{page} {size} {colours} by {chosen_by}"
        if self._browser.evaluate(COLOURS) != {"light": "default", "dark": "slate"}[colours]:
            self._add(where, ["the colours are not those that were chosen"])
        self._add(where, self._browser.evaluate(f"{LAYOUT}({SIZES[size][0]})"))
        if chosen_by == "preferred":
            self._add(where, self._browser.evaluate(AXE if colours == "light" else AXE_CONTRAST))
        self.states += 1
        if self._screenshots:
            self._browser.screenshot(self._screenshots / f"{page}.{size}.{colours}.{chosen_by}.png".replace("/", "."))

    def check_links(self, base: str) -> None:
        """Check that links inside the site have a target."""
        for page, links in self._links.items():
            for link in sorted(links):
                url, anchor = urldefrag(link)
                if not url.startswith(base):
                    continue
                target = unquote(url.removeprefix(base))
                if not (self._site / target).exists():
                    self._add(page, [f"link without a target: {link}"])
                elif anchor and url in self._anchors and unquote(anchor) not in self._anchors[url]:
                    self._add(page, [f"link without an anchor: {link}"])

    def check_search(self, base: str, size: str) -> None:
        """Search for words, and open the first result."""
        for words, page in SEARCHES.items():
            where = f"search {words!r} at {base[:4]} {size}"
            self._browser.show(size, "light")
            self._browser.open(base + "index.html")
            self._browser.evaluate(OPEN_SEARCH)
            self._browser.settle()
            self._browser.evaluate("document.querySelector('.md-search__input').focus()")
            for character in words:
                for kind in ("keyDown", "keyUp"):
                    self._browser.call("Input.dispatchKeyEvent", type=kind, text=character, key=character)
            results = self._browser.evaluate(RESULTS)
            if not any(result.startswith(base + page) for result in results):
                self._add(where, [f"{page} is not among {len(results)} results"])
            self._browser.settle()
            self._browser.evaluate(self._axe)
            self._add(where, self._browser.evaluate(AXE))
            self._add(where, self._browser.problems(base))
            if self._screenshots:
                self._browser.screenshot(self._screenshots / f"search.{words}.{base[:4]}.{size}.png")


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("axe", type=Path, help="package of axe-core, from npm")
    parser.add_argument("--site", type=Path, default=Path("build/site"))
    parser.add_argument("--screenshots", type=Path)
    parser.add_argument("--pages", default="", help="regular expression for paths of pages")
    options = parser.parse_args(arguments)
    with tarfile.open(options.axe) as package:
        script = package.extractfile("package/axe.min.js")
        axe = script.read().decode() if script else ""
    with tempfile.TemporaryDirectory() as profile, served(options.site) as base:
        browser = Browser(profile)
        check = SiteCheck(browser, options.site, axe, options.screenshots)
        for page in check.pages:
            if re.search(options.pages, page):
                for scheme in SCHEMES:
                    check.visit(base, page, scheme)
        check.check_links(base)
        for address, size in itertools.product((base, options.site.absolute().as_uri() + "/"), SIZES):
            check.check_search(address, size)
        browser.close()
    count = sum(map(len, check.problems.values()))
    print(f"{check.states} states of pages, {count} problems, {len(check.problems)} different ones")
    return int(bool(check.problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
