"""The command line of ``provision nccl-log``."""

from __future__ import annotations

import gzip
import io
import json
import sys

import pytest

from provision.cli.main import main

DIRECT = "gpu1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
PLAIN = "gpu1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0\n"


def exit_of(capsys, *words):
    """Run the command in this process; return exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(["nccl-log", *map(str, words)])
    out = capsys.readouterr()
    return stopped.value.code, out.out, out.err


VERSION = "NCCL version 2.27.5+cuda12.9\n"


@pytest.mark.parametrize(("text", "code"), [(DIRECT, 0), (PLAIN, 1), (VERSION, 1)])
def test_require_gdr_fails_without_gpudirect(capsys, tmp_path, text, code):
    """A log that was read is no failure, unless --require-gdr asks for proof; unknown is no proof."""
    file = tmp_path / "job.log"
    file.write_text(text)

    assert exit_of(capsys, file)[0] == 0
    assert exit_of(capsys, file, "--require-gdr")[0] == code
    strict, out, _ = exit_of(capsys, "--json", "--require-gdr", file)
    assert (strict, json.loads(out)["gdr"]) == (code, {DIRECT: True, PLAIN: False}.get(text))


@pytest.mark.parametrize("text", ["", "hello\n", "\0\xff" * 1000, "Model: vgg16\nTotal img/sec on 1 GPU(s): 5\n"])
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_file_without_nccl_output_fails(capsys, tmp_path, text, more):
    """It is no log, and the message names the file and how to get one."""
    file = tmp_path / "job.log"
    file.write_text(text)
    code, out, err = exit_of(capsys, file, *more)

    assert code == 1
    assert "job.log: contains no line of NCCL" in err
    assert "NCCL_DEBUG=INFO" in err
    assert not more or json.loads(out)["ok"] is False


def test_standard_input_is_read(capsys, monkeypatch):
    """A dash stands for it."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(DIRECT.encode()))))

    code, out, _ = exit_of(capsys, "-", "--json")

    assert (code, json.loads(out)["gdr"]) == (0, True)


def test_a_compressed_log_is_read_and_a_damaged_one_is_an_error(capsys, tmp_path):
    """Logs are kept packed; one that is cut short is not called unknown."""
    packed, cut = tmp_path / "job.log.gz", tmp_path / "cut.gz"
    packed.write_bytes(gzip.compress(DIRECT.encode()))
    cut.write_bytes(packed.read_bytes()[:-12])

    assert exit_of(capsys, packed, "--require-gdr")[0] == 0
    code, out, err = exit_of(capsys, cut)
    assert (code, out) == (1, "")
    assert "cannot be decompressed" in err


def test_a_missing_file_is_a_usage_error(capsys, tmp_path):
    """The file is named, and nothing is called unknown that was never read."""
    code, out, err = exit_of(capsys, tmp_path / "none.log")

    assert (code, out) == (2, "")
    assert "none.log: no such file" in err


def test_a_folder_is_a_usage_error(capsys, tmp_path):
    """A folder is refused with what to do instead."""
    code, _, err = exit_of(capsys, tmp_path)

    assert code == 2
    assert "is a folder" in err
    assert "hint:" in err


def test_an_unreadable_file_is_an_error_without_a_traceback(capsys, tmp_path):
    """The system's reason is shown, without a traceback."""
    file = tmp_path / "loop"
    file.symlink_to(file)

    code, _, err = exit_of(capsys, file)

    assert code == 1
    assert "symbolic links" in err
    assert "Traceback" not in err
