"""Make a change that can cut off the operator: the node reverts it unless the controller confirms it in time.

A module that makes such a change has the options of `OPTIONS`. It calls `begin` before it reads the node's state, `arm`
before the change and `changed` after it.
The action plugin `platform_light` adds the token, and confirms the change over a new connection. Without a token, as
without that plugin, the change is made at once.
"""

import os
import re
import sys
import time
from contextlib import contextmanager

from ansible.module_utils import platform_rescue_node as node
from ansible.module_utils.platform_rescue_remedies import RESCUE_REMEDIES

OPTIONS = {"rescue_seconds": {"type": "int", "default": 0}, "rescue_token": {"type": "str", "default": ""}}
TOKEN = re.compile(r"[0-9a-f]{32}")
LEAST_SECONDS, MOST_SECONDS = 20, 3600
GUARD_SECONDS = 600
"""Time for the change itself; the limit for its confirmation starts afterwards."""
UNKNOWN_RESULT = {"changed": True}
"""In place of a result that is too large."""
WAIT_SECONDS, PAUSE_SECONDS = 120, 1
PYTHONS = ("/usr/libexec/platform-python", "/usr/bin/python3")
"""Interpreters of systems: that of Ansible can be in a folder which is removed before the limit."""
CAUSES = {
    "limit": "the controller had no new connection within {seconds} s",
    "boot": "the node was booted before the controller confirmed the change",
    "late": "the change took longer than {guard} s",
    "next": "the controller did not confirm the change within {seconds} s",
    "failed": "the change failed",
}


class Rescue:
    """One change that the node reverts unless it is confirmed.

    Args:
        module: runs programs and reports errors.
        role: the role that makes the change.
        what: a phrase for the change.
    """

    def __init__(self, module, role, what):
        """Read the token and the limit."""
        self.module, self.role, self.what = module, role, what
        self.seconds = module.params["rescue_seconds"]
        self.token = module.params["rescue_token"] if self.seconds else ""
        self.guard = GUARD_SECONDS + self.seconds
        self.python = ""
        self.pending = {}

    def begin(self):
        """Wait until no other change waits for its confirmation: until then the node's state may be reverted."""
        if self.module.check_mode or not os.path.isdir(node.FOLDER):
            return
        self._wait_for_other()
        with self._locked():
            self._require_turn()

    def arm(self, files, commands, boot_commands=(), *, records=()):
        """Save the files and the records of the role, and start the timer that restores them and runs the commands.

        At a boot before the confirmation the files are restored too, and the commands for boots run.
        """
        if not self.token:
            return
        if not TOKEN.fullmatch(self.token) or not LEAST_SECONDS <= self.seconds <= MOST_SECONDS:
            self.module.fail_json(
                msg=f"platform_rescue_seconds: {self.seconds} is neither 0 nor between {LEAST_SECONDS} and {MOST_SECONDS}"
            )
        if not self.module.get_bin_path("systemd-run"):
            self._fail("rescue.not_armed", f"{self.what}: no timer for a revert (the node has no systemd-run)")
        os.makedirs(os.path.dirname(node.FOLDER), mode=0o755, exist_ok=True)
        os.makedirs(node.FOLDER, mode=0o700, exist_ok=True)
        try:
            with self._locked():
                self._require_turn()
                self._prepare(self._saved(files, commands, boot_commands, records))
        except OSError as error:
            self._fail("rescue.not_armed", f"{self.what}: the revert cannot be prepared ({error})")

    def _saved(self, *parts):
        """Return the document, whose size is that after the change."""
        try:
            document = self._document(*parts)
            node.require_readable({**document, "result": UNKNOWN_RESULT})
        except (OSError, ValueError) as error:
            self._fail("rescue.not_saved", f"{self.what}: the files of the change cannot be saved ({error})")
        return document

    def _prepare(self, pending):
        """Write all that reverts the change; the document, without which nothing is reverted, is the last part."""
        try:
            self.python = interpreter()
            self._write_program()
            problem = self._check_program()
            if problem:
                self._fail(
                    "rescue.not_armed", f"{self.what}: systemd cannot start the program for a revert ({problem})"
                )
            problem = self._start_timer(guard_name(self.token), self.guard)
            if problem:
                self._fail("rescue.not_armed", f"{self.what}: no timer for a revert ({problem})")
            node.write_document("pending", pending)
            self.pending = pending
        finally:
            if not self.pending:
                node.remove_pending()
                stop_timer(self.module, self.token)

    def changed(self, result):
        """Report that the change is made; the module returns the result."""
        if not self.pending:
            return result
        with self._locked():
            if node.read_document("pending").get("token") != self.token:
                self._fail_late()
            problem = self._start_timer(unit_name(self.token), self.seconds)
            document = {
                **self.pending,
                "deadline": time.monotonic() + self.seconds,
                "stage": "changed",
                "result": result,
            }
            try:
                node.require_readable(document)
            except ValueError:
                document["result"] = UNKNOWN_RESULT
            node.write_document("pending", document)
            if not problem:  # otherwise the timer of the guard reverts the change
                self.module.run_command(["systemctl", "stop", f"{guard_name(self.token)}.timer"])
        return {**result, "rescue": "armed"}

    def _fail_late(self):
        """End the module: the node reverted the change before it was complete, so the rest is reverted too."""
        last = node.read_document("last")
        own = set(node.file_paths(self.pending))
        for other in (node.read_document("pending"), last):
            if other.get("token") not in (None, self.token) and own & set(node.file_paths(other)):
                self._fail(
                    "rescue.pending",
                    f"{self.what}: the change took longer than {self.guard} s, and another one has changed the same files "
                    f"since: {other['what']} (role {other['role']}); nothing is reverted",
                )
        problems, is_complete = node.undo(self.pending)
        ours = {key: self.pending[key] for key in ("what", "role", "seconds")}
        result = {"cause": "late", "problems": problems, "is_complete": is_complete, "state": "reverted"}
        fail_reverted(self.module, {**ours, "files": node.file_paths(self.pending), **result})

    def unchanged(self):
        """Forget a revert of the role's last change: there is nothing to change any more."""
        if self.module.check_mode or not os.path.isdir(node.FOLDER):
            return
        with self._locked():
            last = node.read_document("last")
            if last.get("role") == self.role and last.get("state") == "reverted":
                os.unlink(node.document_path("last"))

    def revert(self):
        """Revert the change now, because a part of it failed."""
        if self.pending:
            last = node.revert("failed", self.token)
            if last.get("is_complete", True):  # otherwise the timer tries again
                stop_timer(self.module, self.token)

    @contextmanager
    def _locked(self):
        """Hold the lock of the documents, or end the module before a change."""
        try:
            with node.locked():
                yield
        except node.LockTimeout as error:
            self._fail("rescue.pending", f"{self.what}: {error}")

    def _wait_for_other(self):
        """Wait for the end of another change, whose controller may be dead."""
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            pending = node.read_document("pending")
            if pending.get("token", self.token) == self.token or node.is_expired(pending):
                return
            time.sleep(PAUSE_SECONDS)

    def _require_turn(self):
        """End the module if this change was made before (ssh repeated the task), or if another one waits."""
        last, pending = node.read_document("last"), node.read_document("pending")
        if last.get("token") == self.token and last["state"] == "reverted":
            fail_reverted(self.module, last)
        if not pending:
            return
        if pending["token"] == self.token:
            self.module.exit_json(**{"changed": True, **pending.get("result", {}), "rescue": "armed"})
        if not node.is_expired(pending):
            self._fail(
                "rescue.pending", "{what}: the change waits for its confirmation (role {role})".format(**pending)
            )
        last = node.undo_pending(pending, node.expiry_cause(pending, "next"))
        if not last["is_complete"]:
            fail_reverted(self.module, last)

    def _document(self, files, commands, boot_commands, records):
        return {
            "token": self.token,
            "role": self.role,
            "what": self.what,
            "seconds": self.seconds,
            "boot": node.boot_name(),
            "deadline": time.monotonic() + self.guard,
            "stage": "armed",
            "connection": connection(),
            "files": [node.saved_file(path) for path in files],
            "records": [node.saved_file(path) for path in records],
            "commands": [list(command) for command in commands],
            "boot_commands": [list(command) for command in boot_commands],
        }

    def _write_program(self):
        text = node.__loader__.get_source(node.__name__)  # it was sent with the module, so it is no file on the node
        node.write_file(os.path.join(node.FOLDER, node.PROGRAM), text.encode(), 0o600)
        link, unit = node.boot_paths()
        content = node.BOOT.format(folder=node.FOLDER, python=self.python, program=node.PROGRAM)
        node.write_file(unit, content.encode(), 0o644)
        os.makedirs(os.path.dirname(link), mode=0o755, exist_ok=True)
        if not os.path.lexists(link):
            os.symlink(unit, link)
        node.sync_folder(os.path.dirname(link))

    def _start_timer(self, name, seconds):
        """Start a timer for a revert; return what failed."""
        options = [f"--unit={name}", f"--on-active={seconds}", "--timer-property=AccuracySec=1s"]
        return self._systemd_run(options, "limit", self.token)

    def _check_program(self):
        """Let systemd start the program without an effect, and wait for its end; return what failed.

        A service of type `oneshot` needs neither D-Bus nor a new systemd, as `--wait` does.
        """
        name = f"{unit_name(self.token)}-check"
        problem = self._systemd_run([f"--unit={name}", "--service-type=oneshot"], "check")
        if problem:
            self.module.run_command(["systemctl", "reset-failed", f"{name}.service"])
        return problem

    def _systemd_run(self, options, *words):
        program = [self.python, "-I", "-S", os.path.join(node.FOLDER, node.PROGRAM), *words]
        code, out, err = self.module.run_command(["systemd-run", *options, *program])
        return (err or out).strip()[-200:] or f"exit status {code}" if code != 0 else ""

    def _fail(self, code, message):
        self.module.fail_json(msg=message, reason=code, remedy=RESCUE_REMEDIES[code])


def fail_reverted(module, last):
    """Fail with what the node reverted, and why."""
    causes = CAUSES.get(last.get("cause"), "unknown cause")
    causes = causes.format(seconds=last.get("seconds"), guard=GUARD_SECONDS + last.get("seconds", 0))
    files = ", ".join(last.get("files", ())) or "no file"
    message = "{}: the node reverted the change ({}); restored: {}".format(last.get("what"), causes, files)
    if last.get("problems"):
        message += "; problems: " + "; ".join(last["problems"])
    code = "rescue.reverted" if last.get("is_complete", True) else "rescue.not_restored"
    module.fail_json(msg=message, reason=code, remedy=RESCUE_REMEDIES[code], reverted=last)


def confirm(module, token, *, fresh):
    """Confirm the change with this token, and return its state and result.

    `confirmed`; `pending`: it is not complete; `same_connection`: a new connection is required; `absent`: there is none.
    A change that the node reverted is a failure.
    """
    if not TOKEN.fullmatch(token) or not os.path.isdir(node.FOLDER):
        return "absent", {}
    try:
        return _confirm(module, token, fresh)
    except node.LockTimeout:  # the controller tries again
        return "pending", {}


def _confirm(module, token, fresh):
    with node.locked():
        pending, last = node.read_document("pending"), node.read_document("last")
        if pending.get("token") == token:
            if node.is_expired(pending):
                last = node.undo_pending(pending, node.expiry_cause(pending, "limit"))
            elif pending["stage"] != "changed":
                return "pending", {}
            elif fresh and pending["connection"] and pending["connection"] == connection():
                return "same_connection", {}
            else:
                node.end(pending, "confirmed")
                stop_timer(module, token)
                return "confirmed", pending["result"]
        result = node.read_document("result")
    if last.get("token") != token:
        return "absent", {}
    if last["state"] == "reverted":
        stop_timer(module, token)
        fail_reverted(module, last)
    return "confirmed", result.get("result", {})


def interpreter():
    """Return the Python of the system that can run the program, else that of the module."""
    for path in PYTHONS:
        command = [path, "-I", "-S", "-c", "import sys; sys.exit(sys.version_info < (3, 6))"]
        if os.access(path, os.X_OK) and not node.run(command):
            return path
    return sys.executable


def unit_name(token):
    """Return the name of the timer of a change."""
    return f"provision-rescue-{token[:12]}"


def guard_name(token):
    """Return the name of the timer that runs until the change is made."""
    return f"{unit_name(token)}-guard"


def stop_timer(module, token):
    """Stop the timers of a change that has ended, and forget that its revert failed."""
    names = (unit_name(token), guard_name(token))
    module.run_command(["systemctl", "stop", *(f"{name}.timer" for name in names)])
    module.run_command(["systemctl", "reset-failed", *(f"{name}.service" for name in names)])


def connection():
    """Return the sshd process of this connection and its start time, None if there is none. Sessions of one share it."""
    pid = os.getpid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
                head, _, rest = stream.read().rpartition(")")
        except OSError:
            return None
        fields, name = rest.split(), head.partition("(")[2]
        if name in ("sshd", "sshd-session"):
            return [pid, int(fields[19])]
        pid = int(fields[1])
    return None
