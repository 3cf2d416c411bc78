"""The state of the network interface that connects this node to the other nodes of a job."""

import fcntl
import os
import socket
import struct

SIOCGIFADDR = 0x8915
NET = "/sys/class/net"
DOWN = ("down", "lowerlayerdown", "notpresent")


def interface_error(address: str) -> str:
    """Return what is wrong with the interface that has an IPv4 address, empty without a known error."""
    try:
        names = sorted(os.listdir(NET))
    except OSError:
        return ""
    for name in names:
        if address_of(name) == address:
            return "its network interface {} is down".format(name) if state_of(name) in DOWN else ""
    return ""


def address_of(interface: str) -> str:
    """Return the first IPv4 address of an interface, empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def state_of(interface: str) -> str:
    """Return the operational state of an interface, empty if it is unknown."""
    try:
        with open(os.path.join(NET, interface, "operstate")) as stream:
            return stream.read().strip()
    except OSError:
        return ""
