"""Action plugin: run a module of these roles without sending Ansible's own module library along.

Ansible packs a module with ``ansible.module_utils.basic`` and all that it needs, some 170 KB of source that the node
compiles anew for each task. This project's modules use little of it, so they are sent with `platform_light_basic` in
its place. All else is Ansible's own way: connection, pipelining, become, environment, interpreter, check mode, and
how the answer is read. A module is run like this where its role has ``action_plugins/MODULE.py`` that says so; the
module's source is an ordinary one, and runs as such without that file.
"""

from __future__ import annotations

import ast
import dataclasses
import json

from ansible.errors import AnsibleError
from ansible.module_utils.common.json import Direction, get_module_encoder
from ansible.plugins.action.normal import ActionModule as NormalAction
from ansible.plugins.loader import module_utils_loader

_BASIC = "basic"
_SENT_FOR_BASIC = "platform_light_basic"
_PACKAGE = "ansible.module_utils"

_PROGRAM = """\
import json, sys, types
def provide(name, path, source):
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = path
    if source is None:
        module.__path__ = []
    else:
        exec(compile(source, path, "exec"), module.__dict__)
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
for part in {parts!r}:
    provide(*part)
sys.modules["ansible.module_utils.basic"].ARGUMENTS.update(json.loads({arguments!r}))
exec(compile({source!r}, {path!r}, "exec"), {{"__name__": "__main__", "__file__": {path!r}}})
"""


class ActionModule(NormalAction):
    """Ansible's ordinary action, but for what is sent to the node."""

    def _configure_module(self, module_name, module_args, task_vars):
        built, path = super()._configure_module(module_name, module_args, task_vars)
        encoder = get_module_encoder(built.serialization_profile, Direction.CONTROLLER_TO_MODULE)
        program = light_program(path, json.dumps(module_args, cls=encoder))
        return dataclasses.replace(built, b_module_data=f"{built.shebang}\n{program}".encode()), path


def light_program(path, arguments):
    """Return the program that runs the module at `path` with `arguments`, a JSON object.

    Raises:
        AnsibleError: the module, or what it imports, imports something of ``ansible.module_utils`` that is not here.
    """
    parts = [(name, f"<{name}>", None) for name in ("ansible", _PACKAGE)]
    source = _read(path)
    parts += [(f"{_PACKAGE}.{name}", file, text) for name, (file, text) in _needed(path, source, {}).items()]
    return _PROGRAM.format(parts=parts, arguments=arguments, source=source, path=path)


def _needed(path, source, found):
    """Add to `found` what `source` imports of module_utils, by name as path and text, what is needed first first."""
    for name in _imports(source):
        if name in found:
            continue
        file = module_utils_loader.find_plugin(_SENT_FOR_BASIC if name == _BASIC else name)
        if file is None or "." in name:
            raise AnsibleError(f"{path} imports {_PACKAGE}.{name}, which a light module does not have")
        text = _read(file)
        _needed(file, text, found)
        found[name] = (file, text)
    return found


def _imports(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_PACKAGE}."):
            yield node.module.removeprefix(f"{_PACKAGE}.")
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix(f"{_PACKAGE}.") for alias in node.names if alias.name.startswith("ansible.")
            )


def _read(path):
    with open(path, encoding="utf-8") as stream:
        return stream.read()
