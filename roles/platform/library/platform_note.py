#!/usr/bin/python
"""Ansible module: record the images of docker before a module of another collection pulls or loads one."""

DOCUMENTATION = r"""
module: platform_note
short_description: Record which images exist before a change
description:
  - Used before modules of other collections, which record nothing, and only if they are about to change something.
  - Never overwrites an existing record of an image. A reset uses the records.
options:
  images: {description: Names of the images that are about to be pulled or loaded., type: list, elements: str, required: true}
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
        image_ids = sorted(
            set(module.run_command(["docker", "image", "ls", "--all", "--quiet", "--no-trunc"])[1].split())
        )
        for name in module.params["images"]:
            code, out, _ = module.run_command(["docker", "image", "inspect", "--format", "{{.Id}}", name])
            record("images", name, {"name": name, "id": out.strip() if code == 0 else "", "all": image_ids})
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
