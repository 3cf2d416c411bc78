"""Action plugin: run a module of these roles on nodes whose Python is older than Ansible's module library requires.

Ansible packs a module with its own library, which needs the Python versions of one Ansible release, and which a node
compiles anew for each task. This plugin sends the module, and what it imports of these roles, as the arguments of the
module `platform_light`, which Ansible runs by its interface for modules without its library (JSON arguments). The part
of the library that the modules use is `platform_light_basic`. Without this plugin, they are ordinary modules.

Each module of the roles has a file of its name in `action_plugins`; a test names one that lacks it.

A change that can cut off the operator (a task with `rescue_seconds` other than 0) is reverted by the node unless it is confirmed over
a new connection. This plugin confirms it.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.vars import merge_hash

_RUNNER = "platform_light"
_BASIC = "ansible.module_utils.basic"
_SSH = ("ssh", "paramiko", "paramiko_ssh", "smart")
"""Connections that can be cut and made again."""
_PAUSE_SECONDS, _GRACE_SECONDS, _CHANGE_SECONDS = 1, 60, 600
"""Between two tries; after the limit; for the change itself (`GUARD_SECONDS` of `platform_rescue`), after which the limit starts."""
_RESULT = ("boot", "changed", "decided", "diff", "files", "left_out")
"""What modules with `rescue_seconds` return. Ansible acts on other keys of a result (`add_host`, `ansible_facts`)."""
_PROBLEMS = {
    "absent": "the node has no record of the change, which is neither confirmed nor reverted",
    "pending": "the node did not complete the change in time; it reverts it",
    "same_connection": "the node got no new connection in time; it reverts it",
}
"""State of a change that was not confirmed -> what the task reports."""
_HERE = Path(__file__).resolve().parent
_FOLDERS = {
    "library": (*sorted(_HERE.parents[1].glob("*/library")), _HERE.parent / "modules"),
    "module_utils": (*sorted(_HERE.parents[1].glob("*/module_utils")), _HERE.parent / "module_utils"),
}
"""Part of a role -> its folders in a checkout, and the folder in a collection."""
_IMPORT = re.compile(
    r"^ *(?:from ([\w.]+\.module_utils)(?:\.([\w.]+))? import (.*)|import ansible[._].*)$", re.MULTILINE
)


class ActionModule(ActionBase):
    """Run the module that the task names."""

    def run(self, tmp=None, task_vars=None):
        """Return the result of the module."""
        result = super().run(tmp, task_vars)

        def run(name, arguments):
            program = light_program(name, arguments)
            return self._execute_module(module_name=_RUNNER, module_args={"program": program}, task_vars=task_vars)

        name, arguments = self._task.action.rpartition(".")[2], dict(self._task.args)
        if "rescue_seconds" not in arguments:
            return merge_hash(result, run(name, arguments))
        return merge_hash(result, confirmed(run, self._connection, name, arguments))


def confirmed(
    run: Callable[[str, dict[str, Any]], dict[str, Any]], connection: Any, name: str, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Run a module whose change the node reverts unless it is confirmed over a new connection; return the result.

    The change may cut the connection on which the module runs. Then the node decides: it has no change, it has one that
    is confirmed now, or it has reverted it.

    Raises:
        AnsibleConnectionFailure: the node did not answer, also not after the time at which it reverts the change.
    """
    token, seconds = secrets.token_hex(16), int(arguments["rescue_seconds"])
    if seconds == 0:
        return run(name, arguments)
    lost: AnsibleConnectionFailure | None = None
    try:
        answer = run(name, {**arguments, "rescue_token": token})
    except AnsibleConnectionFailure as error:
        answer, lost = {}, error
    if lost is None and answer.get("rescue") != "armed":
        return answer
    is_ssh = getattr(connection, "transport", "") in _SSH
    start = time.monotonic()
    end = start + seconds + _GRACE_SECONDS
    while True:
        try:
            if is_ssh:
                connection.reset()
            reply = run("platform_rescue", {"token": token, "fresh": is_ssh})
        except AnsibleConnectionFailure as error:
            reply, lost = {"state": "unreachable"}, error
        state = reply.get("state")
        if state == "pending":  # the limit has not started
            end = min(time.monotonic(), start + _CHANGE_SECONDS) + seconds + _GRACE_SECONDS
        if reply.get("failed"):
            return reply
        if state == "confirmed":
            own = reply.get("result")  # from the node, which may answer anything
            own = {key: own[key] for key in _RESULT if key in own} if isinstance(own, dict) else {}
            answer = {**answer, **own}
            return {key: value for key, value in answer.items() if key != "rescue"}
        if state == "absent" or time.monotonic() >= end:
            if state in ("absent", "unreachable") and lost is not None:
                raise lost
            problem = _PROBLEMS.get(str(state), "the node gave no valid answer about the change; it reverts it")
            code = "rescue.absent" if state == "absent" else "rescue.reverted"
            return {"failed": True, "msg": f"{name}: {problem}", "reason": code}
        time.sleep(_PAUSE_SECONDS)


def light_program(name, arguments):
    """Return a module of the roles with its arguments and its imports, as the module `platform_light` reads it.

    Raises:
        AnsibleError: the module is missing, or imports something of Ansible's library that nodes do not get.
    """
    source, path = _read("library", name, name)
    document = {"parts": [], "source": source, "path": path, "arguments": arguments}
    _add_imports(document["parts"], source, path, set())
    return encoded(document)


def encoded(document):
    """Return a program as text."""
    return base64.b64encode(zlib.compress(json.dumps(document, default=str).encode())).decode()


def decoded(program):
    """Return the document of a program."""
    return json.loads(zlib.decompress(base64.b64decode(program)))


def _add_imports(parts, source, path, seen):
    """Add what `source` imports, also in functions, to `parts` (name, path, source)."""
    for match in _IMPORT.finditer(source):
        package, module, names = match.groups()
        if package is None:
            raise AnsibleError(f"{path}: {match[0].strip()}: write it as `from ansible.module_utils... import ...`")
        for one in [module] if module else [word.split()[0] for word in names.split(",")]:
            name = f"{package}.{one}"
            if name not in seen:
                seen.add(name)
                text, file = _read("module_utils", "platform_light_basic" if name == _BASIC else one, path)
                parts.append([name, file, text])
                _add_imports(parts, text, file, seen)


def _read(part, name, user):
    for folder in _FOLDERS[part]:
        path = folder / f"{name}.py"
        if path.is_file():
            return path.read_text(encoding="utf-8"), str(path)
    raise AnsibleError(f"{user}: no file {name}.py in the folders {part} of the roles")
