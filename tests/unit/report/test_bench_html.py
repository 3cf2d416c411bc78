"""The page about benchmarks: whole, honest, and readable without us."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from xml.etree import ElementTree as ET

import pytest

from provision.benchmarks import Run
from provision.report.bench_html import as_document, as_html
from provision.report.svg import Bar, Curve, bars, curves
from tests.support.benchmark_page import ABOUT, page_results

XHTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"


def parsed(page):
    """Read the page by a strict parser: it ends at the first thing that is not well-formed."""
    head, _, rest = page.partition("\n")

    assert head == "<!DOCTYPE html>"
    return ET.fromstring(rest)  # noqa: S314 - our own page


def words_of(element):
    """Return all that is written in an element."""
    between = " " if element.tag in {f"{XHTML}tr", f"{SVG}g", f"{XHTML}body"} else ""
    return " ".join(between.join(element.itertext()).split())


@pytest.fixture(scope="module")
def page():
    """The page of the results."""
    return as_html(*page_results(), **ABOUT)


def test_the_page_is_well_formed_and_self_contained(page):
    """The page has no script and no URL, and its security policy forbids loading anything."""
    root = parsed(page)

    assert {element.tag for element in root.iter()} & {f"{XHTML}{name}" for name in ("script", "link", "img")} == set()
    assert not any(name.split("}")[-1] in {"src", "href", "onload"} for item in root.iter() for name in item.attrib)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_the_page_describes_runs_and_nodes(page):
    """Name, time, who, command, options, variables, nodes, GPUs, driver, fabric, image, software."""
    text = words_of(parsed(page).find(f"{XHTML}body"))

    for said in (
        "plain 16 GPUs",
        "2026-11-22",
        "alice on ops1",
        "python3 bench.py --model '<resnet50>'",
        "--preset taco --gdr",
        "NCCL_ALGO=Ring WANDB_API_KEY=(not recorded)",
        "gpu0 ... gpu1 (2)",
        "8x NVIDIA A100; driver 535.1; mlx5_0 200 Gb/sec; r/t:1",
        "software torch 2.4.0 variables of rank 0 NCCL_NET_GDR_LEVEL=2",
        "Read from output files without data about the nodes:",
        "a file <of> mine.log",
        "T(n) / (n T(1))",
        "Welch's t-test",
    ):
        assert said in text


def test_the_page_shows_every_value_and_verdict(page):
    """Throughput with its band, truncated efficiency, the faster side, and whether the difference is real."""
    rows = [words_of(row) for row in parsed(page).iter(f"{XHTML}tr")]

    assert "resnet50, batch 64 plain 16 GPUs 95.0 \u00b10.6 1520.0 95.00%" in rows
    assert "resnet50, batch 64 plain 1 GPU 100.0 \u00b10.6 100.0 -" in rows
    assert any("real A is 4.75x as fast (SIMULATED)" in row for row in rows)
    assert any("unnamed model, batch ? a file <of> mine.log 16 GPUs 12.5 200.0 -" in row for row in rows)


def test_values_of_simulated_gpus_are_marked(page):
    """In the warning at the top, in tables, plots and comparisons; and their bars are drawn differently."""
    root = parsed(page)
    lines = [words_of(item) for tag in (f"{XHTML}tr", f"{SVG}g") for item in root.iter(tag)]
    theirs = [line for line in lines if "stand-ins" in line]

    assert "SIMULATED" in words_of(next(item for item in root.iter() if item.get("class") == "simulated"))
    assert theirs
    assert all("SIMULATED" in line for line in theirs)
    striped = [item for item in root.iter(f"{SVG}g") if item.find(f"{SVG}rect[@class='bar striped']") is not None]
    assert striped
    assert all("stand-ins" in words_of(item) for item in striped)


def test_without_simulated_components_nothing_is_marked():
    """Else the word would mean nothing."""
    runs, records = page_results()

    assert "SIMULATED" not in as_html([run for run in runs if not run.simulated], records[:3], **ABOUT)


def test_the_json_document_has_the_values_of_the_page():
    """For scripts: runs as of `bench table`, the records whole, each comparison with both names."""
    document = json.loads(json.dumps(as_document(*page_results(), **ABOUT), allow_nan=False))

    assert [run["efficiency"] for run in document["runs"][:3]] == [1.0, 0.98, 0.95]
    assert document["results"][0]["nodes"][0]["gpus"] == "8x NVIDIA A100"
    assert document["simulated"] == ["nvidia-smi: eight described cards"]
    assert {(item["a_label"], item["b_label"], item["verdict"]) for item in document["comparisons"]} == {
        ("plain", "stand-ins", "real")
    }


def two_settings():
    """Two configurations, each on one GPU and on sixteen."""
    return [
        Run(f"{name}-{gpus}.log", "resnet50", 256, gpus, each, 1.0, each * gpus, 1.0 * gpus, configuration=name)
        for name, figures in (("tcp", {1: 780.0, 16: 741.468}), ("rdma", {1: 829.0, 16: 812.42}))
        for gpus, each in figures.items()
    ]


def test_each_configuration_has_its_own_baseline_colour_and_curve():
    """Efficiencies are not those of a mean of both; bars and curves of one configuration have one colour."""
    root = parsed(as_html(two_settings(), [], **ABOUT))
    rows = [words_of(row) for row in root.iter(f"{XHTML}tr")]
    groups = [(item.get("class"), item) for item in root.iter(f"{SVG}g")]
    colours = {name: {colour for colour, item in groups if f"{name}-" in words_of(item)} for name in ("tcp", "rdma")}
    curved = [
        (colour, item.find(f"{SVG}title").text) for colour, item in groups if item.find(f"{SVG}circle") is not None
    ]
    key = [(item.get("class"), words_of(item)[2:]) for item in root.iter(f"{XHTML}li")]

    assert [row.split()[-1] for row in rows if "16.log 16 GPUs" in row] == ["95.06%", "98.00%"]
    assert {len(numbers) for numbers in colours.values()} == {1}
    assert colours["tcp"] != colours["rdma"]
    assert sorted(curved) == sorted(set(key)) == sorted((colour, name) for name, (colour,) in colours.items())


def test_a_point_of_a_curve_is_the_mean_of_repeated_runs():
    """Not the last of them."""
    runs = two_settings()[:2]
    again = dataclasses.replace(runs[1], total=runs[1].total - 2000)
    root = parsed(as_html([*runs, again], [], **ABOUT))
    once = parsed(as_html([runs[0], dataclasses.replace(runs[1], total=runs[1].total - 1000)], [], **ABOUT))
    spots, expected = ([item.get("cy") for item in page.iter(f"{SVG}circle")] for page in (root, once))

    assert spots == expected


def test_many_results_are_compared_with_the_fastest_only():
    """A comparison of all pairs of a hundred results would have five thousand lines."""
    runs = [Run(f"{i}", "m", 1, 1, 100.0 + i, 0.1, 100.0 + i, 0.1, (100.0 + i,) * 3) for i in range(100)]
    comparisons = as_document(runs, [], **ABOUT)["comparisons"]

    assert len(comparisons) == 99
    assert {item["a_label"] for item in comparisons} == {"99"}


@pytest.mark.parametrize(
    "rows",
    [
        [Bar("a", 0.0, None, "0.0")],
        [Bar("W" * 500, 1e-9, 5.0, "x"), Bar("b", 1e12, 1e11, "9" * 20, 1.2e12)],
        [Bar("a", 812.3, 4.0, "812.3 +-4.0", 900.0), Bar("b", 880.0, None, "880.0", 900.0, striped=True)],
    ],
)
def test_bar_chart_elements_are_inside_and_do_not_overlap(rows):
    """Labels, bars and figures of all rows have places of their own, inside the drawing."""
    root = ET.fromstring(bars("t", "img/s", rows))  # noqa: S314
    _, _, width, height = map(float, root.get("viewBox").split())
    lines = [float(text.get("y")) for text in root.iter(f"{SVG}text") if text.get("class") != "tick"]

    for rect in root.iter(f"{SVG}rect"):
        assert 0 <= float(rect.get("width")) <= width - 150
        assert float(rect.get("y")) + float(rect.get("height")) < height - 28
    assert all(
        float(text.get("x")) + 7 * len(text.text) <= width for text in root.iter(f"{SVG}text") if text.get("x") == "0"
    )
    for row in root.iter(f"{SVG}g"):
        label = next(text for text in row.iter(f"{SVG}text") if text.get("x") == "0")
        tops = [float(item.get("y") or item.get("y1")) for item in (*row.iter(f"{SVG}rect"), *row.iter(f"{SVG}line"))]
        assert min(tops) >= float(label.get("y")) + 5  # below the letters that reach below the line
    assert sorted(lines) == sorted(set(lines))
    assert min(b - a for a, b in itertools.pairwise(sorted(lines))) >= 14


def test_plot_points_are_inside_and_ticks_do_not_overlap():
    """From one GPU to a thousand, with an error bar that would reach below zero."""
    sizes = (1, 2, 3, 4, 7, 8, 15, 16, 1000, 1024)
    drawn = curves("t", "GPUs", "img/s", [Curve("a", tuple((n, 3.0 * n, 50.0) for n in sizes), ideal=3.0)])
    root = ET.fromstring(drawn)  # noqa: S314
    spots = [(float(item.get("cx")), float(item.get("cy"))) for item in root.iter(f"{SVG}circle")]
    ticks = [float(item.get("x")) for item in root.iter(f"{SVG}text") if item.get("text-anchor") == "middle"]

    assert len(spots) == len(sizes)
    assert all(0 < x < 600 and 0 < y < 360 for x, y in spots)
    assert spots == sorted(spots, key=lambda spot: (spot[0], -spot[1]))
    assert all(b - a > 30 for a, b in itertools.pairwise(ticks))
    texts = [(float(item.get("x")), float(item.get("y"))) for item in root.iter(f"{SVG}text")]
    assert all(abs(x - u) > 30 or abs(y - v) >= 13 for (x, y), (u, v) in itertools.combinations(texts, 2))
    assert not re.search(r"nan|inf", drawn)


def test_unusual_values_do_not_break_the_page():
    """Zero, no band, no name, a band wider than the value, a thousand GPUs."""
    odd = Run("", None, None, 1, 0.0, None, 0.0)
    runs = [odd, dataclasses.replace(odd, gpus=1024, total=1e9, total_plus_minus=2e9, label="\ud800\x00]]>")]

    assert parsed(as_html(runs, [], **ABOUT)) is not None
    assert parsed(as_html([], [], **ABOUT)) is not None
