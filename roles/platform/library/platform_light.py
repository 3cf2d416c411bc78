#!/usr/bin/python
"""Ansible module: run a module of these roles in the standard library of the node's Python."""

DOCUMENTATION = r"""
module: platform_light
short_description: Run another module of the roles, without Ansible's module library
description:
  - The action plugin C(platform_light) runs it; it is of no use in a task.
  - It needs Python 3.6 or newer on the node, and nothing else.
options:
  program: {description: 'The module, its imports and its arguments: compressed JSON in base64.', type: str, required: true}
author: [provision]
"""

import base64
import json
import sys
import traceback
import types
import zlib

# The program is base64. All other arguments are Ansible's own, from the controller.
ARGUMENTS = r"""<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>"""


def provide(name, path, source):
    """Make a module importable under its full name, with the packages above it."""
    module = sys.modules[name] = types.ModuleType(name)
    module.__file__ = path
    if source is None:
        module.__path__ = []
    parent, _, child = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            provide(parent, "<package>", None)
        setattr(sys.modules[parent], child, module)
    if source is not None:
        exec(compile(source, path, "exec"), module.__dict__)  # nosec B102 # code of the controller, as any module


def fail(message, **more):
    """Print a failure as the result of the module."""
    print("\n" + json.dumps(dict(more, failed=True, msg=message)))
    sys.exit(1)


def main():
    """Run the module."""
    given = json.loads(ARGUMENTS)
    if sys.version_info < (3, 6):
        fail("{} on this node is too old (Python {}.{}; Python 3.6 is required). Install a newer Python on the node, and set "
             "ansible_python_interpreter to its path.".format(sys.executable, *sys.version_info[:2]))  # fmt: skip
    program = json.loads(zlib.decompress(base64.b64decode(given.pop("program"))).decode())
    try:
        for part in program["parts"]:
            provide(*part)
        sys.modules["ansible.module_utils.basic"].ARGUMENTS.update(given, **program["arguments"])
        code = compile(program["source"], program["path"], "exec")
        exec(code, {"__name__": "__main__", "__file__": program["path"]})  # nosec B102 # likewise
    except Exception as error:
        fail("{}: {}".format(type(error).__name__, error), exception=traceback.format_exc())


main()
