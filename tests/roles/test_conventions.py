"""The conventions of all roles and playbooks (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from provision.components import roles_to_load

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir() and path.name[0] not in "._")
BY_ROLE = pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
SHARED = ("cluster_", "platform_")
OPTIONAL = ("fabric_host",)
"""Roles that only change what a site asks for."""
ANSIBLES_OWN = ("ansible_", "become")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as Ansible reads it: vault and unsafe values are just values here."""


_Loader.add_multi_constructor("!", lambda loader, _suffix, node: loader.construct_scalar(node))


def load(path: Path) -> Any:
    """Return a YAML file's content, an empty dict for a missing or empty one."""
    return (yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader) or {}) if path.exists() else {}  # noqa: S506


def specs(role: Path) -> dict[str, Any]:
    """Return the variables that a role's argument_specs describe."""
    documented: dict[str, Any] = load(role / "meta" / "argument_specs.yml")["argument_specs"]["main"].get("options", {})
    return documented


def task_files(role: Path) -> list[Path]:
    """Return a role's files of tasks and handlers."""
    return sorted([*role.glob("tasks/**/*.yml"), *role.glob("handlers/*.yml")])


def tasks(items: Any) -> Iterator[dict[str, Any]]:
    """Yield every task of a list of tasks, those inside blocks too."""
    for item in items or []:
        yield item
        for part in ("block", "rescue", "always"):
            yield from tasks(item.get(part))


@BY_ROLE
def test_name_is_a_noun_in_snake_case(role: Path) -> None:
    """A role's name is lower case words joined by underscores, so that its variables can begin with it."""
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", role.name)


@BY_ROLE
def test_each_role_has_all_required_files(role: Path) -> None:
    """Each role has its entry, defaults, specification, README and scenario."""
    needed = [
        "tasks/main.yml",
        "defaults/main.yml",
        "meta/main.yml",
        "meta/argument_specs.yml",
        "README.md",
        "molecule/default/molecule.yml",
        "molecule/default/tasks/verify.yml",
    ]

    assert [name for name in needed if not (role / name).is_file()] == []


@BY_ROLE
def test_every_variable_has_a_specification_and_a_default(role: Path) -> None:
    """The default is in defaults/main.yml alone."""
    described = specs(role)

    assert described.keys() == load(role / "defaults" / "main.yml").keys()
    assert [name for name, option in described.items() if "default" in option] == []


@BY_ROLE
def test_every_variable_is_described(role: Path) -> None:
    """A user finds type and meaning of every variable."""
    missing = [name for name, option in specs(role).items() if not option.get("description") or not option.get("type")]

    assert missing == []


@BY_ROLE
def test_variables_carry_the_role_prefix(role: Path) -> None:
    """Public names begin with the name of the role, constants with _role, registered variables with __role."""
    prefixes = (f"{role.name}_", *(SHARED if role.name == "platform" else ()))
    inner = [name for path in role.glob("vars/*.yml") for name in load(path)]

    assert [name for name in load(role / "defaults" / "main.yml") if not name.startswith(prefixes)] == []
    assert [name for name in inner if not name.startswith((f"_{role.name}_", f"__{role.name}_"))] == []


@BY_ROLE
def test_variables_contain_no_loops(role: Path) -> None:
    """A value that requires a loop is a filter, which has tests."""
    programs = [
        path.name for path in role.glob("vars/*.yml") if re.search(r"{%-? *(set|for) ", path.read_text("utf-8"))
    ]

    assert programs == []


@BY_ROLE
def test_each_role_can_be_disabled(role: Path) -> None:
    """Each role has a boolean ROLE_enabled that is true by default; optional roles are disabled."""
    assert load(role / "defaults" / "main.yml").get(f"{role.name}_enabled") is (role.name not in OPTIONAL)


@BY_ROLE
def test_task_files_are_short(role: Path) -> None:
    """main.yml only includes other files (60 lines); every other file of tasks has at most 80."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in task_files(role)}

    assert {str(path): n for path, n in lengths.items() if n > (60 if path.name == "main.yml" else 80)} == {}


@BY_ROLE
def test_every_assert_has_a_message(role: Path) -> None:
    """A failing precondition comes with a sentence."""
    asserts = [task for path in task_files(role) for task in tasks(load(path)) if "ansible.builtin.assert" in task]

    assert [task["name"] for task in asserts if not task["ansible.builtin.assert"].get("fail_msg")] == []


@BY_ROLE
def test_only_the_role_platform_depends_on_the_operating_system(role: Path) -> None:
    """Only the role platform depends on the distribution."""
    words = re.compile(r"os_family|distribution|ansible_lsb|pkg_mgr")
    public = f"{role.name}_source"  # "distribution" is a value of docker_engine_source
    matches = [
        f"{path.name}: {line.strip()}"
        for path in [*task_files(role), *role.glob("vars/*.yml"), *role.glob("templates/*")]
        for line in path.read_text(encoding="utf-8").splitlines()
        if words.search(line) and public not in line
    ]

    assert role.name == "platform" or matches == []
    assert "platforms" not in load(role / "meta" / "main.yml")["galaxy_info"]


PACKAGE_PROGRAMS = {"apt", "apt-get", "apt-mark", "apt-cache", "dpkg", "dpkg-query", "dnf", "yum", "rpm"}
MANAGERS = "platform_package_*.py", "platform_managed.py"
"""The package managers, and what the probe reads of them."""


def test_only_the_package_managers_of_platform_name_one() -> None:
    """Modules, tasks and filters use the interface; the file of a system names its package manager."""
    paths = [
        path for part in ("library", "module_utils", "filter_plugins") for path in ROOT.glob(f"roles/*/{part}/*.py")
    ]
    sources = [path for path in paths if not any(path.match(pattern) for pattern in MANAGERS)]
    names = {
        str(path): {
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and node.value in PACKAGE_PROGRAMS
        }
        for path in sources
    }
    words = re.compile(rf"\b({'|'.join(PACKAGE_PROGRAMS)})\b(?!-)")
    for path in [file for role in ROLES for file in task_files(role)]:
        names[str(path)] = set(words.findall(path.read_text(encoding="utf-8")))

    assert {path: sorted(own) for path, own in names.items() if own} == {}


@BY_ROLE
def test_each_role_writes_a_receipt(role: Path) -> None:
    """Each role ends with its receipt."""
    text = (role / "tasks" / "main.yml").read_text(encoding="utf-8")

    assert f"platform_receipt_role: {role.name}" in text


def test_distribution_files_have_the_same_keys() -> None:
    """The files of all distributions have the same keys."""
    files = sorted((ROOT / "roles" / "platform" / "vars").glob("*_*.yml"))
    keys = {path.name: sorted(load(path)) for path in files}
    roles = {path.name: sorted(load(path)["__platform_package_sets"]) for path in files}

    assert len(files) >= 2
    assert len({str(value) for value in keys.values()}) == 1, keys
    assert len({str(value) for value in roles.values()}) == 1, roles
    assert set(next(iter(roles.values()))) <= {role.name for role in ROLES}


def test_every_variable_of_the_inventories_is_known() -> None:
    """The test finds a misspelt variable in an inventory of the repository, which Ansible would ignore."""
    known = {name for role in ROLES for name in specs(role)}
    prefixes = (*SHARED, *(f"{role.name}_" for role in ROLES))
    used: set[str] = set()
    for path in sorted((ROOT / "inventories").glob("*/**/*.yml")):
        used |= set(_names(load(path)))

    assert sorted(name for name in used if name.startswith(prefixes) and name not in known) == []
    assert used


def _names(value: Any) -> Iterator[str]:
    """Yield every key at any depth that can be a variable."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield str(key)
            yield from _names(below)


def test_playbooks_have_no_tasks() -> None:
    """A playbook only lists hosts and roles in their order; the end of a play is part of a role too."""
    plays = [play for path in sorted((ROOT / "playbooks").glob("*.yml")) for play in load(path)]

    assert [play["name"] for play in plays if set(play) & {"tasks", "pre_tasks", "handlers"}] == []
    last = [task for play in plays for task in play.get("post_tasks", [])]
    assert [set(task) for task in last] == [{"name", "ansible.builtin.import_role", "tags"}] * len(last)
    assert plays


def test_site_only_imports_the_stages() -> None:
    """site.yml is the order of the stages and nothing else."""
    assert all(set(play) == {"name", "import_playbook"} for play in load(ROOT / "playbooks" / "site.yml"))


def test_every_role_is_in_one_stage_with_its_tag_and_switch() -> None:
    """Each role runs in one stage, under its own tag, if enabled and not skipped; platform runs once in each stage."""
    stages = [play for name in ("nodes", "containers") for play in load(ROOT / "playbooks" / f"{name}.yml")]
    entries = [entry for play in stages for entry in play["roles"]]
    others = [entry for entry in entries if entry["role"] != "platform"]

    assert sorted(entry["role"] for entry in others) == sorted(role.name for role in ROLES if role.name != "platform")
    assert all(entry["tags"] == [entry["role"]] for entry in others)
    assert [play["roles"][0] for play in stages] == [{"role": "platform"}] * len(stages)
    conditions = {
        entry["role"]: f"{entry['role']}_enabled | bool and '{entry['role']}' not in __platform_left_out"
        for entry in others
    }
    assert {entry["role"]: entry["when"] for entry in others} == conditions


@BY_ROLE
def test_a_role_uses_variables_only_of_roles_that_run_with_it(role: Path) -> None:
    """A run loads the planned roles and those in `after`; variables of other roles would be undefined in it."""
    others = "|".join(sorted(other.name for other in ROLES if other.name not in {role.name, "platform"}))
    word = re.compile(rf"\b_{{0,2}}({others})_\w+\b(?![^|}}]*\| default)")
    texts = [path.read_text(encoding="utf-8") for part in ("tasks", "templates", "vars", "defaults", "handlers")
             for path in (role / part).glob("*")] if role.name != "platform" else []  # fmt: skip
    used = {
        match[1]
        for text in texts
        for value in re.findall(r"{{.*?}}", text, re.DOTALL)
        for match in word.finditer(value)
    }

    assert used <= roles_to_load([role.name])


CONDITIONS = ("when", "that", "until", "failed_when", "changed_when")


def expressions(value: Any, *, condition: bool = False) -> Iterator[str]:
    """Yield the expressions of a YAML document, each as a template."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from expressions(below, condition=key in CONDITIONS)
    elif isinstance(value, list):
        for below in value:
            yield from expressions(below, condition=condition)
    elif isinstance(value, str) and ("{{" in value or "{%" in value):
        yield value
    elif isinstance(value, str) and condition:
        yield "{{ (" + value + ") }}"


def unguarded(template: str, variables: set[str], *, filters: set[str]) -> list[str]:
    """Return those of `variables` that a template decides by without one of `filters`; printing one is no decision."""
    if not any(name in template for name in variables):
        return []
    tree = jinja2.Environment(extensions=["jinja2.ext.do"], autoescape=False).parse(template)  # noqa: S701
    safe: set[int] = set()
    for node in tree.find_all((jinja2.nodes.Filter, jinja2.nodes.Output, jinja2.nodes.Concat)):
        if isinstance(node, jinja2.nodes.Filter):
            safe |= {id(node.node)} if node.name in filters else set()
        elif "bool" not in filters:
            safe |= {id(below) for below in node.nodes}  # type: ignore[attr-defined]
    return [name.name for name in tree.find_all(jinja2.nodes.Name) if name.name in variables and id(name) not in safe]


@pytest.mark.filterwarnings("ignore:invalid escape:DeprecationWarning")
@pytest.mark.parametrize(("kind", "filters"), [("bool", {"bool"}), ("int", {"int", "string"})])
def test_booleans_and_numbers_are_converted_where_they_are_used(kind: str, filters: set[str]) -> None:
    """An inventory in INI form gives strings: `no` would count as true, and "8" as no number."""
    variables = {name for role in ROLES for name, option in specs(role).items() if option["type"] == kind}
    folders = [path for role in ROLES for part in ("tasks", "handlers", "vars") for path in role.glob(f"{part}/*.yml")]
    used = {path: list(expressions(load(path))) for path in [*folders, *(ROOT / "playbooks").glob("*.yml")]}
    used |= {path: [path.read_text("utf-8")] for role in ROLES for path in role.glob("templates/*.j2")}

    matches = {str(path): unguarded(text, variables, filters=filters) for path, texts in used.items() for text in texts}

    assert {path: names for path, names in matches.items() if names} == {}


@pytest.mark.parametrize("path", sorted((ROOT / "roles").glob("*/library/*.py")), ids=lambda path: path.stem)
def test_the_documentation_of_a_module_can_be_read(path: Path) -> None:
    """`ansible-doc` shows it; an unquoted comma or colon in a description would break it."""
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    texts = [ast.literal_eval(item.value) for item in statements if isinstance(item, ast.Assign)
             and isinstance(item.targets[0], ast.Name) and item.targets[0].id == "DOCUMENTATION"]  # fmt: skip
    documentation = yaml.safe_load(texts[0])
    keys = {"description", "type", "required", "default", "choices", "elements", "suboptions"}
    options = dict(documentation["options"])
    for option in documentation["options"].values():
        options |= option.get("suboptions", {})

    assert all(isinstance(line, str) for line in documentation["description"])
    assert {name: set(option) - keys for name, option in options.items() if set(option) - keys} == {}


WITHOUT_PYTHON = (
    "assert", "debug", "fail", "import_role", "import_tasks", "include_role", "include_tasks", "include_vars", "meta",
    "script", "set_fact",
)  # fmt: skip
"""Ansible's own actions that need no Python on nodes; `script` copies a file and runs a command."""


@BY_ROLE
def test_tasks_on_nodes_use_modules_of_these_roles(role: Path) -> None:
    """Ansible's modules, whose names have dots, need a newer Python than nodes may have (roles/README.md)."""
    items = [task for path in task_files(role) for task in tasks(load(path)) if task.get("delegate_to") != "localhost"]
    others = {action for task in items for action in task if "." in action}

    assert others - {f"ansible.builtin.{name}" for name in WITHOUT_PYTHON} == set()


def test_module_parameters_are_not_logged_on_nodes() -> None:
    """Parameters of modules can be passwords, so nodes do not log them."""
    config = configparser.ConfigParser()
    config.read(ROOT / "playbooks" / "ansible.cfg")

    assert config.getboolean("defaults", "no_target_syslog") is True


def test_host_key_checking_is_never_disabled() -> None:
    """Neither roles nor playbooks nor the command nor the tests' own connections turn host-key checking off."""
    loose = re.compile(
        r"StrictHostKeyChecking[ =](no|off|accept-new)|UserKnownHostsFile[ =]/dev/null|host_key_checking\W+false",
        re.IGNORECASE,
    )
    folders = [ROOT / name for name in ("roles", "playbooks", "provision", "inventories", "tests/molecule")]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    matches = [str(path) for path in files if loose.search(path.read_text(encoding="utf-8", errors="replace"))]

    assert matches == []
