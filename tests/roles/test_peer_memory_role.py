"""The role peer_memory without a node: its choices, refusals and files."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import stat
import subprocess
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest

from provision.facts import Unknown
from provision.facts.peer_modules import NvidiaModules
from provision.lab.services.kernel import build_git
from tests.support.expressions import ROLES, Role
from tests.support.modules import load, run
from tests.unit.checks.conftest import healthy

choice = load("peer_memory", "peer_memory_choice", part="filter_plugins")
TEMPLATES = ROLES / "peer_memory" / "templates"


def node_facts(**more: Any) -> dict[str, Any]:
    """Return the facts of a node with an old driver and a vendor's RDMA stack."""
    kernel = more.get("kernel", "4.18.0-1")
    state = {
        "kernel": kernel,
        "boot_id": "b",
        "kernels": [
            {"kernel": kernel, "headers": True, "peer_interface": more.pop("interface", "extended"), "driver": False}
        ],
        "driver_version": "460.106.00",
        "driver_flavour": "proprietary",
        "peer_interface_running": False,
        "loaded": [],
        "secure_boot": False,
        "enrolled": None,
        "openibd": False,
        "unit": False,
        "enabled": False,
        "status": {},
        "source": [],
        "digests": {kernel: ""},
        "states": {"dma_buf": [], "none": []},
    }
    judged = [{"kernel": kernel, "ok": False, "running": True, "headers": True, "cause": "not_built"}]
    state["states"] |= dict.fromkeys(("nv_peer_mem", "nvidia_peermem"), judged)
    return state | more


# Which sources


@pytest.mark.parametrize(
    ("kernel", "interface", "ref"),
    [
        ("3.10.0-1160.el7.x86_64", "plain", "1.0-9"),  # the reference's own node
        ("4.18.0-553.el8.x86_64", "plain", "1.0-9"),
        ("5.4.0-1-amd64", "plain", "1.1-0"),
        ("6.1.0-9-amd64", "plain", "1.1-0"),
        ("3.10.0-1160.el7.x86_64", "extended", "1.3-0"),
        ("6.1.0-9-amd64", "extended", "1.3-0"),
    ],
)
def test_the_version_is_selected_by_the_kernel_headers(kernel: str, interface: str, ref: str) -> None:
    """With peer_memory_client_ex 1.3 is built; without it 1.1 on kernels whose symbol tables 1.0-9 cannot write."""
    assert choice.peer_memory_ref("1.0-9", node_facts(kernel=kernel, interface=interface)) == ref


def test_an_explicit_version_is_used() -> None:
    """Neither another ref nor one with the probe switched off is replaced."""
    state = node_facts(interface="extended")

    assert choice.peer_memory_ref("1.2-0", state) == "1.2-0"
    assert choice.peer_memory_ref("1.0-9", state, by_headers=False) == "1.0-9"


def test_a_git_ref_is_converted_to_a_valid_dkms_version() -> None:
    """A branch with a slash is no folder below /usr/src."""
    assert choice.peer_memory_version("fix/big one") == "fix-big-one"
    assert choice.peer_memory_version("1.0-9") == "1.0-9"


# Which provider


@pytest.mark.parametrize(
    ("state", "provider"),
    [
        ({"driver_version": "535.1", "driver_flavour": "open", "kernel": "6.1.0-9-amd64"}, "dma_buf"),
        ({"driver_version": "535.1", "driver_flavour": "open", "kernel": "4.18.0"}, "nvidia_peermem"),
        ({"driver_version": "535.1"}, "nvidia_peermem"),
        ({"driver_version": "460.106"}, "nv_peer_mem"),
        ({"driver_version": "535.1", "peermem_shipped": False}, "nvidia_peermem"),  # to be built, not to be given up
        ({"driver_version": "535.1", "interface": ""}, "none"),
        ({"driver_version": ""}, "none"),
    ],
)
def test_auto_selects_a_provider_without_the_package(state: dict[str, Any], provider: str) -> None:
    """A run of plain Ansible chooses by driver, kernel and RDMA stack, with a reason."""
    chosen = choice.peer_memory_provider(node_facts(**state), "auto")

    assert chosen["provider"] == provider
    assert chosen["reasons"]


def test_an_explicit_provider_is_used() -> None:
    """A provider in the inventory has priority over the verdict."""
    assert choice.peer_memory_provider(node_facts(driver_version=""), "nv_peer_mem")["provider"] == "nv_peer_mem"


def role(provider: str = "nv_peer_mem", state: dict[str, Any] | None = None, **more: Any) -> Role:
    """Return the role on a GPU node after its probe."""
    return Role(
        "peer_memory",
        inventory_hostname="gpu1",
        platform_node={"modules_loadable": True, "gpus_present": True, "kind": "metal", "kernel": "4.18.0-1"},
        __peer_memory_facts=state or node_facts(),
        **{
            "__peer_memory_choice": {"provider": provider, "reasons": ["because"], "unknown": ""},
            "__platform_headers_package": "linux-headers-{kernel}",
            "__platform_kernel_hooks": ["/etc/kernel/postinst.d/{name}"],
            **more,
        },
    )


# What is refused

FACTS_KNOWN = ("preflight", "Check that the facts for the choice are known")
MEET = ("preflight", "Check that the other module is not loaded")
SIGNED = ("preflight", "Check that the kernel accepts the module")
ENROLLED = ("preflight", "Check that the signing key is enrolled")
BUILDABLE = ("preflight", "Check the requirements for building nv_peer_mem")


def test_nv_peer_mem_beside_a_loaded_nvidia_peermem_is_refused_with_the_reason() -> None:
    """The message names the node, the module in the way and both ways out."""
    refused = role(state=node_facts(loaded=["nvidia", "nvidia_peermem"]))

    assert not refused.holds(*MEET)
    message = refused.says(*MEET)
    assert "gpu1: cannot use nv_peer_mem (nvidia_peermem is loaded" in message
    assert "modprobe -r nvidia_peermem" in message
    assert role().holds(*MEET)


def test_secure_boot_without_a_key_is_refused_before_a_build() -> None:
    """The refusal comes before any build; a key or prebuilt modules allow it."""
    locked = node_facts(secure_boot=True)
    keys = {"peer_memory_signing_key": "/root/k.priv", "peer_memory_signing_certificate": "/root/k.der"}

    assert not role(state=locked).holds(*SIGNED)
    assert "mokutil --import" in role(state=locked).says(*SIGNED)
    assert role(state=locked, **keys).holds(*SIGNED)
    assert role(state=locked, peer_memory_prebuilt="/srv/modules").holds(*SIGNED)
    assert role().holds(*SIGNED)


def test_a_key_that_the_firmware_does_not_know_is_refused_before_a_build() -> None:
    """The kernel would refuse to load a module signed with it. An unknown result is accepted."""
    keys = {"peer_memory_signing_key": "/root/k.priv", "peer_memory_signing_certificate": "/root/k.der"}
    refused = role(state=node_facts(secure_boot=True, enrolled=False), **keys)

    assert not refused.holds(*ENROLLED)
    assert "/root/k.der is neither in db" in refused.says(*ENROLLED)
    assert "mokutil --import" in refused.says(*ENROLLED)
    for known in (True, None):
        assert role(state=node_facts(secure_boot=True, enrolled=known), **keys).holds(*ENROLLED)
    assert role(state=node_facts(enrolled=False), **keys).holds(*ENROLLED)


@pytest.mark.parametrize(("state", "word"), [({"interface": ""}, "DOCA-OFED"), ({"driver_version": ""}, "driver")])
def test_nv_peer_mem_without_its_requirements_is_refused(state: dict[str, Any], word: str) -> None:
    """The message names the missing software."""
    assert not role(state=node_facts(**state)).holds(*BUILDABLE)
    assert word in role(state=node_facts(**state)).says(*BUILDABLE)
    assert role().holds(*BUILDABLE)


def test_a_driver_for_another_kernel_is_sufficient() -> None:
    """A kernel that came up without headers has no driver yet; with the headers both are built."""
    state = node_facts(driver_version="")
    state["kernels"].append({"kernel": "4.18.0-0", "headers": True, "peer_interface": "extended", "driver": True})

    assert role(state=state).holds(*BUILDABLE)


def test_a_kernel_without_the_driver_does_not_change_the_provider() -> None:
    """Booting a kernel whose modules are missing must not make the next apply take everything away."""
    state = node_facts(driver_version="", status={"provider": "nv_peer_mem"})
    state["kernels"].append({"kernel": "4.18.0-0", "headers": True, "peer_interface": "extended", "driver": True})

    chosen = choice.peer_memory_provider(state, "auto")

    assert chosen["provider"] == "nv_peer_mem"
    assert "4.18.0-0" in chosen["reasons"][0]
    assert (
        choice.peer_memory_provider(node_facts(driver_version="", status={"provider": "nv_peer_mem"}), "auto")[
            "provider"
        ]
        == "none"
    )


UNKNOWN_OUTPUT = "the shell of this node printed something else"
"""A probe's output in which no fact has an answer."""


@pytest.mark.parametrize("where", ["status", "config"])
def test_an_unknown_fact_does_not_change_the_provider(where: str) -> None:
    """If nvidia-smi hangs or fails, auto preserves the provider of the node and returns the reason."""
    had = node_facts(**{"probe": UNKNOWN_OUTPUT, "driver_version": "535.1", where: {"provider": "nvidia_peermem"}})

    chosen = choice.peer_memory_provider(had, "auto")

    assert (chosen["provider"], chosen["unknown"]) == ("nvidia_peermem", "")
    assert chosen["reasons"][0].startswith("nvidia_peermem as before: the current choice is unknown (")


def test_an_unknown_fact_without_an_earlier_provider_fails_the_apply() -> None:
    """Nothing is configured; the message contains the node, the fact and the remedy."""
    chosen = choice.peer_memory_provider(node_facts(probe=UNKNOWN_OUTPUT, driver_version="535.1"), "auto")
    refused = role("none", __peer_memory_choice=chosen)

    assert chosen["unknown"]
    assert not refused.holds(*FACTS_KNOWN)
    assert chosen["unknown"] in refused.says(*FACTS_KNOWN)
    assert "provision gdr --limit gpu1" in refused.says(*FACTS_KNOWN)
    assert role().holds(*FACTS_KNOWN)


@pytest.mark.parametrize(
    ("facts", "more", "known"),
    [
        ({"nvidia_modules": NvidiaModules("", "", "", {})}, {}, False),  # open or proprietary is unknown
        ({"nvidia_modules": NvidiaModules("", "", "", {})}, {"simulated": True}, True),  # a lab's GPUs have none
        ({"nvidia_modules": Unknown("modinfo hung")}, {}, False),
        ({"gpus": (), "gpu_pci": Unknown("lspci hung")}, {}, False),
        ({"gpus": (), "gpu_pci": ()}, {}, True),
        ({"nvidia_modules": NvidiaModules("550.90", "proprietary", "550.90", {})}, {}, True),
    ],
)
def test_none_is_selected_only_if_all_relevant_facts_are_known(
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, Any],
    more: dict[str, Any],
    known: bool,  # noqa: FBT001
) -> None:
    """A verdict of none that depends on unknown facts does not replace dma_buf; another one does."""
    seen = dataclasses.replace(healthy(), **facts)
    monkeypatch.setattr("provision.facts.parse", lambda *_: seen)
    had = node_facts(probe="x", driver_version="550.90", status={"provider": "dma_buf"}, **more)

    assert choice.peer_memory_provider(had, "auto")["provider"] == ("none" if known else "dma_buf")


def test_an_unreadable_driver_is_not_a_missing_driver() -> None:
    """Without zstd a compressed module is unreadable: an earlier choice is preserved, and no new one is made."""
    state = node_facts(driver_version="", driver_flavour="")
    state["kernels"][0]["driver"] = True

    assert "cannot be read" in choice.peer_memory_provider(state, "auto")["unknown"]
    unchanged = choice.peer_memory_provider(state | {"status": {"provider": "dma_buf"}}, "auto")
    assert (unchanged["provider"], unchanged["unknown"]) == ("dma_buf", "")


# What is done


def test_nothing_is_built_on_a_node_that_is_ready() -> None:
    """Sources in place and every kernel ready: no fetch, no build."""
    kernel = "4.18.0-1"
    ready = node_facts(source=[{"version": "1.3-0", "url": "https://git.example.org/n.git", "ref": "1.3-0"}])
    ready["states"]["nv_peer_mem"] = [{"kernel": kernel, "ok": True, "running": True, "headers": True, "cause": ""}]
    same = role(state=ready, peer_memory_source_url="https://user:hunter2@git.example.org/n.git")

    assert same.value("__peer_memory_source_needed") is False
    assert same.value("__peer_memory_stale") == []
    assert role(state=ready, peer_memory_source_ref="1.2-0").value("__peer_memory_stale") == [kernel]


def test_missing_headers_are_installed_for_each_exact_kernel() -> None:
    """The package is the kernel's own, by its full release."""
    state = node_facts()
    state["states"]["nv_peer_mem"] = [
        {"kernel": "6.1.0-9-amd64", "ok": True, "headers": True},
        {"kernel": "6.12.9+deb12-amd64", "ok": False, "headers": False},
    ]

    assert role(state=state).value("__peer_memory_headers") == ["linux-headers-6.12.9+deb12-amd64"]


def test_the_old_interface_gets_its_module_option() -> None:
    """nvidia_peermem is loaded with peerdirect_support=1 where the RDMA stack is as old as OFED 4.9, and only there."""
    old = role("nvidia_peermem", node_facts(interface="plain")).value("__peer_memory_extras")
    new = role("nvidia_peermem", node_facts(interface="extended")).value("__peer_memory_extras")

    assert old[0]["state"] == "file"
    assert "options nvidia-peermem peerdirect_support=1\n" in old[0]["content"]
    assert new[0]["state"] == "absent"


def test_module_options_use_the_name_of_the_file() -> None:
    """modprobe uses the file name to find options, and the file name of Debian is not that of the module."""
    debian = node_facts(interface="plain", peermem_file="nvidia_current_peermem")
    files = [
        role("nvidia_peermem", state).value("__peer_memory_extras")[0]
        for state in (node_facts(interface="plain"), debian)
    ]

    options = [[line for line in file["content"].splitlines() if not line.startswith("#")] for file in files]
    assert options[0] == ["options nvidia-peermem peerdirect_support=1"]
    assert options[1] == [*options[0], "options nvidia_current_peermem peerdirect_support=1"]


def test_openibd_gets_its_drop_in_only_if_installed() -> None:
    """After openibd has reloaded the RDMA modules, the unit checks and loads again. openibd neither waits nor fails."""
    files = {True: None, False: None}
    for there in files:
        files[there] = role(state=node_facts(openibd=there)).value("__peer_memory_extras")[2]

    assert files[True]["path"] == "/etc/systemd/system/openibd.service.d/provision-peer-memory.conf"
    started = [line for line in files[True]["content"].splitlines() if line.startswith("Exec")]
    assert started == ["ExecStartPost=-/bin/systemctl --no-block restart provision-peer-memory.service"]
    assert "openibd.service" in unit()["After"]  # so that what is queued there waits for openibd's end
    assert files[False]["state"] == "absent"


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"gpus_present": False, "modules_loadable": True, "kind": "metal"}, "skipped: the node has no NVIDIA GPU"),
        (
            {"gpus_present": True, "modules_loadable": False, "kind": "container"},
            "skipped: a container node cannot load kernel modules",
        ),
    ],
)
def test_an_unsupported_node_has_a_reason_and_no_tasks(node: dict[str, Any], reason: str) -> None:
    """No remote task is run, and the receipt has the reason."""
    left_out = Role("peer_memory", platform_node={"kernel": "6.1", **node})

    assert left_out.value("__peer_memory_possible") is False
    assert left_out.value("__peer_memory_managed") is False
    assert left_out.value("__peer_memory_reductions") == [reason]


def unit() -> dict[str, list[str]]:
    """The unit's settings."""
    text = (TEMPLATES / "provision-peer-memory.service.j2").read_text()
    rendered = jinja2.Template(text).render(
        __peer_memory_provider="nv_peer_mem", _peer_memory_folder="/usr/local/lib/provision"
    )
    settings: dict[str, list[str]] = {}
    for line in rendered.splitlines():
        key, mark, value = line.partition("=")
        if mark and not line.startswith("#"):
            settings.setdefault(key, []).extend(value.split())
    return settings


def test_the_unit_starts_after_the_drivers_and_before_docker() -> None:
    """After RDMA stack, persistence daemon and fabric manager; before docker and other services that start jobs."""
    settings = unit()

    assert {
        "openibd.service",
        "provision-rdma.service",
        "nvidia-persistenced.service",
        "nvidia-fabricmanager.service",
    } <= set(settings["After"])
    assert {"docker.service", "containerd.service"} <= set(settings["Before"])
    assert settings["PartOf"] == ["openibd.service"]


def test_docker_starts_if_the_module_fails() -> None:
    """Nothing requires the unit, it has limits, and it runs once."""
    settings = unit()

    assert (settings["Type"], settings["RemainAfterExit"], settings["TimeoutStartSec"]) == (
        ["oneshot"],
        ["yes"],
        ["120"],
    )
    assert settings["WantedBy"] == ["multi-user.target"]
    assert not {"RequiredBy", "Requires", "BindsTo"} & set(settings)


def test_the_time_limit_of_the_program_is_below_that_of_systemd() -> None:
    """The program itself writes the status file before its limit."""
    seconds = load("peer_memory", "peer_memory_node", part="module_utils").START_SECONDS

    assert seconds < int(unit()["TimeoutStartSec"][0])


@pytest.mark.parametrize(("code", "arguments"), [(1, ["6.12.9-amd64"]), (0, ["6.12.9-amd64"]), (1, [])])
def test_the_hook_for_new_kernels_never_fails(tmp_path: Path, code: int, arguments: list[str]) -> None:
    """dpkg continues regardless of the result; without a kernel release nothing runs."""
    program = tmp_path / "peer-memory"
    program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/called\nexit {code}\n')
    program.chmod(0o755)
    hook = tmp_path / "hook"
    hook.write_text(jinja2.Template((TEMPLATES / "kernel-hook.j2").read_text()).render(_peer_memory_folder=tmp_path))

    done = subprocess.run(["sh", hook, *arguments], check=False)

    assert done.returncode == 0
    assert (tmp_path / "called").exists() is bool(arguments)
    if arguments:
        assert (tmp_path / "called").read_text() == "build --hook --kernel 6.12.9-amd64\n"


def test_the_hook_runs_after_dkms() -> None:
    """The package system runs hooks in the order of their names: RDMA stack and driver, by DKMS, come first."""
    names = [Path(file["path"]).name for file in role().value("__peer_memory_hooks")]

    assert all(name > "dkms" for name in names)
    assert names


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("service", "Start peer memory now and at every boot"),
        ("configure", "Stop and disable an obsolete unit"),
    ],
)
def test_the_unit_does_not_reload_systemd(file: str, name: str) -> None:
    """systemd does not reread its units, which would remove GPUs from containers with the legacy hook."""
    task = role().task(file, name)
    script = task["platform_command"]["argv"][2]

    assert not [key for key in task if "systemd" in key]
    assert "daemon-reload" not in script
    assert all("--no-reload" in part for part in script.split(";") if "able" in part)


@pytest.mark.parametrize(("fine", "active"), [(True, True), (False, True), (True, False)])
def test_a_changed_driver_is_checked_again_for_dma_buf(fine: bool, active: bool) -> None:  # noqa: FBT001
    """The current state of a kernel or a stopped unit has priority over the status of this boot."""
    status = {"ok": True, "boot_id": "b", "provider": "dma_buf"}
    kernels = [{"kernel": "k", "ok": fine, "running": True}, {"kernel": "l", "ok": False, "running": False}]
    state = node_facts(enabled=True, active=active, status=status)
    state["states"]["dma_buf"] = kernels
    ready = role("dma_buf", state).task("service", "Start peer memory now and at every boot")["vars"][
        "__peer_memory_ready"
    ]

    assert role("dma_buf", state, ready=ready).value("ready") is (fine and active)


def test_only_locally_built_modules_have_a_hook_for_new_kernels() -> None:
    """dma_buf has nothing to be built when a kernel comes."""
    states = {
        provider: {file["state"] for file in role(provider).value("__peer_memory_hooks")}
        for provider in ("dma_buf", "nvidia_peermem", "nv_peer_mem")
    }

    assert states == {"dma_buf": {"absent"}, "nvidia_peermem": {"file"}, "nv_peer_mem": {"file"}}


# Sources


@pytest.fixture
def module() -> ModuleType:
    """The module that runs on nodes."""
    return load("peer_memory", "peer_memory")


def tar(**files: str) -> str:
    """Return a tar file of these files as the module gets it."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o755 if text.startswith("#!") else 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    return base64.b64encode(held.getvalue()).decode()


@pytest.mark.parametrize("top", ["", "nv_peer_memory-1.3/", "./"])
def test_sources_are_installed_in_the_folder_of_dkms(module: ModuleType, tmp_path: Path, top: str) -> None:
    """With or without a folder at the archive's top; our dkms.conf and our reader of checksums replace the tree's."""
    old = tmp_path / "usr/src/nv_peer_mem-1.1-0"
    old.mkdir(parents=True)
    files = {"Makefile": "all:\n", "create_nv.symvers.sh": "#!/bin/sh\nnm\n", "dkms.conf": "theirs", ".hidden": "x"}
    archive = tar(**{top + name: text for name, text in files.items()})

    others = module.install_source({"version": "1.3-0", "mark": {"ref": "1.3-0"}, "archive": archive}, str(tmp_path))

    tree = tmp_path / "usr/src/nv_peer_mem-1.3-0"
    assert others == ["nv_peer_mem-1.1-0"]
    assert (tree / "Makefile").read_text() == "all:\n"
    assert (tree / ".hidden").exists()
    assert 'PACKAGE_VERSION="1.3-0"' in (tree / "dkms.conf").read_text()
    assert "AUTOINSTALL" not in (tree / "dkms.conf").read_text()
    assert "peer-memory symvers" in (tree / "create_nv.symvers.sh").read_text()
    assert stat.S_IMODE((tree / "create_nv.symvers.sh").stat().st_mode) == 0o755
    assert json.loads((tree / ".provision.json").read_text()) == {"ref": "1.3-0"}
    assert sorted(path.name for path in (tmp_path / "usr/src").iterdir()) == ["nv_peer_mem-1.1-0", "nv_peer_mem-1.3-0"]


@pytest.mark.parametrize(
    "archive",
    [
        tar(**{"Makefile": "", "a/../../../etc/cron.d/x": "evil"}),
        tar(**{"/etc/cron.d/x": "evil"}),
        tar(README="no sources"),
        base64.b64encode(b"no tar file").decode(),
    ],
    ids=["leads out", "absolute", "no Makefile", "no tar file"],
)
def test_an_archive_without_a_source_tree_is_refused(module: ModuleType, tmp_path: Path, archive: str) -> None:
    """Nothing is written outside the folder, the existing tree stays, and the cause is reported."""
    tree = tmp_path / "usr/src/nv_peer_mem-1.3-0"
    tree.mkdir(parents=True)

    with pytest.raises(module.Problem) as caught:
        module.install_source({"version": "1.3-0", "mark": {}, "archive": archive}, str(tmp_path))

    assert caught.value.remedy
    assert [path.name for path in (tmp_path / "usr/src").iterdir()] == ["nv_peer_mem-1.3-0"]
    assert not (tmp_path / "etc").exists()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The lab's own history of nv_peer_mem."""
    build_git(tmp_path / "n.git")
    return tmp_path / "n.git"


def test_the_controller_fetches_a_tag(repository: Path) -> None:
    """Nodes get the tree of the tag; the result contains the commit."""
    result = run(load("peer_memory", "peer_memory_source"), url=str(repository), ref="1.1-0")

    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(result["archive"]))) as archive:
        assert {"Makefile", "nv_peer_mem.c", "create_nv.symvers.sh"} <= set(archive.getnames())
    assert len(result["commit"]) == 40
    assert result["changed"] is False


def test_an_unknown_tag_is_refused_with_the_existing_tags(repository: Path) -> None:
    """A wrong ref is reported with a list of tags, and a ref like an option is not used as an option."""
    source = load("peer_memory", "peer_memory_source")

    result = run(source, url=str(repository), ref="1.9")
    odd = run(source, url=str(repository), ref="--output=/tmp/x")

    assert "its tags are 1.0-9, 1.1-0, 1.3-0). Correct peer_memory_source_ref." in result["msg"]
    assert odd["failed"] is True


def test_a_failed_fetch_suggests_a_local_archive(tmp_path: Path) -> None:
    """A site without internet reads of peer_memory_source_archive, and no password is in the message."""
    source = load("peer_memory", "peer_memory_source")

    result = run(source, url="http://user:hunter2@127.0.0.1:1/n.git", ref="1.1-0")
    gone = run(source, archive=str(tmp_path / "gone.tar"))

    assert "peer_memory_source_archive" in result["msg"]
    assert "hunter2" not in result["msg"]
    assert "gone.tar on the controller (No such file or directory)" in gone["msg"]


def test_prebuilt_modules_are_selected_by_kernel_release(tmp_path: Path) -> None:
    """RELEASE/nv_peer_mem.ko, compressed or not; other kernels have none."""
    (tmp_path / "6.1.0-9-amd64").mkdir()
    (tmp_path / "6.1.0-9-amd64/nv_peer_mem.ko.xz").write_bytes(b"x")

    modules = choice.peer_memory_prebuilt(str(tmp_path), ["6.1.0-9-amd64", "6.12.9-amd64"], "nv_peer_mem")

    assert list(modules) == ["6.1.0-9-amd64"]
    assert modules["6.1.0-9-amd64"]["name"] == "nv_peer_mem.ko.xz"
    assert choice.peer_memory_prebuilt("", ["6.1.0-9-amd64"], "nv_peer_mem") == {}
