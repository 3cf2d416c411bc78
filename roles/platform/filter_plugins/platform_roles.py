"""Filters of the role platform: the roles of a run, their nodes, packages and repositories.

A role declares its properties in its vars: ``_ROLE_for_jobs``, ``_ROLE_for_gpus``, ``__ROLE_own_repositories``.
"""

import re

from ansible.module_utils.parsing.convert_bool import boolean
from jinja2 import pass_context


@pass_context
def platform_marked_roles(context, roles, mark):
    """Return the roles whose vars have this mark, such as ``for_jobs``."""
    return [role for role in roles if _is_on(context.get(f"_{role}_{mark}"), default=False)]


@pass_context
def platform_other_engines(context, roles, engine):
    """Return the roles that belong to another job engine than that of the cluster, by their ``_ROLE_for_engine``."""
    engines = {role: context.get(f"_{role}_for_engine") for role in roles}
    return [role for role, own in engines.items() if own is not None and own != engine]


@pass_context
def platform_selected_roles(context, roles, skipped, tags):
    """Return the roles that are enabled, selected by ``--tags`` and not skipped."""
    return [
        role
        for role in roles
        if role not in skipped and _is_tagged(role, tags) and _is_on(context.get(f"{role}_enabled"))
    ]


@pass_context
def platform_role_packages(context, roles, sets, choices):
    """Return role -> packages. If a role has alternatives, the variable in `choices` selects one."""
    packages = {role: sets.get(role) or [] for role in roles}
    for role, by_choice in packages.items():
        if isinstance(by_choice, dict):
            choice = context.get(choices[role])
            packages[role] = next(iter(by_choice.values())) if choice is None else by_choice[choice]
    return packages


@pass_context
def platform_unavailable_packages(context, roles, unavailable, choices):
    """Return why the system has no packages for chosen alternatives of roles, each with its remedy."""
    reasons = {role: (unavailable.get(role) or {}).get(context.get(choices.get(role))) for role in roles}
    return [f"{choices[role]}: {reason['problem']}. {reason['remedy']}" for role, reason in reasons.items() if reason]


@pass_context
def platform_role_repositories(context, roles):
    """Return the repositories of the roles."""
    return [item for role in roles for item in context.get(f"__{role}_own_repositories") or []]


def platform_taking_part(hostvars, names, roles, steps, job_roles):
    """Return role -> the nodes on which it runs. `steps` is node -> roles in a run for selected steps, else None."""
    nodes = {role: [] for role in roles}
    for name in names:
        node = hostvars[name]
        takes_jobs = _is_on(node.get("cluster_takes_jobs"))
        for role in roles:
            is_planned = steps is None or role in (steps.get(name) or [])
            if is_planned and (takes_jobs or role not in job_roles) and _is_on(node.get(f"{role}_enabled")):
                nodes[role].append(name)
    return nodes


def platform_job_nodes(hostvars, names):
    """Return the nodes that take jobs."""
    return [name for name in names if _is_on(hostvars[name].get("cluster_takes_jobs"))]


def _is_tagged(role, tags):
    return "all" in tags or any(re.match(f"{role}(_|$)", tag) for tag in tags)


def _is_on(value, *, default=True):
    return default if value is None else boolean(value, strict=False)


class FilterModule:
    """The filters that Ansible loads."""

    def filters(self):
        """Return the filters by name."""
        return {
            "platform_job_nodes": platform_job_nodes,
            "platform_other_engines": platform_other_engines,
            "platform_marked_roles": platform_marked_roles,
            "platform_role_packages": platform_role_packages,
            "platform_role_repositories": platform_role_repositories,
            "platform_unavailable_packages": platform_unavailable_packages,
            "platform_taking_part": platform_taking_part,
            "platform_selected_roles": platform_selected_roles,
        }
