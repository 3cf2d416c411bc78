"""Reset MariaDB: remove the role's database and account, and the data folder of a server that the reset removes."""

import os
import re
import shutil

from ansible.module_utils.platform_origin import records
from ansible.module_utils.platform_undo_files import Step

UNIT, PACKAGE = "mariadb.service", "mariadb-server"
DATA_FOLDER, SETTINGS_FOLDER = "/var/lib/mysql", "/etc/mysql"
CLIENT = ["mariadb", "--batch", "--skip-column-names"]
LOCK_SECONDS = 60
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""Of a database, table or account in a statement."""
SYSTEM_DATABASES = frozenset(["mysql", "performance_schema", "sys", "lost+found"])


class Database:
    """The MariaDB server of the node before and after the reset.

    Args:
        module: runs programs.
        removable: names of the packages that the reset removes.
    """

    def __init__(self, module, removable):
        """Read the records and the names of the databases."""
        self.module, self.is_removed = module, PACKAGE in removable
        self.databases = [doc["name"] for doc in records("databases") if not doc["existed"] and NAME.match(doc["name"])]
        accounts = [doc for doc in records("database-accounts") if not doc["existed"]]
        self.accounts = [doc["name"] for doc in accounts if NAME.match(doc["name"])]
        self.is_used = bool(self.databases or self.accounts)

    def foreign_databases(self):
        """Return the databases that the roles did not create. Each one is a folder."""
        names = os.listdir(DATA_FOLDER) if self.is_used and os.path.isdir(DATA_FOLDER) else []
        folders = {name for name in names if os.path.isdir(os.path.join(DATA_FOLDER, name)) and name[0] not in "#."}
        return sorted(folders - SYSTEM_DATABASES - set(self.databases))

    def refusals(self):
        """Return what an operator has to allow: the removal of records of jobs, and of databases of others."""
        foreign = self.foreign_databases() if self.is_removed else []
        text = "MariaDB would be removed with databases that the roles did not create: {}"
        refused = [text.format(", ".join(foreign[:5]))] if foreign else []
        return refused + [sentence for sentence in map(self._records, self.databases) if sentence]

    def _records(self, name):
        """Return a sentence if the database has records of jobs, or may have them; empty without any."""
        if not os.path.isdir(os.path.join(DATA_FOLDER, name)):
            return ""
        try:
            tables = [
                table for table in self._query(f"SHOW TABLES FROM `{name}` LIKE '%\\_job\\_table'") if NAME.match(table)
            ]
            counting = [f"SELECT COUNT(*) FROM `{name}`.`{table}`" for table in tables]  # nosec B608 # NAME was matched
            count = sum(int(self._query(statement)[0]) for statement in counting)
        except OSError as error:
            return f"the database {name} would be removed, and MariaDB does not report its records ({error})"
        jobs = "1 job" if count == 1 else f"{count} jobs"
        return (
            f"the records of {jobs} in the database {name} would be removed (mariadb-dump saves them)" if count else ""
        )

    def _query(self, statement):
        if not self.module.get_bin_path(CLIENT[0]):
            raise OSError(f"the command {CLIENT[0]} is not installed")
        code, out, err = self.module.run_command(CLIENT, data=statement + ";\n")
        if code != 0:
            raise OSError(err.strip()[-200:])
        return out.split()

    def first_steps(self):
        """Return the steps that require MariaDB, after slurmdbd was stopped."""
        if not self.is_used or not self.module.get_bin_path(CLIENT[0]):
            return []
        names = [f"the database {name}" for name in self.databases] + [f"the account {name}" for name in self.accounts]
        return [Step(f"remove {' and '.join(names)} of MariaDB", self._drop)]

    def _drop(self):
        self.module.run_command(["systemctl", "start", UNIT])
        statements = [f"SET lock_wait_timeout = {LOCK_SECONDS};"]
        statements += [f"DROP USER IF EXISTS '{name}'@'localhost';" for name in self.accounts]
        statements += [f"DROP DATABASE IF EXISTS {name};" for name in self.databases]
        code, _, err = self.module.run_command(CLIENT, data="\n".join(statements) + "\n")
        return f"MariaDB: cannot remove its database and account of Slurm ({err.strip()[-200:]})" if code != 0 else None

    def last_steps(self):
        """Return the steps after the removal of the packages, which leave the data behind."""
        if not self.is_used or not self.is_removed or not os.path.isdir(DATA_FOLDER):
            return []
        return [Step(f"remove {DATA_FOLDER}, unless it has other databases", self._remove_data)]

    def _remove_data(self):
        foreign = self.foreign_databases()
        if foreign:
            return f"leave {DATA_FOLDER}: it has databases that the roles did not create ({', '.join(foreign[:5])})"
        if os.path.ismount(DATA_FOLDER):
            return f"leave {DATA_FOLDER}: something is mounted there"
        shutil.rmtree(DATA_FOLDER, ignore_errors=True)
        if os.path.isdir(SETTINGS_FOLDER) and not os.listdir(SETTINGS_FOLDER):
            os.rmdir(SETTINGS_FOLDER)
        return None
