"""A log of NCCL gives the judgement that a person who reads it would give, and no better one."""

from __future__ import annotations

import pytest

from provision.checks.nccl_log import NcclVerdict, judge_nccl_log
from provision.facts.nccl_log import read
from provision.report.nccl_report import as_document, as_text, remedy_of
from tests.support.reasons import shown

AT = "gpu1:4100:4177 [0] NCCL INFO "
LISTED = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB ib0:10.0.0.1<0>"
DIRECT = "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/1/GDRDMA"
PLAIN = "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/1"


def verdict(*lines: str, prefix: str = AT) -> NcclVerdict:
    return of("".join(f"{prefix}{line}\n" for line in lines))


def of(text: str | bytes) -> NcclVerdict:
    return judge_nccl_log(read([text if isinstance(text, bytes) else text.encode()]))


def reasons(judgement: NcclVerdict) -> list[str]:
    """Return the codes and values of the reasons."""
    return [shown(reason) for reason in judgement.reasons]


@pytest.mark.parametrize(
    ("channel", "gdr"),
    [
        pytest.param("Channel 00 : 31[cb000] -> 0[7000] [receive] via NET/IB/1/GDRDMA", True, id="2.7"),
        pytest.param("Channel 00 : 31[cb000] -> 0[7000] [receive] via NET/IB/1", False, id="2.7 without"),
        pytest.param("Channel 00 : 7[cb000] -> 8[7000] [send] via NET/IB/1/GDRDMA/Shared", True, id="2.8"),
        pytest.param("Channel 00 : 7[cb000] -> 8[7000] [send] via NET/IB/1/Shared", False, id="2.8 without"),
        pytest.param("Channel 01/0 : 0[cb000] -> 5[7000] [send] via NET/IB/1(3)/GDRDMA", True, id="2.12 PXN"),
        pytest.param("Channel 01/0 : 0[cb000] -> 5[7000] [send] via NET/IB/1(3)", False, id="2.12 PXN without"),
        pytest.param("Channel 01/0 : 0[0] -> 5[1] [send] via NET/IB/1/GDRDMA/Shared", True, id="2.18.3"),
        pytest.param("Channel 01/0 : 0[0] -> 5[1] [send] via NET/IB/1/GDRDMA(PCI)", True, id="2.26"),
        pytest.param("Channel 01/0 : 0[0] -> 5[1] [send] via NET/IB/1(1)/GDRDMA(PCI)/Shared", True, id="2.26 all"),
        pytest.param("Channel 03/0 : 11[3] -> 3[3] [send] via NET/NCCL RDMA Plugin v9/1/GDRDMA", True, id="blanks"),
        pytest.param("Channel 03/0 : 11[3] -> 3[3] [send] via NET/IBext_v9/1/Shared", False, id="IBext_v9"),
    ],
)
def test_every_format_of_a_channel_line_is_parsed(channel, gdr):
    """The channel's line decides in all versions, and its number leads to the card's name."""
    judgement = verdict(LISTED, channel)

    assert (judgement.gdr, judgement.transport, judgement.hcas) == (gdr, "IB", ("mlx5_3",))


@pytest.mark.parametrize(
    ("plugin", "transport"),
    [("gIB", "gIB"), ("Libfabric", "Libfabric"), ("OPA", "OPA"), ("IBext_v6", "IB"), ("Socket", "Socket")],
)
def test_a_plugin_without_listed_cards_is_reported_by_its_name(plugin, transport):
    """Without a list of cards nothing is known of the link; NVIDIA's own plugin uses the name of the network."""
    assert verdict(f"Channel 00/0 : 0[0] -> 8[0] [send] via NET/{plugin}/0").transport == transport


def test_one_channel_without_gpudirect_disables_it():
    """A job is as fast as its slowest channel: it is not in use when any channel lacks it."""
    judgement = verdict(LISTED, DIRECT, DIRECT, PLAIN)

    assert judgement.gdr is False
    assert reasons(judgement) == ["nccl.unexplained: nccl.some_channels_without_gdr 1 3"]


def test_possible_gpudirect_is_not_used_gpudirect():
    """NCCL's "enabled" for a card is no proof, in whatever wording."""
    judgement = verdict(
        LISTED,
        "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
        "GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 4 <= 5), read 1 mode Default",
        "NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 'mlx5_0",
        "DMA-BUF is available on GPU device 0",
        "Connected all rings, use ring PXN 0 GDR 1",
    )

    assert judgement.gdr is None
    assert reasons(judgement) == ["nccl.possible: mlx5_0"]
    assert verdict(LISTED, "NET/IB : GPU Direct RDMA Enabled for HCA 1 'mlx5_3'", PLAIN).gdr is False


def test_channels_override_the_ring_summary():
    """Real logs say "GDR 0" in the summary while every channel goes direct."""
    assert verdict(LISTED, DIRECT, "Connected all rings, use ring PXN 0 GDR 0").gdr is True


def test_nccl_overrides_its_plugin():
    """Where the plugin says enabled and NCCL disabled, it is disabled."""
    judgement = verdict(
        "NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 'rocep1s0f0'",
        "NET/NCCL RDMA Plugin v10 : GPU Direct RDMA Disabled for HCA 0 'rocep1s0f0'",
    )

    assert (judgement.gdr, judgement.hcas) == (False, ("rocep1s0f0",))


DISABLED = "NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_3'"


GPU_DISABLED = "NET/IB : GPU Direct RDMA Disabled for GPU 0[7000] / HCA 0 'mlx5_0' (no module or not supported by GPU)"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        pytest.param(
            ["NCCL version 2.19.3+cuda12.3", DISABLED],
            "nccl.gdr_disabled: mlx5_3 nccl.module_in_one_place",
            id="2.19",
        ),
        pytest.param(
            ["NCCL version 2.22.3+cuda12.5", DISABLED],
            "nccl.gdr_disabled: mlx5_3 nccl.module_in_one_place",
            id="2.22",
        ),
        pytest.param(["NCCL version 2.23.4+cuda12.6", DISABLED], "nccl.gdr_disabled: mlx5_3", id="2.23"),
        pytest.param([f"{DISABLED} (no module)"], "nccl.gdr_disabled_with_cause: mlx5_3 no module", id="2.5"),
        pytest.param(
            [GPU_DISABLED], "nccl.gdr_disabled_with_cause: mlx5_0 no module or not supported by GPU", id="2.4"
        ),
        pytest.param(["NET/IB : GPU Direct RDMA Disabled for HCA 0 'rxe0'"], "nccl.software_device: rxe0", id="rxe"),
        pytest.param(["NCCL_NET_GDR_LEVEL set by environment to LOC"], "nccl.gdr_level_off: LOC", id="LOC"),
        pytest.param(["NCCL_NET_GDR_LEVEL set by environment to 0."], "nccl.gdr_level_off: 0", id="0"),
        pytest.param(
            ["Call to ibv_reg_dmabuf_mr failed with error Operation not supported"],
            "nccl.dmabuf_failed: Operation not supported",
            id="dmabuf",
        ),
    ],
)
def test_each_cause_has_its_remedy(lines, reason):
    """Why GPUDirect is off stands in the log; what to do follows from it, with channels in the log or without."""
    alone, with_channel = verdict(*lines), verdict(*lines, PLAIN)

    assert (alone.gdr, with_channel.gdr) == (False, False)
    assert reasons(alone) == [reason]
    assert reasons(with_channel) == ["nccl.channel_without_gdr", reason]
    assert remedy_of(alone) == remedy_of(with_channel) is not None


@pytest.mark.parametrize(
    ("version", "numbers", "distance"),
    [
        ("2.7.8", "5 > 3", "SYS"),
        ("2.10.3", "5 > 4", "PHB"),
        ("2.18.5", "7 > 4", "SYS"),
        ("2.26.2", "7 > 5", "PHB"),
        ("2.27.3", "7 > 5", "P2C"),
        ("2.27.5", "7 > 5", "PXN"),
        ("2.28.3", "8 > 5", "PHB"),
    ],
)
def test_a_distance_is_interpreted_by_the_nccl_version(version, numbers, distance):
    """The same number means other things in other versions; the user sets levels by name."""
    judgement = verdict(
        f"NCCL version {version}+cuda12.0",
        f"GPU Direct RDMA Disabled for GPU 7000 / HCA 0 (distance {numbers}), read 0",
        PLAIN,
    )

    assert reasons(judgement)[1] == f"nccl.too_far: {distance} PXB"


def test_a_distance_without_a_version_stays_a_number():
    """A class is not guessed."""
    judgement = verdict("GPU Direct RDMA Disabled for GPU 7000 / HCA 0 (distance 5 > 4), read 0", PLAIN)

    assert reasons(judgement)[1] == "nccl.too_far: distance 5 distance 4"


def test_distant_cards_are_no_evidence_if_a_near_card_exists():
    """Every GPU has distant cards; as long as one is near, only the channels are evidence."""
    judgement = verdict(
        "GPU Direct RDMA Enabled for GPU 7000 / HCA 0 (distance 3 <= 4), read 0",
        "GPU Direct RDMA Disabled for GPU 7000 / HCA 1 (distance 6 > 4), read 0",
    )

    assert judgement.gdr is None


def test_the_limit_of_locked_memory_is_reported_as_the_cause():
    """A registration that fails for want of memory is the limit of locked memory."""
    text = (
        "gpu1:1:2 [0] misc/ibvwrap.cc:213 (wrap_ibv_reg_mr_iova2) NCCL WARN "
        "Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"
    )
    judgement = of(text)

    assert judgement.gdr is None
    assert reasons(judgement) == ["nccl.no_network_channel", "nccl.memlock: ibv_reg_mr_iova2"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/1/GPUDIRECT2", id="a new suffix"),
        pytest.param("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/1/GDRDMA/Copied", id="a new word behind"),
        pytest.param("Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/one/GDRDMA", id="no number"),
    ],
)
def test_an_unknown_form_is_unknown(text):
    """What no version wrote so far is never called enabled, and the line is shown."""
    judgement = verdict(LISTED, text)

    assert judgement.gdr is None
    assert judgement.reasons[0].code == "nccl.unknown_format"
    assert text in judgement.reasons[0].params["line"]
    assert verdict(LISTED, DIRECT, text).gdr is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Training started\nepoch 1 via NET\n",
        "this program needs NCCL version 2.10 or newer\n",
        "# a comment: via NET/IB/0/GDRDMA, NET/IB : No device found.\n",
        "\x00\xff\xfeNCCL\x00",
    ],
)
def test_lines_of_other_programs_are_ignored(text):
    """An empty file, a program's own words and a comment on NCCL give no version, network, card or judgement."""
    judgement = of(text.encode("latin-1"))

    assert (judgement.version, judgement.transport, judgement.gdr, judgement.hcas) == (None, None, None, ())
    assert [reason.code for reason in judgement.reasons] in (["nccl.no_lines"], ["nccl.no_channels"])


@pytest.mark.parametrize(
    "tag",
    [
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[0] ",
        "[rank0]: ",
        "[default3]:",
        "12: ",
        "\x1b[36m(pid=7)\x1b[0m ",
        "2026-11-21T10:00:00Z ",
    ],
)
def test_prefixes_of_launchers_are_ignored(tag):
    """Whatever a launcher or a log collector puts in front of a line, its meaning stays."""
    judgement = of("".join(f"{tag}{line}\n" for line in ("NCCL version 2.18.5+cuda12.2", AT + LISTED, AT + DIRECT)))

    assert (judgement.version, judgement.transport, judgement.gdr, judgement.hcas) == (
        "2.18.5",
        "IB",
        True,
        ("mlx5_3",),
    )


@pytest.mark.parametrize("end", ["\r\n", "\r", "\x1b[0m\n", "  \n"])
def test_line_endings_and_colours_are_ignored(end):
    """Windows' line ends, progress bars, colours and blanks do not hide the end of a channel's line."""
    assert of(end.join([AT + LISTED, AT + PLAIN, ""])).gdr is False
    assert of(end.join([AT + LISTED, AT + DIRECT, ""])).gdr is True


def test_each_host_counts_its_own_cards():
    """Number 0 is another card on another host."""
    judgement = of(
        "a:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE ; OOB eth0:10.0.0.1<0>\n"
        "b:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_8:1/RoCE [1]mlx5_9:1/RoCE ; OOB eth0:10.0.0.2<0>\n"
        "b:1:2 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [send] via NET/IB/0/GDRDMA\n"
        "a:1:2 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/1/GDRDMA\n"
    )

    assert (judgement.transport, judgement.hcas) == ("RoCE", ("mlx5_8", "mlx5_1"))


def test_several_communicators_are_combined():
    """A second communicator that goes without GPUDirect is not hidden by the first."""
    assert verdict(LISTED, DIRECT, "comm 0x1 rank 0 nranks 16 - Init COMPLETE", PLAIN).gdr is False


def test_merged_cards_are_listed_separately():
    """A device that NCCL made of two cards counts as both."""
    judgement = verdict(
        LISTED,
        "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_3 speed=400000 ndevs=2",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/2/GDRDMA",
    )

    assert (judgement.transport, judgement.hcas) == ("IB", ("mlx5_0", "mlx5_3"))


def test_a_card_detected_by_the_built_in_network_counts():
    """The plugin finds none, NCCL's own network does: there is a device."""
    judgement = verdict("P2P plugin IBext_v8", "NET/IB : No device found.", LISTED, "Using network IB")

    assert (judgement.gdr, judgement.transport) == (None, "IB")


def test_an_incomplete_line_is_ignored():
    """The end of a log that was cut off, or a line that two ranks wrote at once, is not a channel without GPUDirect."""
    assert of(f"{AT}{LISTED}\n{AT}{DIRECT}\n{AT}{PLAIN}").gdr is True
    assert of(f"{AT}{LISTED}\n{AT}{DIRECT}\n{AT}{PLAIN}{AT}{DIRECT}\n").gdr is True
    assert of(f"{AT}{PLAIN}").gdr is False


def test_a_large_log_is_read_in_chunks():
    """Lines may lie across pieces, and one endless line hides nothing that comes after it."""
    pieces = [b"x" * 50_000] * 40 + [b"\n", AT.encode(), LISTED.encode()[:20], LISTED.encode()[20:] + b"\n"]
    pieces += [f"{AT}{DIRECT}\n".encode()] * 5000 + [b"\x00\xff" * 9000 + b"NCCL INFO via NET/IB/"]

    judgement = judge_nccl_log(read(pieces))

    assert (judgement.gdr, judgement.hcas) == (True, ("mlx5_3",))
    assert reasons(judgement) == ["nccl.channels_with_gdr: 5000"]


def test_the_report_is_complete_and_fits_eighty_columns():
    """A person sees version, transport, judgement, cards, reason and what to do."""
    cards = " ".join(f"[{n}]mlx5_{n}:1/RoCE" for n in range(16))
    text = as_text(verdict("NCCL version 2.27.5+cuda12.9", f"NET/IB : Using {cards} [RO]", PLAIN, DISABLED))

    assert max(map(len, text.splitlines())) <= 80
    for part in (
        "2.27.5",
        "CUDA 12.9",
        "RoCE",
        "NOT in use",
        "mlx5_1",
        "disabled for mlx5_3",
        "modprobe nvidia-peermem",
    ):
        assert part in " ".join(text.split())


def test_the_report_contains_no_control_characters():
    """A log cannot write to the reader's terminal."""
    assert "\x1b" not in as_text(verdict("Channel 0 via NET/\x1b]0;x\x07/IB/zero"))


def test_the_document_has_the_promised_keys():
    """Scripts rely on these names."""
    document = as_document(verdict(LISTED, DIRECT))

    assert {"version", "transport", "gdr", "hcas", "reason", "remedy", "reason_codes"} <= set(document)
    assert (document["gdr"], document["hcas"], document["remedy"]) == (True, ["mlx5_3"], None)
    assert document["reason_codes"] == [{"code": "nccl.channel_with_gdr", "params": {}}]


def test_reasons_are_sentences_with_the_remedies_in_their_order():
    """Each reason is a sentence; reasons without a remedy add nothing to what is to be done."""
    document = as_document(verdict("NET/IB : No device found.", SOCKET, "Using network Socket"))

    assert document["reason"] == (
        "NCCL chose TCP for the network. NCCL found no RDMA device on gpu1. "
        "For TCP it would take lo, docker0, which lead to no other node."
    )
    assert document["remedy"].startswith("See what the node has (ls /sys/class/infiniband)")
    assert document["remedy"].endswith("Name the data network's interface in NCCL_SOCKET_IFNAME.")


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        (["NCCL version 2.22.3+cuda12.5", DISABLED], "which kernels since 6.4 do not have: use NCCL 2.23"),
        ([DISABLED], "modprobe nvidia-peermem"),
        (["NCCL_NET_GDR_LEVEL set by environment to LOC"], "Take NCCL_NET_GDR_LEVEL out"),
        (["GPU Direct RDMA Disabled for GPU 7000 / HCA 0 (distance 5 > 4), read 0"], "NCCL_NET_GDR_LEVEL=PHB"),
        (["Call to ibv_reg_dmabuf_mr failed with error Operation not supported"], "NCCL_DMABUF_ENABLE=0"),
        (["Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"], "memlock=-1"),
        (["NCCL_NET_GDR_LEVEL set by environment to PHB", PLAIN], "NCCL_NET_GDR_LEVEL=PHB is set: try without it. Run"),
    ],
)
def test_a_remedy_names_the_setting(lines, part):
    """So it can be copied."""
    assert part in remedy_of(verdict(*lines))


SOCKET = "NET/Socket : Using [0]lo:127.0.0.1<0> [1]docker0:172.17.0.1<0>"


@pytest.mark.parametrize(
    ("lines", "transport", "gdr", "codes"),
    [
        pytest.param(
            ["NET/IB : No device found.", SOCKET, "Using network Socket"],
            "Socket",
            False,
            ["nccl.network_is_tcp", "nccl.no_device: gpu1", "nccl.local_interfaces: lo docker0"],
            id="no card",
        ),
        pytest.param(["NET/IB : No device found."], None, False, ["nccl.no_device: gpu1"], id="no card, no network"),
        pytest.param(
            ["P2P plugin IBext_v8", "NET/IB : No device found.", SOCKET, "Using network Socket"],
            "Socket",
            False,
            ["nccl.network_is_tcp", "nccl.no_device: gpu1 IBext_v8", "nccl.local_interfaces: lo docker0"],
            id="plugin without a card",
        ),
        pytest.param(
            ["NCCL_IB_DISABLE set by environment to 1.", "NET/Socket : Using [0]ib0:10.0.0.1<0>"],
            "Socket",
            False,
            ["nccl.network_is_tcp", "nccl.ib_disabled"],
            id="disabled",
        ),
        pytest.param(
            [LISTED, "Channel 00 : 0[0] -> 1[1] via P2P/IPC"],
            "P2P",
            None,
            ["nccl.inside_a_node: P2P"],
            id="inside a node",
        ),
        pytest.param(
            [LISTED, "NET/IB : GPU Direct RDMA Enabled for HCA 1 'mlx5_3'", PLAIN],
            "IB",
            False,
            ["nccl.possible_but_unused: nccl.channel_without_gdr mlx5_3"],
            id="possible and unused",
        ),
        pytest.param(
            ["NET/IB: [0] mlx5_0:uverbs0:1/RoCE", "Using network IB", "Channel 00 : 8[0] -> 0[0] [send] via NET/IB/0"],
            "RoCE",
            False,
            ["nccl.unexplained: nccl.channel_without_gdr"],
            id="old wording of a card",
        ),
    ],
)
def test_a_log_without_gpudirect_reports_the_used_transport(lines, transport, gdr, codes):
    """TCP and its interfaces, channels inside the node, or RDMA through host memory."""
    result = verdict(*lines)

    assert (result.transport, result.gdr) == (transport, gdr)
    assert reasons(result) == codes
    assert remedy_of(result)


@pytest.mark.parametrize(
    ("lines", "transport", "gdr", "hcas"),
    [
        (["Channel 00/0 : 0[0] -> 8[0] [send] via NET/NCCL RDMA Plugin v9/3/GDRDMA"], "NCCL RDMA Plugin v9", True, ()),
        (["NET/NCCL RDMA Plugin v10 : GPU Direct RDMA Disabled for HCA 0 'rocep1s0f0'"], "NCCL RDMA Plugin v10", False,
         ("rocep1s0f0",)),
        (["Channel 00/0 : 0[0] -> 8[0] [send] via NET/IBext_v9/2/Shared"], "IB", False, ()),
    ],
    ids=["channel", "card", "shared"],
)  # fmt: skip
def test_single_lines_without_a_prefix_are_parsed(lines, transport, gdr, hcas):
    """People paste parts of logs."""
    result = verdict(*lines, prefix="")

    assert (result.transport, result.gdr, result.hcas) == (transport, gdr, hcas)
