"""Read and set the modes of GPUs (MIG, persistence) by nvidia-smi. Its answers are parsed strictly."""

import contextlib
import re

SECONDS = "60"  # a GPU without persistence mode takes many seconds; a reset for MIG mode takes longer than a query
MOST_GPUS = 64
FIELDS = {"mig": ("mig.mode.current", "mig.mode.pending"), "persistence": ("persistence_mode", "persistence_mode")}
OPTIONS = {"mig": "-mig", "persistence": "-pm"}
MODES = ("Disabled", "Enabled")
MISSING = ("[N/A]", "N/A", "[Not Supported]")
CLIENTS = ("nvsm.service", "nvidia-dcgm.service", "dcgm.service")  # they use the GPUs, so that MIG mode would wait
TITLES = {"mig": "MIG mode", "persistence": "persistence mode"}


class ModesError(Exception):
    """nvidia-smi does not answer, or a service did not start again."""


def read(module, setting):
    """Return UUID -> the mode now and after the next reset of the GPU; empty if the GPU does not have the setting.

    Raises:
        ModesError: nvidia-smi failed, or answered in another form.
    """
    now, pending = FIELDS[setting]
    words = ["nvidia-smi", f"--query-gpu=uuid,{now},{pending}", "--format=csv,noheader"]
    code, out, err = module.run_command(["timeout", SECONDS, *words])
    if code == 6 and "No devices were found" in out + err:
        return {}
    if code != 0:
        raise ModesError(f"`{' '.join(words)}` failed ({last_line(out + err) or code})")
    modes = {}
    for line in out.splitlines()[:MOST_GPUS]:
        match = re.match(r"(GPU-[0-9a-f-]{36}), ([^,]{1,60}), ([^,]{1,60})$", line.strip())
        if not match:
            raise ModesError(f"nvidia-smi answered no table: {last_line(line)}")
        unknown = [word for word in match.groups()[1:] if word not in MODES + MISSING]
        if unknown:
            raise ModesError(f"nvidia-smi answered for {match.group(1)}: {last_line(unknown[0])}")
        modes[match.group(1)] = tuple(word if word in MODES else "" for word in match.groups()[1:])
    return modes


@contextlib.contextmanager
def without_clients(module, setting):
    """Stop the services that use GPUs while MIG mode changes.

    Raises:
        ModesError: a service did not start again.
    """

    def systemctl(*words):
        return module.run_command(["systemctl", *words])[0]

    stopped = [name for name in CLIENTS if setting == "mig" and systemctl("is-active", "--quiet", name) == 0]
    for name in stopped:
        systemctl("stop", name)
    try:
        yield
    finally:
        missing = [name for name in stopped if systemctl("start", name)]
    if missing:
        raise ModesError(f"{', '.join(missing)} did not start again (systemctl status {missing[0]})")


def write(module, setting, uuid, mode):
    """Set a mode of a GPU; return the exit status, and what nvidia-smi printed, without its last line.

    It succeeds, too, if the mode waits for a reset: read it again.
    """
    number = str(MODES.index(mode))
    code, out, err = module.run_command(["timeout", SECONDS, "nvidia-smi", "-i", uuid, OPTIONS[setting], number])
    lines = [line.strip() for line in (out + "\n" + (err if code else "")).splitlines() if line.strip()]
    text = " ".join(line for line in lines if line != "All done.")[:600]
    return code, text or (f"exit status {code}" if code else "")


def last_line(text):
    """Return the last line of an output, printable and bounded."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(letter if letter.isprintable() else "?" for letter in lines[-1])[:300] if lines else ""
