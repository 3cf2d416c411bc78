"""Run a module of the role that compares settings with a node, and changes those that differ."""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.fabric_host_cards import InvalidSetting


def run(options, settings_of):
    """Run the module.

    Args:
        options: its options besides `interfaces`.
        settings_of: returns the settings for the module: `is_unknown`, `left_out`, `different`, `boot`, `diff` and `change`.
    """
    interfaces = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(argument_spec={"interfaces": interfaces, **options}, supports_check_mode=True)
    module.run_command_environ_update = {"LC_ALL": "C"}
    try:
        settings = settings_of(module)
        is_changed = settings.is_unknown or bool(settings.different())
        result = {"changed": is_changed, "left_out": settings.left_out, "boot": settings.boot()}
        result["diff"] = settings.diff() if is_changed else []
        if not module.check_mode:
            settings.change()
    except InvalidSetting as error:
        module.fail_json(msg=f"{error}. Correct the settings of the role fabric_host, then apply again.")
    module.exit_json(**result)
