"""Kernel modules that DKMS builds on a node: builds and their failures, signatures, and the outcome that a role reports."""

import binascii
import glob
import os
import re

from ansible.module_utils.platform_kernel_module_failures import compiler_line, diagnose

DKMS = "/var/lib/dkms"
FOLDERS = "/lib/modules"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-*"
TRUSTED = ("/sys/firmware/efi/efivars/db-*", "/sys/firmware/efi/efivars/MokListRT*")
BUILD_SECONDS = "3600"
MAX_LINES = 2000


def text(path):
    """Return the text of a file, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def data(path):
    """Return the bytes of a file, empty if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def requires_signature(root="/"):
    """Return whether the kernel loads only signed modules."""
    root = root.rstrip("/")
    if text(root + "/sys/module/module/parameters/sig_enforce").strip() == "Y":
        return True
    mode = re.search(r"\[(\w+)\]", text(root + "/sys/kernel/security/lockdown"))
    if mode:  # the kernel decides: after `mokutil --disable-validation` it ignores the setting of the firmware
        return mode.group(1) != "none"
    return any(data(path)[-1:] == b"\1" for path in glob.glob(root + SECURE_BOOT))


def is_enrolled(certificate, root="/"):
    """Return whether the firmware trusts a certificate (PEM or DER file): it is in a list of certificates."""
    root = root.rstrip("/")
    content = data(root + certificate)
    pem = re.search(rb"-----BEGIN CERTIFICATE-----(.*?)-----END", content, re.DOTALL)
    if pem:
        content = binascii.a2b_base64(pem.group(1))
    lists = [data(path) for pattern in TRUSTED for path in glob.glob(root + pattern)]
    return bool(content) and any(content in certificates for certificates in lists)


def kernel_folders(folder=FOLDERS):
    """Return the names of the folders of kernels."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def result(cause="", explanation="", remedy="", evidence="", *, ok=False):
    """Return the outcome of a build or a start."""
    lines = evidence.splitlines()
    return {
        "ok": ok,
        "cause": cause,
        "explanation": explanation.rstrip("."),
        "remedy": remedy,
        "evidence": lines[-1][:300] if lines else "",
    }


def autoinstall(module, kernel, subject, names, is_built):
    """Build the modules of packages for a kernel; return the outcome.

    Args:
        module: runs programs.
        kernel: release of the kernel.
        subject: what is built, with an article.
        names: pattern of the folders of its sources below that of DKMS.
        is_built: returns whether the kernel has the modules.
    """
    if not module.get_bin_path("dkms"):
        return result(
            "not_installed",
            f"the packages have no modules of {subject} for kernel {kernel}",
            "Reboot into a kernel of the packages, or install the packages of this kernel.",
        )
    module.run_command(["timeout", BUILD_SECONDS, "dkms", "autoinstall", "-k", kernel])
    if is_built():
        return result(ok=True)
    if not os.path.isdir(f"/lib/modules/{kernel}/build"):
        return result(
            "kernel_headers_missing",
            f"the headers of kernel {kernel}, for which DKMS has to build {subject}, are not installed",
            "Install them (Enterprise Linux: also the kernel itself, whose package links to them), or reboot into the kernel "
            "whose headers are installed, then apply again.",
        )
    logs = sorted(glob.glob(names + "/build/make.log"), key=os.path.getmtime)
    lines = text(logs[-1]).splitlines()[-MAX_LINES:] if logs else []
    cause = diagnose(make="\n".join(lines))
    explanation = f"DKMS cannot build {subject} for kernel {kernel}: {cause.explanation}"
    log = f" The complete output is in {logs[-1]}." if logs else ""
    return result(cause.cause, explanation, cause.remedy + log, compiler_line(lines) or cause.evidence)
