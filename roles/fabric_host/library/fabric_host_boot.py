#!/usr/bin/python
"""Ansible module: set arguments of the kernel in the boot menu."""

DOCUMENTATION = r"""
module: fabric_host_boot
short_description: Set arguments of the kernel
description:
  - Adds arguments to every entry of the boot menu except recovery entries, and to the settings for new kernels; they have an
    effect after a reboot. Reboots nothing.
  - Uses grubby where the node has it, otherwise a file for C(grub-mkconfig).
  - Checks the entries afterwards, and reverts a change that they do not show.
  - Restores arguments that are not given any more. Records the original values for a reset.
options:
  arguments: {description: The arguments., type: list, elements: str, default: []}
  settings_path: {description: File for C(grub-mkconfig)., type: path, required: true}
author: [provision]
"""

import os

from ansible.module_utils import platform_boot as boot
from ansible.module_utils import platform_links as links
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import record, record_file, records
from ansible.module_utils.platform_replace import replace

KIND = "kernel_arguments"
TEXT = """# Managed by provision (role fabric_host). Recovery entries do not have these arguments.
GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {}"
"""


class Arguments:
    """The arguments of the inventory and those of the boot menu.

    Args:
        module: has the parameters, and runs programs.
    """

    def __init__(self, module):
        """Compare; change nothing."""
        self.module, self.path = module, module.params["settings_path"]
        self.wanted = list(dict.fromkeys(module.params["arguments"]))
        self.recorded = {doc["argument"]: doc for doc in records(KIND)}
        self.removed = [name for name in self.recorded if name not in self.wanted]
        self.tool, self.entries, self.missing = "", [], []
        self.is_unused = not self.wanted and not self.recorded
        if self.is_unused:
            return
        self.tool = boot.boot_tool()
        if not self.tool:
            self.fail(
                "the boot loader is not GRUB 2 (there is neither grubby nor grub-mkconfig with /boot/grub/grub.cfg)"
            )
        self.entries = boot.entries(module, self.tool)
        if not self.entries:
            self.fail(f"{self.tool}: no entry of a kernel in the boot menu")
        self.missing = [name for name in self.wanted if not all(name in words for words in self.entries)]

    def fail(self, message):
        """Fail with the remedy."""
        self.module.fail_json(
            msg=f"kernel arguments: {message}. Correct fabric_host_kernel_arguments, then apply again."
        )

    def text(self):
        """Return the content of the file for `grub-mkconfig`, empty if there is none."""
        return TEXT.format(" ".join(self.wanted)) if self.wanted and self.tool == "grub-mkconfig" else ""

    def current(self):
        """Return the file's current content."""
        try:
            with open(self.path, encoding="utf-8") as stream:
                return stream.read()
        except OSError:
            return ""

    def differs(self):
        """Return whether anything is to be changed."""
        is_different_file = self.tool == "grub-mkconfig" and self.text() != self.current()
        return bool(self.missing or self.removed or is_different_file)

    def change(self):
        """Change the menu and the settings for new kernels; check them, and revert what the menu does not show."""
        trial = boot.kernel_on_trial()
        if trial:
            self.fail(f"the upgrade to the kernel {trial} has not ended; complete it by an apply with --only kernel")
        for name in self.missing:
            record(KIND, name, {"argument": name, "tool": self.tool, "replaced": self._replaced(name)})
        problem = self._edit() if self.tool == "grubby" else self._generate()
        for name in self.missing if problem else self.removed:
            if not problem or name not in self.recorded:
                links.forget(KIND, name)
        if problem:
            self.fail(problem)

    def _replaced(self, name):
        """Return the original arguments whose place an argument takes: grubby replaces those with the same key."""
        inherited = [
            word for doc in self.recorded.values() if key(doc["argument"]) == key(name) for word in doc["replaced"]
        ]
        same = {word for words in self.entries for word in words if key(word) == key(name)}
        return sorted({*inherited, *same} - set(self.wanted) - set(self.recorded)) if self.tool == "grubby" else []

    def _edit(self):
        """Change all entries with grubby."""
        keys = {key(name) for name in self.wanted}
        originals = {word for name in self.removed for word in self.recorded[name]["replaced"] if key(word) not in keys}
        add, remove = [*self.missing, *sorted(originals)], set(self.removed)
        gone = {word for words in self.entries for word in words if key(word) in set(map(key, add))} - set(self.wanted)
        expected = [(words - remove - gone) | set(add) for words in self.entries]
        problem = boot.edit_entries(self.module, add, self.removed)
        if not problem and boot.entries(self.module, self.tool) != expected:
            problem = "grubby has not written the expected entries (see grubby --info=ALL)"
            boot.edit_entries(self.module, sorted(gone | remove), add)
        return problem

    def _generate(self):
        """Write the file, and the menu with it."""
        before = self.current()
        self._write(self.text())
        problem = boot.write_menu(self.module)
        now = boot.entries(self.module, self.tool)
        lacking = [name for name in self.wanted if not now or not all(name in words for words in now)]
        if not problem and lacking:
            problem = f"grub-mkconfig has not written {' '.join(lacking)} into every entry (see {self.path})"
        if problem:
            self._write(before)
            boot.write_menu(self.module)
        return problem

    def _write(self, text):
        if text:
            record_file(self.path, text)
            replace(self.path, text)
        elif os.path.lexists(self.path):
            record_file(self.path, text)
            os.unlink(self.path)

    def diff(self):
        """Return what an apply changes."""
        before, after = "".join(f"{name}\n" for name in self.removed), "".join(f"{name}\n" for name in self.missing)
        return [{"before_header": "boot menu", "after_header": "boot menu", "before": before, "after": after}]


def key(argument):
    """Return the name of an argument."""
    return argument.partition("=")[0]


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "arguments": {"type": "list", "elements": "str", "default": []},
            "settings_path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    arguments = Arguments(module)
    if arguments.is_unused or not arguments.differs():
        files = [arguments.path] if arguments.text() else []
        module.exit_json(changed=False, files=files, diff=[])
    if not module.check_mode:
        arguments.change()
    files = [arguments.path] if arguments.text() else []
    module.exit_json(changed=True, files=files, diff=arguments.diff())


if __name__ == "__main__":
    main()
