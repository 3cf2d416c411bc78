"""The part of ``ansible.module_utils.basic`` that the modules of these roles use, for Python 3.6 or newer.

The action plugin `platform_light` sends it in place of Ansible's, which needs a newer Python, and which a slow node
compiles for two seconds. Results are the same (tests/unit/test_light_modules.py compares both); an argument
specification with anything else is an error.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

__all__ = ["AnsibleModule"]

ARGUMENTS = {}
"""The arguments of the task, with Ansible's own ``_ansible_*`` keys; `platform_light` fills it."""

_KNOWN = frozenset(("type", "required", "default", "choices", "elements", "options", "no_log"))
_TRUE, _FALSE = frozenset(("y", "yes", "on", "1", "true", "t")), frozenset(("n", "no", "off", "0", "false", "f"))
_HIDDEN = "VALUE_SPECIFIED_IN_NO_LOG_PARAMETER"
_SYSTEM_FOLDERS = ("/sbin", "/usr/sbin", "/usr/local/sbin")


class AnsibleModule:
    """A module's arguments, validated and converted, and its ways to run programs and to end.

    Args:
        argument_spec: as Ansible's; a key that this class does not know is a `TypeError`.
        supports_check_mode: whether the module runs in check mode; otherwise the task is skipped.
    """

    current = None
    """The module that runs, as soon as it exists."""

    def __init__(self, argument_spec, *, supports_check_mode=False):
        self.check_mode = bool(ARGUMENTS.get("_ansible_check_mode"))
        self.run_command_environ_update = {}
        self.no_log_values = set()
        self._cleanup = []
        self._tmpdir = None
        AnsibleModule.current = self
        given = {key: value for key, value in ARGUMENTS.items() if not key.startswith("_ansible_")}
        self.params = self._validated(given, argument_spec, "")
        if self.check_mode and not supports_check_mode:
            self.exit_json(skipped=True, msg="the module does not support check mode")

    @property
    def tmpdir(self):
        """A folder that only this user can read; it is removed when the module ends."""
        if self._tmpdir is None:
            self._tmpdir = tempfile.mkdtemp(prefix="ansible-moduletmp-")
            self.add_cleanup_file(self._tmpdir)
        return self._tmpdir

    def add_cleanup_file(self, path):
        """Remove a file or folder when the module ends."""
        self._cleanup.append(path)

    def get_bin_path(self, name, *, required=False, opt_dirs=None):
        """Return the path of a program, or None; with `required`, the module fails."""
        folders = [*(opt_dirs or ()), *os.environ.get("PATH", "").split(os.pathsep), *_SYSTEM_FOLDERS]
        path = shutil.which(name, path=os.pathsep.join(folder for folder in folders if folder))
        if path is None and required:
            self.fail_json(msg="Failed to find required executable {!r} in paths: {}".format(name, ":".join(folders)))
        return path

    def run_command(self, args, data=None, environ_update=None, encoding="utf-8", errors="surrogateescape"):
        """Run a list of words, with the text `data` and a newline on its standard input.

        Returns:
            exit status (negative: number of a signal), standard output, standard error; bytes if `encoding` is None.
        """
        environment = {**os.environ, **(self.run_command_environ_update or {}), **(environ_update or {})}
        words = [os.path.expanduser(os.path.expandvars(word)) if isinstance(word, str) else word for word in args]
        source = {"input": (data + "\n").encode()} if data else {"stdin": subprocess.DEVNULL}
        try:
            done = subprocess.run(
                words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False, env=environment, **source
            )
        except OSError as error:
            self.fail_json(
                rc=error.errno, stdout="", stderr="", msg="Error executing command: {}: {}".format(words[0], error)
            )
        if encoding is None:
            return done.returncode, done.stdout, done.stderr
        return done.returncode, done.stdout.decode(encoding, errors), done.stderr.decode(encoding, errors)

    def exit_json(self, **result):
        """Print the result, and end."""
        self._end(result, 0)

    def fail_json(self, msg, **result):
        """Print the result of a failure, and end."""
        self._end({**result, "msg": msg, "failed": True}, 1)

    def _end(self, result, code):
        for path in self._cleanup:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.lexists(path):
                os.unlink(path)
        print("\n" + json.dumps(self._without_secrets(result), default=list))
        sys.stdout.flush()
        sys.exit(code)

    def _without_secrets(self, value):
        if isinstance(value, str):
            if value in self.no_log_values:
                return _HIDDEN
            for secret in sorted(self.no_log_values, key=len, reverse=True):
                value = value.replace(secret, "********")
            return value
        if isinstance(value, dict):
            return {key: self._without_secrets(item) for key, item in value.items()}
        if isinstance(value, (list, tuple, set)):
            return [self._without_secrets(item) for item in value]
        return value

    def _validated(self, given, spec, where):
        unknown = sorted(set(given) - set(spec))
        if unknown:
            self.fail_json(msg="Unsupported parameters: {}".format(", ".join(where + key for key in unknown)))
        missing = sorted(key for key, rule in spec.items() if rule.get("required") and given.get(key) is None)
        if missing:
            self.fail_json(msg="missing required arguments: {}".format(", ".join(where + key for key in missing)))
        for key, rule in spec.items():  # before the first message that may contain them
            self.no_log_values |= _texts(given.get(key)) if rule.get("no_log") else set()
        params = {}
        for key, rule in spec.items():
            if set(rule) - _KNOWN:
                raise TypeError("{}: unknown keys {}".format(key, sorted(set(rule) - _KNOWN)))
            value = given.get(key)
            if value is None:
                value = rule.get("default")
            params[key] = None if value is None else self._converted(value, rule, where + key)
            if rule.get("no_log") and params[key] not in (None, ""):
                self.no_log_values.add(str(params[key]))
        return params

    def _converted(self, value, rule, where):
        kind = rule.get("type", "str")
        try:
            value = _CONVERTERS[kind](value)
        except (TypeError, ValueError) as error:
            self.fail_json(
                msg="argument '{}' is of type {} and we were unable to convert to {}: {}".format(
                    where, type(value).__name__, kind, error
                )
            )
        if kind == "list" and "elements" in rule:
            inner = {"type": rule["elements"], "options": rule.get("options"), "choices": rule.get("choices")}
            inner = {key: item for key, item in inner.items() if item is not None}
            return [self._converted(item, inner, "{}[{}]".format(where, number)) for number, item in enumerate(value)]
        if kind == "dict" and rule.get("options") is not None:
            return self._validated(value, rule["options"], where + ".")
        choices = rule.get("choices")
        if choices is not None and value not in choices:
            self.fail_json(
                msg="value of {} must be one of: {}, got: {}".format(where, ", ".join(map(str, choices)), value)
            )
        return value


def fail(message, trace):
    """End with an error that the module did not expect."""
    if AnsibleModule.current:
        AnsibleModule.current.fail_json(msg=message, exception=trace)
    print("\n" + json.dumps({"failed": True, "msg": message, "exception": trace}))
    sys.exit(1)


def _texts(value):
    """Return all texts in a value."""
    if isinstance(value, dict):
        return set().union(*map(_texts, value.values()))
    if isinstance(value, (list, tuple)):
        return set().union(*map(_texts, value))
    return set() if value in (None, "") else {str(value)}


def _boolean(value):
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _TRUE | _FALSE:
        raise TypeError("{!r} is not a valid boolean".format(value))
    return word in _TRUE


def _integer(value):
    if isinstance(value, bool) or (isinstance(value, float) and value != int(value)):
        raise TypeError("{!r} is not an integer".format(value))
    return int(value)


def _text(value):
    if isinstance(value, (dict, list)):
        raise TypeError("it is not a string")
    return value if isinstance(value, str) else str(value)


def _sequence(value):
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        return value.split(",")
    if isinstance(value, (int, float)):
        return [str(value)]
    raise TypeError("it is not a list")


def _mapping(value):
    if isinstance(value, dict):
        return value
    raise TypeError("it is not a dictionary")


_CONVERTERS = {
    "str": _text,
    "int": _integer,
    "bool": _boolean,
    "path": lambda value: os.path.expanduser(os.path.expandvars(_text(value))),
    "list": _sequence,
    "dict": _mapping,
}
