"""The action plugin that writes receipts, or stores them for the end of the play."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ansible.plugins.loader import action_loader

from tests.support.expressions import ROLES  # which initializes Ansible's loader of plugins
from tests.support.light_modules import light
from tests.support.modules import load

action_loader.add_directory(str(ROLES / "platform/action_plugins"))
plugin = load("platform", "platform_receipts", part="action_plugins")
FIRST, SECOND = {"role": "base_system"}, {"role": "docker_engine"}


class Plugin(plugin.ActionModule):  # type: ignore[misc]
    """The action plugin, which records what it sends to the node."""

    def __init__(self, **arguments: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        self._task = SimpleNamespace(args=arguments, check_mode=False, async_val=False)
        self._connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir=""))

    def _execute_module(self, module_name: str, module_args: dict[str, str], **_: Any) -> dict[str, Any]:
        assert module_name == "platform_light"
        document = light.decoded(module_args["program"])
        self.sent.append(document["arguments"])
        return {"changed": True}


def test_receipts_are_stored_until_the_end_of_the_play() -> None:
    """A role that is not the last one of the play sends nothing to the node."""
    later = Plugin(receipts=[FIRST, SECOND], fingerprints={}, later=True)
    result = later.run(task_vars={})

    assert later.sent == []
    assert result["ansible_facts"] == {
        "platform_receipt_of_base_system": FIRST,
        "platform_receipt_of_docker_engine": SECOND,
    }
    assert not result.get("changed")


def test_all_stored_receipts_are_written_in_one_task() -> None:
    """The node gets them once, with the fingerprints, and none remains for the next play."""
    end = Plugin(receipts=[FIRST, SECOND], fingerprints={"base_system": {"files": "1"}})
    result = end.run(task_vars={})

    assert end.sent == [{"receipts": [FIRST, SECOND], "fingerprints": {"base_system": {"files": "1"}}}]
    assert result["changed"]
    assert result["ansible_facts"] == {
        "platform_receipt_of_base_system": None,
        "platform_receipt_of_docker_engine": None,
    }
