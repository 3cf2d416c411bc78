"""The page about benchmarks in a real browser: light and dark, wide and narrow."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from provision.report.bench_html import as_html
from tests.support.benchmark_page import ABOUT, page_results

LOOK = """
const found = {overlaps: [], outside: [], wide: document.documentElement.scrollWidth > window.innerWidth,
  back: getComputedStyle(document.body).backgroundColor, text: getComputedStyle(document.body).color};
for (const svg of document.querySelectorAll('svg')) {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].map(item => [item.textContent, item.getBoundingClientRect()]);
  texts.forEach(([words, box], at) => {
    if (box.left < frame.left - 1 || box.right > frame.right + 1) found.outside.push(words);
    if (box.top < frame.top - 1 || box.bottom > frame.bottom + 1) found.outside.push(words);
    for (const [others, other] of texts.slice(at + 1))
      if (box.left < other.right && other.left < box.right && box.top + 2 < other.bottom && other.top + 2 < box.bottom)
        found.overlaps.push([words, others]);
  });
}
document.body.setAttribute('data-found', JSON.stringify(found));
"""
"""What a test asks of the page that the browser has laid out; the page itself has no script."""


@pytest.fixture
def look(tmp_path):
    """Lay the page out in a browser and return what was found there."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert browser is not None, "no chromium is on this machine: make setup installs Debian's package"
    page = as_html(*page_results(), **ABOUT)
    page = re.sub(r"<meta http-equiv=[^>]*>", "", page).replace("</body>", f"<script>{LOOK}</script></body>")
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")

    def lay_out(width, *options):
        words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
        words += [f"--window-size={width},900", *options, "--dump-dom", file.as_uri()]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
        return json.loads(unescape(re.search(r'data-found="([^"]*)"', done.stdout)[1]))

    return lay_out


@pytest.mark.parametrize("width", [1280, 600])
def test_labels_do_not_overlap_and_stay_inside_their_plot(look, width):
    """On a wide screen and on a narrow one; plots and tables scroll by themselves, the page does not."""
    layout = look(width)

    assert layout["overlaps"] == []
    assert layout["outside"] == []
    assert not layout["wide"]


def test_the_page_follows_the_dark_colour_scheme_of_the_browser(look):
    """Text and background change places, and stay apart."""
    light, dark = look(1280), look(1280, "--blink-settings=preferredColorScheme=0")

    assert brightness(light["back"]) - brightness(light["text"]) > 180
    assert brightness(dark["text"]) - brightness(dark["back"]) > 180


def brightness(colour):
    """Return the mean of a colour's three parts."""
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3
