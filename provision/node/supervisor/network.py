"""What the kernel says of the network between the keepers."""

import fcntl
import os
import socket
import struct

SIOCGIFADDR = 0x8915
NET = "/sys/class/net"
DOWN = ("down", "lowerlayerdown", "notpresent")


def trouble_of(address):
    """Return what is wrong with the interface that has an IPv4 address, empty where nothing is known to be."""
    try:
        names = sorted(os.listdir(NET))
    except OSError:
        return ""
    for name in names:
        if address_of(name) == address:
            return "its network interface {} is down".format(name) if state_of(name) in DOWN else ""
    return ""


def address_of(interface):
    """Return the first IPv4 address of an interface, empty where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            found = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(found[20:24])


def state_of(interface):
    """Return the kernel's word for whether an interface can send."""
    try:
        with open(os.path.join(NET, interface, "operstate")) as stream:
            return stream.read().strip()
    except OSError:
        return ""
