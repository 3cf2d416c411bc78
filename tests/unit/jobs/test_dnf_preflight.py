"""What dnf would install, and which repositories it cannot use, by words that dnf 4.14 prints."""

from __future__ import annotations

import os

import pytest

from provision.node import dnf_preflight

TABLE = """\
Last metadata expiration check: 0:00:28 ago on Sun Nov 29 17:31:00 2026.
Dependencies resolved.
================================================================================
 Package           Architecture  Version        Repository                 Size
================================================================================
Installing:
 docker-ce         x86_64        3:20.10.24-3.el9
                                                provision-docker           22 M
 kernel-devel-matched-with-a-long-name
                   x86_64        5.14.0-427.el9 baseos                    2.0 k
Upgrading:
 runc              x86_64        1.1-1          baseos                     6.4 k
Installing dependencies:
 containerd.io     x86_64        1.6.0-1.el9    provision-docker           30 M
Removing dependent packages:
 podman            x86_64        4.0-1          @baseos                    1 M

Transaction Summary
================================================================================
Install  3 Packages
Operation aborted.
"""
CONFLICT = """\
Error:
 Problem: conflicting requests
  - nothing provides libfoo needed by docker-ce-1-1.x86_64
(try to add '--skip-broken' to skip uninstallable packages)
"""
UNREACHABLE = """\
Errors during downloading metadata for repository 'provision-docker':
  - Curl error (7): Couldn't connect to server for https://d.example/repodata/repomd.xml
Error: Failed to download metadata for repo 'provision-docker': Cannot download repomd.xml: All mirrors were tried
"""
UNSIGNED = """\
Error: Failed to download metadata for repo 'other': repomd.xml GPG signature verification error: Bad GPG signature
"""
REPOSITORY = {
    "name": "docker",
    "uri": "https://d.example",
    "written": False,
    "source": "[provision-docker]\nbaseurl=https://d.example\ngpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-provision-docker\n",
    "key": "KEY\n",
}


class Programs:
    """Answers of dnf by one of its words."""

    def __init__(self, **answers):
        self.answers = answers
        self.ran = []

    def __call__(self, words, _limit):
        self.ran.append(words)
        return next((answer for word, answer in self.answers.items() if word in words), (0, ""))


@pytest.fixture(autouse=True)
def node(tmp_path, monkeypatch):
    """A node with one repository and a cache."""
    for name, part in (("REPOSITORIES", "repos"), ("CACHE", "cache")):
        (tmp_path / part).mkdir()
        monkeypatch.setattr(dnf_preflight, name, str(tmp_path / part))
    (tmp_path / "repos/own.repo").write_text("[own]\nbaseurl = https://own.example/\n")
    (tmp_path / "repos/provision-docker.repo").write_text("[provision-docker]\nbaseurl=https://old.example\n")
    (tmp_path / "cache/own-1/repodata").mkdir(parents=True)
    (tmp_path / "cache/own-1/repodata/repomd.xml").write_text("x")
    (tmp_path / "cache/own-1/a.rpm").write_text("x")
    return tmp_path


def checked(node, programs, *names, repositories=(REPOSITORY,), streams=()):
    folder = node / "work"
    folder.mkdir()
    return dnf_preflight.Dnf(str(folder), list(repositories), 5, programs).check(list(names), list(streams))


def test_the_whole_transaction_is_reported(node):
    """Names and versions with epoch; a name or version on a line of its own, too."""
    programs = Programs(repoquery=(0, "docker-ce 3:20.10.24-3.el9\n"), install=(1, TABLE))

    answer = checked(node, programs, "docker-ce", "absent")

    assert answer["packages"] == {"docker-ce": "3:20.10.24-3.el9", "absent": None}
    assert [entry["name"] for entry in answer["install"]] == [
        "docker-ce", "kernel-devel-matched-with-a-long-name", "runc", "containerd.io",
    ]  # fmt: skip
    assert answer["install"][0]["version"] == "3:20.10.24-3.el9"
    assert (answer["conflict"], answer["sources"]) == ("", [])
    assert all("absent" not in words for words in programs.ran if "install" in words)


def test_a_package_for_one_kernel_is_asked_for_by_name_and_version(node):
    """The newest package of the same name is another one; a kernel that no repository has is missing."""
    kernels = ["kernel-devel-5.14.0-427.1.el9_4.x86_64", "kernel-devel-5.14.0-503.1.el9_5.x86_64", "kernel-devel-6.el9"]
    programs = Programs(
        **{
            "%{name} %{evr}": (0, "kernel-devel 5.14.0-503.1.el9_5\nkmod 28-9.el9\n"),
            "%{name}-%{evr}.%{arch} %{evr}": (0, "".join(f"{name} {name[13:-7]}\n" for name in kernels[:2])),
        }
    )

    answer = checked(node, programs, "kmod", *kernels)

    assert answer["packages"] == {
        "kmod": "28-9.el9",
        kernels[0]: "5.14.0-427.1.el9_4",
        kernels[1]: "5.14.0-503.1.el9_5",
        kernels[2]: None,
    }
    [asked] = [words for words in programs.ran if "%{name}-%{evr}.%{arch} %{evr}" in words]
    assert "--latest-limit=1" not in asked
    assert "kmod" not in asked


def test_the_node_is_not_changed(node):
    """dnf uses copies of its repositories and links to its cache; keys are files that only root can read."""
    programs = Programs()
    checked(node, programs, "docker-ce")
    work = node / "work"

    assert all(f"--setopt=reposdir={work}/repositories" in words for words in programs.ran)
    assert all(f"--setopt=cachedir={work}/cache" in words for words in programs.ran)
    assert sorted(path.name for path in (work / "repositories").iterdir()) == ["own.repo", "provision-docker.repo"]
    text = (work / "repositories/provision-docker.repo").read_text()
    assert f"gpgkey=file://{work}/key-docker" in text
    assert "https://d.example" in text
    assert (work / "key-docker").stat().st_mode & 0o777 == 0o600
    assert (work / "cache/own-1/repodata/repomd.xml").is_symlink()
    assert not (work / "cache/own-1/a.rpm").exists()


def test_a_repository_of_a_role_is_left_out_where_the_node_has_it(node):
    """One of the inventory is written in any case."""
    for written, count in ((False, 0), (True, 1)):
        item = {**REPOSITORY, "uri": "https://own.example", "written": written}
        folder = node / f"work{count}"
        folder.mkdir()
        assert len(dnf_preflight.Dnf(str(folder), [item], 5, Programs()).repositories) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("baseurl=https://d.example/linux/rhel/$releasever/$basearch/stable/\nenabled=1\n", 0),
        ("baseurl=https://d.example/linux/rhel/9/$basearch/stable\nenabled=0\n", 1),
        ("this is not a file of dnf", 1),
    ],
)
def test_a_repository_is_the_same_for_the_preflight_and_the_role(node, text, count):
    """A disabled one is not used; variables have their values."""
    (node / "repos/other.repo").write_text(f"[other]\n{text}")
    uri = f"https://d.example/linux/rhel/9/{os.uname().machine}/stable"
    programs = Programs(**{"--eval": (0, "9\n")})

    for number, address in enumerate((uri, uri.replace(os.uname().machine, "$basearch"))):
        folder = node / f"work{number}"
        folder.mkdir()
        one = dnf_preflight.Dnf(str(folder), [{**REPOSITORY, "uri": address}], 5, programs)
        assert len(one.repositories) == count


@pytest.mark.parametrize(
    ("output", "code", "uri", "repository"),
    [(UNREACHABLE, "unreachable", "https://d.example", "docker"), (UNSIGNED, "invalid", "other", "")],
)
def test_an_unusable_repository_is_reported(node, output, code, uri, repository):
    """By the name in the inventory if it is of the inventory; packages are unknown then."""
    answer = checked(node, Programs(makecache=(1, output)), "docker-ce")
    [problem] = answer["sources"]

    assert (problem["code"], problem["uri"], problem["repository"]) == (code, uri, repository)
    assert "Failed to download metadata" in problem["reason"]
    assert answer["packages"] is None


def test_a_conflict_is_reported_with_its_cause(node):
    answer = checked(node, Programs(repoquery=(0, "docker-ce 1-1\n"), install=(1, CONFLICT)), "docker-ce")

    assert "nothing provides libfoo" in answer["conflict"]
    assert answer["install"] == []


def test_a_stream_that_is_not_enabled_yet_hides_no_package(node):
    """The transaction enables it first, so it cannot be simulated."""
    programs = Programs(repoquery=(0, "driver 580-1\n"))

    answer = checked(node, programs, "driver", streams=["nvidia-driver:580-open"])

    assert answer["packages"] == {"driver": "580-1"}
    assert any("--disable-modular-filtering" in words for words in programs.ran)
    assert not any("install" in words for words in programs.ran)


def test_the_transaction_of_an_enabled_stream_is_simulated(node, monkeypatch):
    """Conflicts are found before the apply."""
    monkeypatch.setattr(dnf_preflight, "MODULES", str(node), raising=False)
    (node / "driver.module").write_text("[driver]\nname=driver\nstream=580\nstate=enabled\n")
    programs = Programs(repoquery=(0, "driver 580-1\n"), install=(1, CONFLICT))

    assert "nothing provides libfoo" in checked(node, programs, "driver", streams=["driver:580"])["conflict"]
