"""What packages offer is imported when it is asked for."""

import ast
import inspect
import subprocess
import sys

import pytest

from provision import jobs, workflow


@pytest.mark.parametrize("package", [workflow, jobs])
def test_every_exported_name_of_a_package_exists(package):
    imports = [node for node in ast.walk(ast.parse(inspect.getsource(package))) if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports if node.module.startswith(package.__name__) for alias in node.names]

    assert names
    assert [name for name in names if getattr(package, name) is None] == []
    assert not hasattr(package, "nothing_of_the_kind")


def test_listing_jobs_does_not_import_probes_checks_and_launchers():
    """All of it would take longer than the rest of the command's start."""
    code = "import sys, provision.workflow.jobs as jobs, provision.testing as t; jobs.job_engine(t.make_cluster('a'));"
    code += (
        "print([name for name in ('facts', 'checks', 'topology', 'profiles') if f'provision.{name}' in sys.modules])"
    )
    argv = [sys.executable, "-c", code]
    outputs = [subprocess.run(argv, capture_output=True, text=True, check=True).stdout for _ in range(2)]

    assert outputs[1].strip() == "[]", "the first command may have cached the variables of the roles"
