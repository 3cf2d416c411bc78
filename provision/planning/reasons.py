"""The wording of the reasons of steps and findings: code -> message.

`provision/report/reasons.py` describes the templates. What to do about a reason of a step is to run `provision apply`.
"""

from __future__ import annotations

from collections.abc import Mapping

from provision.model.reason import Wording

REASONS: Mapping[str, Wording] = {
    # Receipts, fingerprints and requests
    "plan.never_applied": Wording("it was never applied here, or its receipt is missing"),
    "plan.receipt_unreadable": Wording("its receipt cannot be read: {cause}"),
    "plan.receipt_edited": Wording("its receipt was changed manually"),
    "plan.no_fingerprint": Wording(
        "its receipt does not record the variables of its last run: it was probably applied by ansible-playbook"
    ),
    "plan.role_changed": Wording("the role itself has changed since it was last applied"),
    "plan.nodes_changed": Wording("nodes of the cluster, or their data addresses, changed in the inventory"),
    "plan.variable_changed": Wording("{name} changed in the inventory"),
    "plan.variable_new": Wording("{name} is new in the inventory"),
    "plan.variable_removed": Wording("{name} is no longer set in the inventory"),
    "plan.python_missing": Wording(
        "python3 is missing or incomplete; it is installed first, then the other steps are planned and run"
    ),
    "plan.forced": Wording("requested by --force"),
    "plan.not_held": Wording("the node does not hold the packages of stack.lock.yml in their versions"),
    "plan.held": Wording("the node holds packages in the versions of a stack.lock.yml that does not apply to it"),
    # Findings
    "plan.finding": Wording("{check}: {cause}"),
    "plan.ignored": Wording("{difference}; preserved for {owner}: {cause}"),
    "plan.receipts_unreadable": Wording("the roles' receipts cannot be read: {cause}"),
    "plan.managed_unreadable": Wording("the managed objects of the roles cannot be probed: {cause}"),
    "plan.no_answer": Wording("{command} did not answer in time"),
    # Drift
    "file.missing": Wording("{path} is missing"),
    "file.added": Wording("{path} exists, and did not after the last apply"),
    "file.type": Wording("{path} is {current}, not {recorded}"),
    "file.attribute": Wording("the {attribute} of {path} is {current}, not {recorded}"),
    "file.invalid_json": Wording("{path} is not a valid JSON object, so none of its settings can be used"),
    "file.edited": Wording("{path} was changed manually"),
    "file.block_missing": Wording("our block in {path} is missing"),
    "file.block_edited": Wording("our block in {path} was changed manually"),
    "file.json_edited": Wording("{path} was changed manually: {keys:;}"),
    "file.keys_differ": Wording("changed: {keys}"),
    "file.keys_missing": Wording("missing: {keys}"),
    "package.missing": Wording("package {name} is not installed any more"),
    "package.added": Wording("package {name} is installed, and was not after the last apply"),
    "package.older": Wording("package {name} is {current}, older than the recorded {recorded}"),
    "package.newer": Wording("package {name} is {current}, newer than the recorded {recorded}"),
    "unit.masked": Wording("{name} is masked"),
    "unit.missing": Wording("{name} is missing"),
    "unit.added": Wording("{name} exists, and did not after the last apply"),
    "unit.not_loaded": Wording("{name} cannot be used: systemd reports {state}"),
    "unit.failed": Wording("{name} has failed"),
    "unit.stopped": Wording("{name} is stopped"),
    "unit.started": Wording("{name} runs, and did not after the last apply"),
    "unit.state": Wording("{name} is {state}"),
    "unit.enabled": Wording("{name} is {current}, not {recorded}"),
    "module.missing": Wording("module {name} is not loaded[ since the boot of {booted}]"),
    "module.added": Wording("module {name} is loaded, and was not after the last apply"),
    "image.missing": Wording("image {name} is not on the node any more"),
    "image.added": Wording("image {name} is {current}, none was recorded"),
    "image.differs": Wording("image {name} is {current}, recorded was {recorded}"),
    "container.missing": Wording("container {name} is missing"),
    "container.added": Wording("container {name} exists, and did not after the last apply"),
    "container.recreated": Wording("container {name} was recreated manually"),
    "container.recreated_by_apply": Wording("container {name} was recreated by an apply that did not finish"),
    "container.state": Wording("container {name} is {state}"),
}
