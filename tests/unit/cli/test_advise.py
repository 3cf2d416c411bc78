"""The command line of ``provision advise``."""

from __future__ import annotations

import io
import json
import sys

import pytest

from provision.cli.main import main

BROKEN = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"
FRAMEWORK = "from transformers import Trainer\nTrainer(model).train()\n"


def exit_of(capsys, *words):
    """Run the command in this process; return exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(["advise", *map(str, words)])
    out = capsys.readouterr()
    return stopped.value.code, out.out, out.err


@pytest.mark.row(57)
@pytest.mark.parametrize(("text", "code"), [(BROKEN, 1), (FRAMEWORK, 0)])
def test_a_broken_rule_sets_the_exit_code(capsys, tmp_path, text, code):
    """As a table and as one document."""
    file = tmp_path / "train.py"
    file.write_text(text)

    shown = exit_of(capsys, "--script", file)
    printed = exit_of(capsys, "--script", file, "--json")
    document = json.loads(printed[1])

    assert (shown[0], printed[0], document["ok"]) == (code, code, code == 0)
    assert max(map(len, shown[1].splitlines()[:-1])) <= 80
    assert [rule["rule"] for rule in document["rules"]] == ["ranks", "init", "ddp", "sampler", "set_epoch"]
    assert set(document["rules"][0]) == {"rule", "verdict", "file", "line", "evidence", "remedy", "framework"}


def test_an_undecidable_script_is_reported_as_unknown(capsys, tmp_path):
    """A script of other things breaks no rule, and keeps none."""
    file = tmp_path / "train.py"
    file.write_text("import tensorflow\n")

    code, out, err = exit_of(capsys, "--script", file, "--json")

    assert code == 0
    assert {rule["verdict"] for rule in json.loads(out)["rules"]} == {"unknown"}
    assert "could not be evaluated" in err


def test_local_modules_beside_the_script_are_read(capsys, tmp_path):
    """Also those of a package, and of a package within it; nothing else is."""
    (tmp_path / "lib/inner").mkdir(parents=True)
    (tmp_path / "lib/__init__.py").write_text("")
    (tmp_path / "lib/start.py").write_text("from .inner import go\n")
    (tmp_path / "lib/inner/__init__.py").write_text(BROKEN)
    file = tmp_path / "train.py"
    file.write_text("import torch\nimport lib.start\n")

    _, out, _ = exit_of(capsys, "--script", file, "--json")
    init = json.loads(out)["rules"][1]

    assert (init["verdict"], init["line"]) == ("broken", 2)
    assert init["file"] == str(tmp_path / "lib/inner/__init__.py")


def test_standard_input_is_read(capsys, monkeypatch):
    """A dash stands for it."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BROKEN.encode())))

    assert exit_of(capsys, "--script", "-")[0] == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.py", None, "no such file"),
        ("train.py", "import torch\nprint 1\n", "train.py, line 2: not valid Python"),
        ("run.sh", "#!/bin/sh\nfor i in 1 2; do echo; done\n", "run.sh, line 2"),
        ("train.ipynb", "{}", "is a notebook"),
    ],
)
def test_an_invalid_script_is_a_usage_error(capsys, tmp_path, name, content, said):
    """It is named, with its line, and what to give instead."""
    if content is not None:
        (tmp_path / name).write_text(content)

    code, out, err = exit_of(capsys, "--script", tmp_path / name)

    assert (code, out) == (2, "")
    assert said in err
    assert "hint:" in err
    assert "Traceback" not in err


def test_a_missing_script_is_a_usage_error(capsys):
    """The option is named."""
    code, _, err = exit_of(capsys)

    assert code == 2
    assert "--script" in err
