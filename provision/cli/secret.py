"""``provision secret``: credentials for git servers and image registries."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from provision.cli.common import JsonOption, interactive, print_json, say, show, table

if TYPE_CHECKING:
    from provision.report.json_documents.advice import Credentials

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Manage credentials for git and registries.

Batch jobs use them to fetch code (git) and images (registry).

They are stored on this machine, in files that only you can read, one per server. A job gets the credentials of the
server from which it fetches, during the fetch. The values are never shown.

\b
Examples:
  provision secret add git --server git.example.com --username alice
  provision secret list
""",
)

KindArgument = Annotated[str, typer.Argument(metavar="git|registry", help="Type of the credentials.")]
ServerOption = Annotated[
    str, typer.Option("--server", metavar="HOST[:PORT]", help="Their server; they are sent to no other.")
]
_LONGEST = 64 * 1024


@app.command("set", hidden=True)
@app.command("add")
def add(
    kind: KindArgument,
    server: ServerOption,
    username: Annotated[str, typer.Option("--username", metavar="NAME", help="User name of the login.")] = "",
) -> None:
    """Store a password or token.

    It replaces the stored one. It is read from a prompt or from standard input, never from an argument.
    `secret set` is the same command.

    \b
    Examples:
      provision secret add git --server git.example.com --username alice
      provision secret add registry --server registry.example.com \\
        --username robot < token
    """
    from provision.model import Secret
    from provision.workflow.stored_secrets import Credential, store

    file = store(Credential(kind, server, username, Secret(_value(f"password or token for {server}: "))))
    say(f"stored in {file}")


def _value(question: str) -> str:
    if interactive():
        import getpass

        return getpass.getpass(question)
    return sys.stdin.read(_LONGEST).rstrip("\r\n")


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the stored credentials, without secrets.

    \b
    Examples:
      provision secret list
    """
    import datetime as dt

    from provision.workflow.stored_secrets import stored_credentials

    logins = stored_credentials()
    times = [dt.datetime.fromtimestamp(login.changed, dt.UTC).isoformat(timespec="seconds") for login in logins]
    if as_json:
        document: Credentials = {
            "secrets": [
                {"kind": login.kind, "server": login.server, "username": login.username, "changed": time}
                for login, time in zip(logins, times, strict=True)
            ]
        }
        print_json(document)
        return
    rows = [(login.kind, login.server, login.username, time[:10]) for login, time in zip(logins, times, strict=True)]
    if not logins:
        say("no secret is stored; add one: provision secret add --help")
        return
    show(table(["KIND", "SERVER", "USERNAME", "SET"], [list(row) for row in rows]))


@app.command("rm")
def remove(kind: KindArgument, server: ServerOption) -> None:
    """Delete a stored credential.

    The exit code is 3 when it does not exist.

    \b
    Examples:
      provision secret rm git --server git.example.com
    """
    from provision.errors import NotFound
    from provision.workflow.stored_secrets import forget

    if not forget(kind, server):
        raise NotFound(f"{kind} {server}: no credentials are stored", remedy="To list them: `provision secret list`.")
    say(f"{kind} {server} removed")
