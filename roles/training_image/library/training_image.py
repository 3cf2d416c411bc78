#!/usr/bin/python
"""Ansible module: read, find, pull or tag an image of docker."""

DOCUMENTATION = r"""
module: training_image
short_description: Read, find, pull or tag an image of docker
description:
  - action=inspect changes nothing. Result I(images) has the description of the image, or is empty. I(identities) are the digests that
    identify it, the same in both image stores of docker or more. I(containerd) is whether docker stores images in containerd.
  - action=find changes nothing. Result I(images) has the description of the first image with one of I(identities), or is empty.
  - action=pull always asks the registry, with the logins of root. Result I(image) is the description of the image.
  - action=tag gives the image a second name.
  - The IDs of images that get a name are recorded, for a reset.
  - Without an answer of docker, the module fails with docker's message.
options:
  action: {description: What to do., type: str, required: true, choices: [inspect, find, pull, tag]}
  name: {description: Name or ID of the image., type: str, default: ""}
  identities: {description: 'action=find: digests of the image.', type: list, elements: str, default: []}
  tag: {description: 'action=tag: the second name.', type: str, default: ""}
author: [provision]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_docker import DockerError, docker
from ansible.module_utils.platform_images import identities, is_containerd_store
from ansible.module_utils.platform_origin import mark_managed


def image(name):
    """Return the description of an image, None if there is none."""
    return docker("GET", "/images/{}/json".format(name))


def find(digests):
    """Return the description of the first image that one of the digests identifies, None if there is none."""
    for known in docker("GET", "/images/json") or []:
        description = image(known["Id"])
        if description and not set(digests).isdisjoint(identities(description)):
            return description
    return None


def pull(module, name):
    """Pull an image; return its description, and whether it is another image than before."""
    before = image(name)
    if module.check_mode:
        return before or {}, True
    code, _, err = module.run_command(["docker", "pull", "--quiet", name])
    if code != 0:
        raise DockerError(err.strip() or "docker pull: exit status {}".format(code))
    after = image(name) or {}
    mark_managed("images", name, "ids", after.get("Id"))
    return after, (before or {}).get("Id") != after.get("Id")


def tag(module, name, second):
    """Give an image a second name; return whether that is a change."""
    source, target = image(name), image(second)
    if source and target and source["Id"] == target["Id"]:
        return False
    if not module.check_mode:
        code, _, err = module.run_command(["docker", "tag", name, second])
        if code != 0:
            raise DockerError(err.strip() or "docker tag: exit status {}".format(code))
        mark_managed("images", second, "ids", (source or {}).get("Id"))
    return True


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "required": True, "choices": ["inspect", "find", "pull", "tag"]},
            "name": {"type": "str", "default": ""},
            "identities": {"type": "list", "elements": "str", "default": []},
            "tag": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    action, name = module.params["action"], module.params["name"]
    if not module.get_bin_path("docker"):
        module.fail_json(msg="the command docker is not installed")
    try:
        if action in ("inspect", "find"):
            description = image(name) if action == "inspect" else find(module.params["identities"])
            module.exit_json(
                changed=False,
                images=[description] if description else [],
                identities=identities(description) if description else [],
                containerd=is_containerd_store((docker("GET", "/info") or {}).get("DriverStatus")),
            )
        elif action == "pull":
            description, changed = pull(module, name)
            module.exit_json(changed=changed, image=description)
        else:
            module.exit_json(changed=tag(module, name, module.params["tag"]))
    except DockerError as problem:
        module.fail_json(msg=str(problem))


if __name__ == "__main__":
    main()
