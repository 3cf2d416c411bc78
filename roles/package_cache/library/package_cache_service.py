#!/usr/bin/python
"""Ansible module: start the proxy of the package cache, restart it if its configuration changed, or stop it."""

DOCUMENTATION = r"""
module: package_cache_service
short_description: Start or stop the proxy of the package cache
description:
  - Compares the configuration with the one that the proxy was started with, which the module records in
    C(/var/lib/provision/package_cache). So an interrupted run is completed by the next one.
  - Waits until the proxy answers.
  - Stops only a proxy that it has started.
options:
  unit: {description: The unit., type: str, required: true}
  config: {description: The file that the proxy reads., type: path, required: true}
  state: {description: Whether the proxy runs., type: str, choices: [started, stopped], default: started}
  url: {description: The URL of the proxy., type: str, default: ""}
  timeout: {description: Seconds to wait for an answer., type: int, default: 60}
author: [provision]
"""

import hashlib
import http.client
import os
import time
from urllib.parse import urlsplit

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import load_json, record_unit, write_private_json

RECORD = "/var/lib/provision/package_cache/started.json"


def problem(url):
    """Return why the proxy does not answer, empty if it does: any answer counts."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return ""


class Service:
    """The unit of the proxy."""

    def __init__(self, module):
        """Set the unit."""
        self.module, self.unit = module, module.params["unit"]

    def run(self, *command):
        """Run a program; return its exit status and output."""
        code, out, err = self.module.run_command(list(command))
        return code, (out + err).strip()

    def is_(self, state):
        """Return whether the unit is `active` or `enabled`."""
        return self.run("systemctl", "is-" + state, "--quiet", self.unit)[0] == 0

    def start(self):
        """Enable the unit, start it, or restart it with a new configuration; return whether that is a change."""
        with open(self.module.params["config"], "rb") as stream:
            wanted = {"config": hashlib.sha256(stream.read()).hexdigest()}
        is_enabled, is_current = self.is_("enabled"), load_json(RECORD) == wanted
        if not is_enabled:
            self.do("--no-reload", "enable")
        if is_enabled and is_current and self.is_("active") and not problem(self.module.params["url"]):
            return False
        code, text = self.run("squid", "-k", "parse", "-f", self.module.params["config"])
        if code != 0:
            self.fail("refuses its configuration", text[-1000:])
        if not is_current or not self.is_("active") or problem(self.module.params["url"]):
            self.run("systemctl", "reset-failed", self.unit)
            self.do("restart")
        self.wait()
        write_private_json(RECORD, wanted)
        return True

    def stop(self):
        """Stop and disable the unit if this module has started it; return whether that is a change."""
        if not os.path.exists(RECORD):
            return False
        self.do("disable", "--now")
        os.unlink(RECORD)
        return True

    def do(self, *words):
        """Run systemctl for the unit, or fail."""
        code, text = self.run("systemctl", *words, self.unit)
        if code != 0:
            self.fail("cannot be started or stopped", text)

    def wait(self):
        """Return when the proxy answers."""
        deadline, why = time.monotonic() + self.module.params["timeout"], ""
        while time.monotonic() < deadline:
            why = problem(self.module.params["url"])
            if not why:
                return
            time.sleep(0.25)
        self.fail("does not answer at {}".format(self.module.params["url"]), why)

    def fail(self, what, text):
        """End the module with the last lines of the journal."""
        journal = self.run("journalctl", "--unit", self.unit, "--lines=8", "--no-pager", "--output=cat")[1]
        self.module.fail_json(msg="{} {} ({}). {}".format(self.unit, what, text, journal))


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "config": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
            "url": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 60},
        }
    )
    module.run_command_environ_update = {"LC_ALL": "C"}
    service = Service(module)
    if module.params["state"] == "stopped":
        module.exit_json(changed=service.stop())
    record_unit(module, module.params["unit"])
    module.exit_json(changed=service.start())


if __name__ == "__main__":
    main()
