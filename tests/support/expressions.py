"""What a role's variables and conditions come to, evaluated by Ansible itself but without a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import filter_loader, init_plugin_loader
from ansible.template import Templar, trust_as_template

ROLES = Path(__file__).resolve().parents[2] / "roles"
init_plugin_loader([])
for folder in ROLES.glob("*/filter_plugins"):
    filter_loader.add_directory(str(folder))


class Role:
    """A role's variables, with those of an inventory and of earlier tasks laid over them."""

    def __init__(self, name: str, **variables: Any) -> None:
        """Read defaults and vars/main.yml of all roles, as a play does; those of the role itself count most."""
        loader, self.folder = DataLoader(), ROLES / name
        merged: dict[str, Any] = {"ansible_search_path": [str(self.folder)], "role_path": str(self.folder)}
        for part in ("defaults", "vars"):
            for role in (*sorted(path.parent.name for path in ROLES.glob("*/tasks")), name):
                path = ROLES / role / part / "main.yml"
                if path.exists():
                    merged |= loader.load_from_file(str(path), trusted_as_template=True) or {}
        self.loader, self.templar = loader, Templar(loader=loader, variables=merged | variables)

    def value(self, expression: str) -> Any:
        """Return what an expression comes to."""
        return self.templar.template(trust_as_template("{{ " + expression + " }}"))

    def task(self, file: str, name: str) -> dict[str, Any]:
        """Return a task of the role, not evaluated, from tasks/FILE.yml."""
        tasks = self.loader.load_from_file(str(self.folder / "tasks" / f"{file}.yml"), trusted_as_template=True)
        return next(dict(task) for task in tasks if task["name"] == name)

    def holds(self, file: str, name: str) -> bool:
        """Return whether a task that asserts something passes."""
        task = self.task(file, name)
        conditions = task["ansible.builtin.assert"]["that"]
        variables = self.templar.available_variables | (task.get("vars") or {})
        templar = Templar(loader=self.loader, variables=variables)
        conditions = conditions if isinstance(conditions, list) else [conditions]
        return all(templar.evaluate_conditional(condition) for condition in conditions)

    def says(self, file: str, name: str) -> str:
        """Return what a failing assertion says."""
        task = self.task(file, name)
        templar = Templar(loader=self.loader, variables=self.templar.available_variables | (task.get("vars") or {}))
        return str(templar.template(task["ansible.builtin.assert"]["fail_msg"]))
