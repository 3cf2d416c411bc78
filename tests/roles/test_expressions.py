"""The values of the roles' variables and preconditions, for inventories and nodes of all kinds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.expressions import ROLES, Role


def test_the_nvidia_runtime_is_added_to_the_runtimes_of_the_site() -> None:
    """A GPU node gets the NVIDIA runtime in addition to those that the inventory names."""
    kata = {"kata": {"runtimeType": "io.containerd.kata.v2"}}
    role = Role("nvidia_container", cluster_container_runtimes=kata)
    fact = role.task("configure", "Pass the runtime to docker_engine")["ansible.builtin.set_fact"]

    runtimes = role.templar.template(fact["cluster_container_runtimes"])

    assert runtimes == {**kata, "nvidia": {"path": "nvidia-container-runtime", "runtimeArgs": []}}


def node(address: str, **more: Any) -> dict[str, Any]:
    """Return the facts of platform_node for a typical node."""
    result = {"data_address": address, "hostname": "gpu1", "hosts": {}, "repository_files": [], "leftovers": []}
    return {**result, **more}


def test_preserved_settings_reach_the_roles_and_receipts_of_their_node_only() -> None:
    """Other nodes are not affected, and a receipt contains it only if it is set."""
    preserved = {"gpu1": {"docker_engine": {"docker_engine_source": "present"}}}
    noted = []
    for name, role in (("gpu1", "docker_engine"), ("gpu1", "rdma_stack"), ("gpu2", "docker_engine")):
        platform = Role("platform", _platform_preserved=preserved, inventory_hostname=name, platform_receipt_role=role,
                        platform_receipt_inputs={"source": "x"})  # fmt: skip
        task = platform.task("receipt", "Write the receipt, or store it for the end of the play")
        platform.templar.available_variables |= {
            "__platform_receipt_preserved": task["vars"]["__platform_receipt_preserved"]
        }
        noted.append(platform.templar.template(task["vars"]["__platform_receipt"]["inputs"]))

    assert noted == [{"source": "x", "kept": {"docker_engine_source": "present"}}, {"source": "x"}, {"source": "x"}]
    loop = Role("platform", _platform_preserved=preserved, inventory_hostname="gpu1").task(
        "node", "Preserve pre-existing configuration"
    )
    platform = Role("platform", _platform_preserved=preserved, inventory_hostname="gpu1")
    assert platform.templar.template(loop["loop"]) == [{"key": "docker_engine_source", "value": "present"}]
    assert Role("platform", inventory_hostname="gpu1").templar.template(loop["loop"]) == []


ADDRESS_CHECK = ("node", "Check the data address")


@pytest.mark.parametrize(
    ("address", "inventory", "problem"),
    [
        ("10.77.0.1", {}, ""),
        ("10.77.0.1", {"cluster_data_address": "10.77.0.1"}, ""),
        ("10.77.0.1", {"cluster_data_networks": ["10.77.0.0/16"]}, ""),
        ("fd00::1", {"cluster_data_networks": ["fd00::/64", "10.77.0.0/16"]}, ""),
        ("10.77.0.1 gpu2\n6.6.6.6", {}, "it is not an IP address"),
        ("10.77.0.1\n", {}, "it is not an IP address"),
        ("fe80::1%x\n6.6.6.6 gpu2", {}, "it has a zone"),
        ("gpu2", {}, "it is not an IP address"),
        ("0.0.0.0", {}, "it cannot be a host address"),  # noqa: S104
        ("10.77.0.2", {"cluster_data_address": "10.77.0.1"}, "cluster_data_address is 10.77.0.1"),
        (
            "10.78.0.2",
            {"cluster_data_networks": ["10.77.0.0/16"]},
            "it is in none of cluster_data_networks (10.77.0.0/16)",
        ),
    ],
)
def test_only_plausible_data_addresses_of_a_node_are_accepted(
    address: str, inventory: dict[str, Any], problem: str
) -> None:
    """The data address comes from the node and gets into all nodes' files: it is checked on the controller."""
    role = Role("platform", inventory_hostname="gpu1", platform_node=node(address), **inventory)

    assert role.holds(*ADDRESS_CHECK) is (problem == "")
    assert problem in role.says(*ADDRESS_CHECK)


def test_invalid_data_addresses_reach_no_other_node() -> None:
    """Among the addresses that all nodes get there are only possible ones, also of nodes that failed before."""
    hostvars = {
        "gpu1": {"platform_node": node("10.77.0.1")},
        "gpu2": {"platform_node": node("10.77.0.2\n6.6.6.6 gpu1")},
        "gpu3": {"platform_node": node("10.77.0.1"), "cluster_data_address": "10.77.0.3"},
        "gpu4": {"cluster_data_address": "10.77.0.4"},
        "gpu5": {},
    }
    role = Role("platform", hostvars=hostvars, groups={"all": list(hostvars)}, ansible_play_hosts_all=["gpu1", "gpu2"])

    assert role.value("__platform_data_addresses") == {"gpu1": "10.77.0.1", "gpu4": "10.77.0.4"}


@pytest.mark.parametrize(
    ("hostname", "line"), [("node-a", "10.77.0.1 gpu1 node-a"), ("x\n6.6.6.6 gpu2", "10.77.0.1 gpu1")]
)
def test_the_host_name_reported_by_a_node_cannot_add_lines(hostname: str, line: str) -> None:
    """A valid host name becomes an alias; an invalid one is dropped."""
    role = Role(
        "base_system",
        inventory_hostname="gpu1",
        groups={"all": ["gpu1", "gpu2"]},
        ansible_play_hosts_all=["gpu1"],
        platform_data_addresses={"gpu1": "10.77.0.1"},
        platform_node=node("10.77.0.1", hostname=hostname, hosts={"gpu2": "10.77.0.2 gpu2"}),
    )

    assert role.value("__base_system_hosts") == {"gpu1": line, "gpu2": "10.77.0.2 gpu2"}


def repository(uris: Any) -> Role:
    """The role platform with one repository of the site."""
    extra = {
        "name": "site",
        "uris": uris,
        "suites": "/",
        "key": "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nabc\n-----END",
    }
    return Role(
        "platform",
        platform_extra_repositories=[extra],
        platform_node=node("10.77.0.1", gpus_present=False),
        ansible_play_role_names=[],
        ansible_run_tags=["all"],
    )


@pytest.mark.parametrize("listed", [False, True])
def test_a_repository_password_is_stored_only_for_apt(listed: bool) -> None:  # noqa: FBT001
    """User and password of an address go to a file of apt's own that only root reads."""
    uri = "https://me:hunt%40er2@mirror.example.org:8443/deb/"
    role = repository([uri] if listed else uri)

    sources, login = role.value("__platform_files")

    assert "URIs: https://mirror.example.org:8443/deb/\n" in sources["content"]
    assert "er2" not in sources["content"]
    assert login == {
        "path": "/etc/apt/auth.conf.d/provision-site.conf",
        "content": "machine https://mirror.example.org:8443/deb login me password hunt@er2\n",
        "mode": "0600",
    }


def test_a_repository_without_a_password_has_no_credentials_file() -> None:
    """If an address no longer has a user, the file with the old password is removed; otherwise none is created."""
    role = repository("https://mirror.example.org/deb@1")
    paths = role.value("__platform_files | map(attribute='path')")
    role.templar.available_variables["platform_node"]["repository_files"] = ["/etc/apt/auth.conf.d/provision-site.conf"]

    assert paths == ["/etc/apt/sources.list.d/provision-site.sources"]
    assert role.value("__platform_files")[1] == {
        "path": "/etc/apt/auth.conf.d/provision-site.conf",
        "state": "absent",
    }


def test_a_repository_that_is_already_configured_is_not_written() -> None:
    """apt refuses one address with two different keys, and then no package can be installed at all."""
    names = {
        "nvidia_container_repository_uri": "https://m.example.org/deb/$(ARCH)",
        "nvidia_container_repository_key": "-----BEGIN PGP PUBLIC KEY BLOCK-----",
        "__platform_selected_roles": ["nvidia_container"],
        "platform_extra_repositories": [],
    }
    node = {"repository_files": [], "leftovers": [], "architecture": "amd64"}
    fresh = Role("platform", **names, platform_node=node | {"other_sources": ["https://m.example.org/deb/arm64"]})
    known = Role("platform", **names, platform_node=node | {"other_sources": ["https://m.example.org/deb/amd64"]})

    assert fresh.value("__platform_repositories | map(attribute='name')") == ["nvidia-container"]
    assert known.value("__platform_repositories") == []


def test_address_pools_are_checked_for_every_node() -> None:
    """One node compares docker's address pools for all, and each node reports the overlap."""
    role = Role(
        "docker_engine",
        platform_taking_part={"docker_engine": ["gpu2", "gpu3"]},
        ansible_play_hosts=["gpu1", "gpu3"],
        hostvars={"gpu3": {"__docker_engine_overlaps": ["10.77.0.0/16 overlaps all"]}},
        inventory_hostname="gpu4",
    )
    compared = role.task("preflight", "Compare docker's address pools with the networks of all nodes")

    assert role.value("__docker_engine_first") == "gpu3"
    assert compared["when"] == "inventory_hostname == __docker_engine_first"
    assert role.holds("preflight", "Check that docker's address pools are free") is False
    assert "10.77.0.0/16 overlaps all" in role.says("preflight", "Check that docker's address pools are free")


CONFIG, MANIFEST, OTHER = (f"sha256:{letter * 64}" for letter in "abc")
ARCHIVE_CHECK = ("preflight", "Check that the archive contains the image")
FILES = (
    f'manifest.json [{{"Config": "blobs/sha256/{CONFIG[7:]}", "RepoTags": ["t:1"]}}]\n'
    f'index.json {{"manifests": [{{"digest": "{MANIFEST}"}}]}}\n'
)


def archive(result: dict[str, Any], *, files: str = FILES, **variables: Any) -> Role:
    """Return the role with an archive, and with this result of the search for its image on the node."""
    read = {"rc": 0 if files else 2, "stdout": files, "stderr": "" if files else "tar: no such file"}
    return Role(
        "training_image",
        training_image_reference="t:1",
        training_image_archive="/t.tar",
        ansible_play_hosts=["gpu1"],
        platform_taking_part={},
        hostvars={"gpu1": {"__training_image_read": read}},
        inventory_hostname="gpu1",
        platform_node={"recorded_images": {}},
        __training_image_result=result,
        **variables,
    )


@pytest.mark.parametrize(
    ("containerd", "on_node", "present"),
    [
        (False, [CONFIG], True),
        (False, [OTHER], False),
        (True, [MANIFEST], True),
        (True, [OTHER, CONFIG], True),  # the ID is that of another manifest of the same image
        (True, [OTHER], False),
    ],
)
def test_an_archive_is_loaded_only_on_nodes_without_its_image(
    containerd: bool,  # noqa: FBT001
    on_node: list[str],
    present: bool,  # noqa: FBT001
) -> None:
    """In containerd's store, the ID is the digest of a manifest, and the configuration identifies the image too."""
    role = archive({"images": [{"Id": on_node[0]}], "identities": on_node, "containerd": containerd})

    assert role.value("__training_image_is_present") is present


@pytest.mark.parametrize(
    ("digest", "result", "holds"),
    [
        ("", {"images": [], "containerd": False}, True),
        (CONFIG, {"images": [], "containerd": False}, True),
        (CONFIG, {"images": [], "containerd": True}, True),
        (MANIFEST, {"images": [], "containerd": True}, True),
        (MANIFEST, {"images": [], "containerd": False}, False),  # docker's own store could not verify it
        (MANIFEST, {"msg": "docker is not installed yet"}, True),
        (OTHER, {"images": [], "containerd": True}, False),
        (OTHER, {"images": [], "containerd": False}, False),
    ],
)
def test_an_archive_with_another_digest_is_refused(digest: str, result: dict[str, Any], holds: bool) -> None:  # noqa: FBT001
    """The message has both digests."""
    role = archive(result, training_image_digest=digest)

    assert role.holds(*ARCHIVE_CHECK) is holds
    if not holds:
        assert CONFIG in role.says(*ARCHIVE_CHECK)
        assert digest in role.says(*ARCHIVE_CHECK)


@pytest.mark.parametrize(
    ("files", "cause"), [("", "tar: no such file"), ("manifest.json []\n", "it has no valid manifest.json")]
)
def test_a_file_that_is_no_archive_is_refused_with_the_cause(files: str, cause: str) -> None:
    role = archive({"images": [], "containerd": False}, files=files)

    assert role.holds(*ARCHIVE_CHECK) is False
    assert cause in role.says(*ARCHIVE_CHECK)


@pytest.mark.parametrize(
    ("result", "holds"),
    [({"images": [{"Id": MANIFEST}]}, True), ({"images": []}, False), ({"msg": "no answer"}, False)],
)
def test_a_load_that_brings_another_image_fails(result: dict[str, Any], holds: bool) -> None:  # noqa: FBT001
    """The image is verified on the node before it gets its name."""
    role = archive({"images": [], "containerd": True}, __training_image_verified=result)
    check = ("archive", "Check that the node has the image of the archive")

    assert role.holds(*check) is holds
    assert f"{CONFIG} or {MANIFEST}" in role.says(*check)


@pytest.mark.parametrize(("node", "holds"), [({"docker_is_snap": True}, False), ({"docker_is_snap": False}, True)])
def test_docker_as_a_snap_is_refused(node: dict[str, bool], holds: bool) -> None:  # noqa: FBT001
    """Before the role changes anything; the message says how to remove it."""
    role = Role("docker_engine", platform_node=node, inventory_hostname="gpu1")

    assert role.holds("preflight", "Check that docker is no snap") is holds
    assert "snap remove docker" in role.says("preflight", "Check that docker is no snap")


@pytest.mark.parametrize(
    ("networks", "known", "sources", "complete"),
    [
        ([], {"gpu3": "10.77.0.3 gpu3"}, ["10.77.0.2", "10.77.0.3"], True),
        ([], {}, ["10.77.0.2"], False),
        (["10.77.0.0/24"], {}, ["10.77.0.0/24"], False),
    ],
)
def test_the_firewall_admits_the_nodes_whose_address_is_known(
    networks: list[str],
    known: dict[str, str],
    sources: list[str],
    complete: bool,  # noqa: FBT001
) -> None:
    """Those of this run, and those of earlier runs in /etc/hosts."""
    role = Role(
        "base_system",
        platform_data_addresses={"gpu1": "10.77.0.1", "gpu2": "10.77.0.2"},
        platform_node={"hosts": known, "hostname": "gpu1", "firewall": "ufw"},
        groups={"gpu_nodes": ["gpu1", "gpu2", "gpu3"]},
        ansible_play_hosts_all=["gpu1", "gpu2"],
        inventory_hostname="gpu1",
        cluster_data_networks=networks,
    )
    task = role.task("configure", "Admit the other nodes in the firewall")["base_system_firewall"]

    assert list(role.value("__base_system_sources")) == sources
    assert role.templar.template(task["complete"]) is complete


@pytest.mark.parametrize(("node", "holds"), [({"docker_is_podman": True}, False), ({}, True)])
def test_docker_of_podman_is_refused(node: dict[str, bool], holds: bool) -> None:  # noqa: FBT001
    """The role would configure an engine that is never started."""
    role = Role("docker_engine", platform_node=node, inventory_hostname="gpu1")

    assert role.holds("preflight", "Check that docker is not podman") is holds
    assert "podman-docker" in role.says("preflight", "Check that docker is not podman")


def test_passwords_are_not_on_command_lines() -> None:
    """`environment` of a task is put in front of the command, on the controller and on the node."""
    matches = [str(path) for path in (ROLES).glob("*/tasks/*.yml") if "\n  environment:" in path.read_text()]

    assert matches == []


@pytest.mark.parametrize("said", ["no", "false", "False", False])
def test_the_value_no_of_an_ini_inventory_is_false(said: Any) -> None:
    """`rdma_stack_soft_roce_enabled=no` under [gpu_nodes:vars] is the text "no" and means false."""
    role = Role(
        "rdma_stack", rdma_stack_soft_roce_enabled=said, platform_node=node("10.77.0.1", modules_loadable=False)
    )

    assert "rdma_rxe" not in role.value("__rdma_stack_modules")
    assert (
        Role(
            "docker_engine",
            docker_engine_live_restore_enabled=said,
            platform_node={"memlock_limit": -1, "nofile_limit": -1},
        ).value("__docker_engine_base_settings['live-restore']")
        is False
    )


IMAGE_CHECK = ("preflight", "Check the name and digest of the image")


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("training:1", ""),
        ("team/train", ""),
        ("registry.example.org:5000/team/train__x--y.z:1.0-rc_2", ""),
        ("Registry.example.org/train:1", ""),
        ("[fd00::1]:5000/train:1", ""),
        ("train:1@sha256:" + "0" * 64, ""),
        ("", "no training image is configured"),
        ("https://registry.example.org/train:1", "invalid image name"),
        ("registry.example.org/Team/train:1", "invalid image name"),
        ("train:1 ", "invalid image name"),
        ("train:", "invalid image name"),
        ("-v", "invalid image name"),
    ],
)
def test_an_invalid_image_name_is_refused_with_the_valid_form(reference: str, problem: str) -> None:
    """Docker is not called with an invalid image name."""
    role = Role("training_image", training_image_reference=reference)

    assert role.holds(*IMAGE_CHECK) is (problem == "")
    if problem:
        assert problem in role.says(*IMAGE_CHECK)
        assert "registry.example.org:5000/training:1" in role.says(*IMAGE_CHECK)
