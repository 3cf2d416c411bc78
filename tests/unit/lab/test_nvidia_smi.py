"""The simulated nvidia-smi prints the formats of the real one, and SIMULATED for people and logs."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from provision.lab.machines import load, to_json

FILES = Path(__file__).parents[3] / "provision/lab/files"
SAMPLES = Path(__file__).parents[4] / "shared/data"
CSV = "--format=csv"


PROGRAM = runpy.run_path(str(FILES / "nvidia_smi.py"))
"""The program as a node runs it, but in this process: starting Python for each call would take most of the time."""


@dataclass
class Done:
    """What a call ended with."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(capsys, monkeypatch):
    """Run the simulated program with a machine's file."""

    def run(path: Path, *arguments: str) -> Done:
        monkeypatch.setitem(PROGRAM["main"].__globals__, "MACHINE", str(path))
        code = PROGRAM["main"](list(arguments))
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def smi(call, tmp_path):
    """Run the simulated program for a described machine."""

    def run(machine: str, *arguments: str, **changes: object) -> Done:
        path = tmp_path / "machine.json"
        path.write_text(json.dumps({**json.loads(to_json(load(machine))), "seed": "node 1", **changes}))
        return call(path, *arguments)

    return run


def sample(name: str) -> str:
    path = SAMPLES / name
    if not path.exists():
        pytest.skip(f"{name} is not beside this checkout")
    return path.read_text().split("\n", 1)[1]


def test_the_matrix_has_the_lines_that_the_real_tool_printed(smi):
    """`topo -m` of the described DGX-1 equals a recorded one, column for column, with the driver of that time."""
    wanted = sample("topo/dgx1v_8xV100_nvlink_cubemesh_4xmlx5.txt").split("\n\n")[0].splitlines()

    printed = smi("dgx1v", "topo", "-m", driver_version="418.126.02").stdout.split("\n\n")[0].splitlines()

    assert [line.rstrip() for line in printed] == [line.rstrip() for line in wanted]


def test_newer_drivers_number_the_cards_and_name_them_below(smi):
    """With a current driver the columns are NIC0 etc. and a legend names the devices, as recorded."""
    wanted = sample("topo/h20_8gpu_NV18_8nic_PIX_NODE_rail.txt").replace("mlx5_", "mlx5_#")
    wanted = re.sub(r"#(\d)", lambda number: str(int(number[1]) - 1), wanted)  # that machine counts its cards from 1

    printed = smi("hgxh100", "topo", "-m").stdout

    def comparable(text: str) -> list[str]:
        return [line.rstrip() for line in text.splitlines() if " = " not in line]

    assert comparable(printed) == comparable(wanted)


def test_the_overview_is_laid_out_as_the_real_one(smi):
    """Apart from its values and one SIMULATED line, the table equals a recorded one character for character."""
    wanted = sample("rdma/nvidia-smi_table_550.90.07.txt").splitlines()[1:]
    lines = smi("hgxh100").stdout.splitlines()[1:]
    simulated = [line for line in lines if "SIMULATED" in line]

    def shape(text: list[str]) -> list[str]:
        return [re.sub(r" *\d+(C|W)", r" #\1", line) for line in text]

    assert len(simulated) == 1
    assert {len(line) for line in lines if line} == {91}
    assert shape([line for line in lines if line not in simulated]) == shape(wanted)


def test_a_query_prints_titles_values_and_units_like_the_real_one(smi):
    """The CSV of a recorded query is reproduced to the letter."""
    wanted = sample("rdma/nvidia-smi_query_csv_4xA100.txt")
    fields = "--query-gpu=index,name,memory.total,compute_cap,driver_version"

    printed = smi("dgxa100", fields, CSV, driver_version="580.105.08").stdout

    assert printed.splitlines()[:5] == wanted.splitlines()


def test_noheader_and_nounits_omit_headings_and_units(smi):
    """Scripts get bare values when they ask for them."""
    done = smi("pair", "--query-gpu=index,memory.total,power.limit", "--format=csv,noheader,nounits")

    assert done.stdout == "0, 23028, 150.00\n1, 23028, 150.00\n"


def test_links_are_listed_as_recorded(smi):
    """`nvlink -s` has the recorded layout."""
    wanted = re.sub(r"GPU-[0-9a-f-]{36}", "U", sample("rdma/nvidia-smi_nvlink_s_a100.txt")).split()

    assert re.sub(r"GPU-[0-9a-f-]{36}", "U", smi("dgxa100", "nvlink", "-s").stdout).split() == wanted


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


def test_the_xml_is_well_formed_and_has_the_real_tags(smi):
    """`-q -x` can be read by what reads the real one: the tags used are the recorded ones."""
    real = ET.fromstring(sample("rdma/nvidia-smi_q_x_a100-sxm4-v12.xml"))  # noqa: S314 - a file of ours
    ours = ET.fromstring(smi("dgxa100", "-q", "-x").stdout)  # noqa: S314

    gpu = ours.find("gpu")
    assert gpu is not None
    assert {child.tag for child in gpu} <= {child.tag for child in real.find("gpu")}


def test_without_a_machine_it_fails_like_a_missing_driver(call, tmp_path):
    """A node without a description fails with the exit code of a missing driver."""
    done = call(tmp_path / "nothing.json", "-L")

    assert done.returncode == 9
    assert "has failed" in done.stdout
