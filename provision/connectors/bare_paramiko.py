"""paramiko without invoke, which it has for ssh_config's ``Match exec``; that is ssh's here.

To import invoke takes nearly as long as the rest of paramiko, which goes without where there is none. All of
connectors have paramiko from here, and only where a connection is made: who makes none does not wait for it.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["IncompatiblePeer", "Packetizer", "paramiko"]

_modules: dict[str, Any] = sys.modules
_hidden = "paramiko" not in _modules and "invoke" not in _modules
if _hidden:
    _modules["invoke"] = None
try:
    import paramiko
    from paramiko.packet import Packetizer
    from paramiko.ssh_exception import IncompatiblePeer
finally:
    if _hidden:
        del _modules["invoke"]
