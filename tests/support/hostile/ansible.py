"""A STAND-IN of ansible-runner: it hands over the events of a short playbook, with what nodes said in their results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.hostile.world import World

__all__ = ["StandInRunner"]

_RESULTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ok", {"changed": False, "msg": "all is as it was"}),
    (
        "ok",
        {
            "changed": True,
            "diff": [{"before": "a\n", "after": "b\n", "after_header": "/etc/x.conf"}],
            "results": [{"changed": True, "diff": {"prepared": "x"}}],
        },
    ),
    (
        "failed",
        {"msg": "cannot write\nmore", "stderr": "write: No space left on device", "stdout": "x", "module_stderr": "y"},
    ),
    ("unreachable", {"msg": "Failed to connect to the host via ssh", "unreachable": True}),
)


class StandInRunner:
    """Stands in for ``ansible_runner.run``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def run(
        self, *, private_data_dir: str, cmdline: str, event_handler: Callable[[Mapping[str, Any]], Any], **_: Any
    ) -> SimpleNamespace:
        """Report for each node that two tasks succeeded; a hostile node may report anything of its own."""
        words = shlex.split(cmdline)
        names = Path(words[words.index("--limit") + 1].removeprefix("@")).read_text().split()
        variables = self._variables(words)
        failures: dict[str, int] = {}
        for name in names:
            self._node(name, event_handler, failures)
            if "_platform_reset" in variables:
                self._reset(name, Path(variables["_platform_reset"]["folder"]))
        for name in names:
            event_handler({"event": "runner_on_ok", "event_data": {"play": "Nodes that came to the end", "host": name}})
        stats = {"failures": failures, "dark": {}, "changed": dict.fromkeys(names, 1), "ok": dict.fromkeys(names, 2)}
        event_handler({"event": "playbook_on_stats", "event_data": stats})
        del private_data_dir
        return SimpleNamespace(status="successful", rc=0)

    @staticmethod
    def _variables(words: list[str]) -> dict[str, Any]:
        if "--extra-vars" not in words:
            return {}
        variables: dict[str, Any] = json.loads(
            Path(words[words.index("--extra-vars") + 1].removeprefix("@")).read_text()
        )
        return variables

    def _node(self, name: str, handler: Callable[[Mapping[str, Any]], Any], failures: dict[str, int]) -> None:
        for number, (kind, result) in enumerate(_RESULTS[:2] if name == "gpu0002" else _RESULTS):
            said = self._world.spoiled_document(name, result)
            if said is None:
                continue
            if kind == "failed":
                failures[name] = 1
            data = {
                "host": name,
                "role": "docker_engine",
                "task": f"docker_engine : Task {number}",
                "task_action": "ansible.builtin.copy",
                "task_uuid": f"t{number}",
                "res": said,
            }
            text = f"{kind}: [{name}] => {json.dumps(said)}"
            handler({"event": f"runner_on_{kind}", "event_data": data, "stdout": text})

    def _reset(self, name: str, folder: Path) -> None:
        answer = {"steps": ["remove /etc/x"], "left": [], "refused": [], "changed": True}
        (folder / f"{name}.json").write_bytes(self._world.spoiled_bytes(name, json.dumps(answer).encode()))
