"""Reset the modes of GPUs (MIG, persistence) that a role has set."""

from ansible.module_utils.platform_gpu_modes import TITLES, ModesError, read, write
from ansible.module_utils.platform_links import is_own
from ansible.module_utils.platform_origin import records
from ansible.module_utils.platform_undo_files import Step


def mode_steps(module, left):
    """Return the steps for modes of GPUs that a role has set. Those that were changed since are added to `left`."""
    steps, docs = [], records("gpu_modes")
    for setting in sorted({doc["setting"] for doc in docs}):
        try:
            modes = read(module, setting)
        except ModesError as error:
            left.append(f"leave the {TITLES[setting]} of GPUs: {error}")
            continue
        for doc in (one for one in docs if one["setting"] == setting and one["uuid"] in modes):
            now, before = modes[doc["uuid"]][1], doc["before"]
            label = f"the {TITLES[setting]} of {doc['uuid']}"
            if now == before:
                continue
            if is_own(doc, now):
                steps.append(Step(f"set {label} back to {before}", _set(module, doc)))
            else:
                left.append(f"leave {label} at {now}, which was changed since (originally {before})")
    return steps


def _set(module, doc):
    def act():
        words = write(module, doc["setting"], doc["uuid"], doc["before"])
        try:
            now = read(module, doc["setting"]).get(doc["uuid"], ("",))[0]
        except ModesError as error:
            words = str(error)
            now = ""
        if now == doc["before"]:
            return None
        return f"{doc['uuid']}: the {TITLES[doc['setting']]} {doc['before']} requires a reset of the GPU ({words})"

    return act
