#!/usr/bin/python
"""Ansible module: run the training container with its settings, and replace one with other settings."""

DOCUMENTATION = r"""
module: training_container
short_description: Run the training container, and replace it if its settings differ
description:
  - Compares all settings with the container as docker describes it. A container with other settings is removed and created again.
  - Result I(actions) has the steps, I(differences) the names of the settings that differ, without values. Check mode changes nothing.
  - Sends the variables over docker's socket, so that no command line contains them.
options:
  name: {description: Name of the container., type: str, required: true}
  image: {description: Its image., type: str, required: true}
  recreate: {description: Replace the container in any case., type: bool, default: false}
  entrypoint: {description: Program and its arguments., type: list, elements: str, required: true}
  shm_size: {description: 'Size of /dev/shm, such as 32g.', type: str, required: true}
  privileged: {description: All devices and capabilities., type: bool, default: false}
  ulimits: {description: Limits in the form NAME:SOFT:HARD., type: list, elements: str, default: []}
  capabilities: {description: Additional capabilities., type: list, elements: str, default: []}
  dropped_capabilities: {description: Capabilities that are removed., type: list, elements: str, default: []}
  devices: {description: 'Device files in the form NODE:CONTAINER:PERMISSIONS.', type: list, elements: str, default: []}
  gpus: {description: Whether it gets all GPUs., type: bool, default: false}
  volumes: {description: 'Mounts in the form NODE:CONTAINER[:MODE].', type: list, elements: str, default: []}
  env: {description: Variables., type: dict, default: {}}
  user: {description: Account in the container. Default is that of the image., type: str, default: ""}
  labels: {description: Labels., type: dict, default: {}}
author: [provision]
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_docker import SECONDS, DockerError, docker

OPTIONS = {
    "name": {"type": "str", "required": True},
    "image": {"type": "str", "required": True},
    "recreate": {"type": "bool", "default": False},
    "entrypoint": {"type": "list", "elements": "str", "required": True},
    "shm_size": {"type": "str", "required": True},
    "privileged": {"type": "bool", "default": False},
    "ulimits": {"type": "list", "elements": "str", "default": []},
    "capabilities": {"type": "list", "elements": "str", "default": []},
    "dropped_capabilities": {"type": "list", "elements": "str", "default": []},
    "devices": {"type": "list", "elements": "str", "default": []},
    "gpus": {"type": "bool", "default": False},
    "volumes": {"type": "list", "elements": "str", "default": []},
    "env": {"type": "dict", "default": {}},
    "user": {"type": "str", "default": ""},
    "labels": {"type": "dict", "default": {}},
}
UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
RESTART = "unless-stopped"
REMOVAL_SECONDS = 60
ALL_GPUS = {"Driver": "", "Count": -1, "DeviceIDs": [], "Capabilities": [["gpu"]], "Options": {}}


def size(text):
    """Return a size such as 32g, 32gb or 32GiB in bytes."""
    word = text.strip().lower()
    number = word.rstrip("bkmgti")
    return int(float(number) * UNITS[word[len(number) :][:1] or "b"])


def words_of(variables):
    """Return variables as docker lists them."""
    return ["{}={}".format(name, value) for name, value in variables.items()]


def creation(params):
    """Return the request that creates the container."""
    host = {
        "Init": True,
        "RestartPolicy": {"Name": RESTART},
        "NetworkMode": "host",
        "IpcMode": "private",
        "ShmSize": size(params["shm_size"]),
        "Privileged": params["privileged"],
        "Ulimits": [ulimit(text) for text in params["ulimits"]],
        "CapAdd": params["capabilities"],
        "CapDrop": params["dropped_capabilities"],
        "Devices": [device(text) for text in params["devices"]],
        "DeviceRequests": [ALL_GPUS] if params["gpus"] else [],
        "Binds": [bind(text) for text in params["volumes"]],
    }
    request = {"Image": params["image"], "Entrypoint": params["entrypoint"], "Cmd": [], "Env": words_of(params["env"])}
    if params["user"]:
        request["User"] = params["user"]
    return dict(request, Labels={key: str(value) for key, value in params["labels"].items()}, HostConfig=host)


def ulimit(text):
    """Return a limit in the form of docker."""
    name, soft, hard = text.split(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard)}


def device(text):
    """Return a device file in the form of docker."""
    path, inside, permissions = text.rsplit(":", 2)
    return {"PathOnHost": path, "PathInContainer": inside, "CgroupPermissions": permissions}


def bind(text):
    """Return a mount with its mode."""
    return text if text.count(":") > 1 else text + ":rw"


def settings(config, host, image_name, image_id):
    """Return the settings of a container by name, in a form that can be compared."""
    return {
        "image": image_id,
        "image_name": image_name,
        "entrypoint": config.get("Entrypoint") or [],
        "env": dict(word.partition("=")[::2] for word in config.get("Env") or []),
        "labels": config.get("Labels") or {},
        "user": config.get("User") or "",
        "init": bool(host.get("Init")),
        "restart_policy": (host.get("RestartPolicy") or {}).get("Name") or "no",
        "network_mode": host.get("NetworkMode"),
        "ipc_mode": host.get("IpcMode"),
        "shm_size": host.get("ShmSize"),
        "privileged": bool(host.get("Privileged")),
        "ulimits": in_order(host.get("Ulimits")),
        "capabilities": sorted(name.upper().replace("CAP_", "", 1) for name in host.get("CapAdd") or []),
        "cap_drop": sorted(name.upper().replace("CAP_", "", 1) for name in host.get("CapDrop") or []),
        "devices": in_order(host.get("Devices")),
        "device_requests": in_order(host.get("DeviceRequests")),
        "volumes": sorted(bind(text) for text in host.get("Binds") or []),
    }


def in_order(documents):
    """Return documents without empty values, in an order that depends on nothing else."""
    return sorted(sorted((key, str(value)) for key, value in one.items() if value) for one in documents or [])


def desired_settings(params, image):
    """Return the settings that the container will have: what the request lacks comes from the image."""
    request, config = creation(params), image.get("Config") or {}
    variables = dict(word.partition("=")[::2] for word in config.get("Env") or [])
    variables.update((name, str(value)) for name, value in params["env"].items())
    merged = {
        "Entrypoint": request["Entrypoint"],
        "Env": words_of(variables),
        "Labels": dict(config.get("Labels") or {}, **request["Labels"]),
        "User": params["user"] or config.get("User"),
    }
    return settings(merged, request["HostConfig"], params["image"], image["Id"])


class Container:
    """The container, and what is done with it."""

    def __init__(self, module):
        self.module = module
        self.params = module.params
        self.path = "/containers/" + self.params["name"]
        self.actions = []
        self.differences = []

    def apply(self):
        """Create, replace or start the container, as far as necessary; return its ID."""
        image = docker("GET", "/images/{}/json".format(self.params["image"]))
        if image is None:
            raise DockerError("no image {}".format(self.params["image"]))
        current = docker("GET", self.path + "/json")
        if current is not None:
            self._compare(current, image)
        if current is None:
            self.differences.append("exists")
            self._create()
        elif self.params["recreate"] or set(self.differences) - {"restart_policy"}:
            self._remove(current)
            self._create()
        else:
            if self.differences:
                self._do("updated", "POST", "/update", "Error updating", {"RestartPolicy": {"Name": RESTART}})
            state = current.get("State") or {}
            if not state.get("Running"):
                self.differences.append("running")
                self._start()
            elif state.get("Paused"):
                self.differences.append("paused")
                self._do("set_paused", "POST", "/unpause", "Error unpausing")
        if self.module.check_mode:
            return ""
        return (docker("GET", self.path + "/json") or {}).get("Id", "")

    def _compare(self, current, image):
        config = current.get("Config") or {}
        existing = settings(config, current.get("HostConfig") or {}, config.get("Image"), current.get("Image"))
        desired = desired_settings(self.params, image)
        self.differences = [name for name, value in desired.items() if existing[name] != value]

    def _do(self, action, method, path, failure, body=None, seconds=SECONDS):
        """Take a step, unless in check mode."""
        self.actions.append({action: True})
        if self.module.check_mode:
            return
        try:
            docker(method, (path if path.startswith("/containers") else self.path + path), body, seconds)
        except DockerError as problem:
            raise DockerError("{} the container: {}".format(failure, problem)) from None

    def _create(self):
        path = "/containers/create?name=" + self.params["name"]
        self._do("created", "POST", path, "Error creating", creation(self.params))
        self._start()

    def _start(self):
        self._do("started", "POST", "/start", "Error starting")

    def _remove(self, current):
        if (current.get("State") or {}).get("Running"):
            timeout = (current.get("Config") or {}).get("StopTimeout") or 10
            self._do("stopped", "POST", "/stop", "Error stopping", seconds=timeout + SECONDS)
        if (current.get("State") or {}).get("Status") == "removing":
            self.actions.append({"removed": True})
        else:
            self._do("removed", "DELETE", "", "Error removing")
        deadline = time.monotonic() + REMOVAL_SECONDS
        while not self.module.check_mode and docker("GET", self.path + "/json") is not None:
            if time.monotonic() >= deadline:
                raise DockerError("Error removing the container: it still exists after {} s".format(REMOVAL_SECONDS))
            time.sleep(0.5)


def main():
    """Run the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    container = Container(module)
    try:
        identity = container.apply()
    except DockerError as problem:
        module.fail_json(msg=str(problem), actions=container.actions, differences=container.differences)
    module.exit_json(
        changed=bool(container.actions),
        actions=container.actions,
        differences=container.differences,
        container={"Id": identity},
    )


if __name__ == "__main__":
    main()
