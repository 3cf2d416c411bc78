"""The first steps on fresh GPU nodes, by somebody who has docs/how-to/set-up-nodes.md and ``--help``: init to run.

The nodes are those of a lab, without the inventory that the lab writes: the NVIDIA repository is a mirror with a key
of its own, and the image lies in a registry with the site's CA.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import ENGINES
from tests.support.command import ROOT, Done, Provision, with_own_state
from tests.support.engine import engine_host

LAB = f"first{os.getpid()}"
STEPS = (ROOT / "docs/how-to/set-up-nodes.md").read_text(encoding="utf-8")
OTHER_KEY = ROOT / "provision/commands/files/nvidia-container-toolkit.asc"
STATE = (
    "dpkg-query -W -f '${Package} ${Version}\\n' | sha256sum; "
    "find /etc /usr/local /var/lib/provision /root -xdev -type f -printf '%p %s %m\\n' 2>/dev/null | sort | sha256sum; "
    "ls /var/tmp /var/lib/apt/lists | sort"
)
"""What an apply would change on a node."""
SLOW = pytest.mark.slow
RECEIPTS = (
    "import glob, json; paths = glob.glob('/var/lib/provision/receipts/*.json'); "
    "print(json.dumps({path: json.load(open(path)) for path in paths}))"
)


def command(verb: str) -> list[str]:
    """Return the words of the first command of this verb on the page for new users."""
    line = re.search(rf"^(provision {verb}\b.*)$", STEPS, re.MULTILINE)
    assert line, f"the page has no command: provision {verb}"
    return shlex.split(line[1])[1:]


class Site:
    """Fresh nodes, and what an operator knows of them."""

    def __init__(self, provision: Provision, status: dict) -> None:
        self.provision, self.nodes = provision, [node["name"] for node in status["nodes"]]
        words = status["init"]
        self.hosts = [word for word in words[2:] if "=" in word and not word.startswith("-")]
        options = words[2 + len(self.hosts) :]
        self.options = dict(zip(options[::2], options[1::2], strict=True))
        lab = yaml.safe_load(Path(status["inventory"]).read_text(encoding="utf-8"))
        self.data_network = lab["all"]["children"]["gpu_nodes"]["vars"]["cluster_data_networks"][0]

    def init(self, *more: str, without: tuple[str, ...] = ()) -> list[str]:
        """Return the page's command with this site's names in the place of the page's."""
        words = command("init")
        place = words.index("gpu[1-8]")
        words[place : place + 1] = self.hosts
        for option, value in (("--data-network", self.data_network), ("--image", self.options["--image"])):
            words[words.index(option) + 1] = value
        for option in without:
            at = words.index(option)
            del words[at : at + 2]
        return [*words, "--key", self.options["--key"], *more]

    def on_node(self, script: str, node: int = 0) -> str:
        """Run a script on a node."""
        return self.provision.ok("lab", "ssh", LAB, self.nodes[node], "--", script).out


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Two fresh nodes that look like a DGX-1V (SIMULATED), and a folder of their own for inventories."""
    with with_own_state() as provision:
        try:
            provision.ok("lab", "up", LAB, "--driver", "container", "--nodes", "2", "--machine", "dgx1v")
            ENGINES.add(engine_host(provision.folder / "state/provision/labs" / LAB))
            yield Site(provision, provision.ok("lab", "status", LAB, "--json").document)
        finally:
            provision("lab", "down", LAB)


def on_terminal(provision: Provision, words: list[str], answers: list[tuple[str, str]]) -> Done:
    """Run a command on a terminal and answer its questions, each when it is asked."""
    parent, child = pty.openpty()
    process = subprocess.Popen(
        provision.argv(*words),
        cwd=provision.folder,
        env=provision.environment,
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
    )
    os.close(child)
    seen, said, end = "", 0, time.monotonic() + 120
    while time.monotonic() < end:
        if select.select([parent], [], [], 1)[0]:
            try:
                seen += os.read(parent, 65536).decode(errors="replace")
            except OSError:
                break
        if answers and answers[0][0] in seen[said:]:
            said = len(seen)
            os.write(parent, f"{answers.pop(0)[1]}\n".encode())
    os.close(parent)
    assert answers == [], f"not asked: {answers}\n{seen}"
    return Done(process.wait(), seen, "")


def inventory(site: Site, name: str) -> Path:
    """Return where the variables of an inventory are."""
    return site.provision.folder / "inventories" / name / "group_vars/all.yml"


def with_variables(site: Site, name: str, **variables: object) -> None:
    """Edit an inventory as its operator would; None removes a variable."""
    file = inventory(site, name)
    known = yaml.safe_load(file.read_text(encoding="utf-8")) | variables
    file.write_text(yaml.safe_dump({key: value for key, value in known.items() if value is not None}))


def mirror(site: Site) -> list[str]:
    """Return the options for the site's mirror of NVIDIA's repository, and the registry's CA."""
    names = ("--nvidia-repository", "--nvidia-key", "--registry-ca", "--known-hosts")
    return [word for name in names for word in (name, site.options[name])]


def codes(document: dict) -> set[tuple[str, str]]:
    """Return code and object of each problem."""
    return {(problem["code"], problem["object"]) for problem in document["problems"]}


def test_init_refuses_unapproved_keys_and_unexpected_fingerprints(site):
    """Nothing is written then."""
    plain = site.provision(*site.init("--name", "wrong", *mirror(site)))
    other = site.provision(*site.init("--name", "wrong", *mirror(site), "--nvidia-fingerprint", "0" * 40, "--yes"))

    assert (plain.code, other.code) == (2, 2), f"{plain}\n{other}"
    assert "--nvidia-fingerprint" in plain.err
    assert "fingerprint is" in other.err
    assert not (site.provision.folder / "inventories/wrong").exists()


@pytest.mark.slow
def test_plan_reports_a_missing_image_and_apply_stops_before_the_first_change(site):
    """An inventory that init wrote without an image says TODO; docker is not installed first and missed later."""
    site.provision.ok(*site.init("--name", "bare", *mirror(site)[:4], *mirror(site)[6:], "--yes", without=("--image",)))
    before = site.on_node(STATE)
    plan = site.provision("plan", "-i", "inventories/bare", "--json")
    apply = site.provision("apply", "-i", "inventories/bare", "--yes", "--json")

    assert "TODO" in inventory(site, "bare").read_text(encoding="utf-8")
    assert (plan.code, apply.code) == (1, 1), f"{plan}\n{apply}"
    assert ("variable.missing", "training_image_reference") in codes(plan.document)
    assert codes(apply.document) == codes(plan.document)
    assert {node["status"] for node in apply.document["nodes"]} == {"failed"}
    assert site.on_node(STATE) == before


def test_apply_reports_all_preflight_problems_together_and_changes_nothing(site):
    """Each with a remedy: repository, registry, packages, Jinja."""
    site.provision.ok(*site.init("--name", "broken", *mirror(site), "--yes"))
    with_variables(
        site,
        "broken",
        docker_engine_log_max_size="{{ log_size_of_the_site }}",
        training_image_reference="127.0.0.1:9/team/train:1",
        platform_package_sets={"base_system": ["iproute2", "no-such-package-anywhere"]},
    )
    before = site.on_node(STATE)
    apply = site.provision("apply", "-i", "inventories/broken", "--yes")
    plan = site.provision("plan", "-i", "inventories/broken", "--json")

    assert codes(plan.document) == {
        ("variable.template", "docker_engine_log_max_size"),
        ("registry.unreachable", "127.0.0.1:9/team/train:1"),
        ("package.missing", "no-such-package-anywhere"),
    }
    assert all(problem["remedy"] and problem["nodes"] == site.nodes for problem in plan.document["problems"])
    assert apply.code == 1
    for word in (
        "log_size_of_the_site",
        "group_vars/all.yml:",
        "127.0.0.1:9",
        "no-such-package-anywhere",
        "Nothing was changed",
    ):
        assert word in apply.out, apply
    assert site.on_node(STATE) == before


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"nvidia_container_repository_key": OTHER_KEY.read_text(encoding="ascii")}, "repository.invalid"),
        pytest.param({"nvidia_container_repository_uri": "http://127.0.0.1:9/x"}, "repository.unreachable", marks=SLOW),
        pytest.param({"nvidia_container_repository_uri": None}, "package.missing", marks=SLOW),
        pytest.param({"nvidia_container_repository_key": None}, "variable.missing", marks=SLOW),
    ],
)  # fmt: skip
def test_an_unusable_repository_is_reported(site, changes, code):
    """Unreachable, signed with another key, not configured at all, without a key."""
    name = f"repository-{code.replace('.', '-')}"
    site.provision.ok(*site.init("--name", name, *mirror(site), "--yes"))
    with_variables(site, name, **changes)
    plan = site.provision("plan", "-i", f"inventories/{name}", "--limit", site.nodes[0], "--json")

    assert plan.code == 1, plan
    assert {(problem["code"], problem["role"]) for problem in plan.document["problems"]} == {(code, "nvidia_container")}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"training_image_reference": "{registry}/no/such:1"}, "image.missing"),
        pytest.param({"training_image_digest": "sha256:" + "0" * 64}, "image.missing", marks=SLOW),
        ({"docker_engine_registry_ca": None}, "registry.untrusted"),
    ],
)
def test_an_unavailable_image_is_reported(site, changes, code):
    """Not in the registry, not with this digest, or the registry is not trusted."""
    name = f"image-{len(json.dumps(changes))}"
    site.provision.ok(*site.init("--name", name, *mirror(site), "--yes"))
    registry = site.options["--image"].partition("/")[0]
    filled = {key: value.format(registry=registry) if value else value for key, value in changes.items()}
    with_variables(site, name, **filled)
    plan = site.provision("plan", "-i", f"inventories/{name}", "--limit", site.nodes[0], "--json")

    assert plan.code == 1, plan
    assert {(problem["code"], problem["role"]) for problem in plan.document["problems"]} == {(code, "training_image")}


def test_the_steps_of_the_page_lead_from_bare_nodes_to_a_job(site):
    """Init on a terminal with its questions; then plan, apply, verify and run, exactly as on the page."""
    words = site.init("--registry-ca", site.options["--registry-ca"], without=("--image",))
    init = on_terminal(
        site.provision,
        words,
        [
            ("Training image", "https://not-an-image"),
            ("Training image", site.options["--image"]),
            ("URL (Enter: NVIDIA's", site.options["--nvidia-repository"]),
            ("signing key", "/no/such/file"),
            ("signing key", site.options["--nvidia-key"]),
            ("publish this fingerprint?", "y"),
            ("Trust these 2 new keys?", "y"),
        ],
    )
    assert init.code == 0, init

    # The second node has the repository already, as images of cloud vendors do: apt refuses it with a second key.
    key = Path(site.options["--nvidia-key"]).read_text(encoding="ascii")
    source = f"deb [signed-by=/usr/share/keyrings/nvidia.asc] {site.options['--nvidia-repository']} /"
    site.on_node(f"echo {shlex.quote(key)} >/usr/share/keyrings/nvidia.asc", node=1)
    site.on_node(f"echo {shlex.quote(source)} >/etc/apt/sources.list.d/nvidia-container-toolkit.list", node=1)

    plan = site.provision(*command("plan"), "--json")
    assert plan.code == 0, plan
    assert plan.document["problems"] == []
    steps = {step["role"]: step for step in plan.document["nodes"][0]["steps"]}
    planned = {package["name"]: package["version"] for step in steps.values() for package in step["packages"]}
    assert planned.keys() >= {"docker.io", "nvidia-container-toolkit"}
    assert None not in planned.values()
    text = site.provision.ok(*command("plan")).out
    assert f"nvidia-container-toolkit {planned['nvidia-container-toolkit']}" in text
    assert "/etc/docker/daemon.json" in text
    assert max(map(len, text.splitlines())) <= 80

    apply = site.provision(*command("apply"), "--yes", "--json")
    assert apply.code == 0, apply
    receipts = json.loads(site.on_node(f"python3 -c {shlex.quote(RECEIPTS)}"))
    for path, receipt in receipts.items():
        role = Path(path).stem
        written = set(receipt.get("files") or {}) - {"/var/lib/provision"}
        assert written <= {*steps[role]["files"], *steps["nvidia_container"]["files"]}, role
        versions = {name: version for name, version in (receipt.get("packages") or {}).items() if name in planned}
        assert versions == {name: planned[name] for name in versions}, role

    again = site.provision(*command("plan"), "--exit-code")
    assert again.code == 0, again
    assert site.provision.ok(*command("verify"), "--json").document["ok"]
    run = command("run")
    job = site.provision(*run[: run.index("--") + 1], "provision-smoke")
    assert job.code == 0, job
