"""Modules sent without Ansible's own module library: they get and say what they would with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible.plugins.loader import module_utils_loader

from tests.support.modules import ROLES, load

ON_THE_CONTROLLER = {"peer_memory_source"}
MODULES = sorted(path for path in ROLES.glob("*/library/*.py") if path.stem not in ON_THE_CONTROLLER)

# A module that says what it was given, and what the programs that it runs said.
PROBE = """\
import os
from ansible.module_utils.basic import AnsibleModule
SPEC = {
    "text": {"type": "str", "required": True},
    "number": {"type": "int", "default": 3},
    "yes": {"type": "bool", "default": False},
    "words": {"type": "list", "elements": "str", "default": []},
    "mapping": {"type": "dict", "default": {}},
    "home": {"type": "path", "default": "~/x"},
    "one": {"type": "str", "choices": ["a", "b"]},
    "secret": {"type": "str", "no_log": True},
    "items": {"type": "list", "elements": "dict", "options": {
        "name": {"type": "str", "required": True}, "mode": {"type": "str", "default": "0644"}}},
    "run": {"type": "list", "elements": "str"},
    "data": {"type": "str"},
}
module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
module.run_command_environ_update = {"PROBE": "from the module"}
answer = {key: value for key, value in module.params.items() if key not in ("secret", "run", "data")}
answer["check"] = module.check_mode
if module.params["run"]:
    answer["ran"] = module.run_command(module.params["run"], data=module.params["data"], environ_update={"CALL": "1"})
if module.params["secret"]:
    answer["told"] = {"whole": module.params["secret"], "part": ["x" + module.params["secret"]]}
answer["sh"] = module.get_bin_path("sh") is not None
answer["nothing"] = module.get_bin_path("no-such-program-anywhere")
answer["mode"] = oct(os.stat(module.tmpdir).st_mode)
with open(os.environ["SEEN"], "w") as stream:
    stream.write(module.tmpdir)
if module.params["text"] == "fail":
    module.fail_json(msg="it was asked to", more=1)
module.exit_json(changed=False, **answer)
"""


@pytest.fixture(scope="module")
def light() -> ModuleType:
    """The action plugin, as Python."""
    for folder in ROLES.glob("*/module_utils"):
        module_utils_loader.add_directory(str(folder))
    return load("platform", "platform_light", part="action_plugins")


def answers(light: ModuleType, folder: Path, arguments: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return exit status and answer of the module, as Ansible runs it by itself and as the nodes get it."""
    path = folder / "probe.py"
    path.write_text(PROBE)
    found = []
    given = {"_ansible_remote_tmp": str(folder), **arguments}
    whole = [sys.executable, str(path), json.dumps({"ANSIBLE_MODULE_ARGS": given})]
    for command, program in ((whole, ""), ([sys.executable], light.light_program(str(path), json.dumps(given)))):
        done = subprocess.run(
            command,
            input=program,
            env={**os.environ, "SEEN": str(folder / "seen")},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        answer = json.loads(done.stdout or json.dumps({"stderr": done.stderr}))
        answer.pop("invocation", None)
        if (folder / "seen").exists():
            assert not Path((folder / "seen").read_text()).exists(), "a module's temporary folder is left behind"
        found.append((done.returncode, answer))
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "x"},
        {"text": 5, "number": "7", "yes": "on", "words": "a, b", "mapping": {"k": [1, None]}, "home": "$HOME/y"},
        {"text": "ü", "one": "b", "items": [{"name": "n"}, {"name": "m", "mode": 600}], "_ansible_check_mode": True},
        {"text": "x", "run": ["sh", "-c", "cat; echo $PROBE $CALL; echo wrong >&2; exit 3"], "data": "in"},
        {"text": "x", "run": ["sh", "-c", "printf '\\303\\274'; kill -9 $$"]},
        {"text": "x", "secret": "s3cret-word"},
        {"text": "fail", "secret": "asked"},
    ],
)
def test_a_module_gets_and_says_the_same_without_ansibles_library(
    light: ModuleType, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    """Types, defaults, check mode, programs, secrets and failures: one answer either way."""
    whole, sent = answers(light, tmp_path, arguments)

    assert sent == whole
    assert "stderr" not in sent[1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "text"),
        ({"text": "x", "txt": "y"}, "txt"),
        ({"text": "x", "number": "many"}, "number"),
        ({"text": "x", "yes": "perhaps"}, "yes"),
        ({"text": "x", "mapping": ["a"]}, "mapping"),
        ({"text": "x", "one": "c"}, "one"),
        ({"text": "x", "items": [{"mode": "0600"}]}, "name"),
    ],
)
def test_what_a_module_refuses_is_refused_by_name(
    light: ModuleType, tmp_path: Path, arguments: dict[str, Any], named: str
) -> None:
    """An argument that Ansible would refuse is refused, and the sentence names it as Ansible's does."""
    for code, answer in answers(light, tmp_path, arguments):
        assert (code, answer["failed"]) == (1, True)
        assert named in answer["msg"]


def test_a_program_that_is_missing_is_named(light: ModuleType, tmp_path: Path) -> None:
    """A module that runs a program which is not there fails with its name."""
    _, (code, answer) = answers(light, tmp_path, {"text": "x", "run": ["/no/such/program"]})

    assert (code, answer["failed"], answer["rc"]) == (1, True, 2)
    assert "/no/such/program" in answer["msg"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_module_of_ours_is_sent_light(light: ModuleType, path: Path) -> None:
    """Its role says so, and all that it imports can be sent; a module that needs more would cost seconds a task."""
    assert (path.parents[1] / "action_plugins" / path.name).is_file()
    program = light.light_program(str(path), "{}")
    compile(program, str(path), "exec")
    assert len(program) < 110_000


def test_a_module_that_needs_more_is_refused_before_anything_is_sent(light: ModuleType, tmp_path: Path) -> None:
    """What Ansible's library has and ours has not is named, with the file that imports it."""
    path = tmp_path / "needy.py"
    path.write_text("from ansible.module_utils.facts.system import distribution\n")

    with pytest.raises(AnsibleError, match=r"needy\.py imports ansible\.module_utils\.facts"):
        light.light_program(str(path), "{}")
