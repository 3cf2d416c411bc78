#!/usr/bin/python
"""Ansible module: what docker has before a task of others' making brings an image."""

DOCUMENTATION = r"""
module: platform_note
short_description: Note which images are there, before one is brought
description:
  - For modules that are not ours and note nothing themselves. It runs only where something is about to be changed.
  - The first note of an image stays. A reset goes by it.
options:
  images: {description: Names under which an image is about to be brought., type: list, elements: str, required: true}
author: [provision]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import record


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"images": {"type": "list", "elements": "str", "required": True}}, supports_check_mode=True
    )
    if not module.check_mode:
        everything = sorted(
            set(module.run_command(["docker", "image", "ls", "--all", "--quiet", "--no-trunc"])[1].split())
        )
        for name in module.params["images"]:
            code, out, _ = module.run_command(["docker", "image", "inspect", "--format", "{{.Id}}", name])
            record("images", name, {"name": name, "id": out.strip() if code == 0 else "", "all": everything})
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
