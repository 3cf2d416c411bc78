"""Requirements of GPUDirect RDMA, parsed from outputs of the kernel and of programs."""

from __future__ import annotations

import subprocess

import pytest

from provision.facts import RawOutput, Unknown
from provision.facts.gpu import GpusFact
from provision.facts.gpudirect import DmaBufFact, Nccl, NcclFact, PciRoutingFact, Signing, SigningFact
from provision.facts.peer_modules import KernelsFact, NvidiaModulesFact, PeerMemoryFact

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build  (dvs-builder)  Tue Mar 25"
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 17 22:55:48 UTC 2024"


def out(text: str) -> RawOutput:
    return RawOutput(text, 0)


@pytest.fixture
def tree(tmp_path):
    """Run a fact's command with some system folders replaced, and parse its output."""

    def run(fact, folders):
        command = fact.command
        for folder in folders:
            command = command.replace(folder, f"{tmp_path}{folder}")
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=20, check=True)
        return fact.parse(out(done.stdout.replace(str(tmp_path), "")))

    run.root = tmp_path
    return run


def write(file, text=""):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_installed_kernels_have_the_modules_that_modprobe_loads(tree):
    """Compressed or not, with a dash or not; folders of removed kernels do not count."""
    modules, boot = tree.root / "lib/modules", tree.root / "boot"
    deps = "kernel/drivers/infiniband/core/ib_core.ko.xz: kernel/x.ko.xz\nkernel/drivers/nvidia-wmi.ko:\n"
    write(modules / "6.1.0-9/modules.dep", deps + "extra/nvidia.ko.xz:\nextra/nv_peer_mem.ko.xz: extra/nvidia.ko.xz\n")
    write(modules / "6.8.0-1/modules.dep", "updates/dkms/nvidia-peermem.ko.zst: updates/dkms/ib_core.ko.zst\n")
    write(modules / "6.8.0-1/build/Makefile")
    write(modules / "5.10.0-old/modules.dep")
    write(boot / "vmlinuz-6.1.0-9")
    write(boot / "vmlinuz-6.8.0-1")

    old, new = tree(KernelsFact(), ("/lib/modules", "/boot/"))

    assert (old.release, old.headers, set(old.modules)) == ("6.1.0-9", False, {"ib_core", "nvidia", "nv_peer_mem"})
    assert (new.release, new.headers, set(new.modules)) == ("6.8.0-1", True, {"nvidia_peermem"})
    assert new.modules["nvidia_peermem"].path == "updates/dkms/nvidia-peermem.ko.zst"
    assert new.modules["nvidia_peermem"].needs == {"ib_core"}


DEBIAN = (
    "install nvidia modprobe -i nvidia-tesla-535 $CMDLINE_OPTS\n"
    "install nvidia-peermem modprobe nvidia ; modprobe -i nvidia-tesla-535-peermem $CMDLINE_OPTS\n"
)
"""As Debian's packages of the driver write them to modprobe.d: the driver that was chosen of those installed."""


def test_driver_names_of_debian_packages_are_recognized(tree):
    """Several drivers are installed under their own names; the one that modprobe selects counts."""
    dkms = "updates/dkms/"
    deps = "".join(
        f"{dkms}{name}.ko.xz:\n{dkms}{name}-modeset.ko.xz: {dkms}{name}.ko.xz\n"
        f"{dkms}{name}-peermem.ko.xz: {dkms}{name}.ko.xz {dkms}ib_uverbs.ko.xz\n"
        for name in ("nvidia-current", "nvidia-tesla-535", "nvidia-current-open")
    )
    write(tree.root / "lib/modules/6.1.0-9/modules.dep", deps)
    write(tree.root / "boot/vmlinuz-6.1.0-9")
    write(tree.root / "etc/modprobe.d/nvidia.conf", DEBIAN)
    (kernel,) = tree(KernelsFact(), ("/lib/modules", "/boot/", "/etc/modprobe.d"))

    assert {name: file.path for name, file in kernel.modules.items()} == {
        "nvidia": f"{dkms}nvidia-tesla-535.ko.xz",
        "nvidia_peermem": f"{dkms}nvidia-tesla-535-peermem.ko.xz",
    }
    assert kernel.modules["nvidia_peermem"].needs == {"nvidia", "ib_uverbs"}


@pytest.mark.parametrize(
    ("needs", "stub"), [("x/nvidia-current.ko", True), ("x/nvidia-current.ko x/ib_core.ko", False)]
)
def test_a_stub_with_a_debian_name_is_detected(needs, stub):
    dep = "/lib/modules/6.1/modules.dep:"
    text = f"kernel\t6.1\trunning\tyes\n{dep}x/nvidia-current-peermem.ko: {needs}\n{dep}x/ib_core.ko:\n"
    (kernel,) = KernelsFact().parse(out(text))

    assert kernel.stub is stub


def test_both_modules_come_from_one_driver_without_a_configured_choice():
    """A peermem of the other driver would not load."""
    dep = "/lib/modules/6.1/modules.dep:"
    names = ("nvidia-current", "nvidia-current-open-peermem", "nvidia-current-peermem", "nvidia-current-open")
    text = "kernel\t6.1\trunning\tyes\n" + "".join(f"{dep}x/{name}.ko:\n" for name in names)
    (kernel,) = KernelsFact().parse(out(text))

    assert kernel.modules["nvidia_peermem"].path == kernel.modules["nvidia"].path.replace(".ko", "-peermem.ko")


def test_a_module_with_the_standard_name_takes_precedence():
    dep = "/lib/modules/6.1/modules.dep:"
    text = f"kernel\t6.1\trunning\tyes\n{dep}x/nvidia.ko:\n{dep}x/nvidia-current.ko:\n"
    (kernel,) = KernelsFact().parse(out(text))

    assert kernel.modules["nvidia"].path == "x/nvidia.ko"


def test_modinfo_is_called_with_the_names_in_modules_dep(tree, monkeypatch):
    names = ("nvidia-current", "nvidia-tesla-535", "nvidia-tesla-535-peermem")
    write(tree.root / "lib/modules/6.1.0-9/modules.dep", "".join(f"updates/dkms/{name}.ko.xz:\n" for name in names))
    write(tree.root / "etc/modprobe.d/nvidia.conf", DEBIAN)
    (tree.root / "var/lib/dkms/nvidia-tesla-535/535.161.08/source").mkdir(parents=True)
    write(
        tree.root / "bin/modinfo",
        "#!/bin/sh\ncase $1 in\n"
        "nvidia-current) version=550.54; signer=;;\nnvidia-tesla-535*) version=535.161.08; signer='DKMS key';;\n"
        '*) echo "modinfo: ERROR: Module $1 not found." >&2; exit 1;;\nesac\n'
        'echo "filename:       /lib/modules/$1.ko"; echo "version:        $version"\n'
        'echo "license:        NVIDIA"; echo "signer:         $signer"\n',
    )
    (tree.root / "bin/modinfo").chmod(0o755)
    monkeypatch.setenv("PROBE_RELEASE", "6.1.0-9")
    monkeypatch.setenv("PATH", f"{tree.root}/bin:/usr/bin:/bin")
    parsed = tree(NvidiaModulesFact(), ("/lib/modules", "/etc/modprobe.d", "/var/lib/dkms", "/proc/"))

    assert (parsed.installed, parsed.flavor) == ("535.161.08", "proprietary")
    assert parsed.signers == {"nvidia": "DKMS key", "nvidia_peermem": "DKMS key"}
    assert parsed.dkms is True


@pytest.mark.parametrize(
    ("running", "option", "at_work", "written"),
    [
        ("0", "options nvidia-peermem peerdirect_support=1", False, True),
        ("1", "", True, False),
        ("", "options nvidia_peermem peerdirect_support=1", True, True),
        ("", "", False, False),
    ],
    ids=["loaded before it was written", "loaded with it by hand", "not loaded", "nowhere"],
)
def test_the_option_of_the_loaded_module_is_read(running, option, at_work, written):
    """A line in modprobe.d does not affect a loaded module."""
    parsed = PeerMemoryFact().parse(out(f"peerdirect={running}\n{option}\n"))

    assert (parsed.peerdirect, parsed.peerdirect_written) == (at_work, written)


@pytest.mark.parametrize(
    ("needs", "stub"),
    [("x/nvidia.ko x/ib_core.ko", False), ("x/nvidia.ko x/ib_uverbs.ko", False), ("x/nvidia.ko", True), ("", True)],
)
def test_a_peermem_without_rdma_dependency_is_a_stub(needs, stub):
    dep = "/lib/modules/6.8/modules.dep:"
    text = f"kernel\t6.8\trunning\tyes\n{dep}x/nvidia-peermem.ko: {needs}\n{dep}x/ib_core.ko:\n"
    (kernel,) = KernelsFact().parse(out(text))

    assert kernel.stub is stub


@pytest.mark.parametrize(
    ("text", "loaded", "flavor"),
    [
        (f"loaded={OPEN}\nnvidia.license=Dual MIT/GPL\n", "570.133.20", "open"),
        (f"loaded={PROPRIETARY}\nnvidia.license=NVIDIA\n", "535.161.08", "proprietary"),
        ("nvidia.license=  Dual MIT/GPL\nnvidia.version=  570.86.15\n", "", "open"),
        ("nvidia.license=  NVIDIA\nnvidia.version=  535.161.08\n", "", "proprietary"),
        ("", "", ""),
    ],
    ids=["open, loaded", "proprietary, loaded", "open, on disk", "proprietary, on disk", "no driver"],
)
def test_open_and_proprietary_modules_are_distinguished(text, loaded, flavor):
    parsed = NvidiaModulesFact().parse(out(text))

    assert (parsed.loaded, parsed.flavor) == (loaded, flavor)


def test_module_signers_are_read():
    text = "nvidia.filename=/a/nvidia.ko\nnvidia.signer= DKMS key\nnv_peer_mem.filename=/a/nv_peer_mem.ko\n"

    assert NvidiaModulesFact().parse(out(text)).signers == {"nvidia": "DKMS key", "nv_peer_mem": ""}


def test_source_checksums_of_module_files_are_read():
    text = "nv_peer_mem.filename=/a/nv_peer_mem.ko\nnv_peer_mem.srcversion=     5AB1\n"

    assert NvidiaModulesFact().parse(out(text)).sources == {"nv_peer_mem": "5AB1"}


def test_peer_memory_state_is_read(tree):
    write(tree.root / "proc/modules", "ib_core 1 2 nv_peer_mem,ib_cm, Live 0x0\nnv_peer_mem 1 0 - Live 0x0\nnv 1 0 -\n")
    write(tree.root / "proc/kallsyms", "00 t ib_register_peer_memory_client\t[ib_core]\n00 t other\t[x]\n")
    write(tree.root / "sys/module/nv_peer_mem/version", "1.1-0\n")
    write(tree.root / "sys/module/nv_peer_mem/srcversion", "5AB1\n")
    write(tree.root / "sys/kernel/mm/memory_peers/nv_mem/version", "1.1-0\n")
    write(tree.root / "etc/modprobe.d/nvidia-peermem.conf", "options nvidia-peermem peerdirect_support=1\n")
    write(tree.root / "usr/src/ofa_kernel/default/Module.symvers", "0x1\tib_register_peer_memory_client\tib_core\tE\n")
    write(tree.root / "usr/src/ofa_kernel/default/include/rdma/peer_mem.h", "struct peer_memory_client_ex {\n")
    parsed = tree(PeerMemoryFact(), ("/proc/", "/sys/", "/etc/modprobe.d", "/usr/src/ofa_kernel"))

    assert (parsed.loaded, parsed.bound) == ({"nv_peer_mem": "1.1-0"}, {"nv_peer_mem"})
    assert (parsed.provider, parsed.sources) == ("ib_core", {"nv_peer_mem": "5AB1"})
    assert parsed.clients == {"/sys/kernel/mm/memory_peers/nv_mem/version"}
    assert parsed.symvers == ("/usr/src/ofa_kernel/default/Module.symvers",)
    assert (parsed.extended, parsed.peerdirect) == (True, True)


@pytest.mark.parametrize(
    ("text", "kernel"),
    [("uverbs=yes\nsymbols=1\n", True), ("uverbs=yes\nsymbols=0\n", False), ("symbols=0\n", None), ("", None)],
)
def test_dma_buf_support_is_false_only_if_ib_uverbs_is_loaded(text, kernel):
    """The function is part of ib_uverbs, so before that is loaded its absence proves nothing."""
    assert DmaBufFact().parse(out(text)).kernel is kernel


def test_missing_kernel_options_and_an_old_verbs_library_are_reported():
    parsed = DmaBufFact().parse(out("config=/boot/config-1\nCONFIG_DMA_SHARED_BUFFER=y\nlibrary=no\n"))

    assert (parsed.missing_options, parsed.library) == (("CONFIG_PCI_P2PDMA",), False)
    assert DmaBufFact().parse(out("")).missing_options == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("variable=   1\nenforce=N\nlockdown=none [integrity] confidentiality\n", Signing(True, True)),  # noqa: FBT003
        ("variable=   0\nenforce=N\nlockdown=[none] integrity confidentiality\n", Signing(False, False)),  # noqa: FBT003
        ("variable=\nmokutil=SecureBoot enabled\n", Signing(True, True)),  # noqa: FBT003
        ("variable=   1\nlockdown=[none] integrity\n", Signing(True, False)),  # noqa: FBT003
        ("firmware=bios\nvariable=\nenforce=Y\n", Signing(False, True)),  # noqa: FBT003
        ("variable=\n", Signing(None, False)),  # noqa: FBT003
    ],
    ids=["on", "off", "mokutil", "on, and not enforced", "BIOS, and enforced", "not known"],
)
def test_secure_boot_and_signature_enforcement_are_read(text, expected):
    assert SigningFact().parse(out(text)) == expected


def test_redirecting_bridges_are_reported():
    """SrcValid+ alone is harmless."""
    text = (
        "iommu 0000:19:00.0 DMA-FQ\niommu 0000:3b:00.0 \nlspci\n"
        "0000:17:00.0 PCI bridge: Broadcom (prog-if 00)\n"
        "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
        "0000:18:00.0 PCI bridge: Broadcom (prog-if 00)\n"
        "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n"
    )
    parsed = PciRoutingFact().parse(out(text))

    assert parsed.iommu == {"0000:19:00.0": "DMA-FQ", "0000:3b:00.0": ""}
    assert parsed.redirecting == ("0000:17:00.0",)
    assert PciRoutingFact().parse(out("iommu 0000:19:00.0 identity\n")).redirecting is None


def test_nccl_versions_are_read_from_file_names():
    text = "node=libnccl.so.2.18.5\nrunning\ncontainer=nvidia_nccl_cu12-2.21.5.dist-info\ncontainer=libnccl.so.2.21.5\n"

    assert NcclFact().parse(out(text)) == Nccl(("2.21.5",), ("2.18.5",))
    assert NcclFact().parse(out("running\n")) == Nccl((), ())
    assert NcclFact().parse(out("")) == Nccl(None, ())


def test_nccl_is_searched_in_the_running_container(tree):
    write(tree.root / "proc/7/cmdline", "vi\0/usr/local/lib/provision/container-entrypoint\0")
    write(tree.root / "proc/8/cmdline", "docker-init\0--\0/usr/local/lib/provision/container-entrypoint\0")
    write(tree.root / "proc/8/root/.dockerenv")
    write(tree.root / "proc/8/root/opt/conda/lib/libnccl.so.2.21.5")
    write(tree.root / "usr/lib64/libnccl.so.2.18.5")

    assert tree(NcclFact(), ("/proc", "/usr/lib64")).container == ("2.21.5",)


def test_a_driver_without_compute_capability_still_reports_its_gpus(tmp_path):
    """Drivers before 510 reject the whole query; it is repeated without that column."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\n"
        "case $1 in *compute_cap*) echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2;; esac\n"
        "echo 'index, name, uuid, driver_version, memory.total [MiB], pci.bus_id'\n"
        "echo '0, Tesla V100-SXM2-32GB, GPU-1, 450.80.02, 32510 MiB, 00000000:06:00.0'\n"
    )
    tool.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", GpusFact.command],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    gpus = GpusFact().parse(RawOutput(done.stdout, done.returncode))

    assert not isinstance(gpus, Unknown)
    assert [(gpu.name, gpu.driver, gpu.compute_capability) for gpu in gpus] == [
        ("Tesla V100-SXM2-32GB", "450.80.02", "")
    ]
