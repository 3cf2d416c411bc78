"""Rules of the node's firewall that admit a network or an address to all ports."""

import ipaddress

UFW_RULES = ("/etc/ufw/user.rules", "/etc/ufw/user6.rules")
CLIENT = ("firewall-cmd",)
ZONE = "trusted"
ZONE_FILE = f"/etc/firewalld/zones/{ZONE}.xml"


class FirewallError(Exception):
    """The firewall refused a rule."""


def saved_sources(module, program, sources):
    """Return those of the sources that the saved configuration admits, also while the firewall is stopped."""
    if program == "ufw":
        lines = _ufw_lines()
        return {source for source in sources if _ufw_line(source) in lines}
    return _listed(module, _saved_client(module)) & set(sources)


def active_sources(module, program, sources):
    """Return those of the sources whose rule is in effect, of all that are saved."""
    return set(sources) if program == "ufw" else _listed(module, CLIENT) & set(sources)


def decided_sources(module, program, sources):
    """Return those of the sources about which the operator decided otherwise: ufw would replace such a rule."""
    if program == "ufw":
        lines = [line.split() for line in _ufw_lines() if len(line.split()) > 4]
        other = {tuple(line[4:]) for line in lines if line[3] != "allow" and not line[3].startswith("route:")}
        return {source for source in sources if tuple(_ufw_line(source).split()[4:]) in other}
    zone, bound = "", set()
    for line in module.run_command([*CLIENT, "--get-active-zones"])[1].splitlines():
        words = line.split()
        if words and not line[0].isspace():
            zone = words[0]
        elif words[:1] == ["sources:"] and zone != ZONE:
            bound.update(words[1:])
    return bound & set(sources)


def add_rules(module, program, sources):
    """Admit sources, now and after the next start of the firewall.

    Raises:
        FirewallError: the firewall refuses a rule.
    """
    if program == "ufw":
        for source in sources:
            _require(module.run_command(["ufw", "allow", "from", source, "comment", "provision"]), source)
        return
    for client in (_saved_client(module), CLIENT):
        missing = _without(sources, _listed(module, client))
        result = _change(module, client, "add", missing)
        for source in _without(missing, _listed(module, client)):
            _refuse(result, source)


def remove_rules(module, program, sources):
    """Remove the rules of sources, also while the firewall is stopped; they may not exist.

    Raises:
        FirewallError: the firewall refuses a removal.
    """
    if program == "ufw":
        for source in sorted(saved_sources(module, program, sources)):
            _require(module.run_command(["ufw", "delete", "allow", "from", source]), source)
        return
    for client in (_saved_client(module), CLIENT) if _is_running(module) else (_saved_client(module),):
        listed = _listed(module, client)
        result = _change(module, client, "remove", [source for source in sources if source in listed])
        left = _listed(module, client)
        for source in sources:
            if source in left:
                _refuse(result, source)


def saved_paths(program):
    """Return the files with the rules that the functions above change."""
    return UFW_RULES if program == "ufw" else (ZONE_FILE,)


def undo_commands(module, program, added, removed):
    """Return the commands that undo rules in effect; the files with the rules are restored before."""
    if program == "ufw":
        return [["ufw", "reload"]]
    active = active_sources(module, program, [*added, *removed])
    parts = {"remove": _without(added, active), "add": [source for source in removed if source in active]}
    return [_command(CLIENT, action, sources) for action, sources in parts.items() if sources]


def _without(sources, others):
    return [source for source in sources if source not in others]


def _is_running(module):
    return module.run_command([*CLIENT, "--state"])[0] == 0


def _saved_client(module):
    """Return firewalld's client for the saved configuration; the usual one needs the running service."""
    return [*CLIENT, "--permanent"] if _is_running(module) else ["firewall-offline-cmd"]


def _listed(module, client):
    """Return the sources of the zone."""
    return set(module.run_command([*client, f"--zone={ZONE}", "--list-sources"])[1].split())


def _command(client, action, sources):
    """Return one command for all sources: a client of firewalld takes half a second."""
    return [*client, f"--zone={ZONE}", *(f"--{action}-source={source}" for source in sources)]


def _change(module, client, action, sources):
    """Run one command for all sources. It may succeed although the firewall refused a part of them."""
    return module.run_command(_command(client, action, sources)) if sources else (0, "", "")


def _ufw_lines():
    """Return the rules in the files of ufw, without comments."""
    lines = set()
    for path in UFW_RULES:
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                lines |= {
                    line.partition(" comment=")[0].rstrip() for line in stream if line.startswith("### tuple ###")
                }
        except OSError:
            continue
    return lines


def _ufw_line(source):
    everybody = "::/0" if ipaddress.ip_network(source, strict=False).version == 6 else "0.0.0.0/0"
    return f"### tuple ### allow any any {everybody} any {source} in"


def _require(result, source):
    if result[0] != 0:
        _refuse(result, source)


def _refuse(result, source):
    raise FirewallError(f"{source}: {(result[2] or result[1]).strip()[-200:]}")
