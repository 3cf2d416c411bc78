"""Rules of the node's firewall that admit a network or an address to all ports."""

import ipaddress

UFW_RULES = ("/etc/ufw/user.rules", "/etc/ufw/user6.rules")
ZONE = "trusted"
ZONE_FILE = f"/etc/firewalld/zones/{ZONE}.xml"


class FirewallError(Exception):
    """The firewall refused a rule."""


def has_rule(module, program, source):
    """Return whether a rule of the saved configuration admits a source, also while the firewall is stopped."""
    if program == "ufw":
        return _ufw_line(source) in _ufw_lines()
    return _saved(module, f"--query-source={source}")[0] == 0


def is_active(module, program, source):
    """Return whether the rule of a source is in effect."""
    return program == "ufw" or _running(module, f"--query-source={source}")[0] == 0


def has_other_rule(module, program, source):
    """Return whether the operator decided otherwise about exactly this source: ufw would replace such a rule."""
    if program == "ufw":
        rest = _ufw_line(source).partition(" allow")[2]
        actions = {line.split()[3] for line in _ufw_lines() if line.endswith(rest)}
        return any(action != "allow" and not action.startswith("route:") for action in actions)
    code, out, _ = module.run_command(["firewall-cmd", f"--get-zone-of-source={source}"])
    return code == 0 and out.strip() not in ("", ZONE)


def add_rule(module, program, source):
    """Admit a source, now and after the next start of the firewall.

    Raises:
        FirewallError: the firewall refuses the rule.
    """
    if program == "ufw":
        _require(module.run_command(["ufw", "allow", "from", source, "comment", "provision"]), source)
        return
    for run in (_saved, _running):
        if run(module, f"--query-source={source}")[0] != 0:
            _require(run(module, f"--add-source={source}"), source)


def remove_rule(module, program, source):
    """Remove the rule of a source, also while the firewall is stopped; it may not exist.

    Raises:
        FirewallError: the firewall refuses the removal.
    """
    if program == "ufw":
        if has_rule(module, program, source):
            _require(module.run_command(["ufw", "delete", "allow", "from", source]), source)
        return
    for run in (_saved, _running) if _is_running(module) else (_saved,):
        if run(module, f"--query-source={source}")[0] == 0:
            _require(run(module, f"--remove-source={source}"), source)


def saved_paths(program):
    """Return the files with the rules that the functions above change."""
    return UFW_RULES if program == "ufw" else (ZONE_FILE,)


def undo_commands(module, program, added, removed):
    """Return the commands that undo rules in effect; the files with the rules are restored before."""
    if program == "ufw":
        return [["ufw", "reload"]]
    base = ["firewall-cmd", f"--zone={ZONE}"]
    new = [source for source in added if not is_active(module, program, source)]
    old = [source for source in removed if is_active(module, program, source)]
    return [[*base, f"--remove-source={source}"] for source in new] + [
        [*base, f"--add-source={source}"] for source in old
    ]


def _is_running(module):
    return module.run_command(["firewall-cmd", "--state"])[0] == 0


def _running(module, option):
    """Run firewalld's client for the configuration in effect."""
    return module.run_command(["firewall-cmd", f"--zone={ZONE}", option])


def _saved(module, option):
    """Run firewalld's client for the saved configuration; the client needs the running service."""
    program = ["firewall-cmd", "--permanent"] if _is_running(module) else ["firewall-offline-cmd"]
    return module.run_command([*program, f"--zone={ZONE}", option])


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
    code, out, err = result
    if code != 0:
        raise FirewallError(f"{source}: {(err or out).strip()[-200:]}")
