"""This module is sent without Ansible's own module library: see the platform role's action plugin of that name."""

from __future__ import annotations

from ansible.plugins.loader import action_loader

ActionModule = action_loader.get("platform_light", class_only=True)
