"""The cache of node images; building one needs root and minutes, and is tested where nodes are really made."""

import json
import os
from pathlib import Path

import pytest

from provision.errors import LabError
from provision.lab import vm_image
from provision.lab.mirror import MirrorSources, Stanza
from provision.lab.systems import lab_system
from provision.lab.vm_recipe import Recipe

SOURCES = (Stanza(("http://m.example/debian",), ("bookworm",), ("main",)),)
RECIPE = Recipe(MirrorSources(lab_system("debian12"), SOURCES))


class Steps(list):
    def step(self, message):
        self.append(message)


def test_a_finished_image_is_reused(tmp_path):
    """An image in the cache is neither built nor touched again."""
    folder = tmp_path / "images" / f"vm-debian12-{RECIPE.key}"
    folder.mkdir(parents=True)
    (folder / "image.json").write_text(json.dumps({"disk": "abc.raw"}))
    steps = Steps()
    assert vm_image.ensure_image(RECIPE, steps, cache=tmp_path).disk == folder / "abc.raw"
    assert steps == []


def test_a_failed_build_leaves_no_image(tmp_path, monkeypatch):
    """If a build step fails, its last lines are reported and the cache has no incomplete image."""
    monkeypatch.setattr(vm_image, "need_programs", lambda _: None)
    monkeypatch.setattr(vm_image, "_BOOT_RECORD", __file__)
    monkeypatch.setattr(vm_image.os, "geteuid", lambda: 0)
    monkeypatch.setattr(Recipe, "mmdebstrap", lambda *_: ["sh", "-c", "echo no space left >&2; exit 25"])
    with pytest.raises(LabError, match="status 25") as caught:
        vm_image.ensure_image(RECIPE, Steps(), cache=tmp_path)
    assert caught.value.output == "no space left"
    assert [path.name for path in (tmp_path / "images").iterdir() if path.is_dir()] == []


def test_building_requires_root(tmp_path, monkeypatch):
    """Without root the answer is a sentence, before anything is downloaded."""
    monkeypatch.setattr(vm_image, "need_programs", lambda _: None)
    monkeypatch.setattr(vm_image, "_BOOT_RECORD", __file__)
    monkeypatch.setattr(vm_image.os, "geteuid", lambda: 1000)
    with pytest.raises(LabError, match="requires root"):
        vm_image.ensure_image(RECIPE, Steps(), cache=tmp_path)


def test_missing_programs_are_reported_with_their_packages():
    """All missing packages are listed in one command."""
    with pytest.raises(LabError, match="no-such-a, no-such-b") as caught:
        vm_image.need_programs({"no-such-a": "pkg-a", "sh": "dash", "no-such-b": "pkg-b"})
    assert caught.value.remedy.endswith("pkg-a pkg-b")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_killed_build_leaves_no_mounts(tmp_path, monkeypatch):
    """Else the next build, which removes the remains, finds files of this machine below them."""
    script = f'mkdir -p "$1/proc" && mount -t tmpfs none "$1/proc" && touch {tmp_path}/mounted; kill -KILL $$'
    monkeypatch.setattr(vm_image, "need_programs", lambda _: None)
    monkeypatch.setattr(vm_image, "_BOOT_RECORD", __file__)
    monkeypatch.setattr(Recipe, "mmdebstrap", lambda _, root, *__: ["sh", "-c", script, "sh", root])

    with pytest.raises(LabError):
        vm_image.ensure_image(RECIPE, Steps(), cache=tmp_path)

    assert (tmp_path / "mounted").exists()
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
