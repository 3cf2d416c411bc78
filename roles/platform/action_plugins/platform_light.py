"""Action plugin: run a module of these roles on nodes whose Python is older than Ansible's module library requires.

Ansible packs a module with its own library, which needs the Python versions of one Ansible release, and which a node
compiles anew for each task. This plugin sends the module, and what it imports of these roles, as the arguments of the
module `platform_light`, which Ansible runs by its interface for modules without its library (JSON arguments). The part
of the library that the modules use is `platform_light_basic`. Without this plugin, they are ordinary modules.

Each module of the roles has a file of its name in `action_plugins`; a test names one that lacks it.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.vars import merge_hash

_RUNNER = "platform_light"
_BASIC = "ansible.module_utils.basic"
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
        program = light_program(self._task.action.rpartition(".")[2], self._task.args)
        answer = self._execute_module(module_name=_RUNNER, module_args={"program": program}, task_vars=task_vars)
        return merge_hash(result, answer)


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
