"""Run the module of this name by the action plugin `platform_light`."""

from __future__ import annotations

from ansible.plugins.loader import action_loader

ActionModule = action_loader.get("platform_light", class_only=True)
