#!/usr/bin/python
"""Ansible module: read, pull or tag an image of docker."""

DOCUMENTATION = r"""
module: training_image
short_description: Read, pull or tag an image of docker
description:
  - action=inspect changes nothing. Result I(images) has the description of the image, or is empty; I(store) describes docker's image store.
  - action=pull always asks the registry, with the logins of root. Result I(image) is the description of the image.
  - action=tag gives the image a second name.
  - Without an answer of docker, the module fails with docker's message.
options:
  action: {description: What to do., type: str, required: true, choices: [inspect, pull, tag]}
  name: {description: Name or ID of the image., type: str, required: true}
  tag: {description: 'action=tag: the second name.', type: str, default: ""}
author: [provision]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_docker import DockerError, docker


def image(name):
    """Return the description of an image, None if there is none."""
    return docker("GET", f"/images/{name}/json")


def pull(module, name):
    """Pull an image; return its description, and whether it is another image than before."""
    before = image(name)
    if module.check_mode:
        return before or {}, True
    code, _, err = module.run_command(["docker", "pull", "--quiet", name])
    if code != 0:
        raise DockerError(err.strip() or f"docker pull: exit status {code}")
    after = image(name) or {}
    return after, (before or {}).get("Id") != after.get("Id")


def tag(module, name, second):
    """Give an image a second name; return whether that is a change."""
    source, target = image(name), image(second)
    if source and target and source["Id"] == target["Id"]:
        return False
    if not module.check_mode:
        code, _, err = module.run_command(["docker", "tag", name, second])
        if code != 0:
            raise DockerError(err.strip() or f"docker tag: exit status {code}")
    return True


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "required": True, "choices": ["inspect", "pull", "tag"]},
            "name": {"type": "str", "required": True},
            "tag": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    action, name = module.params["action"], module.params["name"]
    if not module.get_bin_path("docker"):
        module.fail_json(msg="the command docker is not installed")
    try:
        if action == "inspect":
            store = (docker("GET", "/info") or {}).get("DriverStatus")
            module.exit_json(changed=False, images=[one for one in [image(name)] if one], store=store)
        elif action == "pull":
            description, changed = pull(module, name)
            module.exit_json(changed=changed, image=description)
        else:
            module.exit_json(changed=tag(module, name, module.params["tag"]))
    except DockerError as problem:
        module.fail_json(msg=str(problem))


if __name__ == "__main__":
    main()
