"""The files of package repositories, for apt and dnf."""

from __future__ import annotations

import configparser

import pytest

from provision.commands.package_repositories import (
    PROXIES,
    FilterModule,
    addresses,
    base_urls,
    package_cache,
    package_cache_clients,
    proxy_files,
    repository_files,
    repository_paths,
)
from provision.components import COMPONENTS
from provision.planning.requirements import setting_problems
from tests.support.expressions import Role
from tests.unit.planning.conftest import cluster_of, facts_of

KEY = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nabc\n-----END PGP PUBLIC KEY BLOCK-----"
DOCKER = {"name": "docker", "uris": "https://d.example/linux/rhel", "suites": "9", "components": "stable", "key": KEY}
NVIDIA = "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)"
FILTERS = FilterModule().filters()


def parsed(files):
    """Return the options of the repository among its files for dnf."""
    [file] = [one for one in files if one["path"].endswith(".repo")]
    parser = configparser.RawConfigParser()
    parser.read_string(file["content"])
    [section] = parser.sections()
    return section, dict(parser[section])


def test_a_repository_of_dnf_has_a_file_and_its_key():
    """The key is a file, and the options check signatures."""
    files = repository_files(DOCKER, "dnf")

    assert [file["path"] for file in files] == [
        "/etc/pki/rpm-gpg/RPM-GPG-KEY-provision-docker",
        "/etc/yum.repos.d/provision-docker.repo",
    ]
    assert files[0]["content"] == KEY + "\n"
    assert parsed(files) == (
        "provision-docker",
        {
            "name": "docker (provision)",
            "baseurl": "https://d.example/linux/rhel/9/$basearch/stable",
            "enabled": "1",
            "gpgcheck": "1",
            "repo_gpgcheck": "0",
            "gpgkey": "file:///etc/pki/rpm-gpg/RPM-GPG-KEY-provision-docker",
        },
    )
    assert all("mode" not in file for file in files)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"uris": "https://m/repo/"}, ["https://m/repo"]),
        ({"uris": "https://m/repo", "suites": "/"}, ["https://m/repo"]),
        ({"uris": ["https://a", "https://b"]}, ["https://a", "https://b"]),
        ({"uris": NVIDIA, "suites": "/"}, ["https://nvidia.github.io/libnvidia-container/stable/rpm/$basearch"]),
        ({"uris": "https://m", "suites": ["9", "8"]}, ["https://m/9/$basearch", "https://m/8/$basearch"]),
        ({"uris": "https://u:p@m/x"}, ["https://m/x"]),
        ({"uris": "file:///srv/mirror"}, ["file:///srv/mirror"]),
    ],
)
def test_the_address_for_dnf_comes_from_the_same_variables(item, expected):
    """So that one inventory is for nodes of both families."""
    assert base_urls(item) == expected


def test_credentials_are_in_one_private_file():
    """In apt's auth.conf and in dnf's own file; passwords in URIs are quoted."""
    item = {**DOCKER, "uris": "https://me:p%40ss%3aword@d.example/linux"}
    apt, dnf = repository_files(item, "apt"), repository_files(item, "dnf")

    private = [file for file in (*apt, *dnf) if "p@ss:word" in file["content"]]
    assert [(file["path"], file["mode"]) for file in private] == [
        ("/etc/apt/auth.conf.d/provision-docker.conf", "0600"),
        ("/etc/yum.repos.d/provision-docker.repo", "0600"),
    ]
    assert parsed(dnf)[1]["baseurl"] == "https://d.example/linux/9/$basearch/stable"
    assert (parsed(dnf)[1]["username"], parsed(dnf)[1]["password"]) == ("me", "p@ss:word")


@pytest.mark.parametrize(
    "uris",
    ["https://me:a%20b@m", "https://me:a$basearch@m", ["https://me:a@m", "https://other:b@m"], "https://me:a%0ab@m"],
)
def test_credentials_that_dnf_would_change_are_refused(uris):
    """Before anything is written; the message does not contain them."""
    with pytest.raises(ValueError, match="repository") as error:
        repository_files({**DOCKER, "uris": uris}, "dnf")

    assert not any(word in str(error.value) for word in ("a b", "a$", "other", "me:"))


@pytest.mark.parametrize(
    ("checks", "is_signed"),
    [
        ({}, True),
        ({"gpgcheck": False}, False),
        ({"gpgcheck": "no", "repo_gpgcheck": "yes"}, True),
        ({"gpgcheck": True, "repo_gpgcheck": True}, True),
        ({"key": "none"}, False),
        ({"uris": ""}, False),
    ],
)
def test_a_repository_without_any_check_of_signatures_is_refused(checks, is_signed):
    """At least one of gpgcheck and repo_gpgcheck stays on; the key is required in any case."""
    item = {**DOCKER, **checks}

    assert FILTERS["platform_unsigned_repositories"]([item]) == ([] if is_signed else ["docker"])


def test_an_entry_without_any_check_fails_the_preflight():
    """The preflight before an apply names it, on a node with dnf."""
    facts = facts_of(cluster_of())
    facts = _with_dnf(facts)
    entry = {**DOCKER, "gpgcheck": False}

    problems = setting_problems("platform", {"platform_extra_repositories": [entry]}, facts)

    assert any("gpgcheck and repo_gpgcheck are both off" in problem.problem for problem in problems)


def _with_dnf(facts):
    import dataclasses

    return dataclasses.replace(facts, system=dataclasses.replace(facts.system, package_manager="dnf"))


def test_paths_of_the_plan_are_those_of_the_node():
    """What the plan shows is what the role writes."""
    login = {**DOCKER, "uris": "https://me:x@m"}

    for manager in ("apt", "dnf"):
        for item in (DOCKER, login):
            written = {file["path"] for file in repository_files(item, manager)}
            assert written == set(repository_paths("docker", manager, has_login=item is login))


def test_a_login_file_that_is_not_needed_any_more_is_removed():
    """The module writes the other files."""
    path = "/etc/apt/auth.conf.d/provision-docker.conf"
    node = {"package_manager": "apt", "repository_files": [path]}

    files = FILTERS["platform_repository_files"]([DOCKER], node)

    assert files[-1] == {"path": path, "state": "absent"}


@pytest.mark.parametrize("manager", ["apt", "dnf"])
def test_a_repository_that_the_node_has_is_not_written_again(manager):
    """Addresses are compared without variables; repositories of the site are always written."""
    architecture = "amd64" if manager == "apt" else "x86_64"
    node = {
        "package_manager": manager,
        "architecture": "amd64",
        "other_sources": addresses({**DOCKER, "uris": NVIDIA, "suites": "/"}, manager, architecture),
    }

    assert FILTERS["platform_new_repositories"]([{**DOCKER, "uris": NVIDIA, "suites": "/"}, DOCKER], node) == [DOCKER]


@pytest.mark.parametrize("version", ["8", "9", "10"])
def test_what_enterprise_linux_lacks_is_refused_with_a_remedy(version):
    """Before an apply, and by plain Ansible: there is no package of Docker in the system."""
    from provision.inventory.role_files import systems
    from provision.resources import roles_folder

    system = systems(roles_folder())[f"el_{version}"]
    variables = {"docker_engine_source": "distribution"}
    [problem] = setting_problems("docker_engine", variables, facts_of(cluster_of()), system)
    role = Role("platform", **variables, **dict(system.items()))
    [words] = role.value(
        "['docker_engine'] | platform_unavailable_packages(__platform_unavailable, __platform_package_choices)"
    )

    assert problem.object == "docker_engine_source"
    assert f"Enterprise Linux {version} has no Docker Engine of its own" in problem.problem
    assert "Set docker_engine_source: docker" in problem.remedy
    assert words == f"docker_engine_source: {problem.problem}. {problem.remedy}"
    assert setting_problems("docker_engine", {"docker_engine_source": "present"}, facts_of(cluster_of()), system) == ()
    assert COMPONENTS["docker_engine"].repositories({"docker_engine_source": "docker"}, system)


CACHE = {"url": "http://10.0.0.1:3128", "hosts": ["deb.example.org", "m.example:8080"]}


def test_apt_uses_the_package_cache_for_its_hosts_only():
    """A repository of another host is reached as before, and the file disappears with the cache."""
    [file] = proxy_files(CACHE, {"package_manager": "apt"})

    assert file["content"].splitlines()[1:] == [
        'Acquire::http::Proxy::deb.example.org "http://10.0.0.1:3128";',
        'Acquire::http::Proxy::m.example "http://10.0.0.1:3128";',
    ]
    existing = {"package_manager": "apt", "proxy_files": [file["path"]]}
    assert proxy_files({}, existing) == [{"path": file["path"], "state": "absent"}]
    assert proxy_files({}, {"package_manager": "apt"}) == proxy_files(CACHE, {"package_manager": "dnf"}) == []
    assert package_cache("gpu1", "fd00::1", 3128, ["a.org"])["url"] == "http://[fd00::1]:3128"


def test_the_package_cache_serves_the_nodes_and_nobody_else():
    """The networks count only if the inventory does not have the address of every node."""
    assert package_cache_clients(["10.0.0.1", "10.0.0.2"], ["10.0.0.0/16"]) == ["10.0.0.1", "10.0.0.2"]
    assert package_cache_clients(["10.0.0.1", ""], ["10.0.0.0/16"]) == ["10.0.0.1", "10.0.0.0/16"]
    assert package_cache_clients(["", ""], []) == []


@pytest.mark.parametrize(
    ("name", "manager", "files", "proxy"),
    [("gpu2", "apt", 1, ""), ("gpu2", "dnf", 0, CACHE["url"]), ("gpu1", "apt", 0, ""), ("gpu1", "dnf", 0, "")],
)
def test_transactions_use_the_package_cache_except_on_its_own_node(name, manager, files, proxy):
    """There it may not run yet. dnf supports no proxy for single hosts, so its transactions get it for all."""
    variables = {"cluster_package_cache": "gpu1", "cluster_package_cache_hosts": CACHE["hosts"]}
    hostvars = {"gpu1": {"cluster_data_address": "10.0.0.1"}, "gpu2": {}}
    role = Role(
        "platform",
        **variables,
        hostvars=hostvars,
        inventory_hostname=name,
        platform_node={"package_manager": manager, "packages": {}},
    )

    assert len(role.value("__platform_proxy_files")) == files
    assert role.value("__platform_http_proxy") == proxy
    assert role.value("__platform_cache_problem").strip() == ""


@pytest.mark.parametrize(("packages", "expected"), [({}, [{"path": PROXIES, "state": "absent"}]), ({"squid": "6"}, [])])
def test_a_new_node_of_the_cache_uses_the_former_one_no_more(packages, expected):
    """The former one can be dead. Once the node has the cache, it uses its own."""
    variables = {"cluster_package_cache": "gpu1", "cluster_package_cache_hosts": CACHE["hosts"]}
    node = {"package_manager": "apt", "packages": packages, "proxy_files": [PROXIES]}
    hostvars = {"gpu1": {"cluster_data_address": "10.0.0.1"}}
    role = Role("platform", **variables, hostvars=hostvars, inventory_hostname="gpu1", platform_node=node)

    assert role.value("__platform_proxy_files") == expected
