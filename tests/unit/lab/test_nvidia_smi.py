"""The simulated nvidia-smi prints the formats of the real one, and SIMULATED for people and logs."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest

from provision.lab.machines import load, to_json
from tests.support.nvidia_smi import Done, run_file

CSV = "--format=csv"


@pytest.fixture
def smi(tmp_path):
    """Run the simulated program for a described machine whose file is in `tmp_path`."""

    def call(machine: str, *arguments: str, **changes: object) -> Done:
        path = tmp_path / "machine.json"
        path.write_text(json.dumps({**json.loads(to_json(load(machine))), "seed": "node 1", **changes}))
        return run_file(path, *arguments)

    return call


LEGEND = "\nLegend:\n"


def test_an_old_driver_names_the_cards_in_the_matrix(smi):
    """`topo -m` has one column for affinity, and the device names of the cards."""
    printed = smi("dgx1v", "topo", "-m", driver_version="418.126.02", visible=[0, 5]).stdout

    assert printed.partition(LEGEND)[0] == (
        "\tGPU0\tGPU1\tmlx5_0\tmlx5_2\tmlx5_1\tmlx5_3\tCPU Affinity\n"
        "GPU0\t X \tSYS\tPIX\tSYS\tPHB\tSYS\t0-19,40-59\n"
        "GPU1\tSYS\t X \tSYS\tPIX\tSYS\tPHB\t20-39,60-79\n"
        "mlx5_0\tPIX\tSYS\t X \tSYS\tPHB\tSYS\t\n"
        "mlx5_2\tSYS\tPIX\tSYS\t X \tSYS\tPHB\t\n"
        "mlx5_1\tPHB\tSYS\tPHB\tSYS\t X \tSYS\t\n"
        "mlx5_3\tSYS\tPHB\tSYS\tPHB\tSYS\t X \t\n"
    )


def test_newer_drivers_number_the_cards_and_name_them_below(smi):
    """The columns are NIC0 etc., three columns follow them, and a legend names the devices."""
    printed = smi("pcie8", "topo", "-m", driver_version="550.90.07", visible=[0, 4]).stdout

    assert printed.partition(LEGEND)[0] == (
        "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tSYS\tNODE\tSYS\t0-31,64-95\t0\t\tN/A\n"
        "GPU1\tSYS\t X \tSYS\tNODE\t32-63,96-127\t1\t\tN/A\n"
        "NIC0\tNODE\tSYS\t X \tSYS\t\t\t\t\n"
        "NIC1\tSYS\tNODE\tSYS\t X \t\t\t\t\n"
    )
    assert printed.endswith("\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n")


def test_the_overview_has_three_columns_and_one_notice(smi):
    """Every line has the width of the real table; each GPU has three lines and a rule."""
    lines = smi("hgxh100").stdout.splitlines()

    assert {len(line) for line in lines[1:] if line} == {91}
    assert sum("SIMULATED" in line for line in lines) == 1
    assert lines[9] == f"|   0  {'NVIDIA H100 80GB HBM3':<30} On  |   00000000:19:00.0 Off |                    0 |"
    assert lines[10] == "| N/A   25C    P0             72W /  700W |       1MiB /  81559MiB |      0%      Default |"
    assert lines[11] == f"|{'':41}|{'':24}|             Disabled |"
    assert lines[12] == f"+{'-' * 41}+{'-' * 24}+{'-' * 22}+"


def test_a_query_prints_titles_values_and_units(smi):
    """CSV with a heading that names the units."""
    fields = "--query-gpu=index,name,memory.total,compute_cap,driver_version"

    assert smi("pair", fields, CSV).stdout == (
        "index, name, memory.total [MiB], compute_cap, driver_version\n"
        "0, NVIDIA A10, 23028 MiB, 8.6, 535.183.06\n"
        "1, NVIDIA A10, 23028 MiB, 8.6, 535.183.06\n"
    )


def test_links_are_listed_for_each_gpu(smi):
    """`nvlink -s` prints a line for the GPU and one for each link."""
    lines = re.sub(r"GPU-[0-9a-f-]{36}", "U", smi("dgxa100", "nvlink", "-s").stdout).splitlines()

    assert lines[:13] == [
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: U)",
        *(f"\t Link {link}: 25 GB/s" for link in range(12)),
    ]
    assert len(lines) == 8 * 13


def test_the_xml_has_the_values_of_each_gpu(smi):
    """`-q -x` can be read by what reads the real one."""
    root = ET.fromstring(smi("pair", "-q", "-x").stdout)  # noqa: S314 - printed by our program

    assert root.findtext("attached_gpus") == "2"
    assert [gpu.findtext("pci/pci_bus_id") for gpu in root.findall("gpu")] == ["00000000:3B:00.0", "00000000:5E:00.0"]
    assert {gpu.findtext("fb_memory_usage/total") for gpu in root.findall("gpu")} == {"23028 MiB"}
    assert {gpu.findtext("mig_mode/current_mig") for gpu in root.findall("gpu")} == {"N/A"}


def test_noheader_and_nounits_omit_headings_and_units(smi):
    """Scripts get bare values when they ask for them."""
    done = smi("pair", "--query-gpu=index,memory.total,power.limit", "--format=csv,noheader,nounits")

    assert done.stdout == "0, 23028, 150.00\n1, 23028, 150.00\n"


def test_an_unknown_field_is_refused_by_name(smi):
    """A misspelt query field ends with exit 2 and its name, as with the real tool."""
    done = smi("pair", "--query-gpu=index,colour", CSV)

    assert (done.returncode, done.stdout.strip()) == (2, 'Field "colour" is not a valid field to query.')


@pytest.mark.parametrize(
    "arguments", [["--colour"], ["mig"], ["topo", "-p"], ["--query-gpu=index"], ["-q", "--format=x", "mig"]]
)
def test_unsupported_queries_are_refused(smi, arguments):
    """No call that is not imitated gets a made-up answer."""
    done = smi("pair", *arguments)

    assert done.returncode == 2
    assert done.stdout.strip()


@pytest.mark.parametrize(
    "arguments", [["-L"], ["topo", "-m"], ["--query-gpu=index", CSV], ["nvlink", "-s"], ["-q", "-x"]]
)
def test_output_for_programs_is_marked_on_stderr_only(smi, arguments):
    """The notice never lands in text that a parser reads as the tool's answer."""
    done = smi("dgx1v", *arguments)

    assert "SIMULATED" in done.stderr
    assert "SIMULATED" not in re.sub("<!--.*?-->", "", done.stdout)


@pytest.mark.parametrize("arguments", [[], ["-q"]])
def test_output_for_people_is_marked_in_the_text(smi, arguments):
    """The overview is never mistaken for that of a real machine."""
    assert "SIMULATED" in smi("pair", *arguments).stdout


def test_uuids_are_constant_per_node(smi):
    """Two nodes of one kind have different GPUs, and a node has the same ones at every call."""
    first, again, other = smi("pair", "-L"), smi("pair", "-L"), smi("pair", "-L", seed="node 2")

    assert first.stdout == again.stdout
    assert first.stdout != other.stdout
    assert len(set(re.findall("GPU-[0-9a-f-]{36}", first.stdout))) == 2


def test_a_container_sees_only_its_gpus_renumbered(smi):
    """With two of eight GPUs visible there are GPU0 and GPU1, with the links that these two have."""
    everything = smi("dgx1v", "-L").stdout.splitlines()
    some = smi("dgx1v", "-L", visible=[0, 3]).stdout.splitlines()
    rows = smi("dgx1v", "topo", "-m", visible=[0, 3]).stdout.splitlines()

    assert [line.split("UUID")[1] for line in some] == [everything[n].split("UUID")[1] for n in (0, 3)]
    assert [line.split(":")[0] for line in some] == ["GPU 0", "GPU 1"]
    assert [cell.strip() for cell in rows[1].split("\t")[:5]] == ["GPU0", "X", "NV2", "PIX", "SYS"]


@pytest.mark.parametrize("named", ["1", "00000000:5E:00.0", "0000:5e:00.0"])
def test_one_gpu_can_be_chosen_by_index_or_address(smi, named):
    """`-i` takes what the real tool takes."""
    assert smi("pair", "-i", named, "--query-gpu=index", "--format=csv,noheader").stdout == "1\n"


def test_an_unknown_gpu_is_refused(smi):
    """`-i 7` on two GPUs ends with the real tool's words and exit code."""
    done = smi("pair", "-i", "7", "-L")

    assert (done.returncode, done.stdout.strip()) == (6, "No devices were found")


def test_an_override_shows_a_fault(smi):
    """A described fault, such as ECC errors on one card, shows in that card's answers."""
    gpus = json.loads(to_json(load("pair")))["gpus"]
    gpus[1]["override"] = {"ecc.errors.uncorrected.volatile.total": "3"}

    done = smi("pair", "--query-gpu=ecc.errors.uncorrected.volatile.total", "--format=csv,noheader", gpus=gpus)

    assert done.stdout.split() == ["0", "3"]


@pytest.fixture
def faulty(smi, tmp_path):
    """Run the simulated program with faults described next to the machine's file."""

    def run(faults: object, machine: str, *arguments: str) -> Done:
        (tmp_path / "faults.json").write_text(faults if isinstance(faults, str) else json.dumps(faults))
        return smi(machine, *arguments)

    return run


def test_faults_of_the_faults_file_appear_in_the_answers(faulty):
    """A test on a lab node breaks one GPU, or all, by a file."""
    faults = {"1": {"remapped_rows.pending": "Yes"}, "all": {"gpu_recovery_action": "Reset"}}
    done = faulty(
        faults, "pair", "--query-gpu=index,remapped_rows.pending,gpu_recovery_action", "--format=csv,noheader"
    )

    assert done.stdout == "0, No, Reset\n1, Yes, Reset\n"
    assert "SIMULATED" in done.stderr


def test_links_that_are_down_are_listed_as_the_real_tool_does(faulty):
    """A link is inactive, and a GPU without any active link has one sentence."""
    everything = " ".join(str(link) for link in range(12))
    lines = faulty(
        {"0": {"nvlink.inactive": "3"}, "1": {"nvlink.inactive": everything}}, "dgxa100", "nvlink", "-s"
    ).stdout

    assert "\t Link 3: <inactive>\n" in lines
    assert lines.count("25 GB/s") == 11 + 6 * 12
    assert lines.count("NVML: Unable to retrieve NVLink information as all links are inActive") == 1


def test_a_missing_gpu_is_absent_from_all_answers(faulty):
    """The others close the gap, as after a GPU has fallen off the bus before the driver was loaded."""
    done = faulty({"1": {"missing": "yes"}}, "hgxh100", "--query-gpu=index,pci.bus_id", "--format=csv,noheader")

    assert len(done.stdout.splitlines()) == 7
    assert "3B:00.0" not in done.stdout
    assert len(faulty({"1": {"missing": "yes"}}, "hgxh100", "topo", "-m").stdout.split("Legend")[0].split("GPU7")) == 1


@pytest.mark.parametrize("faults", ["{", "[]", '{"1": "broken"}'])
def test_invalid_faults_are_reported(faulty, faults):
    """An error in the file is reported."""
    done = faulty(faults, "pair", "-L")

    assert done.returncode == 2
    assert "faults.json" in done.stdout


@pytest.mark.parametrize(
    ("driver", "field"), [("470.57.02", "compute_cap"), ("535.43.02", "clocks_event_reasons.active")]
)
def test_an_old_driver_does_not_know_new_fields(smi, driver, field):
    """Queries that the driver of the real machine refuses are refused."""
    assert smi("pair", f"--query-gpu=index,{field}", CSV, driver_version=driver).returncode == 2
    assert smi("pair", f"--query-gpu=index,{field}", CSV).returncode == 0


def test_without_a_machine_it_fails_like_a_missing_driver(tmp_path):
    """A node without a description fails with the exit code of a missing driver."""
    done = run_file(tmp_path / "nothing.json", "-L")

    assert done.returncode == 9
    assert "has failed" in done.stdout


MODES = "--query-gpu=index,mig.mode.current,mig.mode.pending,persistence_mode"


def test_mig_mode_is_set_for_the_named_gpu(smi):
    """With the words of the real tool; later calls print it, everywhere."""
    done = smi("dgxa100", "-i", "1", "-mig", "1")

    assert (done.returncode, done.stdout) == (0, "Enabled MIG Mode for GPU 00000000:0F:00.0\nAll done.\n")
    assert "SIMULATED" in done.stderr
    lines = smi("dgxa100", MODES, "--format=csv,noheader").stdout.splitlines()
    assert lines[:2] == ["0, Disabled, Disabled, Enabled", "1, Enabled, Enabled, Enabled"]
    assert "Enabled |" in smi("dgxa100").stdout
    assert smi("dgxa100", "-mig", "0").stdout.count("Disabled MIG Mode") == 8


def test_a_gpu_in_use_waits_for_a_reset(smi, tmp_path):
    """The current mode does not change."""
    (tmp_path / "faults.json").write_text('{"0": {"in_use": "yes"}}')
    printed = smi("dgxa100", "-i", "0", "-mig", "1").stdout

    assert printed.startswith("Warning: MIG mode is in pending enable state for GPU 00000000:07:00.0:In use by another")
    assert smi("dgxa100", "-i", "0", MODES, "--format=csv,noheader").stdout == "0, Disabled, Enabled, Enabled\n"


def test_a_product_without_mig_refuses_it(smi):
    """As a warning: the call succeeds."""
    done = smi("pair", "-i", "0", "-mig", "1")

    assert done.stdout.splitlines()[0] == "Unable to enable MIG Mode for GPU 00000000:3B:00.0: Not Supported"
    assert smi("pair", "-i", "0", MODES, "--format=csv,noheader").stdout == "0, [N/A], [N/A], Enabled\n"


def test_persistence_mode_is_set(smi):
    """A mode that is already set is reported as that."""
    assert smi("pair", "-pm", "0").stdout.splitlines()[0] == "Disabled persistence mode for GPU 00000000:3B:00.0."
    assert smi("pair", "-pm", "0").stdout.splitlines()[0] == (
        "Persistence mode is already Disabled for GPU 00000000:3B:00.0."
    )
    assert smi("pair", MODES, "--format=csv,noheader").stdout.splitlines()[1] == "1, [N/A], [N/A], Disabled"
    assert smi("pair", "-pm", "on").returncode == 2
