"""Filter of the role docker_engine: overlaps of docker's address pools with other networks."""

import ipaddress
import re

DOCKER_INTERFACE = re.compile(r"^(docker\d|br-[0-9a-f]{12}|veth)")


def docker_engine_overlaps(pools, nodes, networks):
    """Return a sentence for each network of a node or of the cluster that overlaps one of docker's address pools.

    `nodes` maps a name to variables with "platform_node": {"addresses": [{interface, address, prefix}], "routes":
    ["CIDR INTERFACE"]}; an unreachable node has none.
    """
    used = [(network, "cluster_data_networks") for network in networks]
    for name in sorted(nodes):
        node = nodes[name].get("platform_node") or {}
        used += [
            (f"{entry['address']}/{entry['prefix']}", f"{name}: address on {entry['interface']}")
            for entry in node.get("addresses", [])
            if not DOCKER_INTERFACE.match(entry["interface"])
        ]
        for route in node.get("routes", []):
            destination, _, interface = route.partition(" ")
            if not DOCKER_INTERFACE.match(interface):
                used.append((destination, f"{name}: route through {interface or 'no interface'}"))
    return sorted(
        {
            f"{pool['base']} overlaps {network} ({where})"
            for pool in pools
            for network, where in used
            if _network(pool["base"]).overlaps(_network(network))
        }
    )


def _network(text):
    """Return an IPv4 or IPv6 network of an address with or without prefix."""
    return ipaddress.ip_network(text, strict=False)


class FilterModule:
    """The filters that Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {"docker_engine_overlaps": docker_engine_overlaps}
