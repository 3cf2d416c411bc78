"""What a bare node's image is made of."""

import dataclasses
from pathlib import Path

import pytest

from provision.errors import LabError
from provision.lab.mirror import MirrorSources, Stanza
from provision.lab.systems import lab_system, system_names
from provision.lab.vm_recipe import Recipe

BOOKWORM, TRIXIE = lab_system("debian12"), lab_system("debian13")
SOURCES = MirrorSources(BOOKWORM, (Stanza(("http://mirror.example/debian",), ("bookworm",), ("main",)),))
RECIPE = Recipe(SOURCES)


def test_a_bare_node_has_no_packages_of_the_roles():
    """Headers, compiler, docker and RDMA packages are the roles' work and not in the image."""
    words = " ".join(RECIPE.packages)
    assert not [part for part in ("headers", "gcc", "docker", "rdma", "dkms", "openmpi") if part in words]
    assert "linux-image-amd64" in RECIPE.packages


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(RECIPE, more_packages=("less",)),
        dataclasses.replace(RECIPE, sources=dataclasses.replace(SOURCES, system=TRIXIE)),
        dataclasses.replace(RECIPE, stand_ins=(Path("/cache/0a1b/driver_1_all.deb"),)),
        dataclasses.replace(RECIPE, files={"etc/motd": "hello\n"}),
        dataclasses.replace(RECIPE, early_files={}),
        dataclasses.replace(
            RECIPE, sources=dataclasses.replace(SOURCES, settings=(("Acquire::http::Proxy", "http://p.example"),))
        ),
        dataclasses.replace(
            RECIPE, sources=MirrorSources(BOOKWORM, (Stanza(("http://b.example/debian",), ("bookworm",), ("main",)),))
        ),
    ],
    ids=["package", "distribution", "stand-in", "file", "early file", "proxy", "mirror"],
)
def test_a_changed_recipe_has_another_key(other):
    """No node comes from a cached image of another recipe."""
    assert other.key != RECIPE.key
    assert dataclasses.replace(RECIPE).key == RECIPE.key


def test_nodes_use_the_controllers_mirror():
    """A node installs its packages from where this machine does, and newer kernels only when switched on."""
    assert "URIs: http://mirror.example/debian" in RECIPE.late["etc/apt/sources.list.d/debian.sources"]
    backports = RECIPE.late["etc/apt/sources.list.d/backports.sources"]
    assert "Suites: bookworm-backports" in backports
    assert "Enabled: no" in backports


def test_a_node_boots_the_newest_kernel():
    """The boot loader names the links that Debian's kernel packages keep on the newest kernel."""
    config = RECIPE.late["boot/extlinux/extlinux.conf"]
    assert "KERNEL /vmlinuz\n" in config
    assert "INITRD /initrd.img\n" in config


def test_simulated_packages_are_installed_in_order_while_the_mirror_is_available():
    """A driver that is built before the RDMA stack gets a peer memory module that does nothing."""
    recipe = dataclasses.replace(RECIPE, stand_ins=(Path("/a b/ofed_1_all.deb"), Path("/a b/driver_2_all.deb")))
    hooks = [word.partition("=")[2] for word in recipe.mmdebstrap("root", "e.tar", "l.tar") if "-hook=" in word]
    steps = [hook.rpartition("/")[2] for hook in hooks if "_all.deb" in hook]

    assert steps == [name for name in ("ofed_1_all.deb", "driver_2_all.deb") for _ in range(3)]
    assert "upload '/a b/ofed_1_all.deb' /ofed_1_all.deb" in hooks
    assert max(index for index, hook in enumerate(hooks) if "_all.deb" in hook) < hooks.index("tar-in l.tar /")


def test_an_unknown_distribution_is_refused_with_the_list():
    """A misspelt distribution is answered with those that exist."""
    with pytest.raises(LabError, match="debain12") as caught:
        lab_system("debain12")
    assert ", ".join(system_names()) in caught.value.remedy
