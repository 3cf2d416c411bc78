"""Ansible's strategy plugin `mitogen_linear`, with a repair for action plugins that use the class of another one.

Mitogen derives a class from each action plugin. The roles' plugins get the class of `platform_light` from Ansible's
loader, which returns the derived class then, and Python refuses to derive from it again ("Cannot create a consistent
method resolution order"). Here, the loader returns the plugin's own class on a request for a class.
"""

from ansible_mitogen import loaders, strategy

_derive = strategy.wrap_action_loader__get_with_context


def _get(name, *args, **kwargs):
    """Return the plugin's own class, or an object of the class that Mitogen derives from it."""
    if kwargs.get("class_only"):
        return loaders.action_loader__get_with_context(name, *args, **kwargs)
    return _derive(name, *args, **kwargs)


strategy.wrap_action_loader__get_with_context = _get


class StrategyModule(strategy.StrategyMixin, loaders.strategy_loader.get("linear", class_only=True)):
    """The strategy of Mitogen."""
