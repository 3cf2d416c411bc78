"""The database of slurmdbd: its module creates it without a password, and a reset removes only what the role created.

The client of MariaDB is a STAND-IN with a database server of a few statements.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.modules import load, provide_utils, run

provide_utils()
origin = importlib.import_module("ansible.module_utils.platform_origin")
undo = importlib.import_module("ansible.module_utils.platform_undo_database")

USER = "'slurm'@'localhost'"
GRANT = r"GRANT ALL PRIVILEGES ON `slurm\_acct\_db`.*"


class Server:
    """STAND-IN of MariaDB: databases, and account -> how it is identified and its grants."""

    def __init__(self) -> None:
        self.databases: set[str] = set()
        self.accounts: dict[str, list[str]] = {}
        self.changes: list[str] = []
        self.arguments: list[list[str]] = []
        self.error = ""
        self.jobs: dict[str, int] = {}
        """Table of jobs -> number of its rows."""

    def run(self, command: list[str], data: str = "") -> tuple[int, str, str]:
        """Answer the client, or systemctl."""
        self.arguments.append(command)
        if command[0] != "mariadb":
            return 0, "", ""
        if self.error:
            return 1, "", self.error
        answers = [self._answer(line) for line in data.splitlines()]
        return 0, "".join(f"{line}\n" for lines in answers for line in lines), ""

    def _answer(self, statement: str) -> list[str]:
        if statement.startswith("SHOW DATABASES"):
            return sorted(self.databases)
        if statement.startswith("SHOW TABLES FROM `slurm_acct_db` LIKE"):
            return sorted(self.jobs)
        if match := re.match(r"SELECT COUNT\(\*\) FROM `slurm_acct_db`\.`(\S+)`;", statement):
            return [str(self.jobs[match[1]])]
        if statement.startswith("SELECT 1"):
            return ["1"] * len(self.accounts)
        if statement.startswith("SHOW"):
            form = f"CREATE USER {USER} IDENTIFIED VIA {{}}" if "CREATE" in statement else "{} TO x"
            identity, *grants = self.accounts[USER]
            return [form.format(text) for text in ([identity] if "CREATE" in statement else grants)]
        if not statement.startswith("SET "):
            self.changes.append(statement)
        self._change(statement)
        return []

    def _change(self, statement: str) -> None:
        if match := re.match(r"CREATE DATABASE (\w+)", statement):
            self.databases.add(match[1])
        elif match := re.match(r"(?:CREATE|ALTER) USER (\S+) IDENTIFIED VIA (\w+)", statement):
            self.accounts[match[1]] = [match[2], *self.accounts.get(match[1], [])[1:]]
        elif match := re.match(r"(GRANT .*) TO (\S+);", statement):
            self.accounts[match[2]].append(match[1])


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def module(server: Server, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    loaded = load("slurm", "slurm_database")
    monkeypatch.setattr(loaded.AnsibleModule, "run_command", lambda _self, command, **more: server.run(command, **more))
    return loaded


def test_slurmdbd_needs_no_password(module: ModuleType, server: Server) -> None:
    """MariaDB identifies it by its system account; it may use its own database only."""
    assert run(module)["changed"]

    assert server.databases == {"slurm_acct_db"}
    assert server.accounts == {USER: ["unix_socket", GRANT]}
    assert not [statement for statement in server.changes if "BY" in statement or "PASSWORD" in statement]


def test_a_second_run_changes_nothing(module: ModuleType, server: Server) -> None:
    run(module)
    server.changes.clear()

    assert not run(module)["changed"]
    assert server.changes == []


def test_a_removed_grant_and_another_authentication_are_repaired(module: ModuleType, server: Server) -> None:
    """Of the role's own account."""
    run(module)
    server.accounts[USER] = ["mysql_native_password"]

    assert run(module)["changed"]
    assert server.accounts[USER] == ["unix_socket", GRANT]


def test_the_password_of_an_account_that_existed_before_is_not_replaced(module: ModuleType, server: Server) -> None:
    """Another program may use it."""
    server.accounts[USER] = ["mysql_native_password"]
    result = run(module)

    assert result["failed"]
    assert "unix_socket" in result["msg"]
    assert server.accounts[USER] == ["mysql_native_password"]


def test_a_server_that_refuses_root_has_its_reason(module: ModuleType, server: Server) -> None:
    server.error = "ERROR 1698 (28000): Access denied for user 'root'@'localhost'"

    assert "Access denied" in run(module)["msg"]


def database(server: Server, *removable: str) -> Any:
    """Return the reset of MariaDB on this server."""

    class Module:
        run_command = staticmethod(server.run)
        get_bin_path = staticmethod(lambda name: f"/usr/bin/{name}")

    return undo.Database(Module(), list(removable))


def reset(server: Server, *removable: str) -> list[str]:
    """Do all steps; return what they report."""
    steps = database(server, *removable)
    return [message for step in [*steps.first_steps(), *steps.last_steps()] if (message := step.act())]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of a server with its own databases."""
    for name in ("mysql", "sys", "performance_schema", "slurm_acct_db", "#rocksdb"):
        (tmp_path / "mysql-data" / name).mkdir(parents=True)
    monkeypatch.setattr(undo, "DATA_FOLDER", str(tmp_path / "mysql-data"))
    monkeypatch.setattr(undo, "SETTINGS_FOLDER", str(tmp_path / "settings"))
    return tmp_path / "mysql-data"


def test_a_reset_removes_the_database_and_the_server_of_the_role(
    module: ModuleType, server: Server, data: Path
) -> None:
    run(module)

    assert database(server, "mariadb-server").refusals() == []
    assert reset(server, "mariadb-server") == []
    assert server.changes[-2:] == [f"DROP USER IF EXISTS {USER};", "DROP DATABASE IF EXISTS slurm_acct_db;"]
    assert not data.exists()


def test_a_reset_leaves_a_server_that_existed_before(module: ModuleType, server: Server, data: Path) -> None:
    """Only the role's database and account are removed."""
    (data / "wiki").mkdir()
    run(module)

    assert reset(server) == []
    assert server.changes[-1] == "DROP DATABASE IF EXISTS slurm_acct_db;"
    assert (data / "wiki").is_dir()


def test_a_reset_never_removes_a_database_that_existed_before(module: ModuleType, server: Server, data: Path) -> None:
    """The records of an earlier Slurm stay."""
    server.databases.add("slurm_acct_db")
    run(module)

    assert database(server, "mariadb-server").refusals() == [
        "MariaDB would be removed with databases that the roles did not create: slurm_acct_db"
    ]
    assert "slurm_acct_db" in reset(server, "mariadb-server")[0]
    assert not [statement for statement in server.changes if statement.startswith("DROP DATABASE")]
    assert data.is_dir()


@pytest.mark.usefixtures("data")
def test_the_records_of_jobs_are_removed_only_if_the_operator_allows_it(module: ModuleType, server: Server) -> None:
    """Also where the server stays. Records that MariaDB does not report may exist."""
    run(module)
    server.jobs = {"lab_job_table": 0, "old_job_table": 0}
    assert database(server).refusals() == []

    server.jobs = {"lab_job_table": 2, "old_job_table": 1}
    wanted = ["the records of 3 jobs in the database slurm_acct_db would be removed (mariadb-dump saves them)"]
    assert database(server).refusals() == database(server, "mariadb-server").refusals() == wanted

    server.error = "ERROR 2002 (HY000): Can't connect to local server"
    assert "does not report its records (ERROR 2002" in database(server).refusals()[0]


@pytest.mark.usefixtures("data")
def test_names_that_are_no_names_reach_no_statement(module: ModuleType, server: Server) -> None:
    """Neither from records nor from the tables of the database."""
    run(module)
    origin.record("databases", "odd", {"name": "x; DROP DATABASE wiki", "existed": False})
    origin.record("database-accounts", "odd", {"name": "x'@'%", "existed": False})
    server.jobs = {"lab_job_table": 1, "x`;DROP_job_table": 5}

    assert "the records of 1 job in" in database(server).refusals()[0]
    names = " ".join(step.sentence for step in database(server).first_steps())
    assert ("slurm_acct_db" in names, "DROP" in names, "%" in names) == (True, False, False)


def test_a_reset_continues_after_the_database_was_removed(module: ModuleType, server: Server, data: Path) -> None:
    """An interrupted reset; MariaDB may be stopped or removed."""
    run(module)
    server.error = "ERROR 2002 (HY000): Can't connect to local server"
    (data / "slurm_acct_db").rmdir()

    assert database(server, "mariadb-server").refusals() == []


def test_a_server_without_the_role_is_left_alone(server: Server, data: Path) -> None:
    assert database(server, "mariadb-server").first_steps() == []
    assert database(server, "mariadb-server").last_steps() == []
    assert database(server, "mariadb-server").refusals() == []
    assert data.is_dir()
