#!/usr/bin/python
"""Ansible module for the controller: fetch the sources of nv_peer_mem from git or from a tar file."""

DOCUMENTATION = r"""
module: peer_memory_source
short_description: Fetch a source tree once for all nodes
description:
  - Runs on the controller, so that nodes need neither git nor internet access, and all get the same files.
options:
  url: {description: Address of the git repository., type: str, default: ""}
  ref: {description: Tag or commit., type: str, default: ""}
  archive: {description: 'A tar file on the controller, used instead of git.', type: path, default: ""}
author: [provision]
"""

import base64
import os
import re
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule

MAX_BYTES = 20 * 2**20


def from_archive(module, path):
    """Return the bytes of the tar file."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        module.fail_json(
            msg=f"peer_memory_source_archive: cannot read {path} on the controller ({error.strerror}). Correct the path."
        )
    if len(data) > MAX_BYTES:
        module.fail_json(
            msg=f"peer_memory_source_archive: {path} is not the source tree of nv_peer_mem (more than {MAX_BYTES} bytes). Correct the path."
        )
    return data, ""


def from_git(module, url, ref):
    """Return the tree at `ref` as a tar file, and the commit."""
    git = module.get_bin_path("git")
    if not git:
        module.fail_json(
            msg="git: not installed on the controller. Install it, or set peer_memory_source_archive to a tar file of nv_peer_mem."
        )
    folder = tempfile.mkdtemp(prefix="provision-source-")
    module.add_cleanup_file(folder)
    environment = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    direct = ["-c", "http.proxy="] if re.match(r"https?://(127\.|localhost[:/]|\[::1\])", url) else []

    def run(*words):
        return module.run_command([git, "-C", folder, *direct, *words], environ_update=environment, encoding=None)

    try:
        run("init", "--quiet", "--bare")
        code, _, err = run("fetch", "--quiet", "--tags", url, "+refs/heads/*:refs/heads/*")
        if code != 0:
            module.fail_json(
                msg="nv_peer_mem: cannot fetch the sources from {} ({}). Correct peer_memory_source_url, or set "
                "peer_memory_source_archive to a tar file if the site has no internet access.".format(
                    url.rpartition("@")[2], re.sub(r"//[^/\s]*@", "//", " ".join(err.decode(errors="replace").split()))
                )
            )
        code, commit, _ = run("rev-parse", "--verify", "--quiet", "--end-of-options", ref + "^{commit}")
        if code != 0:
            tags = run("tag", "--list")[1].decode(errors="replace").split()
            module.fail_json(
                msg="{}: no tag or commit {} (its tags are {}). Correct peer_memory_source_ref.".format(
                    url.rpartition("@")[2], ref, ", ".join(tags) or "none"
                )
            )
        commit = commit.decode().strip()
        return run("archive", "--format=tar", commit)[1], commit
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "default": ""},
            "ref": {"type": "str", "default": ""},
            "archive": {"type": "path", "default": ""},
        },
        supports_check_mode=True,
    )
    parameters = module.params
    if parameters["archive"]:
        data, commit = from_archive(module, os.path.expanduser(parameters["archive"]))
    else:
        data, commit = from_git(module, parameters["url"], parameters["ref"])
    module.exit_json(changed=False, archive=base64.b64encode(data).decode(), commit=commit)


if __name__ == "__main__":
    main()
