#!/usr/bin/python
"""Ansible module: create the database and the account of slurmdbd in MariaDB."""

DOCUMENTATION = r"""
module: slurm_database
short_description: Create the database and the account of slurmdbd in MariaDB
description:
  - The account has no password. MariaDB identifies it by the system account of the process (C(unix_socket)).
  - Records whether the database and the account existed, for a reset.
  - Never changes the authentication of an account that existed before.
options: {}
author: [provision]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.platform_origin import load_json, record, record_path

DATABASE, ACCOUNT = "slurm_acct_db", "slurm"
USER = f"'{ACCOUNT}'@'localhost'"
PATTERN = DATABASE.replace("_", r"\_")
"""Of a grant, where an underscore stands for any character."""
CLIENT = ("mariadb", "--batch", "--raw", "--skip-column-names")
FOREIGN = (
    f"MariaDB: the account {USER} existed before, and does not use unix_socket. Allow it (ALTER USER {USER} IDENTIFIED "
    "VIA unix_socket), or rename the account, and apply again."
)


class Server:
    """The MariaDB server of this node."""

    def __init__(self, module):
        """Connect nowhere yet."""
        self.module, self.changed = module, False

    def query(self, statement):
        """Return the output of a statement, a line for each row. Statements are no arguments, which all users can read."""
        code, out, err = self.module.run_command(list(CLIENT), data=statement + ";\n")
        if code != 0:
            self.module.fail_json(
                msg=f"MariaDB: root cannot create the database of slurmdbd ({err.strip()}). Correct what the message names, and "
                "apply again. `mariadb` as root has to work without a password."
            )
        return out.splitlines()

    def change(self, statement):
        """Run a statement that changes something."""
        self.query(statement)
        self.changed = True

    def create_database(self):
        """Create the database, and record that it is the role's."""
        exists = bool(self.query(f"SHOW DATABASES LIKE '{PATTERN}'"))
        record("databases", DATABASE, {"name": DATABASE, "existed": exists})
        if not exists:
            self.change(f"CREATE DATABASE {DATABASE}")

    def create_account(self):
        """Create the account, and give it the database and nothing else."""
        condition = f"User = '{ACCOUNT}' AND Host = 'localhost'"
        exists = bool(self.query(f"SELECT 1 FROM mysql.user WHERE {condition}"))  # nosec B608 # constants
        record("database-accounts", ACCOUNT, {"name": ACCOUNT, "existed": exists})
        if not exists:
            self.change(f"CREATE USER {USER} IDENTIFIED VIA unix_socket")
        elif "unix_socket" not in " ".join(self.query(f"SHOW CREATE USER {USER}")):
            if load_json(record_path("database-accounts", ACCOUNT) + ".json").get("existed"):
                self.module.fail_json(msg=FOREIGN)
            self.change(f"ALTER USER {USER} IDENTIFIED VIA unix_socket")
        granted = [f"GRANT ALL PRIVILEGES ON `{name}`.*" for name in (PATTERN, DATABASE)]
        if not any(line.startswith(tuple(granted)) for line in self.query(f"SHOW GRANTS FOR {USER}")):
            self.change(f"GRANT ALL PRIVILEGES ON `{PATTERN}`.* TO {USER}")


def main():
    """Run the module."""
    module = AnsibleModule(argument_spec={})
    server = Server(module)
    server.create_database()
    server.create_account()
    module.exit_json(changed=server.changed)


if __name__ == "__main__":
    main()
