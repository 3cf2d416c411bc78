"""The role peer_memory: what it chooses, refuses and writes, without a node."""

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


def look(**more: Any) -> dict[str, Any]:
    """What the module finds on a node with an old driver and a vendor's RDMA stack."""
    kernel = more.get("kernel", "4.18.0-1")
    found = {
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
        "judged": {"dma_buf": [], "none": []},
    }
    judged = [{"kernel": kernel, "ok": False, "running": True, "headers": True, "cause": "not_built"}]
    found["judged"] |= dict.fromkeys(("nv_peer_mem", "nvidia_peermem"), judged)
    return found | more


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
def test_the_version_is_chosen_by_the_headers(kernel: str, interface: str, ref: str) -> None:
    """With peer_memory_client_ex 1.3 is built; without it 1.1 on kernels whose symbol tables 1.0-9 cannot write."""
    assert choice.peer_memory_ref("1.0-9", look(kernel=kernel, interface=interface)) == ref


def test_who_names_a_version_gets_it() -> None:
    """Neither another ref nor one with the probe switched off is replaced."""
    found = look(interface="extended")

    assert choice.peer_memory_ref("1.2-0", found) == "1.2-0"
    assert choice.peer_memory_ref("1.0-9", found, by_headers=False) == "1.0-9"


def test_a_ref_becomes_a_version_that_dkms_takes() -> None:
    """A branch with a slash is no folder below /usr/src."""
    assert choice.peer_memory_version("fix/big one") == "fix-big-one"
    assert choice.peer_memory_version("1.0-9") == "1.0-9"


# Which provider


@pytest.mark.parametrize(
    ("found", "provider"),
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
def test_auto_decides_without_the_package_too(found: dict[str, Any], provider: str) -> None:
    """Roles that somebody runs by Ansible alone choose by driver, kernel and RDMA stack, with a reason."""
    chosen = choice.peer_memory_provider(look(**found), "auto")

    assert chosen["provider"] == provider
    assert chosen["reasons"]


def test_what_the_inventory_names_is_taken() -> None:
    """No verdict stands against a provider that somebody asked for."""
    assert choice.peer_memory_provider(look(driver_version=""), "nv_peer_mem")["provider"] == "nv_peer_mem"


def role(provider: str = "nv_peer_mem", found: dict[str, Any] | None = None, **more: Any) -> Role:
    """The role on a GPU node, after its look."""
    return Role(
        "peer_memory",
        inventory_hostname="gpu1",
        platform_node={"modules_loadable": True, "gpus_present": True, "kind": "metal", "kernel": "4.18.0-1"},
        __peer_memory_look=found or look(),
        **{
            "__peer_memory_choice": {"provider": provider, "reasons": ["because"], "remedies": [], "untold": ""},
            "__platform_headers_package": "linux-headers-{kernel}",
            "__platform_kernel_hooks": ["/etc/kernel/postinst.d"],
            **more,
        },
    )


# What is refused

TOLD = ("preflight", "Check that what is needed for the choice is known")
MEET = ("preflight", "Check that the two modules do not meet")
SIGNED = ("preflight", "Check that the kernel would take the module")
ENROLLED = ("preflight", "Check that the key is enrolled")
BUILDABLE = ("preflight", "Check that nv_peer_mem has something to be built against")


def test_nv_peer_mem_beside_a_loaded_nvidia_peermem_is_refused_with_the_reason() -> None:
    """The message names the node, the module in the way and both ways out."""
    refused = role(found=look(loaded=["nvidia", "nvidia_peermem"]))

    assert not refused.holds(*MEET)
    told = refused.says(*MEET)
    assert "gpu1 cannot have nv_peer_mem: nvidia_peermem is loaded" in told
    assert "modprobe -r nvidia_peermem" in told
    assert role().holds(*MEET)


def test_secure_boot_without_a_key_is_refused_before_a_build() -> None:
    """Said before anything is compiled; a key, or modules built elsewhere, lets it pass."""
    locked = look(secure_boot=True)
    keys = {"peer_memory_signing_key": "/root/k.priv", "peer_memory_signing_certificate": "/root/k.der"}

    assert not role(found=locked).holds(*SIGNED)
    assert "mokutil --import" in role(found=locked).says(*SIGNED)
    assert role(found=locked, **keys).holds(*SIGNED)
    assert role(found=locked, peer_memory_prebuilt="/srv/modules").holds(*SIGNED)
    assert role().holds(*SIGNED)


def test_a_key_that_the_firmware_does_not_know_is_refused_before_a_build() -> None:
    """Signed with it, the module would be built, and refused at the load; where nobody can tell, nothing is refused."""
    keys = {"peer_memory_signing_key": "/root/k.priv", "peer_memory_signing_certificate": "/root/k.der"}
    refused = role(found=look(secure_boot=True, enrolled=False), **keys)

    assert not refused.holds(*ENROLLED)
    assert "its firmware does not know /root/k.der" in refused.says(*ENROLLED)
    assert "mokutil --import" in refused.says(*ENROLLED)
    for known in (True, None):
        assert role(found=look(secure_boot=True, enrolled=known), **keys).holds(*ENROLLED)
    assert role(found=look(enrolled=False), **keys).holds(*ENROLLED)


@pytest.mark.parametrize(("found", "word"), [({"interface": ""}, "DOCA-OFED"), ({"driver_version": ""}, "driver")])
def test_nv_peer_mem_without_its_foundations_is_refused(found: dict[str, Any], word: str) -> None:
    """What has to be installed first is named."""
    assert not role(found=look(**found)).holds(*BUILDABLE)
    assert word in role(found=look(**found)).says(*BUILDABLE)
    assert role().holds(*BUILDABLE)


def test_a_driver_for_another_kernel_is_enough_to_go_on() -> None:
    """A kernel that came up without headers has no driver yet; with the headers both are built."""
    found = look(driver_version="")
    found["kernels"].append({"kernel": "4.18.0-0", "headers": True, "peer_interface": "extended", "driver": True})

    assert role(found=found).holds(*BUILDABLE)


def test_a_kernel_without_the_driver_does_not_change_what_auto_chose() -> None:
    """Booting a kernel whose modules are missing must not make the next apply take everything away."""
    found = look(driver_version="", status={"provider": "nv_peer_mem"})
    found["kernels"].append({"kernel": "4.18.0-0", "headers": True, "peer_interface": "extended", "driver": True})

    chosen = choice.peer_memory_provider(found, "auto")

    assert chosen["provider"] == "nv_peer_mem"
    assert "4.18.0-0" in chosen["reasons"][0]
    assert (
        choice.peer_memory_provider(look(driver_version="", status={"provider": "nv_peer_mem"}), "auto")["provider"]
        == "none"
    )


UNTOLD = "the shell of this node printed something else"
"""A probe's output in which no fact has an answer."""


@pytest.mark.parametrize("where", ["status", "config"])
def test_a_fact_that_cannot_be_told_takes_nothing_away(where: str) -> None:
    """With nvidia-smi hanging or failing, auto keeps the provider that the node has, and says why."""
    had = look(**{"probe": UNTOLD, "driver_version": "535.1", where: {"provider": "nvidia_peermem"}})

    chosen = choice.peer_memory_provider(had, "auto")

    assert (chosen["provider"], chosen["untold"]) == ("nvidia_peermem", "")
    assert chosen["reasons"][0].startswith("nvidia_peermem as before: what would fit the node now cannot be told (")


def test_without_a_provider_from_before_an_untold_fact_ends_the_apply() -> None:
    """Nothing is configured on a guess; the message names the node, the fact and the way out."""
    chosen = choice.peer_memory_provider(look(probe=UNTOLD, driver_version="535.1"), "auto")
    refused = role("none", __peer_memory_choice=chosen)

    assert chosen["untold"]
    assert not refused.holds(*TOLD)
    assert chosen["untold"] in refused.says(*TOLD)
    assert "provision gdr --limit gpu1" in refused.says(*TOLD)
    assert role().holds(*TOLD)


@pytest.mark.parametrize(
    ("facts", "more", "known"),
    [
        ({"nvidia_modules": NvidiaModules("", "", "", {})}, {}, False),  # open or proprietary: nobody knows
        ({"nvidia_modules": NvidiaModules("", "", "", {})}, {"simulated": True}, True),  # a lab's GPUs have none
        ({"nvidia_modules": Unknown("modinfo hung")}, {}, False),
        ({"gpus": (), "gpu_pci": Unknown("lspci hung")}, {}, False),
        ({"gpus": (), "gpu_pci": ()}, {}, True),
        ({"nvidia_modules": NvidiaModules("550.90", "proprietary", "550.90", {})}, {}, True),
    ],
)
def test_none_is_chosen_only_where_all_that_speaks_for_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, Any],
    more: dict[str, Any],
    known: bool,  # noqa: FBT001
) -> None:
    """A verdict of none that rests on what nobody could tell leaves dma_buf alone; one that does not, counts."""
    seen = dataclasses.replace(healthy(), **facts)
    monkeypatch.setattr("provision.facts.parse", lambda *_: seen)
    had = look(probe="x", driver_version="550.90", status={"provider": "dma_buf"}, **more)

    assert choice.peer_memory_provider(had, "auto")["provider"] == ("none" if known else "dma_buf")


def test_a_driver_that_cannot_be_read_is_not_one_that_is_missing() -> None:
    """Without zstd a compressed module says nothing: the choice from before stays, and a first one is not made."""
    found = look(driver_version="", driver_flavour="")
    found["kernels"][0]["driver"] = True

    assert "cannot be read" in choice.peer_memory_provider(found, "auto")["untold"]
    kept = choice.peer_memory_provider(found | {"status": {"provider": "dma_buf"}}, "auto")
    assert (kept["provider"], kept["untold"]) == ("dma_buf", "")


# What is done


def test_a_node_where_all_is_ready_gets_nothing_built() -> None:
    """Sources in place and every kernel ready: no fetch, no build."""
    kernel = "4.18.0-1"
    ready = look(source=[{"version": "1.3-0", "url": "https://git.example.org/n.git", "ref": "1.3-0"}])
    ready["judged"]["nv_peer_mem"] = [{"kernel": kernel, "ok": True, "running": True, "headers": True, "cause": ""}]
    same = role(found=ready, peer_memory_source_url="https://user:hunter2@git.example.org/n.git")

    assert same.value("__peer_memory_source_needed") is False
    assert same.value("__peer_memory_stale") == []
    assert role(found=ready, peer_memory_source_ref="1.2-0").value("__peer_memory_stale") == [kernel]


def test_exact_headers_of_every_kernel_that_lacks_them_are_asked_for() -> None:
    """The package is the kernel's own, by its full release."""
    found = look()
    found["judged"]["nv_peer_mem"] = [
        {"kernel": "6.1.0-9-amd64", "ok": True, "headers": True},
        {"kernel": "6.12.9+deb12-amd64", "ok": False, "headers": False},
    ]

    assert role(found=found).value("__peer_memory_headers") == ["linux-headers-6.12.9+deb12-amd64"]


def test_the_old_interface_gets_its_option() -> None:
    """nvidia_peermem is loaded with peerdirect_support=1 where the RDMA stack is as old as OFED 4.9, and only there."""
    old = role("nvidia_peermem", look(interface="plain")).value("__peer_memory_extras")
    new = role("nvidia_peermem", look(interface="extended")).value("__peer_memory_extras")

    assert old[0]["state"] == "file"
    assert "options nvidia-peermem peerdirect_support=1\n" in old[0]["content"]
    assert new[0]["state"] == "absent"


def test_options_are_given_by_the_name_of_the_file() -> None:
    """modprobe looks options up by the file's name: Debian's is not the module's."""
    debian = look(interface="plain", peermem_file="nvidia_current_peermem")
    files = [
        role("nvidia_peermem", found).value("__peer_memory_extras")[0] for found in (look(interface="plain"), debian)
    ]

    options = [[line for line in file["content"].splitlines() if not line.startswith("#")] for file in files]
    assert options[0] == ["options nvidia-peermem peerdirect_support=1"]
    assert options[1] == [*options[0], "options nvidia_current_peermem peerdirect_support=1"]


def test_openibd_gets_its_drop_in_only_where_it_is() -> None:
    """When openibd loads the RDMA modules anew, the unit checks and loads again: openibd neither waits nor fails."""
    files = {True: None, False: None}
    for there in files:
        files[there] = role(found=look(openibd=there)).value("__peer_memory_extras")[2]

    assert files[True]["path"] == "/etc/systemd/system/openibd.service.d/provision-peer-memory.conf"
    started = [line for line in files[True]["content"].splitlines() if line.startswith("Exec")]
    assert started == ["ExecStartPost=-/bin/systemctl --no-block restart provision-peer-memory.service"]
    assert "openibd.service" in unit()["After"]  # so that what is queued there waits for openibd's end
    assert files[False]["state"] == "absent"


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"gpus_present": False, "modules_loadable": True, "kind": "metal"}, "left out: the node has no NVIDIA GPU"),
        (
            {"gpus_present": True, "modules_loadable": False, "kind": "container"},
            "left out: a container node cannot load kernel modules",
        ),
    ],
)
def test_a_node_that_cannot_have_it_says_so_and_costs_no_task(node: dict[str, Any], reason: str) -> None:
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
    found: dict[str, list[str]] = {}
    for line in rendered.splitlines():
        key, mark, value = line.partition("=")
        if mark and not line.startswith("#"):
            found.setdefault(key, []).extend(value.split())
    return found


def test_the_unit_stands_between_the_drivers_and_docker() -> None:
    """After RDMA stack, persistence daemon and fabric manager; before docker and what else starts jobs."""
    found = unit()

    assert {
        "openibd.service",
        "provision-rdma.service",
        "nvidia-persistenced.service",
        "nvidia-fabricmanager.service",
    } <= set(found["After"])
    assert {"docker.service", "containerd.service"} <= set(found["Before"])
    assert found["PartOf"] == ["openibd.service"]


def test_docker_starts_whatever_happens_to_the_module() -> None:
    """Nothing requires the unit, it has limits, and it runs once."""
    found = unit()

    assert (found["Type"], found["RemainAfterExit"], found["TimeoutStartSec"]) == (["oneshot"], ["yes"], ["120"])
    assert found["WantedBy"] == ["multi-user.target"]
    assert not {"RequiredBy", "Requires", "BindsTo"} & set(found)


def test_the_program_gives_up_before_systemd_does() -> None:
    """The status file is written by the program itself, with time left."""
    seconds = load("peer_memory", "peer_memory_node", part="module_utils").START_SECONDS

    assert seconds < int(unit()["TimeoutStartSec"][0])


@pytest.mark.parametrize(("code", "arguments"), [(1, ["6.12.9-amd64"]), (0, ["6.12.9-amd64"]), (1, [])])
def test_the_hook_for_new_kernels_never_fails(tmp_path: Path, code: int, arguments: list[str]) -> None:
    """dpkg goes on whatever the program says; without a kernel's release nothing is run."""
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
        ("service", "Make it ready now and at every boot"),
        ("configure", "Stop what is no longer wanted"),
    ],
)
def test_no_container_loses_its_gpus_to_the_unit(file: str, name: str) -> None:
    """systemd does not read its units anew (the systemd module does): that takes GPUs from legacy-hook containers."""
    task = role().task(file, name)
    script = task["ansible.builtin.command"]["argv"][2]

    assert not [key for key in task if "systemd" in key]
    assert "daemon-reload" not in script
    assert all("--no-reload" in part for part in script.split(";") if "able" in part)


@pytest.mark.parametrize(("fine", "active"), [(True, True), (False, True), (True, False)])
def test_a_driver_that_changed_under_dma_buf_is_checked_again(fine: bool, active: bool) -> None:  # noqa: FBT001
    """The status of this boot says ready; what is judged now counts more, and so does that the unit was stopped."""
    status = {"ok": True, "boot_id": "b", "provider": "dma_buf"}
    kernels = [{"kernel": "k", "ok": fine, "running": True}, {"kernel": "l", "ok": False, "running": False}]
    found = look(enabled=True, active=active, status=status)
    found["judged"]["dma_buf"] = kernels
    ready = role("dma_buf", found).task("service", "Make it ready now and at every boot")["vars"]["__peer_memory_ready"]

    assert role("dma_buf", found, ready=ready).value("ready") is (fine and active)


def test_only_what_is_built_here_has_a_hook_for_new_kernels() -> None:
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
def test_sources_are_put_where_dkms_looks(module: ModuleType, tmp_path: Path, top: str) -> None:
    """With or without a folder at the archive's top; our dkms.conf and our reader of checksums replace the tree's."""
    old = tmp_path / "usr/src/nv_peer_mem-1.1-0"
    old.mkdir(parents=True)
    files = {"Makefile": "all:\n", "create_nv.symvers.sh": "#!/bin/sh\nnm\n", "dkms.conf": "theirs", ".hidden": "x"}
    archive = tar(**{top + name: text for name, text in files.items()})

    others = module.put_source({"version": "1.3-0", "mark": {"ref": "1.3-0"}, "archive": archive}, str(tmp_path))

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
def test_an_archive_that_is_no_source_tree_is_refused(module: ModuleType, tmp_path: Path, archive: str) -> None:
    """Nothing is written outside, the tree that was there stays, and the reason is said."""
    tree = tmp_path / "usr/src/nv_peer_mem-1.3-0"
    tree.mkdir(parents=True)

    with pytest.raises(module.Problem) as caught:
        module.put_source({"version": "1.3-0", "mark": {}, "archive": archive}, str(tmp_path))

    assert caught.value.remedy
    assert [path.name for path in (tmp_path / "usr/src").iterdir()] == ["nv_peer_mem-1.3-0"]
    assert not (tmp_path / "etc").exists()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The lab's own history of nv_peer_mem."""
    build_git(tmp_path / "n.git")
    return tmp_path / "n.git"


def test_the_controller_fetches_a_tag(repository: Path) -> None:
    """What nodes get is the tree at the tag, and the commit is told."""
    told = run(load("peer_memory", "peer_memory_source"), url=str(repository), ref="1.1-0")

    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(told["archive"]))) as archive:
        assert {"Makefile", "nv_peer_mem.c", "create_nv.symvers.sh"} <= set(archive.getnames())
    assert len(told["commit"]) == 40
    assert told["changed"] is False


def test_an_unknown_tag_is_answered_with_those_that_are_there(repository: Path) -> None:
    """A misspelt ref ends with the list, and one that looks like an option is no option."""
    source = load("peer_memory", "peer_memory_source")

    told = run(source, url=str(repository), ref="1.9")
    odd = run(source, url=str(repository), ref="--output=/tmp/x")

    assert "its tags are 1.0-9, 1.1-0, 1.3-0. Correct peer_memory_source_ref." in told["msg"]
    assert odd["failed"] is True


def test_what_cannot_be_fetched_says_how_to_do_without(tmp_path: Path) -> None:
    """A site without internet reads of peer_memory_source_archive, and no password is in the message."""
    source = load("peer_memory", "peer_memory_source")

    told = run(source, url="http://user:hunter2@127.0.0.1:1/n.git", ref="1.1-0")
    gone = run(source, archive=str(tmp_path / "gone.tar"))

    assert "peer_memory_source_archive" in told["msg"]
    assert "hunter2" not in told["msg"]
    assert "gone.tar cannot be read on the controller: No such file or directory" in gone["msg"]


def test_prebuilt_modules_are_found_by_the_kernels_release(tmp_path: Path) -> None:
    """RELEASE/nv_peer_mem.ko, compressed or not; other kernels have none."""
    (tmp_path / "6.1.0-9-amd64").mkdir()
    (tmp_path / "6.1.0-9-amd64/nv_peer_mem.ko.xz").write_bytes(b"x")

    found = choice.peer_memory_prebuilt(str(tmp_path), ["6.1.0-9-amd64", "6.12.9-amd64"], "nv_peer_mem")

    assert list(found) == ["6.1.0-9-amd64"]
    assert found["6.1.0-9-amd64"]["name"] == "nv_peer_mem.ko.xz"
    assert choice.peer_memory_prebuilt("", ["6.1.0-9-amd64"], "nv_peer_mem") == {}
