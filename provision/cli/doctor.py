"""``provision doctor``: check this machine, not the nodes."""

from __future__ import annotations

import typer

from provision.cli.common import JsonOption, print_json, show


def doctor(as_json: JsonOption = False) -> None:
    """Check the controller: what provision needs here.

    It checks Python, Ansible, the SSH client and agent, known_hosts, password files of Ansible Vault, folders, ports,
    and what the lab needs: Docker, QEMU and the programs that build nodes. It connects to no node; `provision verify`
    checks nodes. Each warning and failure has a remedy.

    Exit code 1 if a check fails. Warnings are about optional parts.

    \b
    Examples:
      provision doctor
      provision doctor --json
    """
    from provision.checks.controller import judge_controller
    from provision.report.bundle import versions
    from provision.report.doctor_report import as_document, as_text, is_ok
    from provision.workflow.controller_probe import controller_facts, program_versions
    from provision.workflow.installation import commit

    checks = judge_controller(controller_facts())
    known = {**versions(), "commit": commit(), **program_versions()}
    if as_json:
        print_json(as_document(checks, known))
    else:
        show(as_text(checks, known))
    raise typer.Exit(0 if is_ok(checks) else 1)
