import pytest

from provision.commands.docker import exec_argv
from provision.commands.shell import is_environment_name, join, script_argument


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (("python3", "train.py", "x"), "train.py"),
        (("/usr/bin/python3.11", "a/b.py"), "a/b.py"),
        (("bash", "go.sh"), "go.sh"),
        (("python3", "-m", "train"), None),
        (("sh", "-c", "echo"), None),
        (("python3",), None),
        (("hostname", "x"), None),
        (("shred", "x"), None),
    ],
)
def test_the_script_of_an_interpreter_is_recognised(command, script):
    """A missing train.py can be said before the start, because it is known to be a script."""
    assert script_argument(command) == script


@pytest.mark.parametrize(("name", "good"), [("LR", True), ("_a1", True), ("1A", False), ("A-B", False), ("", False)])
def test_invalid_variable_names_are_refused(name, good):
    """--env accepts what can be a variable and nothing else."""
    assert is_environment_name(name) is good


def test_quoting_preserves_all_arguments():
    """Blanks and quotes survive the shell."""
    assert join(["a b", "c'd"]) == "'a b' 'c'\"'\"'d'"


def test_docker_exec_gets_variables_before_the_container_name():
    """Variables come before the container's name, the command after it."""
    argv = exec_argv("c", ["true"], stdin=True, environment={"JOB": "1"})

    assert argv == ["docker", "exec", "-i", "-e", "JOB=1", "c", "true"]
