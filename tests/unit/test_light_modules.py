"""Modules of the roles without Ansible's module library: the same arguments and results, any Python from 3.6 on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError

from tests.support.interpreters import INTERPRETERS, OLDEST, interpreter
from tests.support.light_modules import MODULES, light, run_light
from tests.support.modules import ROLES

# A module that reports its arguments, and the results of the programs that it runs.
REPORTER = """\
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
module.run_command_environ_update = {"REPORTER": "from the module"}
answer = {key: value for key, value in module.params.items() if key not in ("secret", "run", "data")}
answer["check"] = module.check_mode
if module.params["run"]:
    answer["ran"] = module.run_command(module.params["run"], data=module.params["data"], environ_update={"CALL": "1"})
if module.params["secret"]:
    answer["printed"] = {"whole": module.params["secret"], "part": ["x" + module.params["secret"]]}
answer["sh"] = module.get_bin_path("sh") is not None
answer["nothing"] = module.get_bin_path("no-such-program-anywhere")
answer["mode"] = oct(os.stat(module.tmpdir).st_mode)
with open(os.environ["TEMPORARY"], "w") as stream:
    stream.write(module.tmpdir)
if module.params["text"] == "fail":
    module.fail_json(msg="as requested", more=1)
if module.params["text"] == "raise":
    raise ValueError("unexpected")
module.exit_json(changed=False, **answer)
"""


@pytest.fixture
def reporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module above, where the action plugin reads it."""
    path = tmp_path / "reporter.py"
    path.write_text(REPORTER)
    monkeypatch.setitem(light._FOLDERS, "library", (tmp_path,))
    monkeypatch.setenv("TEMPORARY", str(tmp_path / "temporary"))
    return path


def by_ansible(path: Path, arguments: dict[str, Any], *, check: bool = False) -> tuple[int, dict[str, Any]]:
    """Run a module with Ansible's library."""
    given = {**arguments, "_ansible_remote_tmp": str(path.parent), "_ansible_check_mode": check}
    words = [sys.executable, str(path), json.dumps({"ANSIBLE_MODULE_ARGS": given})]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    answer = json.loads(done.stdout)
    answer.pop("invocation", None)
    return done.returncode, answer


CASES: list[dict[str, Any]] = [
    {"text": "x"},
    {"text": 5, "number": "7", "yes": "on", "words": "a,b", "mapping": {"k": [1, None]}, "home": "$HOME/y"},
    {"text": "ü'''\"\"\"\\", "one": "b", "items": [{"name": "n"}, {"name": "m", "mode": 600}]},
    {"text": "x", "run": ["sh", "-c", "cat; echo $REPORTER $CALL; echo wrong >&2; exit 3"], "data": "in"},
    {"text": "x", "run": ["sh", "-c", "printf '\\303\\274'; kill -9 $$"]},
    {"text": "x", "secret": "s3cret-word"},
    {"text": "fail", "secret": "requested"},
]


@pytest.mark.parametrize(("number", "check"), [*((number, False) for number in range(len(CASES))), (0, True)])
def test_a_module_has_the_same_result_without_ansibles_library(reporter: Path, number: int, *, check: bool) -> None:
    """Types, defaults, check mode, programs, secrets and failures; its temporary folder is removed."""
    expected = by_ansible(reporter, CASES[number], check=check)

    assert run_light(OLDEST, light.light_program("reporter", CASES[number]), check=check) == expected
    assert not Path(Path(os.environ["TEMPORARY"]).read_text()).exists()


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
        ({"text": "x", "run": ["/no/such/program"]}, "/no/such/program"),
        ({"text": "raise"}, "ValueError: unexpected"),
    ],
)
@pytest.mark.usefixtures("reporter")
def test_a_refusal_names_its_cause(arguments: dict[str, Any], named: str) -> None:
    """An invalid argument, a missing program or an unexpected error is a failed task with a message."""
    code, answer = run_light(OLDEST, light.light_program("reporter", arguments))

    assert (code, answer["failed"]) == (1, True)
    assert named in answer["msg"]


SECRETS: list[dict[str, Any]] = [
    {"text": "x", "secret": ["hunter2"]},
    {"text": "x", "secret": {"a": "hunter2"}},
    {"text": "raise", "secret": "unexpected"},
]


@pytest.mark.parametrize("arguments", SECRETS)
@pytest.mark.usefixtures("reporter")
def test_a_refused_secret_is_not_printed(arguments: dict[str, Any]) -> None:
    """Neither one of the wrong type, nor one in an unexpected error; the temporary folder is removed."""
    code, answer = run_light(OLDEST, light.light_program("reporter", arguments))
    record = Path(os.environ["TEMPORARY"])

    assert (code, answer["failed"]) == (1, True)
    assert "hunter2" not in json.dumps(answer)
    assert "unexpected" not in answer["msg"]
    assert not record.exists() or not Path(record.read_text()).exists()


@pytest.mark.usefixtures("reporter")
def test_files_of_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    """It is the home folder of the login, and the module runs as root."""
    for name in ("base64", "json", "socket", "typing", "zlib"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working directory')\n")

    assert run_light(OLDEST, light.light_program("reporter", {"text": "x"}), cwd=tmp_path)[0] == 0


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_module_is_sent_without_ansibles_library(path: Path) -> None:
    """Its role has the action plugin, and the module starts under the oldest Python of this machine."""
    plugin = path.parents[1] / "action_plugins" / path.name
    code, answer = run_light(OLDEST, light.light_program(path.stem, {"no_such_argument": 1}))

    assert plugin.read_text() == (ROLES / "platform/action_plugins/platform_files.py").read_text()
    assert code == 1
    assert "Unsupported parameters: no_such_argument" in answer["msg"]


@pytest.mark.parametrize("version", INTERPRETERS)
def test_a_module_changes_a_node_with_any_python(version: str, tmp_path: Path) -> None:
    """Files are written under each Python, and a second run changes nothing."""
    python = interpreter(version)
    state = tmp_path / "state"
    content = f"python {version} ü '''\n"
    program = light.light_program("platform_files", {"files": [{"path": str(tmp_path / "file"), "content": content}]})
    program = changed(program, "/var/lib/provision/", f"{state}/")

    results = [run_light(python, program) for _ in range(2)]

    assert [(code, answer.get("changed")) for code, answer in results] == [(0, True), (0, False)]
    assert (tmp_path / "file").read_text() == content
    assert list(state.glob("origins/files/*.json"))


def changed(program: str, old: str, new: str) -> str:
    """Return a program in which every file has another text in a place of `old`."""
    document = light.decoded(program)
    document["parts"] = [[name, path, text.replace(old, new)] for name, path, text in document["parts"]]
    return light.encoded(document)


def test_an_old_python_is_named() -> None:
    """A node with Python 2 gets a message instead of a traceback."""
    python = sorted((Path.home() / ".pyenv/versions").glob("2.7.*/bin/python"))
    if not python:
        pytest.skip("this machine has no Python 2.7")
    code, answer = run_light(str(python[-1]), light.light_program("platform_node", {}))

    assert code == 1
    assert "is too old (Python 2.7; Python 3.6 is required)" in answer["msg"]


@pytest.mark.parametrize("line", ["from ansible.module_utils.facts import x", "import ansible.module_utils.basic"])
def test_an_import_that_nodes_do_not_get_is_an_error(reporter: Path, line: str) -> None:
    """Before anything is sent, with the file that imports it."""
    reporter.write_text(f"{line}\n")

    with pytest.raises(AnsibleError, match=r"reporter"):
        light.light_program("reporter", {})
