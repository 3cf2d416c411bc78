"""Turns the words of ``docker create`` into the request that docker's engine gets by its socket.

The docker client takes no part in this: what it does depends on its environment, which a job must not choose.
"""

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


def container_request(words, variables, labels):
    """Return the body of the request that creates a container.

    Raises:
        ValueError: an option is not known here, or a variable is not UTF-8.
    """
    host, rest = {"LogConfig": {"Type": "", "Config": {}}}, list(words)
    config = {"HostConfig": host, "Env": environment(variables), "Labels": dict(labels)}
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


def environment(variables):
    """Return the variables as docker's engine takes them."""
    for name, value in variables.items():
        try:
            (name + value).encode()
        except UnicodeEncodeError:
            raise ValueError("the variable {!a} is not UTF-8 text".format(name)) from None
    return ["{}={}".format(name, value) for name, value in sorted(variables.items())]


def apply_option(config, host, option, value):
    """Add one option with a value to the request."""
    if option in TEXTS:
        host[TEXTS[option]] = value
    elif option in LISTS:
        host.setdefault(LISTS[option], []).append(value)
    elif option in OTHERS:
        OTHERS[option](config, host, value)
    else:
        raise ValueError("{} is not an option of a job's container".format(option))


def add_label(config, _host, value):
    """Add a label, ``NAME=VALUE``."""
    name, _, text = value.partition("=")
    config["Labels"][name] = text


def add_log_option(_config, host, value):
    """Add an option of the log driver, ``NAME=VALUE``."""
    name, _, text = value.partition("=")
    host["LogConfig"]["Config"][name] = text


def add_tmpfs(_config, host, value):
    """Add a file system in memory, ``PATH:OPTIONS``."""
    path, _, options = value.partition(":")
    host.setdefault("Tmpfs", {})[path] = options


def add_ulimit(_config, host, value):
    """Add a limit, ``NAME=SOFT[:HARD]``."""
    name, _, limits = value.partition("=")
    soft, _, hard = limits.partition(":")
    host.setdefault("Ulimits", []).append({"Name": name, "Soft": int(soft), "Hard": int(hard or soft)})


def add_device(_config, host, value):
    """Add a device file under its own path."""
    device = {"PathOnHost": value, "PathInContainer": value, "CgroupPermissions": "rwm"}
    host.setdefault("Devices", []).append(device)


def add_gpus(_config, host, value):
    """Add the GPUs of ``"device=UUID,..."``."""
    uuids = value.strip('"').partition("=")[2].split(",")
    host["DeviceRequests"] = [{"DeviceIDs": uuids, "Capabilities": [["gpu"]]}]


def size_of(text):
    """Return the bytes of a size such as ``32g``."""
    unit = text[-1:] if text[-1:] in UNITS else "b"
    return int(text.rstrip("bkmg")) * UNITS[unit]


OTHERS = {
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
