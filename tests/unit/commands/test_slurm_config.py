"""The configuration of Slurm from the layouts of nodes."""

from __future__ import annotations

from typing import Any

import pytest

from provision.commands import slurm_config as config

LAYOUT: dict[str, Any] = {
    "sockets": 2,
    "cores": 8,
    "threads": 2,
    "memory": 64000,
    "hostname": "gpu1",
    "gpus": [
        {"minor": 5, "model": "NVIDIA H100 80GB HBM3", "socket": 1},
        {"minor": 0, "model": "NVIDIA H100 80GB HBM3", "socket": 0},
    ],
}
SETTINGS: dict[str, Any] = {
    "cluster": "Lab 1",
    "controllers": [{"name": "c0", "hostname": "c0", "address": "10.0.0.9"}],
    "partitions": [{"name": "gpu", "default": True}],
    "options": {},
    "health_seconds": 300,
}


def entry(**changes: Any) -> dict[str, Any]:
    more = {key: changes.pop(key) for key in ("leaf", "labels") if key in changes}
    return config.node_entry({**LAYOUT, **changes}, address="10.0.0.1", **more)


def lines(text: str, key: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(key)]


def test_a_node_has_its_cpus_its_exact_gpus_and_less_memory_than_it_has() -> None:
    """Slurm drains a node with less memory than its line says; types name exact GPUs by the number of their file."""
    (line,) = lines(config.slurm_conf(SETTINGS, {"gpu1": entry()}), "NodeName")

    assert line == (
        "NodeName=gpu1 NodeAddr=10.0.0.1 Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 RealMemory=63360 "
        "Gres=gpu:g0:1,gpu:g5:1 Feature=h100 State=UNKNOWN"
    )


def test_a_gpu_has_its_device_file_and_the_cores_of_its_socket() -> None:
    """Whole sockets only: Slurm drains a node whose cores do not match its sockets."""
    assert lines(config.gres_conf({"gpu1": entry()}), "NodeName") == [
        "NodeName=gpu1 Name=gpu Type=g0 File=/dev/nvidia0 Cores=0-7",
        "NodeName=gpu1 Name=gpu Type=g5 File=/dev/nvidia5 Cores=8-15",
    ]


@pytest.mark.parametrize(
    "changes",
    [{"sockets": 1}, {"gpus": [{"minor": 0, "model": "A", "socket": None}]}],
    ids=["one socket", "unknown socket"],
)
def test_without_a_choice_of_sockets_no_cores_are_written(changes: dict[str, Any]) -> None:
    assert "Cores=" not in config.gres_conf({"gpu1": entry(**changes)})


@pytest.mark.parametrize(
    "changes",
    [
        {"hostname": "gpu1\nSlurmUser=root"},
        {"hostname": "a b"},
        {"sockets": "2"},
        {"cores": 0},
        {"memory": True},
        {"gpus": [{"minor": "0 Type=x", "model": "", "socket": 0}]},
        {"gpus": [{"minor": 1, "model": "", "socket": 0}, {"minor": 1, "model": "", "socket": 0}]},
        {"gpus": [{"minor": 0, "model": "", "socket": "0-3\n"}]},
        {"leaf": "rack 1"},
    ],
)
def test_a_hostile_report_enters_no_configuration(changes: dict[str, Any]) -> None:
    with pytest.raises(config.InvalidEntryError):
        entry(**changes)


@pytest.mark.parametrize(
    ("model", "feature"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("Evil\nReason=x y", "evil_reason_x_y"),
        ("", ""),
    ],
)
def test_the_model_of_a_gpu_is_a_feature(model: str, feature: str) -> None:
    assert config.feature_of(model) == feature


def test_labels_are_features_unless_they_have_characters_of_slurms_expressions() -> None:
    assert config.label_features({"rack": "a1", "x": "a&b", "y|z": "1"}) == ["rack=a1"]


def test_a_node_with_jobs_keeps_its_line_and_is_reported() -> None:
    """A line with fewer GPUs, or none, would end its jobs."""
    before, after = {"gpu1": entry(), "gpu2": entry()}, {"gpu1": entry(gpus=[])}

    entries, waiting = config.merged(after, before, ["gpu1"], {"gpu1", "gpu2"})
    idle, none = config.merged(after, before, ["gpu1"], set())

    assert (entries, waiting) == (before, ["gpu1", "gpu2"])
    assert (idle, none) == ({"gpu1": entry(gpus=[])}, [])


def test_a_node_that_does_not_answer_keeps_its_line() -> None:
    assert config.merged({}, {"gpu1": entry()}, ["gpu1", "gpu2"], set()) == ({"gpu1": entry()}, [])


def test_a_little_less_memory_after_a_new_kernel_is_no_change() -> None:
    recorded = entry()

    assert config.same_entry(recorded, entry(memory=64500))
    assert config.merged({"gpu1": entry(memory=64500)}, {"gpu1": recorded}, ["gpu1"], set())[0] == {"gpu1": recorded}
    assert not config.same_entry(recorded, entry(memory=32000))
    assert not config.same_entry(recorded, entry(memory=128000))


def test_leaves_are_switches_below_a_spine() -> None:
    """Without any leaf there is no topology, and Slurm treats all nodes alike."""
    entries = {"gpu1": entry(leaf="l1"), "gpu2": entry(leaf="l2"), "gpu3": entry()}
    text = config.slurm_conf(SETTINGS, entries)

    assert lines(config.topology_conf(entries), "Switch") == [
        "SwitchName=leaf_l1 Nodes=gpu1",
        "SwitchName=leaf_l2 Nodes=gpu2",
        "SwitchName=other Nodes=gpu3",
        "SwitchName=spine Switches=leaf_l1,leaf_l2,other",
    ]
    assert lines(text, "TopologyPlugin") == ["TopologyPlugin=topology/tree"]
    assert config.topology_conf({"gpu3": entry()}) == ""
    assert "TopologyPlugin" not in config.slurm_conf(SETTINGS, {"gpu3": entry()})


@pytest.mark.parametrize(
    ("settings", "entries", "restarts"),
    [
        ({}, {"gpu1": entry()}, False),
        ({"partitions": [{"name": "night", "max_time": "12:00:00"}]}, {"gpu1": entry()}, False),
        ({"options": {"KillWait": 60}}, {"gpu1": entry()}, False),
        ({}, {"gpu1": entry(labels={"rack": "b"})}, False),
        ({"options": {"TCPTimeout": 9}}, {"gpu1": entry()}, True),
        ({}, {"gpu1": entry(), "gpu2": entry()}, True),
        ({}, {"gpu1": entry(gpus=[])}, True),
    ],
)
def test_only_some_changes_restart_slurmctld(settings: dict, entries: dict, restarts: bool) -> None:  # noqa: FBT001
    """`scontrol reconfigure` suffices for partitions, times and features."""
    before = config.controller_texts(SETTINGS, {"gpu1": entry()})
    after = config.controller_texts({**SETTINGS, **settings}, entries)

    assert (config.restart_key(before) != config.restart_key(after)) is restarts
    assert (config.reload_key(before) != config.reload_key(after)) is (before != after)


@pytest.mark.parametrize(
    "settings",
    [
        {"options": {"Prolog": "/tmp/x"}},
        {"options": {"slurmuser": "root"}},
        {"options": {"KillWait": "1\nSlurmUser=root"}},
        {"options": {"Kill Wait": 1}},
        {"partitions": [{"name": "a b"}]},
        {"partitions": [{"name": "a", "max_time": "soon"}]},
        {"partitions": [{"name": "a", "options": {"Nodes": "x"}}]},
        {"partitions": [{"name": "a", "colour": "red"}]},
        {"partitions": ["a"]},
        {"state_folder": "relative"},
        {"state_folder": "/var/../etc"},
        {"controllers": ["c0", "c1"]},
    ],
)
def test_settings_that_the_role_cannot_write_are_refused(settings: dict[str, Any]) -> None:
    """The last one: two controllers with a state folder that they do not share."""
    assert [*config.setting_problems(settings)]
    assert not [*config.setting_problems(SETTINGS)]


def test_accounting_is_that_of_slurmdbd_on_the_first_controller() -> None:
    """Without slurmdbd, AccountingStorageTRES is fatal for slurmctld. slurmctld restarts for the change."""
    before = config.controller_texts(SETTINGS, {"gpu1": entry()})
    after = config.controller_texts({**SETTINGS, "accounting": "slurmdbd"}, {"gpu1": entry()})

    assert lines(before["/etc/slurm/slurm.conf"], "Accounting") == []
    assert lines(after["/etc/slurm/slurm.conf"], "Accounting") == [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=10.0.0.9",
        "AccountingStoragePort=6819",
        "AccountingStorageTRES=gres/gpu",
        "AccountingStoreFlags=job_comment",
    ]
    assert lines(after["/etc/slurm/slurm.conf"], "JobComp") == lines(before["/etc/slurm/slurm.conf"], "JobComp")
    assert config.restart_key(before) != config.restart_key(after)


def test_a_site_chooses_what_accounting_records_and_not_where() -> None:
    settings = {**SETTINGS, "accounting": "slurmdbd", "options": {"AccountingStorageTRES": "gres/gpu,license/x"}}

    assert lines(config.slurm_conf(settings, {"gpu1": entry()}), "AccountingStorageTRES") == [
        "AccountingStorageTRES=gres/gpu,license/x"
    ]
    assert [*config.setting_problems({"options": {"AccountingStorageHost": "db"}})]


def test_an_option_replaces_the_roles_own_value() -> None:
    text = config.slurm_conf({**SETTINGS, "options": {"killwait": 60}}, {"gpu1": entry()})

    assert [line for line in text.splitlines() if line.lower().startswith("killwait")] == ["killwait=60"]


def test_a_node_keeps_its_place_in_a_run_without_the_controller() -> None:
    recorded = {"node": "gpu1", "controllers": SETTINGS["controllers"], "entry": entry()}

    assert config.node_document({}, "gpu1", recorded, is_controller=False, is_node=True) == recorded
    assert config.node_document({}, "gpu1", None, is_controller=False, is_node=True)["entry"] == {}


def reported(**nodes: Any) -> dict[str, dict[str, Any]]:
    """Return the variables of a play's nodes; a value is the state that a node reports."""
    return {
        name: {"__slurm_node": {"state": state, "document": state.get("document", {}), "configured": []}}
        for name, state in nodes.items()
    }


def test_the_cluster_name_never_changes() -> None:
    """slurmctld refuses to start with another name than that of its state."""
    hosts = reported(c0={"hostname": "c0", "document": {"cluster": "old"}}, gpu1={"layout": LAYOUT})
    made = config.play_configuration(hosts, ["gpu1"], ["c0"], {"c0": "10.0.0.9", "gpu1": "10.0.0.1"}, SETTINGS)

    assert made["settings"]["cluster"] == "old"
    assert made["entries"] == {"gpu1": entry()}
    assert config.cluster_name("Lab 1") == "lab_1"


def test_a_node_of_slurm_conf_without_a_known_layout_is_reported() -> None:
    """Without its line, its jobs would end."""
    hosts = reported(c0={"hostname": "c0"}, gpu1={"layout": LAYOUT}, gpu2={})
    hosts["c0"]["__slurm_node"]["configured"] = ["gpu1", "gpu2", "gone"]
    addresses = {"c0": "10.0.0.9", "gpu1": "10.0.0.1", "gpu2": "10.0.0.2"}

    assert config.play_configuration(hosts, ["gpu1", "gpu2"], ["c0"], addresses, SETTINGS)["unknown"] == ["gpu2"]


def configured(layouts: dict[str, Any], recorded: dict[str, Any] | None = None, **state: Any) -> dict[str, Any]:
    """Return the configuration of the nodes that report layouts; the controller has recorded entries."""
    idle = {"nodes": {name: {"state": "idle"} for name in recorded or {}}}
    hosts = reported(c0={"hostname": "c0", "document": {"nodes": recorded or {}}, **idle, **state})
    hosts |= {name: {"__slurm_node": {"state": {"layout": layout}}} for name, layout in layouts.items()}
    addresses = {name: f"10.0.0.{n}" for n, name in enumerate(hosts, start=1)}
    return config.play_configuration(hosts, list(layouts), ["c0"], addresses, SETTINGS)


def host_names(made: dict[str, Any]) -> dict[str, str]:
    return {name: entry["hostname"] for name, entry in made["entries"].items()}


@pytest.mark.parametrize(
    "layout", [{**LAYOUT, "cores": 0}, {**LAYOUT, "hostname": "a b"}, {"cores": 1}, [1], "x", {**LAYOUT, "gpus": [1]}]
)
def test_an_invalid_report_refuses_its_node_only(layout: Any) -> None:
    """The others get their configuration; the recorded entry of the node stays, and without one it has no line."""
    before = entry(hostname="bad", cores=4)
    layouts = {"gpu1": LAYOUT, "bad": layout, "new": layout}
    made = configured(layouts, {"bad": before})

    assert set(made["refused"]) == {"bad", "new"}
    assert "provision apply --limit bad" in made["refused"]["bad"]
    assert (set(made["entries"]), made["entries"]["bad"]) == ({"gpu1", "bad"}, before)
    assert made["unknown"] == []


def test_a_report_of_another_form_refuses_its_node_only() -> None:
    hosts = reported(c0={"hostname": "c0"}, gpu1={"layout": LAYOUT})
    hosts["bad"] = {"__slurm_node": {"state": ["x"]}}
    addresses = {"c0": "10.0.0.9", "gpu1": "10.0.0.1", "bad": "10.0.0.2"}
    made = config.play_configuration(hosts, ["gpu1", "bad"], ["c0"], addresses, SETTINGS)

    assert (set(made["entries"]), set(made["refused"])) == ({"gpu1"}, {"bad"})


def named(**hosts: str) -> dict[str, dict[str, Any]]:
    """Return layouts: node -> one with this host name."""
    return {name: {**LAYOUT, "hostname": host} for name, host in hosts.items()}


@pytest.mark.parametrize(
    ("layouts", "recorded", "refused", "entries"),
    [
        (named(good="good", evil="good"), {}, {"evil"}, {"good": "good"}),
        (named(good="good", evil="c0"), {}, {"evil"}, {"good": "good"}),
        (named(a="ip-1", evil="ip-1"), {"a": "ip-1"}, {"evil"}, {"a": "ip-1"}),
        (named(a="ip-1", evil="ip-1"), {"a": "ip-1", "evil": "ip-2"}, {"evil"}, {"a": "ip-1", "evil": "ip-2"}),
        (named(a="ip-1", evil="ip-1"), {}, {"a", "evil"}, {}),
        (named(new="ip-1"), {"old": "ip-1"}, set(), {"new": "ip-1"}),
        (named(new="new", evil="new"), {"evil": "new"}, {"evil"}, {"new": "new", "evil": "evil"}),
        (named(a="ip-1", b="ip-2"), {}, set(), {"a": "ip-1", "b": "ip-2"}),
    ],
    ids=["inventory name", "controller", "record", "keeps record", "both new", "renamed", "earlier claim", "distinct"],
)
def test_a_node_cannot_take_the_host_name_of_another_one(
    layouts: dict[str, Any], recorded: dict[str, str], refused: set[str], entries: dict[str, str]
) -> None:
    """Two lines with one NodeHostname would let a node stand in for another one."""
    made = configured(layouts, {name: entry(hostname=host) for name, host in recorded.items()})

    assert set(made["refused"]) == refused
    assert host_names(made) == entries


def test_the_host_name_of_a_removed_node_is_free_when_its_jobs_have_ended() -> None:
    made = configured(named(new="ip-1"), {"old": entry(hostname="ip-1")}, nodes={"old": {"state": "mixed"}})

    assert set(made["refused"]) == {"new"}
    assert made["waiting"] == ["old"]


@pytest.mark.parametrize(
    ("states", "busy"),
    [
        (["idle", "drained", "down*", "idle*"], set()),
        (["mixed", "allocated", "completing", "draining", "mixed*"], {"0", "1", "2", "3", "4"}),
    ],
)
def test_nodes_with_jobs_are_known_by_their_states(states: list[str], busy: set[str]) -> None:
    assert config.busy_nodes({"nodes": {str(n): {"state": state} for n, state in enumerate(states)}}, []) == busy


@pytest.mark.parametrize(
    ("state", "busy"),
    [
        ({"problem": "Unable to contact slurm controller", "nodes": {}}, {"gpu1", "gpu2"}),
        ({"problem": "", "nodes": {"gpu1": {"state": "idle"}}}, {"gpu2"}),
    ],
)
def test_a_node_whose_jobs_are_unknown_keeps_its_line(state: dict[str, Any], busy: set[str]) -> None:
    """Jobs run on while slurmctld is stopped, and another line would end them when it starts."""
    recorded = {name: entry(hostname=name) for name in ("gpu1", "gpu2")}
    wanted = {name: entry(gpus=[]) for name in recorded}
    hosts = reported(c0={"hostname": "c0", "document": {"nodes": recorded}, **state})
    for name in wanted:
        hosts[name] = {"__slurm_node": {"state": {"layout": {**LAYOUT, "gpus": [], "hostname": name}}}}
    addresses = {"c0": "10.0.0.9", "gpu1": "10.0.0.1", "gpu2": "10.0.0.1"}
    made = config.play_configuration(hosts, ["gpu1", "gpu2"], ["c0"], addresses, SETTINGS)

    assert set(made["waiting"]) == busy
    assert {name for name, one in made["entries"].items() if one["gpus"]} == busy


RECORD = {"controllers": ["c0"], "state_folder": "/var/lib/slurm/slurmctld", "partitions": ["gpu", "debug"]}


@pytest.mark.parametrize(
    ("first", "settings", "busy", "variables"),
    [
        ("c0", {}, ["gpu"], []),
        ("new", {}, [], ["slurm_controller"]),
        ("c0", {"state_folder": "/var/lib/slurm/slurmctld/"}, [], []),
        ("c0", {"state_folder": "/shared"}, [], ["slurm_state_folder"]),
        ("c0", {"partitions": [{"name": "gpu"}]}, ["gpu"], []),
        ("c0", {"partitions": [{"name": "gpu"}]}, ["debug"], ["slurm_partitions"]),
        ("c0", {"partitions": [{"name": "gpu"}]}, None, ["slurm_partitions"]),
    ],
)
def test_a_change_that_loses_the_queue_or_ends_jobs_is_refused(
    first: str, settings: dict[str, Any], busy: list[str] | None, variables: list[str]
) -> None:
    """slurmctld on another node, or with another folder, starts empty; jobs of an unknown partition end."""
    wanted = {**SETTINGS, "partitions": [{"name": "gpu"}, {"name": "debug"}], **settings}
    records = {"c0": {**RECORD, "busy_partitions": busy}, "gpu1": {"controllers": ["c0"]}, "gpu2": {}}
    problems = [*config.record_problems(records, first, wanted)]

    assert [variable for variable, _, _ in problems] == variables
    assert all(remedy for _, _, remedy in problems)


def test_a_controller_records_what_must_not_change() -> None:
    shared = {"settings": {**SETTINGS, "state_folder": "/shared"}, "entries": {"gpu1": entry()}}
    document = config.node_document(shared, "c0", None, is_controller=True, is_node=False)

    assert (document["state_folder"], document["partitions"]) == ("/shared", ["gpu"])
    assert document["accounting"] == "none"
    shared["settings"]["accounting"] = "slurmdbd"
    document = config.node_document(shared, "c0", document, is_controller=True, is_node=False)
    assert document["accounting"] == "slurmdbd"
    assert config.node_document({}, "c0", document, is_controller=True, is_node=False) == document


@pytest.mark.parametrize(
    ("partitions", "problem"),
    [
        ([{"name": "gpu"}], ""),
        ([{"name": "gpu"}, {"name": "a", "nodes": ["gpu1"]}], ""),
        ([{"name": "a", "nodes": ["gpu1", "gpu9"]}, {"name": "gpu"}], "gpu9"),
        ([{"name": "a", "nodes": ["gpu1"]}], "no partition has gpu2"),
        ([], "no partition has gpu1, gpu2"),
        ([{"name": "a", "nodes": "gpu1"}], "not a list"),
    ],
)
def test_partitions_have_known_nodes_and_every_node(partitions: list[dict[str, Any]], problem: str) -> None:
    """Else the line of a partition vanishes silently, or a node never gets a job."""
    texts = [text for _, text in config.membership_problems(partitions, ["gpu1", "gpu2"])]

    assert (problem in texts[0]) if problem else (texts == [])


@pytest.mark.parametrize(
    "changes",
    [{"sockets": 1025}, {"sockets": 64, "cores": 64, "threads": 4}, {"memory": (1 << 26) + 1}],
)
def test_a_report_with_impossible_numbers_enters_no_configuration(changes: dict[str, int]) -> None:
    """slurmctld reserves memory for each CPU of its configuration."""
    with pytest.raises(config.InvalidEntryError):
        entry(**changes)


def test_one_node_with_little_memory_does_not_decide_about_the_memory_of_all_jobs() -> None:
    entries = {"gpu1": entry(), "gpu2": entry(memory=300)}

    assert config.memory_default(entries) == config.memory_default({"gpu1": entry()}) == {"DefMemPerCPU": "1980"}
    assert config.memory_default({"gpu2": entry(memory=300)}) == {"DefMemPerCPU": "256"}
