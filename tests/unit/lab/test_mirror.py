"""Debian's mirror, read from a machine's apt sources."""

from __future__ import annotations

import pytest

from provision.errors import LabError
from provision.lab import container_image
from provision.lab.mirror import MirrorSources, Stanza, mirror_sources, parse_deb822, parse_one_line
from provision.lab.systems import LabSystem, lab_system
from provision.lab.vm_recipe import Recipe

BOOKWORM, TRIXIE = lab_system("debian12"), lab_system("debian13")
DEBIAN = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
# in the middle
Components: main
 contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
THIRD_PARTY = """\
Types: deb
URIs: https://vendor.example/debian
Suites: bookworm
Components: main
Signed-By: /etc/apt/keyrings/vendor.gpg
"""


def test_missing_keys_of_the_archive_are_reported_before_the_build(tmp_path, monkeypatch):
    """With the packages that have them; mmdebstrap would say less clearly what is missing."""
    system = lab_system("ubuntu24", "http://ubuntu.example/ubuntu")
    monkeypatch.setattr(LabSystem, "keyring", str(tmp_path / "ubuntu-archive-keyring.gpg"))
    with pytest.raises(LabError, match="noble image needs the keys") as caught:
        container_image._build(mirror_sources(system), tmp_path / "node.tar")

    assert "ubuntu-keyring" in caught.value.remedy
    assert [*tmp_path.iterdir()] == []


@pytest.fixture
def apt(tmp_path, monkeypatch):
    """An /etc/apt without any source, and no mirror in the environment."""
    monkeypatch.delenv(BOOKWORM.mirror_variable, raising=False)
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path


def test_sources_of_the_controllers_release_are_unchanged(apt):
    """Mirror, suites and components of the machine are what lab nodes get."""
    (apt / "sources.list.d/debian.sources").write_text(DEBIAN)
    sources = mirror_sources(BOOKWORM, etc_apt=apt)

    assert sources.stanzas[0].suites == ("bookworm", "bookworm-updates")
    assert sources.stanzas[0].components == ("main", "contrib")
    key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    assert sources.lines[-1] == f"deb {key} http://mirror.example/debian-security bookworm-security main"


def test_another_release_comes_from_the_same_mirror(apt):
    """A Debian 12 machine builds Debian 13 nodes from its own mirror."""
    (apt / "sources.list.d/debian.sources").write_text(DEBIAN)
    sources = mirror_sources(TRIXIE, etc_apt=apt)

    assert "Suites: trixie trixie-updates\n" in sources.deb822
    assert "Suites: trixie-security\n" in sources.deb822
    assert "bookworm" not in sources.deb822


def test_third_party_repositories_are_excluded(apt):
    """A vendor's repository that uses Debian's suite names does not reach lab nodes."""
    (apt / "sources.list.d/debian.sources").write_text(DEBIAN)
    (apt / "sources.list.d/vendor.sources").write_text(THIRD_PARTY)
    (apt / "sources.list.d/old.sources.disabled").write_text(THIRD_PARTY.replace("vendor", "debian"))
    sources = mirror_sources(BOOKWORM, etc_apt=apt)

    assert "vendor.example" not in sources.deb822
    assert len(sources.stanzas) == 2


def test_the_one_line_format_is_parsed(apt):
    """A machine with an old sources.list works like one with deb822 files."""
    (apt / "sources.list").write_text(
        "deb http://mirror.example/debian bookworm main  # comment\n"
        "deb-src http://mirror.example/debian bookworm main\n"
    )
    sources = mirror_sources(BOOKWORM, etc_apt=apt)

    assert [stanza.uris for stanza in sources.stanzas] == [("http://mirror.example/debian",)]


def test_a_controller_without_a_mirror_gets_a_remedy(apt):
    """Without a Debian mirror the error names the folder and the variable that fixes it."""
    (apt / "sources.list.d/vendor.sources").write_text(THIRD_PARTY)
    with pytest.raises(LabError, match="no Debian mirror") as caught:
        mirror_sources(BOOKWORM, etc_apt=apt)

    assert "PROVISION_DEBIAN_MIRROR" in caught.value.remedy


def test_a_variable_selects_a_mirror(apt, monkeypatch):
    """PROVISION_DEBIAN_MIRROR is used where the machine is no Debian."""
    monkeypatch.setenv("PROVISION_DEBIAN_MIRROR", "http://other.example/debian")

    assert mirror_sources(TRIXIE, etc_apt=apt).stanzas[0].uris == ("http://other.example/debian",)


def test_disabled_stanzas_are_skipped():
    """`Enabled: no` is honoured."""
    assert parse_deb822("Enabled: no\n" + DEBIAN)[0].suites == ("bookworm-security",)


def test_options_of_a_line_are_parsed():
    """The signed-by option among others is parsed."""
    line = "deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib"

    assert parse_one_line(line) == [
        Stanza(("http://mirror.example/debian",), ("bookworm",), ("main", "contrib"), "/k.gpg")
    ]


def test_credentials_of_the_mirror_are_in_no_argument_and_in_no_image(tmp_path):
    """Credentials of a source or a proxy reach mmdebstrap in a private file, and never the node."""
    stanza = Stanza(("https://bob:p@ss@mirror.example/debian",), ("bookworm",), ("main",))
    sources = MirrorSources(BOOKWORM, (stanza,), (("Acquire::http::Proxy", "http://bob:hunter22@proxy:3128"),))
    early = str(tmp_path / "early.tar")
    recipe = Recipe(sources)
    commands = [sources.arguments(tmp_path), recipe.mmdebstrap("root", early, "late.tar")]
    files = {path.name: path for path in tmp_path.iterdir()}

    assert "bob" not in repr(commands)
    assert "ss@" not in repr((commands, recipe.late, sources.apt_conf))
    assert "hunter22" not in repr((commands, recipe.late, sources.apt_conf))
    assert {name: path.stat().st_mode & 0o777 for name, path in files.items()} == {
        "apt.conf": 0o600,
        "mirror.list": 0o600,
    }
    assert files["apt.conf"].read_text() == 'Acquire::http::Proxy "http://bob:hunter22@proxy:3128";\n'
    assert "https://bob:p@ss@mirror.example/debian bookworm main" in files["mirror.list"].read_text()
    assert "URIs: https://mirror.example/debian\n" in sources.deb822
    assert "99mmdebstrap" in repr(commands[1])


def test_sources_without_credentials_are_unchanged_arguments(tmp_path):
    """Nothing is written and nothing changes where there is nothing to hide."""
    sources = MirrorSources(BOOKWORM, (Stanza(("http://m/debian",), ("bookworm",), ("main",)),), (("A::B", "1"),))

    assert sources.arguments(tmp_path) == (['--aptopt=A::B "1"'], list(sources.lines))
    assert list(tmp_path.iterdir()) == []
    assert "99mmdebstrap" not in repr(Recipe(sources).mmdebstrap("r", str(tmp_path / "e"), "l"))
