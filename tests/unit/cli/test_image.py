"""``image`` as it is typed, over nodes that answer from a table."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from provision.cli.main import main
from provision.errors import ConnectionFailed
from provision.facts.image_contents import IMAGE_SCRIPT, ImageContents, image_contents, mismatch
from provision.model import CommandResult
from provision.testing import make_cluster

SAME = "sha256:aaaabbbbccccdddd r/t@sha256:1111222233334444 1500000000\n"


@pytest.fixture
def typed(monkeypatch, capsys):
    """Type a command, with what each node's docker prints; return exit code, stdout and the scripts."""
    monkeypatch.setattr("provision.cli.image.cluster_from", lambda *_a, **_k: make_cluster("n1", "n2"))

    def call(*words, **answers):
        scripts = []

        class Way:
            def __init__(self, name):
                self.name = name

            def run(self, script, **_settings):
                scripts.append((self.name, script))
                answer = answers[self.name]
                return answer if isinstance(answer, CommandResult) else CommandResult(answer, "", 0)

        def each(nodes, function):
            lost = {name for name, answer in answers.items() if isinstance(answer, Exception)}
            return {n.name: answers[n.name] if n.name in lost else function(Way(n.name)) for n in nodes}

        monkeypatch.setattr("provision.connectors.each", each)
        with pytest.raises(SystemExit) as stopped:
            main(["image", *words])
        return stopped.value.code, capsys.readouterr().out, scripts

    return call


@pytest.mark.row(47)
def test_an_image_is_pulled_everywhere_and_compared(typed):
    """0 when all have the same; the reference is one word for the shell."""
    code, out, scripts = typed("pull", "r/t:1;id", n1=SAME, n2=SAME)

    assert code == 0
    assert out.splitlines()[2].split() == ["n1,", "n2", "sha256:aaaabbbbcccc", "sha256:111122223333", "1500", "MB"]
    assert all("-- 'r/t:1;id'" in script for _, script in scripts)


@pytest.mark.row(47)
def test_nodes_with_a_different_or_missing_image_are_reported(typed):
    """1, also where one node alone is asked and has none."""
    other = SAME.replace("aaaa", "ffff").replace("1111", "5555")
    code, out, _ = typed("list", "r/t:1", n1=SAME, n2=other)
    assert code == 1
    assert "different image on n2" in out
    code, out, _ = typed("list", "r/t:1", "--nodes", "n2", n2="")
    assert (code, out.splitlines()[-1]) == (1, "on none of these nodes")
    code, out, _ = typed("list", "r/t:1", n1="", n2=other)
    assert (code, out.splitlines()[-1]) == (1, "missing on n1")
    code, out, _ = typed("list", "r/t:1", "--json", n1=SAME, n2=ConnectionFailed("no route"))
    assert (code, json.loads(out)["same"], json.loads(out)["nodes"][1]["error"]) == (1, False, "no route")
    assert typed("list", "r/t:1", "--nodes", "n9")[0] == 3
    assert typed("list", "")[0] == 2


@pytest.mark.row(47)
def test_contents_of_an_image_are_compared_with_its_host(typed):
    """By name and version, and what does not fit."""
    answer = "ofed=5.8-1.0.1.1\n== image\nos=Ubuntu 20.04.4 LTS\npython=3.8.10\nofed=5.4-3.1.0.0\ntorch=1.11.0+cu113\n"
    code, out, _ = typed("inspect", "r/t:1", n1=answer)

    assert code == 0
    assert "torch   1.11.0+cu113        -" in out
    assert "mismatch: the image has OFED 5.4, the host OFED 5.8" in out
    assert json.loads(typed("inspect", "r/t:1", "--json", n1=answer)[1])["versions"]["python"] == "3.8.10"
    assert typed("inspect", "r/t:1", n1=CommandResult("", "no such image", 125))[0] == 1


@pytest.mark.row(49, 56)
def test_an_image_without_a_library_for_the_cards_is_reported():
    """Its jobs would find no RDMA device, whatever the container is given."""
    host = ImageContents({"rdma-driver": "mlx5"})

    assert "driver mlx5" in mismatch(ImageContents({"os": "Debian", "rdma-driver": "mlx4,rxe"}), host)
    assert "driver mlx5" in mismatch(ImageContents({"os": "Debian"}), host)
    assert mismatch(ImageContents({"os": "Debian", "rdma-driver": "mlx4,mlx5"}), host) == ""


def test_compatible_versions_are_no_mismatch():
    """Equal releases, and unknown ones."""
    assert mismatch(ImageContents({"ofed": "5.8-1"}), ImageContents({"ofed": "5.8-3"})) == ""
    assert mismatch(ImageContents({}), ImageContents({"ofed": "5.8"})) == ""


def test_the_inspection_script_reports_versions():
    """It is shell that runs, and says at least its system and Python."""
    shell = shutil.which("sh")
    done = subprocess.run([shell, "-c", IMAGE_SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    versions = image_contents(done.stdout).versions

    assert versions["os"]
    assert versions["python"][0] == "3"
