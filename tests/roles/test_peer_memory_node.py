"""The program for GPUDirect RDMA on a node: its checks, actions, refusals and status file."""

from __future__ import annotations

import base64
import compileall
import gzip
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.modules import ROLES, load
from tests.support.modules_on_disk import GET_PAGES, KERNEL, LOAD, REGISTER, Machine, assemble, needs_assembler

NEWER = "6.12.9-amd64"
PROGRAM = "usr/local/lib/provision/peer-memory"
PROVIDERS = ("nv_peer_mem", "nvidia_peermem")
pytestmark = needs_assembler
node = load("peer_memory", "peer_memory_node", part="module_utils")
elf = load("peer_memory", "peer_memory_elf", part="module_utils")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the program as on a node, compiled once."""
    folder = tmp_path_factory.mktemp("program")
    parts = [*ROLES.glob("peer_memory/module_utils/*.py"), *ROLES.glob("platform/module_utils/*failures.py")]
    for path in (*parts, ROLES / "peer_memory/files/peer-memory"):
        shutil.copyfile(path, folder / path.name)
    compileall.compile_dir(folder, quiet=1)
    return folder


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Path) -> Machine:
    """A node with provider nv_peer_mem on which only the program is installed."""
    made = Machine(tmp_path / "root")
    (made.root / PROGRAM).parent.parent.mkdir(parents=True)
    (made.root / PROGRAM).parent.symlink_to(program)
    monkeypatch.setenv("PATH", made.environment["PATH"])
    configure(made, provider="nv_peer_mem", version="1.3-0", headers="linux-headers-{kernel}")
    return made


def configure(machine: Machine, **settings: Any) -> None:
    machine.write("/etc/provision/peer_memory.json", json.dumps(settings))


def install(
    machine: Machine, kernel: str = KERNEL, *, built_against: int = 7, name: str = "nv_peer_mem", **info: str
) -> None:
    """Install the driver, an RDMA stack that gives checksum 7, and a client built against `built_against`."""
    made = machine.root / "made"
    stack = assemble(made / "stack.ko", {"version": "5.8"}, gives={REGISTER: 7})
    driver = assemble(made / "nvidia.ko", {"version": "460.106", "license": "NVIDIA"}, gives={GET_PAGES: 9})
    facts = {"vermagic": f"{kernel} SMP mod_unload modversions ", **info}
    needs = {REGISTER: built_against, GET_PAGES: 9} if built_against else {GET_PAGES: 9}
    client = assemble(made / "client.ko", facts, needs=needs)
    machine.modules(kernel, ib_core=stack, nvidia=driver, **{name: client})


def run(machine: Machine, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run the program as on a node, with only the standard library."""
    argv = [sys.executable, "-S", str(machine.root / PROGRAM), "--root", str(machine.root), *words]
    return subprocess.run(
        argv, env=machine.environment, capture_output=True, text=True, check=False, timeout=60, **more
    )


def status(machine: Machine) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((machine.root / "var/lib/provision/peer_memory/status.json").read_text())
    return document


# What a module's file says


@pytest.mark.parametrize("absolute", [True, False], ids=["older kernels", "newer kernels"])
def test_symbol_checksums_are_read_in_both_formats(tmp_path: Path, absolute: bool) -> None:  # noqa: FBT001
    """Older kernels keep a checksum as a symbol's value, newer ones in a table to which the symbol points."""
    path = assemble(tmp_path / "nvidia.ko", {"version": "1"}, gives={GET_PAGES: 0x4AC47825, "b": 2}, absolute=absolute)

    assert elf.load(str(path)).exports == {GET_PAGES: 0x4AC47825, "b": 2}


@pytest.mark.parametrize("ending", ["xz", "gz", "zst"])
def test_compressed_modules_are_read(tmp_path: Path, ending: str) -> None:
    """The fields of a module are read with any compression."""
    plain = assemble(tmp_path / "m.ko", {"version": "460.106"})
    path = tmp_path / f"m.ko.{ending}"
    if ending == "zst":
        if shutil.which("zstd") is None:
            pytest.skip("zstd is not installed")
        subprocess.run(["zstd", "-q", plain, "-o", path], check=True)
    else:
        path.write_bytes({"xz": lzma, "gz": gzip}[ending].compress(plain.read_bytes()))

    assert elf.load(str(path)).info["version"] == "460.106"


@pytest.mark.parametrize(
    "data",
    [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 90, b"no module"],
    ids=["empty", "four bytes", "senseless", "text"],
)
def test_a_damaged_module_is_reported(tmp_path: Path, data: bytes) -> None:
    """The error for a truncated file contains its name and the cause."""
    path = tmp_path / "bad.ko"
    path.write_bytes(data)

    with pytest.raises(ValueError, match=r"bad\.ko: "):
        elf.load(str(path))


# Checks


def cause(machine: Machine, kernel: str = KERNEL) -> str:
    by_kernel = {entry["kernel"]: entry for entry in node.Node(str(machine.root)).kernels()}
    if by_kernel[kernel]["cause"]:
        assert by_kernel[kernel]["explanation"]
        assert by_kernel[kernel]["remedy"]
    return str(by_kernel[kernel]["cause"])


def test_a_matching_module_is_ready(machine: Machine) -> None:
    """A module that was built with the installed versions has no problem."""
    install(machine)

    assert cause(machine) == ""


def test_each_state_that_is_not_ready_has_its_cause(machine: Machine) -> None:
    """Headers that lack, a module that lacks, one for another kernel, one of another stack, one without a stack."""
    seen = [cause(machine)]
    machine.kernel(KERNEL, headers=True)
    seen.append(cause(machine))
    for more in ({"vermagic": "6.1.0-8-amd64 SMP "}, {"built_against": 8}, {"built_against": 0}):
        install(machine, **more)  # type: ignore[arg-type]
        seen.append(cause(machine))

    assert seen == ["headers_missing", "not_built", "other_kernel", "symbol_mismatch", "stub"]


def test_a_symbol_mismatch_is_reported_before_loading(machine: Machine) -> None:
    """The checksum of its function reveals an upgraded RDMA stack, and the remedy is reported."""
    install(machine, built_against=8)

    result = run(machine, "check")

    assert result.returncode == 1
    assert REGISTER in result.stdout
    assert f"build --kernel {KERNEL}" in result.stdout
    assert machine.called == []


def test_every_installed_kernel_is_checked(machine: Machine) -> None:
    """The states show which kernel would boot without the module; a folder without a kernel does not count."""
    install(machine)
    machine.kernel(NEWER)
    machine.write("/lib/modules/5.10.0-1-amd64/modules.dep", "")

    kernels = node.Node(str(machine.root)).kernels()

    assert [(entry["kernel"], entry["ok"], entry["cause"]) for entry in kernels] == [
        (KERNEL, True, ""),
        (NEWER, False, "headers_missing"),
    ]
    assert f"linux-headers-{NEWER}" in kernels[1]["remedy"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/sys/module/module/parameters/sig_enforce", "Y\n"),
        ("/sys/kernel/security/lockdown", "none [integrity] confidentiality\n"),
        ("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\6\0\0\0\1"),
    ],
)
def test_secure_boot_is_detected_before_building(machine: Machine, path: str, text: str) -> None:
    """A kernel that wants signatures gets no module without one, and nothing is compiled in vain."""
    machine.kernel(KERNEL, headers=True)
    machine.write(path, text)

    result = run(machine, "build")

    assert result.returncode == 1
    assert "Secure Boot" in result.stdout
    assert "mokutil" in result.stdout
    assert machine.called == []


def test_a_kernel_without_signature_enforcement_overrides_the_firmware(machine: Machine) -> None:
    """After `mokutil --disable-validation` the firmware reports Secure Boot, but the kernel accepts all modules."""
    machine.write("/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\6\0\0\0\1")
    machine.write("/sys/module/module/parameters/sig_enforce", "N\n")
    machine.write("/sys/kernel/security/lockdown", "[none] integrity confidentiality\n")

    assert node.NodeFiles(str(machine.root)).secure_boot() is False


@pytest.mark.parametrize("held", ["db-d719b2cb", "MokListRT-605dab50", "MokListRT1-605dab50"])
@pytest.mark.parametrize("pem", [True, False])
def test_certificates_are_searched_in_the_lists_of_the_firmware(machine: Machine, held: str, pem: bool) -> None:  # noqa: FBT001
    """They contain DER certificates; the site's file may be DER or PEM. Without lists the result is unknown."""
    der = bytes(range(200)) * 3
    text = f"-----BEGIN CERTIFICATE-----\n{base64.encodebytes(der).decode()}-----END CERTIFICATE-----\n".encode()
    for name, data in {"site.crt": text if pem else der, "other.crt": der[::-1]}.items():
        (machine.root / name).write_bytes(data)
    seen = node.NodeFiles(str(machine.root))
    before = seen.is_enrolled("/site.crt")
    machine.write(f"/sys/firmware/efi/efivars/{held}", "")
    (machine.root / f"sys/firmware/efi/efivars/{held}").write_bytes(b"\6\0\0\0" + bytes(44) + der + bytes(9))

    assert before is None
    assert (seen.is_enrolled("/site.crt"), seen.is_enrolled("/other.crt"), seen.is_enrolled("/none.crt")) == (
        True,
        False,
        None,
    )


# Debian's driver, whose files are called otherwise


def install_debian(machine: Machine, branch: str = "current", **names: str) -> None:
    """Install a driver as Debian's packages do: nvidia-BRANCH.ko and nvidia-BRANCH-peermem.ko."""
    made = machine.root / "made"
    stack = assemble(made / "stack.ko", {"version": "5.8"}, gives={REGISTER: 7})
    driver = {"version": "535.183", "license": "NVIDIA", "name": names.get("driver", "nvidia")}
    client = {"vermagic": f"{KERNEL} ", "name": names.get("peermem", "nvidia_peermem")}
    files = {
        f"nvidia-{branch}": assemble(made / "nvidia.ko", driver, gives={GET_PAGES: 9}),
        f"nvidia-{branch}-modeset": stack,
        f"nvidia-{branch}-peermem": assemble(made / "client.ko", client, needs={REGISTER: 7, GET_PAGES: 9}),
    }
    machine.modules(KERNEL, ib_core=stack, **files)


DEBIAN_LINES = """
install nvidia modprobe -i nvidia-current $CMDLINE_OPTS
install nvidia-peermem modprobe nvidia ; modprobe -i nvidia-current-peermem $CMDLINE_OPTS
"""


@pytest.mark.parametrize("branch", ["current", "current-open", "tesla-470", "tesla", "legacy-390xx"])
def test_drivers_with_distribution_specific_file_names_are_detected(machine: Machine, branch: str) -> None:
    """Debian's nvidia-current.ko holds the module nvidia, and nvidia-current-peermem.ko nvidia_peermem."""
    configure(machine, provider="nvidia_peermem")
    install_debian(machine, branch)

    facts = node.NodeFiles(str(machine.root)).facts()

    assert (facts["driver_version"], facts["peermem_shipped"]) == ("535.183", True)
    assert cause(machine) == ""


def test_a_file_with_a_different_module_name_is_not_the_driver(machine: Machine) -> None:
    """The name in the module has priority over its file name."""
    install_debian(machine, driver="something_else")

    assert node.NodeFiles(str(machine.root)).facts()["driver_version"] == ""


def test_the_standard_file_name_is_used_unless_modprobe_redirects_it(machine: Machine) -> None:
    """modprobe takes nvidia.ko where it is; an `install` line is stronger, because modprobe follows it first."""
    install_debian(machine)
    plain = assemble(machine.root / "made/plain.ko", {"version": "470.1", "license": "NVIDIA"})
    shutil.copyfile(plain, machine.root / f"lib/modules/{KERNEL}/updates/nvidia.ko")
    dep = machine.root / f"lib/modules/{KERNEL}/modules.dep"
    dep.write_text(dep.read_text() + "updates/nvidia.ko:\n")
    before = node.NodeFiles(str(machine.root)).driver(KERNEL)[0]
    machine.write("/etc/modprobe.d/nvidia.conf", DEBIAN_LINES)

    assert (before, node.NodeFiles(str(machine.root)).driver(KERNEL)[0]) == ("470.1", "535.183")


def test_an_install_line_with_an_additional_module_does_not_redirect(machine: Machine) -> None:
    """A site's habit: nvidia, and nvidia-uvm with it. The driver is still nvidia."""
    install(machine)
    uvm = assemble(machine.root / "made/uvm.ko", {"version": "9", "license": "NVIDIA"})
    shutil.copyfile(uvm, machine.root / f"lib/modules/{KERNEL}/updates/nvidia-uvm.ko")
    dep = machine.root / f"lib/modules/{KERNEL}/modules.dep"
    dep.write_text(dep.read_text() + "updates/nvidia-uvm.ko:\n")
    machine.write(
        "/etc/modprobe.d/site.conf", "install nvidia /sbin/modprobe -i nvidia && /sbin/modprobe -i nvidia-uvm\n"
    )

    assert node.NodeFiles(str(machine.root)).driver(KERNEL)[0] == "460.106"


@pytest.mark.parametrize(("lines", "asked"), [(DEBIAN_LINES, "nvidia_peermem"), ("", "nvidia_current_peermem")])
def test_the_module_is_loaded_by_a_name_known_to_modprobe(machine: Machine, lines: str, asked: str) -> None:
    """With Debian's `install` lines that is the module's own name; without them only the file's name is known."""
    configure(machine, provider="nvidia_peermem")
    install_debian(machine)
    machine.write("/etc/modprobe.d/nvidia.conf", lines)
    machine.program("modprobe", "set -- nvidia_peermem; " + LOAD)

    assert run(machine, "load").returncode == 0, status(machine)
    assert machine.called == ["modprobe ib_uverbs", f"modprobe {asked}"]


def test_a_module_with_another_file_name_is_unloaded_by_its_module_name(machine: Machine) -> None:
    """modprobe -r would not find it; rmmod asks the kernel."""
    configure(machine, provider="nvidia_peermem")
    install_debian(machine)
    machine.loaded("nvidia_peermem")
    machine.program("rmmod", "exit 0")

    assert run(machine, "unload").returncode == 0
    assert machine.called == ["rmmod nvidia_peermem"]


# What is loaded


def test_a_successful_load_is_recorded(machine: Machine) -> None:
    """The status contains boot, kernel, provider and module, and the state `loading` while modprobe runs."""
    install(machine)
    file = machine.root / "var/lib/provision/peer_memory/status.json"
    machine.program(
        "modprobe",
        f'cp {file} $ROOT/meanwhile; mkdir -p "$ROOT/sys/module/$1"; echo live >"$ROOT/sys/module/$1/initstate"',
    )

    result = run(machine, "load")

    assert result.returncode == 0, result
    assert {
        key: status(machine)[key] for key in ("boot_id", "kernel", "provider", "module", "state", "ok", "cause")
    } == {
        "boot_id": "5f0c6e7a-boot",
        "kernel": KERNEL,
        "provider": "nv_peer_mem",
        "module": "nv_peer_mem",
        "state": "ready",
        "ok": True,
        "cause": "",
    }
    assert json.loads((machine.root / "meanwhile").read_text())["state"] == "loading"
    assert [path.name for path in file.parent.iterdir()] == ["status.json"]
    assert machine.called == ["modprobe ib_uverbs", "modprobe nv_peer_mem"]


def test_the_status_of_a_lab_node_is_marked_as_simulated(machine: Machine) -> None:
    """With a simulated driver, the status file and its text are marked SIMULATED."""
    install(machine)
    machine.write("/usr/share/provision/simulated/nvidia-driver", "a stand-in\n")

    run(machine, "load")

    assert status(machine)["simulated"] is True
    assert run(machine, "status").stdout.startswith("SIMULATED: nv_peer_mem is ready")


OPEN = "Dual MIT/GPL"


def install_driver(machine: Machine, licence: str, kernel: str = KERNEL) -> None:
    """Install the driver alone, for one kernel."""
    info = {"version": "550.1", "license": licence}
    machine.modules(kernel, nvidia=assemble(machine.root / "made/nvidia.ko", info))


@pytest.mark.parametrize("provider", ["dma_buf", "none"])
def test_nothing_is_loaded_if_no_module_is_needed(machine: Machine, provider: str) -> None:
    """DMA-BUF requires no module: with the open driver the node is ready."""
    configure(machine, provider=provider)
    install_driver(machine, OPEN)

    assert run(machine, "load").returncode == 0
    assert status(machine)["ok"] is True
    assert machine.called == []


def test_dma_buf_requires_an_open_driver_and_an_rdma_stack_that_supports_it(machine: Machine) -> None:
    """A missing driver, a proprietary driver and an old RDMA stack each have their own cause in the status."""
    configure(machine, provider="dma_buf")
    seen = []
    for licence, symbols in (("", ""), ("NVIDIA", ""), (OPEN, "0 T ib_create_qp\t[ib_core]\n")):
        if licence:
            install_driver(machine, licence)
        machine.write("/proc/kallsyms", symbols)
        machine.write("/sys/module/ib_uverbs/initstate", "live\n")
        assert run(machine, "load").returncode == 1
        assert run(machine, "build", "--kernel", KERNEL).returncode == 1  # a build would not fix this
        assert status(machine)["remedy"]
        seen.append(status(machine)["cause"])
    machine.write("/proc/kallsyms", "0 T ib_umem_dmabuf_get\t[ib_uverbs]\n")

    assert seen == ["driver_missing", "driver_not_open", "no_dma_buf"]
    assert run(machine, "load").returncode == 0
    assert machine.called == []


def test_the_loaded_driver_determines_dma_buf(machine: Machine) -> None:
    """After a change of flavour the node needs a reboot first."""
    configure(machine, provider="dma_buf")
    install_driver(machine, OPEN)
    machine.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1\n")

    assert cause(machine) == "driver_not_open"


def test_dma_buf_on_other_kernels_requires_the_open_driver(machine: Machine) -> None:
    """The symbol is checked only for the running kernel; driver and flavour for each kernel."""
    configure(machine, provider="dma_buf")
    machine.write("/proc/kallsyms", "0 T ib_umem_dmabuf_get\t[ib_uverbs]\n")
    install_driver(machine, OPEN)
    machine.kernel(NEWER)

    assert (cause(machine), cause(machine, NEWER)) == ("", "driver_missing")
    install_driver(machine, "NVIDIA", NEWER)
    assert cause(machine, NEWER) == "driver_not_open"
    install_driver(machine, OPEN, NEWER)
    assert cause(machine, NEWER) == ""


def test_simulated_gpus_without_kernel_modules_need_no_module(machine: Machine) -> None:
    """On such a node of the lab dma_buf is as ready as it can be, and marked SIMULATED."""
    configure(machine, provider="dma_buf")
    machine.write("/usr/share/provision/simulated/gpus", "a stand-in\n")

    assert run(machine, "load").returncode == 0
    assert status(machine)["simulated"] is True


@pytest.mark.parametrize(("wanted", "other"), [PROVIDERS, PROVIDERS[::-1]])
def test_a_second_peer_memory_module_is_refused(machine: Machine, wanted: str, other: str) -> None:
    """If the other module is loaded, nothing is loaded, and the cause names it."""
    configure(machine, provider=wanted)
    install(machine, name=wanted)
    machine.loaded(other)

    result = run(machine, "load")

    assert result.returncode == 1
    assert status(machine)["cause"] == "both_modules"
    assert other in status(machine)["explanation"]
    assert machine.called == []


def test_a_loaded_module_is_not_loaded_again(machine: Machine) -> None:
    """A second load touches nothing."""
    install(machine)
    machine.loaded("nv_peer_mem")

    assert run(machine, "load").returncode == 0
    assert machine.called == []


def test_a_module_missing_after_modprobe_is_not_ready(machine: Machine) -> None:
    """The exit code of modprobe is not trusted."""
    install(machine)
    machine.program("modprobe", "exit 0")

    assert run(machine, "load").returncode == 1
    assert status(machine)["cause"] == "not_loaded"


def test_the_module_is_built_at_boot_as_a_last_resort(machine: Machine) -> None:
    """A module of another stack is built again by DKMS, then loaded; headers are there."""
    install(machine, built_against=8)
    prepare_build(machine)
    good = assemble(machine.root / "made/good.ko", {"vermagic": f"{KERNEL} "}, needs={REGISTER: 7, GET_PAGES: 9})
    machine.program("dkms", f'[ "$1" != install ] || cp {good} $ROOT/lib/modules/{KERNEL}/updates/nv_peer_mem.ko')

    result = run(machine, "load")

    assert result.returncode == 0, result
    assert [call.split(" -")[0] for call in machine.called] == [
        "dkms build",
        "dkms install",
        "modprobe ib_uverbs",
        "modprobe nv_peer_mem",
    ]


@pytest.mark.parametrize(("against", "expected"), [(0, "stub"), (8, "symbol_mismatch")])
def test_a_driver_is_not_built_at_boot(machine: Machine, against: int, expected: str) -> None:
    """The build exceeds the limit of the unit. The cause is unchanged, and the remedy contains the command."""
    configure(machine, provider="nvidia_peermem")
    prepare_build(machine)
    install(machine, built_against=against, name="nvidia_peermem")
    machine.write("/var/lib/dkms/nvidia/460.106/source/dkms.conf", 'BUILT_MODULE_NAME[0]="nvidia"\n')

    assert run(machine, "load").returncode == 1
    assert machine.called == []
    assert status(machine)["cause"] == expected
    assert f"/usr/local/lib/provision/peer-memory build --kernel {KERNEL}" in status(machine)["remedy"]
    assert "provision apply --only peer_memory" in status(machine)["remedy"]


def test_a_missing_driver_is_not_built_at_boot_either(machine: Machine) -> None:
    """nv_peer_mem is built in seconds; modules that DKMS would have to build before it are not."""
    prepare_build(machine)

    assert run(machine, "load").returncode == 1
    assert machine.called == []
    assert status(machine)["cause"] == "driver_missing"


def prepare_build(machine: Machine, *, interface: str = "struct peer_memory_client_ex {};") -> None:
    """Put headers, the RDMA stack's build files and the sources there."""
    machine.write(f"/lib/modules/{KERNEL}/build/Makefile", "")
    machine.write(f"/usr/src/ofa_kernel/{KERNEL}/Module.symvers", f"0x7\t{REGISTER}\tib_core\tEXPORT_SYMBOL\t\n")
    machine.write(f"/usr/src/ofa_kernel/{KERNEL}/include/rdma/peer_mem.h", interface)
    machine.write("/usr/src/nv_peer_mem-1.3-0/Makefile", "")


def test_a_hanging_modprobe_is_killed_after_its_time_limit(machine: Machine) -> None:
    """The limit ends the wait, the status contains the cause, and the process has ended."""
    install(machine)
    machine.program("modprobe", "exec sleep 987")
    begin = time.monotonic()
    hung = node.Node(str(machine.root), node.Runner(1))

    assert node.start(hung) == 1
    assert time.monotonic() - begin < 15
    assert status(machine)["cause"] == "load_hangs"
    assert status(machine)["state"] == "failed"
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_status_is_correct_if_systemd_kills_the_program(machine: Machine, end: signal.Signals) -> None:
    """After SIGTERM or SIGKILL and ExecStopPost, the status records the interruption."""
    install(machine)
    machine.program("modprobe", "echo $$ >$ROOT/pid; exec sleep 986")
    argv = [sys.executable, "-S", str(machine.root / PROGRAM), "--root", str(machine.root), "load"]
    process = subprocess.Popen(argv, env=machine.environment, stdout=subprocess.DEVNULL)
    while not (machine.root / "pid").exists():
        time.sleep(0.05)

    process.send_signal(end)
    process.wait(20)
    run(machine, "ended")

    assert status(machine)["ok"] is False
    assert status(machine)["cause"] == "load_hangs"
    assert "interrupted by the time limit" in status(machine)["explanation"]
    if end is signal.SIGKILL:  # systemd ends the rest of the unit; this test does not
        os.kill(int((machine.root / "pid").read_text()), signal.SIGKILL)


def test_a_stop_after_a_finished_load_changes_nothing(machine: Machine) -> None:
    """ExecStopPost also runs at every ordinary stop."""
    install(machine)
    run(machine, "load")
    before = status(machine)

    run(machine, "ended")

    assert status(machine) == before


def test_unloading_a_module_in_use_is_refused(machine: Machine) -> None:
    """While memory is registered, the module stays loaded, and the number of users is reported."""
    machine.loaded("nv_peer_mem", users=3)

    result = run(machine, "unload")

    assert result.returncode == 1
    assert "in use (3 users)" in result.stderr
    assert "Stop the jobs" in result.stderr
    assert machine.called == []


def test_an_unused_module_is_unloaded(machine: Machine) -> None:
    """Without users modprobe does it."""
    machine.loaded("nv_peer_mem")

    assert run(machine, "unload").returncode == 0
    assert machine.called == ["modprobe -r nv_peer_mem"]


# What is built


@pytest.mark.parametrize("at", ["build", "load"])
def test_a_known_failure_is_reported_with_cause_and_remedy(machine: Machine, at: str) -> None:
    """The explanation comes from the table of failures; earlier messages of the kernel do not count."""
    prepare_build(machine)
    install(machine, built_against=8 if at == "build" else 7)
    log = "CC x.o\nx.c:5:10: fatal error: rdma/peer_mem.h: No such file or directory\nmake: *** [all] Error 2\n"
    machine.write("/var/lib/dkms/nv_peer_mem/1.3-0/build/make.log", log)
    old = "[1.0] nv_peer_mem: Unknown symbol ib_register_peer_memory_client (err 0)"
    new = "[2.0] nv_peer_mem: disagrees about version of symbol nvidia_p2p_get_pages"
    machine.write("/dmesg", old + "\n")
    machine.program("modprobe", f'[ "$1" = ib_uverbs ] || {{ echo "{new}" >>$ROOT/dmesg; exit 1; }}')

    run(machine, "load")

    result = status(machine)
    assert result["cause"] == {"build": "peer_api_missing", "load": "other_driver"}[at]
    assert result["remedy"]
    assert "CC x.o" not in result["explanation"]


@pytest.mark.parametrize(("version", "cause"), [("1.0-9", "module_too_old"), ("1.1-0", "peer_api_missing")])
def test_a_version_that_is_too_old_for_the_kernel_is_reported(machine: Machine, version: str, cause: str) -> None:
    """The same words of the build mean something else when 1.0-9 is built: the stack is not to blame."""
    configure(machine, provider="nv_peer_mem", version=version)
    prepare_build(machine)
    machine.write(f"/usr/src/nv_peer_mem-{version}/Makefile", "")
    install(machine, built_against=8)
    log = f'ERROR: modpost: "{REGISTER}" [nv_peer_mem.ko] undefined!\nmake: *** [all] Error 2\n'
    machine.write(f"/var/lib/dkms/nv_peer_mem/{version}/build/make.log", log)

    run(machine, "load")

    assert status(machine)["cause"] == cause
    assert f"building nv_peer_mem {version} for kernel {KERNEL} failed" in status(machine)["explanation"]


def test_an_unknown_failure_reports_the_relevant_lines(machine: Machine) -> None:
    """A cause that no table knows is at least the compiler's own error, not the last line of make."""
    prepare_build(machine)
    install(machine, built_against=8)
    log = "CC nv.o\nnv.c:9:1: error: unknown type name 'foo'\nmake[2]: *** [nv.o] Error 1\nmake: *** [all] Error 2\n"
    machine.write("/var/lib/dkms/nv_peer_mem/1.3-0/build/make.log", log)

    result = run(machine, "build", "--kernel", KERNEL)

    assert "unknown type name 'foo'" in result.stdout
    assert "*** [all]" not in result.stdout


def test_the_kernel_hook_of_the_package_system_never_fails(machine: Machine) -> None:
    """A kernel's packages are configured although nothing can be built for it, and the status names that kernel."""
    install(machine)
    run(machine, "load")
    machine.kernel(NEWER)

    result = run(machine, "build", "--hook", "--kernel", NEWER)

    assert result.returncode == 0
    assert f"the headers of kernel {NEWER} are not installed" in result.stdout
    assert {entry["kernel"]: entry["cause"] for entry in status(machine)["kernels"]} == {
        KERNEL: "",
        NEWER: "headers_missing",
    }
    assert status(machine)["ok"] is True


def test_driver_checksums_are_written_in_the_format_of_the_kernel(machine: Machine) -> None:
    """Five columns since 5.4, four before."""
    install(machine)
    machine.kernel("4.19.0-1-amd64")
    install(machine, "4.19.0-1-amd64")

    assert run(machine, "symvers", KERNEL).stdout == f"0x00000009\t{GET_PAGES}\tnvidia\tEXPORT_SYMBOL\t\n"
    assert run(machine, "symvers", "4.19.0-1-amd64").stdout == f"0x00000009\t{GET_PAGES}\tnvidia\tEXPORT_SYMBOL\n"


def test_without_a_driver_nothing_is_built(machine: Machine) -> None:
    """nv_peer_mem is built with the driver, so DKMS builds the driver first, and its failure is reported."""
    prepare_build(machine)

    result = run(machine, "build")

    assert "Install the driver for this kernel first" in result.stdout
    assert machine.called == [f"dkms autoinstall -k {KERNEL}"]


def test_a_stub_of_the_driver_is_rebuilt_after_the_rdma_stack(machine: Machine) -> None:
    """nvidia_peermem that was built before the RDMA stack is repaired by building the modules of the driver again."""
    configure(machine, provider="nvidia_peermem")
    prepare_build(machine)
    install(machine, built_against=0, name="nvidia_peermem")
    machine.write(
        "/var/lib/dkms/nvidia/460.106/source/dkms.conf",
        'BUILT_MODULE_NAME[1]="nvidia-peermem"\nBUILT_MODULE_NAME[0]="nvidia"\n',
    )
    good = assemble(machine.root / "made/good.ko", {"vermagic": f"{KERNEL} "}, needs={REGISTER: 7})
    machine.program("dkms", f'[ "$1" != install ] || cp {good} $ROOT/lib/modules/{KERNEL}/updates/nvidia_peermem.ko')

    result = run(machine, "build")

    assert result.returncode == 0, result
    assert machine.called[0] == f"dkms build -m nvidia -v 460.106 -k {KERNEL} --force"


def dkms_conf(*names: str, package: str = "x") -> str:
    """A dkms.conf that builds these modules."""
    return "".join([f'PACKAGE_NAME="{package}"\n', *(f'BUILT_MODULE_NAME[{i}]="{n}"\n' for i, n in enumerate(names))])


def test_only_the_source_tree_of_the_installed_driver_is_built(machine: Machine) -> None:
    """Neither nvidia-fs, which is no driver, nor another version; rpm's dkms.conf names modules by its package."""
    configure(machine, provider="nvidia_peermem")
    trees = {
        "nvidia/99.1": dkms_conf("nvidia"),
        "nvidia/460.106": dkms_conf("${PACKAGE_NAME}", "${PACKAGE_NAME}-peermem", package="nvidia"),
        "nvidia-fs/2.28": dkms_conf("nvidia-fs"),
        "zfs/9": dkms_conf("zfs"),
    }
    for tree, text in trees.items():
        machine.write(f"/var/lib/dkms/{tree}/source/dkms.conf", text)
    seen = node.NodeFiles(str(machine.root))
    newest = seen.driver_tree(KERNEL)
    install(machine, built_against=0, name="nvidia_peermem")

    assert newest == ("nvidia", "460.106")  # of versions that nothing chooses between, the highest number
    assert node.NodeFiles(str(machine.root)).driver_tree(KERNEL) == ("nvidia", "460.106")
    (machine.root / "var/lib/dkms/nvidia/460.106/source/dkms.conf").unlink()
    assert node.NodeFiles(str(machine.root)).driver_tree(KERNEL) is None


def test_the_driver_in_use_is_built_if_two_are_installed(machine: Machine) -> None:
    """Debian's open and proprietary drivers have the same version; the file name distinguishes them."""
    install_debian(machine)
    for flavour in ("nvidia-current", "nvidia-current-open"):
        text = f'BUILT_MODULE_NAME[0]="nvidia"\nDEST_MODULE_NAME[0]="{flavour}"\n'
        machine.write(f"/var/lib/dkms/{flavour}/535.183/source/dkms.conf", text)

    assert node.NodeFiles(str(machine.root)).driver_tree(KERNEL) == ("nvidia-current", "535.183")


# What was built elsewhere

DEPMOD = """cd $ROOT/lib/modules/$2
for file in $(find . -name '*.ko*' | sort -r); do echo "${file#./}:"; done >modules.dep
"""


def carry(machine: Machine, file: Path, name: str = "nv_peer_mem.ko") -> Any:
    """Install a module as the role does that carries it from the controller."""
    machine.program("depmod", DEPMOD)
    module = load("peer_memory", "peer_memory")
    wanted = module.Node(str(machine.root), config={"provider": "nv_peer_mem", "prebuilt": True})
    module.install_prebuilt(wanted, KERNEL, {"name": name, "content": base64.b64encode(file.read_bytes()).decode()})
    return module


def test_a_prebuilt_module_replaces_all_other_modules_of_its_name(machine: Machine) -> None:
    """modprobe could use a module of DKMS or of a vendor instead, and every apply would differ."""
    folder = machine.root / f"lib/modules/{KERNEL}/updates"
    install(machine)
    (folder / "dkms").mkdir()
    for other in ("dkms/nv_peer_mem.ko", "nv_peer_mem.ko.xz", "nv-peer-mem.ko"):
        (folder / other).write_bytes(b"old")
    machine.write("/var/lib/dkms/nv_peer_mem/1.3-0/source/dkms.conf", dkms_conf("nv_peer_mem"))
    new = assemble(machine.root / "made/new.ko", {"vermagic": f"{KERNEL} ", "version": "new"}, needs={REGISTER: 7})

    module = carry(machine, new)

    seen = module.NodeFiles(str(machine.root))
    assert seen.files_of(KERNEL, "nv_peer_mem") == [f"/lib/modules/{KERNEL}/updates/nv_peer_mem.ko"]
    assert seen.module(seen.module_path(KERNEL, "nv_peer_mem")).info["version"] == "new"
    assert machine.called == [
        f"dkms uninstall -m nv_peer_mem -v 1.3-0 -k {KERNEL}",
        f"depmod -a {KERNEL}",
    ]


@pytest.mark.parametrize("info", [None, {"vermagic": "5.10.0-1-amd64 "}], ids=["no module", "another kernel's"])
def test_a_prebuilt_module_that_does_not_match_is_not_installed(machine: Machine, info: dict[str, str] | None) -> None:
    """The existing module stays, and the file in the folder of the site is named."""
    install(machine)
    file = machine.root / "made/bad.ko"
    if info is None:
        file.write_bytes(b"no module")
    else:
        assemble(file, info, needs={REGISTER: 7})

    with pytest.raises(Exception, match=f"{KERNEL}/nv_peer_mem.ko of peer_memory_prebuilt"):
        carry(machine, file)

    assert cause(machine) == ""
    assert machine.called == []


def test_a_compressed_module_without_zstd_is_reported(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is valid, but the node has no program to decompress it."""
    install(machine)
    updates = machine.root / f"lib/modules/{KERNEL}/updates"
    (updates / "nv_peer_mem.ko").rename(updates / "nv_peer_mem.ko.zst")
    machine.write(f"/lib/modules/{KERNEL}/modules.dep", "updates/nv_peer_mem.ko.zst:\n")
    monkeypatch.setenv("PATH", str(machine.root / "bin"))

    entry = node.Node(str(machine.root)).kernels()[0]

    assert entry["cause"] == "zstd_missing"
    assert "the program zstd is not installed" in entry["explanation"]
    assert "zstd" in entry["remedy"]


@pytest.mark.parametrize(("provider", "says"), [("nv_peer_mem", "Add 6.1"), ("nvidia_peermem", "driver packages")])
def test_the_remedy_for_prebuilt_modules_does_not_suggest_a_build(machine: Machine, provider: str, says: str) -> None:
    """The folder of prebuilt modules is read for nv_peer_mem; a driver's module comes with the driver."""
    configure(machine, provider=provider, prebuilt=True)

    result = run(machine, "build")

    assert result.returncode == 1
    assert says in result.stdout
    assert (f"Add {KERNEL}/{provider}.ko" in result.stdout) is (provider == "nv_peer_mem")
