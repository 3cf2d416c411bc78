"""Reset the modes of GPUs (MIG, persistence) that a role has set."""

from ansible.module_utils.platform_gpu_modes import TITLES, ModesError, read, without_clients, write
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
        setting, before = doc["setting"], doc["before"]
        try:
            with without_clients(module, setting):
                words = write(module, setting, doc["uuid"], before)[1]
            now = read(module, setting).get(doc["uuid"], ("", ""))
        except ModesError as error:
            return f"{doc['uuid']}: the {TITLES[setting]} is not certain to be {before} ({error})"
        if now[0] == before:
            return None
        why = "requires a reset of the GPU" if now[1] == before else "was not set"
        return f"{doc['uuid']}: the {TITLES[setting]} {before} {why} ({words})"

    return act
