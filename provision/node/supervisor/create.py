"""Converts the words of ``docker create`` into the request to docker's engine on its socket.

The docker client is not used: its behaviour depends on its environment, which a job must not control.
"""

from typing import Any, Callable, Dict, List, Sequence

Request = Dict[str, Any]
"""The body of the request, or its part ``HostConfig``."""

UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TEXTS = {"--ipc": "IpcMode", "--network": "NetworkMode"}
LISTS = {
    "--cap-add": "CapAdd",
    "--cap-drop": "CapDrop",
    "--group-add": "GroupAdd",
    "--security-opt": "SecurityOpt",
    "--volume": "Binds",
}
SWITCHES = {"--init": "Init", "--privileged": "Privileged"}


def container_request(words: Sequence[str], variables: Dict[str, str], labels: Dict[str, str]) -> Request:
    """Return the body of the request that creates a container.

    Raises:
        ValueError: an option is not supported, or a variable is not UTF-8.
    """
    host: Request = {"LogConfig": {"Type": "", "Config": {}}}
    rest = list(words)
    config: Request = {"HostConfig": host, "Env": environment(variables), "Labels": dict(labels)}
    while rest and rest[0].startswith("--"):
        option = rest.pop(0)
        if option in SWITCHES:
            host[SWITCHES[option]] = True
        else:
            apply_option(config, host, option, rest.pop(0))
    config["Image"] = rest.pop(0)
    if rest:
        config["Cmd"] = rest
    return config


def environment(variables: Dict[str, str]) -> List[str]:
    """Return the variables in the form of docker's engine."""
    for name, value in variables.items():
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise ValueError("the variable {!a} is not UTF-8 text".format(name)) from None
    return ["{}={}".format(name, value) for name, value in sorted(variables.items())]


def apply_option(config: Request, host: Request, option: str, value: str) -> None:
    """Add one option with a value to the request."""
    if option in TEXTS:
        host[TEXTS[option]] = value
    elif option in LISTS:
        host.setdefault(LISTS[option], []).append(value)
    elif option in OTHERS:
        OTHERS[option](config, host, value)
    else:
        raise ValueError("{} is not an option of a job's container".format(option))


def add_label(config: Request, _host: Request, value: str) -> None:
    """Add a label, ``NAME=VALUE``."""
    name, _, text = value.partition("=")
    config["Labels"][name] = text


def add_log_option(_config: Request, host: Request, value: str) -> None:
    """Add an option of the log driver, ``NAME=VALUE``."""
    name, _, text = value.partition("=")
    host["LogConfig"]["Config"][name] = text


def add_tmpfs(_config: Request, host: Request, value: str) -> None:
    """Add a file system in memory, ``PATH:OPTIONS``."""
    path, _, options = value.partition(":")
    host.setdefault("Tmpfs", {})[path] = options


def add_ulimit(_config: Request, host: Request, value: str) -> None:
    """Add a limit, ``NAME=SOFT[:HARD]``."""
    name, _, limits = value.partition("=")
    soft, _, hard = limits.partition(":")
    host.setdefault("Ulimits", []).append({"Name": name, "Soft": int(soft), "Hard": int(hard or soft)})


def add_device(_config: Request, host: Request, value: str) -> None:
    """Add a device file at the same path."""
    device = {"PathOnHost": value, "PathInContainer": value, "CgroupPermissions": "rwm"}
    host.setdefault("Devices", []).append(device)


def add_gpus(_config: Request, host: Request, value: str) -> None:
    """Add the GPUs of ``"device=UUID,..."``."""
    uuids = value.strip('"').partition("=")[2].split(",")
    host["DeviceRequests"] = [{"DeviceIDs": uuids, "Capabilities": [["gpu"]]}]


def size_of(text: str) -> int:
    """Return a size such as ``32g`` in bytes."""
    unit = text[-1:] if text[-1:] in UNITS else "b"
    return int(text.rstrip("bkmg")) * UNITS[unit]


OTHERS: Dict[str, Callable[[Request, Request, str], None]] = {
    "--device": add_device,
    "--entrypoint": lambda config, _, value: config.update(Entrypoint=[value]),
    "--gpus": add_gpus,
    "--label": add_label,
    "--log-driver": lambda _, host, value: host["LogConfig"].update(Type=value),
    "--log-opt": add_log_option,
    "--name": lambda *_: None,  # it is in the request's path
    "--restart": lambda _, host, value: host.update(RestartPolicy={"Name": value}),
    "--shm-size": lambda _, host, value: host.update(ShmSize=size_of(value)),
    "--stop-timeout": lambda config, _, value: config.update(StopTimeout=int(value)),
    "--tmpfs": add_tmpfs,
    "--ulimit": add_ulimit,
    "--user": lambda config, _, value: config.update(User=value),
    "--workdir": lambda config, _, value: config.update(WorkingDir=value),
}
