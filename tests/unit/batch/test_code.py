"""Sources of code, settings of git-sync and causes of git's errors."""

import pytest

from provision.batch.code import check_source, explain, fetch_request
from provision.batch.spec_checks import warnings_of
from provision.errors import UsageError
from provision.model.job import CodeSource, JobSpec, Kind

URL = "https://git.example.com/group/mnist.git"


def request(**options):
    return fetch_request(CodeSource("git", URL, options=options), {})


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("git", "https://alice:s3cret@git.example.com/p.git"),
        ("git", "https://s3cret@git.example.com/p.git"),
        ("rsync", "rsync://alice:s3cret@files.example.com/p"),
        ("git", "--upload-pack=/tmp/x"),
        ("git", "ext::sh -c id"),
        ("git", "https://git.example.com/.."),
        ("local", "src/project"),
        ("hdfs", "/x"),
        ("rsync", ""),
    ],
)
def test_an_invalid_source_is_refused(mode, text):
    """Options, other protocols, paths outside of the folder; and passwords are never printed."""
    with pytest.raises(UsageError) as caught:
        check_source(CodeSource(mode, text))

    assert "s3cret" not in f"{caught.value.message} {caught.value.remedy}"


@pytest.mark.row(24)
def test_settings_of_git_sync():
    """Both prefixes of git-sync are valid; a revision overrides a branch."""
    failure = request(GIT_SYNC_BRANCH="dev", GITSYNC_DEPTH="0", GIT_SYNC_SUBMODULES="off", GIT_SYNC_TIMEOUT="90s")

    assert (failure["ref"], failure["branch"]) == ("dev", True)
    assert (failure["depth"], failure["submodules"], failure["timeout"]) == (0, "off", 90)
    assert request(GIT_SYNC_BRANCH="dev", GIT_SYNC_REV="v1")["ref"] == "v1"
    assert (request()["ref"], request()["server"]) == ("HEAD", "https://git.example.com")


@pytest.mark.parametrize(
    "options",
    [
        {"GIT_SYNC_WEBHOOK_URL": "http://x"},
        {"GIT_SYNC_DEPTH": "deep"},
        {"GIT_SYNC_SUBMODULES": "yes"},
        {"GIT_SYNC_BRANCH": "--upload-pack=x"},
        {"GIT_KNOWN_HOSTS": "false"},
    ],
)
def test_an_invalid_setting_is_refused(options):
    """The message contains its name."""
    with pytest.raises(UsageError, match=next(iter(options)).removeprefix("GIT_") + "|upload"):
        request(**options)


def test_the_remedy_lists_the_valid_settings():
    """The remedy is complete."""
    with pytest.raises(UsageError) as caught:
        request(GIT_SYNC_PERMISSIONS="0777")

    assert "GIT_SYNC_DEPTH" in caught.value.remedy
    assert "GIT_SYNC_PASSWORD" in caught.value.remedy


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("fatal: unable to access 'https://x/': Could not resolve host: x", "network"),
        ("fatal: unable to access 'https://x/': Failed to connect to x port 443: Connection refused", "network"),
        ("ssh: connect to host x port 22: No route to host\nfatal: Could not read from remote repository.", "network"),
        ("fatal: Authentication failed for 'https://x/p.git/'", "login"),
        ("git@x: Permission denied (publickey).", "login"),
        ("fatal: repository 'https://x/p.git/' not found", "no-repository"),
        ("error: server certificate verification failed. CAfile: none", "tls"),
        ("fatal: write error: No space left on device", "full"),
        ("No ED25519 host key is known for x and you have requested strict checking.", "host-key"),
        ("something else", "failed"),
    ],
)
def test_errors_of_git_have_a_cause(output, kind):
    """Known causes have a remedy."""
    failure = explain("failed", "git fetch failed (exit 128)", output)

    assert failure.kind == kind
    assert failure.remedy or kind == "failed"


@pytest.mark.parametrize(
    ("mode", "source", "is_warned"),
    [
        ("git", "http://git.example.com/g/p.git", True),
        ("git", "git://git.example.com/g/p.git", True),
        ("git", "HTTP://git.example.com/g/p.git", True),
        ("rsync", "rsync://host/module/p", True),
        ("rsync", "host::module/p", True),
        ("git", "https://git.example.com/g/p.git", False),
        ("git", "ssh://git@git.example.com/g/p.git", False),
        ("git", "git@git.example.com:g/p.git", False),
        ("rsync", "host:/srv/p", False),
    ],
)
def test_unencrypted_sources_get_a_warning(mode, source, is_warned):
    """At submission: others on the network could replace the code."""
    spec = JobSpec("j", Kind.RUN, ("true",), image="i", sync=CodeSource(mode, source))

    assert any("unencrypted" in text and source in text for text in warnings_of(spec)) is is_warned


@pytest.mark.parametrize(
    ("mode", "source"),
    [
        ("git", "-u./x"),
        ("git", "ext::sh -c id"),
        ("git", "u@-oProxyCommand=id:x"),
        ("git", "ssh://-oProxyCommand=id/x"),
        ("git", "ssh://u@-oProxyCommand=id/x"),
        ("git", "h:-x"),
        ("git", "ftp://h/x"),
        ("git", "relative/path"),
        ("rsync", "-e id"),
        ("rsync", "/root"),
        ("rsync", "u@-oProxyCommand=id:/x"),
        ("rsync", "rsync://-h/x"),
        ("local", "relative"),
    ],
)
def test_a_source_is_never_an_option_or_a_file_of_a_node(mode, source):
    """Neither git, rsync nor their ssh reads it as one."""
    with pytest.raises(UsageError):
        check_source(CodeSource(mode, source))
