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

import sys

# Python reads this program from standard input, so it would import modules from the working directory: the login's home folder.
sys.path = [path for path in sys.path if path not in ("", ".")]

import base64
import importlib
import json
import traceback
import zlib

try:
    from importlib.machinery import ModuleSpec
except ImportError:  # Python 2, which is reported below
    ModuleSpec = None

# The program is base64. All other arguments are Ansible's own, from the controller.
ARGUMENTS = r"""<<INCLUDE_ANSIBLE_MODULE_JSON_ARGS>>"""


class Sent:
    """Finds the modules that were sent with the program. Each is compiled when it is imported."""

    def __init__(self, files):
        """Start with the name, path and source of each module."""
        self.files = {name: (path, source) for name, path, source in files}
        self.packages = {name.rsplit(".", depth)[0] for name in self.files for depth in range(1, name.count(".") + 1)}

    def find_spec(self, name, _path=None, _target=None):
        """Return how a module is loaded, None if it was not sent."""
        if name in self.files or name in self.packages:
            return ModuleSpec(name, self, is_package=name in self.packages)
        return None

    def create_module(self, _spec):
        """Let Python create the module."""

    def get_source(self, name):
        """Return the source of a module that was sent."""
        return self.files[name][1]

    def exec_module(self, module):
        """Execute the source of a module; a package has none."""
        if module.__name__ in self.files:
            module.__file__, source = self.files[module.__name__]
            code = compile(source, module.__file__, "exec")
            exec(code, module.__dict__)  # nosec B102 # code of the controller, as any module


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
    sys.meta_path.insert(0, Sent(program["parts"]))
    basic = importlib.import_module("ansible.module_utils.basic")
    try:
        basic.ARGUMENTS.update(given, **program["arguments"])
        code = compile(program["source"], program["path"], "exec")
        exec(code, {"__name__": "__main__", "__file__": program["path"]})  # nosec B102 # likewise
    except Exception as error:
        basic.fail("{}: {}".format(type(error).__name__, error), traceback.format_exc())


main()
