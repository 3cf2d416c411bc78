"""The five rules of distributed training, checked on a script's text."""

from __future__ import annotations

import textwrap

import pytest

from provision.advisor.script import RULES, RuleVerdict, lint_script
from provision.errors import UsageError

SCRIPT = """\
import argparse
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


def is_distributed():
    return dist.is_available() and dist.is_initialized()


def train(model, loader):
    for batch in loader:
        model(batch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="nccl")
    args = parser.parse_args()
    if WORLD_SIZE > 1:
        dist.init_process_group(args.backend)
    train_sampler = DistributedSampler(dataset) if is_distributed() else None
    train_loader = DataLoader(dataset, shuffle=train_sampler is None, sampler=train_sampler)
    test_loader = DataLoader(test_data)
    model = Net().cuda()
    if is_distributed():
        model = nn.parallel.DistributedDataParallel(model)
    for epoch in range(10):
        if is_distributed():
            train_sampler.set_epoch(epoch)
        train(model, train_loader)


if __name__ == "__main__":
    main()
"""
INIT = "    if WORLD_SIZE > 1:\n        dist.init_process_group(args.backend)\n"
SAMPLER = "DistributedSampler(dataset) if is_distributed() else None"


def judged(text, **others):
    """Return rule -> finding."""
    sources = {"train.py": textwrap.dedent(text).encode()}
    sources.update({f"{name}.py": other.encode() for name, other in others.items()})
    return {finding.rule: finding for finding in lint_script(sources)}


def verdicts(text, **others):
    """Return rule -> verdict."""
    return {rule: finding.verdict.value for rule, finding in judged(text, **others).items()}


def changed(*pairs):
    """Return the script with replaced text; each old text must exist."""
    text = SCRIPT
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


ALL_HOLD = dict.fromkeys(RULES, "holds")


@pytest.mark.row(57)
def test_a_correct_script_passes_all_rules():
    assert verdicts(SCRIPT) == ALL_HOLD


@pytest.mark.row(57)
@pytest.mark.parametrize(
    ("rule", "line", "pairs"),
    [
        ("ranks", 26, [("(args.backend)", "(args.backend, rank=0, world_size=WORLD_SIZE)")]),
        ("ranks", 26, [("(args.backend)", '(args.backend, rank=int(os.environ["LOCAL_RANK"]))')]),
        ("ranks", 26, [("(args.backend)", '(args.backend, rank=int(os.environ["RANK"]) + 1)')]),
        ("ranks", 26, [("(args.backend)", "(args.backend, None, None, 2)")]),
        ("ranks", 26, [("(args.backend)", '(args.backend, init_method="tcp://127.0.0.1:23456")')]),
        ("ranks", 22, [("    parser = arg", '    os.environ["RANK"] = "0"\n    parser = arg')]),
        ("ranks", 22, [("    parser = arg", '    os.environ["MASTER_ADDR"] = "localhost"\n    parser = arg')]),
        ("ranks", 22, [("    parser = arg", '    os.environ.update({"WORLD_SIZE": "1"})\n    parser = arg')]),
        ("ranks", 22, [("    parser = arg", "    is_master = dist.get_rank() == 1\n    parser = arg")]),
        ("init", 25, [(INIT, "    dist.init_process_group(args.backend)\n")]),
        ("init", 26, [("WORLD_SIZE > 1", "WORLD_SIZE > 0")]),
        ("init", 26, [("WORLD_SIZE > 1", "WORLD_SIZE == 1")]),
        ("init", 26, [("WORLD_SIZE > 1", "torch.cuda.is_available()")]),
        ("init", None, [(INIT, "")]),
        ("ddp", None, [("        model = nn.parallel.DistributedDataParallel(model)\n", "        pass\n")]),
        ("ddp", 32, [("nn.parallel.DistributedDataParallel", "nn.DataParallel")]),
        ("ddp", 32, [("model = nn.parallel", "nn.parallel")]),
        ("ddp", 32, [("    if is_distributed():\n        model", "    if WORLD_SIZE == 1:\n        model")]),
        ("ddp", 32, [("model = nn.parallel", "wrapped = nn.parallel"), ("        train(model, ", "        model(0, ")]),
        ("sampler", 28, [(SAMPLER, "None")]),
        ("sampler", 27, [(", sampler=train_sampler", "")]),
        ("sampler", 28, [("shuffle=train_sampler is None", "shuffle=True")]),
        ("sampler", 27, [("DistributedSampler(dataset)", "DistributedSampler(dataset, num_replicas=1, rank=0)")]),
        (
            "sampler",
            27,
            [("DistributedSampler(dataset)", 'DistributedSampler(dataset, rank=int(os.environ["LOCAL_RANK"]))')],
        ),
        ("sampler", 28, [(", sampler=train_sampler", ""), ("(test_data)", "(test_data, sampler=train_sampler)")]),
        ("set_epoch", 27, [("            train_sampler.set_epoch(epoch)\n", "            pass\n")]),
        ("set_epoch", 35, [("set_epoch(epoch)", "set_epoch(0)")]),
        ("set_epoch", 36, [("    for epoch in range(10):\n", "    epoch = next(counter)\n    if True:\n")]),
        ("set_epoch", 35, [("train_sampler.set_epoch", "test_loader.sampler.set_epoch")]),
    ],
)
def test_violations_are_reported_with_their_line(rule, line, pairs):
    finding = judged(changed(*pairs))[rule]

    assert finding.verdict is RuleVerdict.BROKEN, finding
    assert line is None or finding.line in {line, line + 1, line - 1}
    assert finding.remedy


@pytest.mark.parametrize(
    "pairs",
    [
        [("import torch.distributed as dist", "from torch import distributed as dist")],
        [("import torch.distributed as dist\n", ""), ("dist.", "torch.distributed.")],
        [
            ("import os\n", "import os\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"),
            ("nn.parallel.DistributedDataParallel(", "DDP("),
        ],
        [(INIT, "    if WORLD_SIZE <= 1:\n        return\n    dist.init_process_group(args.backend)\n")],
        [(INIT, "    WORLD_SIZE > 1 and dist.init_process_group(args.backend)\n")],
        [("WORLD_SIZE > 1", '"RANK" in os.environ and "WORLD_SIZE" in os.environ')],
        [("WORLD_SIZE > 1", 'int(os.getenv("RANK", "-1")) != -1')],
        [("WORLD_SIZE > 1", "not (WORLD_SIZE == 1)")],
        [("WORLD_SIZE > 1", "WORLD_SIZE > 1 and not dist.is_initialized()")],
        [("if WORLD_SIZE > 1:", "if WORLD_SIZE > 1 and dist.is_available():")],
        [("(args.backend)", '(args.backend, rank=int(os.environ["RANK"]), world_size=WORLD_SIZE)')],
        [("(args.backend)", '(args.backend, init_method="env://")')],
        [("DistributedSampler(dataset)", "DistributedSampler(dataset, num_replicas=WORLD_SIZE, rank=dist.get_rank())")],
        [("train_sampler.set_epoch", "train_loader.sampler.set_epoch")],
        [
            ("model = nn.parallel.Dist", "Wrap = nn.parallel.Dist"),
            ("(model)\n    for", " if cuda else nn.DistributedDataParallelCPU\n        model = Wrap(model)\n    for"),
        ],
        [("sampler=train_sampler)", "**{'sampler': train_sampler})")],
        [("            train_sampler.set_epoch(epoch)\n", "            begin(train_sampler, epoch)\n"),
         ("def main", "def begin(sampler, number):\n    sampler.set_epoch(number)\n\n\ndef main")],
        [("DistributedSampler(dataset)", "DistributedSampler(dataset, shuffle=False)"),
         ("            train_sampler.set_epoch(epoch)\n", "            pass\n")],
    ],
)  # fmt: skip
def test_alternative_correct_forms_pass(pairs):
    """Aliases, early returns, checks of the environment as with Slurm, values through parameters."""
    findings = judged(changed(*pairs))

    assert {rule: finding.verdict.value for rule, finding in findings.items()} == ALL_HOLD, findings


def test_a_script_for_torchrun_needs_no_guard():
    """A script that reads LOCAL_RANK without a default always has a launcher; torchrun sets it for one process too."""
    text = changed(
        (INIT, '    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n' + INIT.split("\n")[1][4:] + "\n")
    )

    finding = judged(text)["init"]

    assert finding.verdict is RuleVerdict.HOLDS
    assert "LOCAL_RANK" in finding.evidence


def test_processes_of_torch_multiprocessing_have_the_ranks_of_one_node():
    """The tutorial's script counts ranks from 0 on every node."""
    findings = judged(
        """
        import os
        import torch.distributed as dist
        import torch.multiprocessing as mp

        def setup(rank, world_size):
            dist.init_process_group("gloo", rank=rank, world_size=world_size)

        def work(rank, world_size):
            setup(rank, world_size)

        if __name__ == "__main__":
            mp.spawn(work, args=(8,), nprocs=8)
        """
    )

    assert findings["ranks"].verdict is RuleVerdict.BROKEN
    assert "two nodes" in findings["ranks"].evidence


@pytest.mark.parametrize(
    ("pairs", "rule"),
    [
        ([("WORLD_SIZE > 1", "args.distributed")], "init"),
        ([(INIT, "    init_distributed_mode(args)\n")], "init"),
        ([("import torch\n", "import torch\nimport webdataset\n"),
          ("DataLoader(dataset, shuffle=train_sampler is None, sampler=train_sampler)", "wds.WebLoader(dataset)"),
          (SAMPLER, "None"), ("DataLoader(test_data)", "None")], "sampler"),
        ([("        model = nn.parallel.DistributedDataParallel(model)\n",
           "        dist.all_reduce(next(model.parameters()).grad)\n")], "ddp"),
    ],
)  # fmt: skip
def test_undecidable_rules_are_unknown(pairs, rule):
    finding = judged(changed(*pairs))[rule]

    assert finding.verdict is RuleVerdict.UNKNOWN, finding
    assert finding.evidence


@pytest.mark.parametrize(
    ("pairs", "rule"),
    [
        (
            [("        model = nn.parallel.DistributedDataParallel(model)\n", "        model = smart_ddp(model)\n")],
            "ddp",
        ),
        (
            [
                ("        model = nn.parallel.DistributedDataParallel(model)\n", "        pass\n"),
                ("model = Net().cuda()", "model = importlib.import_module(args.model).Net()"),
            ],
            "ddp",
        ),
        ([(SAMPLER, "EnlargedSampler(dataset, WORLD_SIZE)")], "sampler"),
    ],
)
def test_objects_from_unread_modules_are_not_missing(pairs, rule):
    """A function of another package, a dynamically imported model, a custom sampler."""
    assert judged(changed(*pairs))[rule].verdict is RuleVerdict.UNKNOWN


def test_an_early_return_from_a_chain_of_conditions_is_a_guard():
    """As in torchvision's reference: launched by torchrun, by Slurm, or not at all."""
    guard = """    if "RANK" in os.environ:
        pass
    elif "SLURM_PROCID" in os.environ:
        pass
    else:
        return
    dist.init_process_group(args.backend)
"""
    assert verdicts(changed((INIT, guard)))["init"] == "holds"


def test_a_script_of_many_modules_is_checked():
    names = [f"f{i}" for i in range(30)]
    calls = "".join(f"    if x: {name}(y)\n" for name in names)
    module = "".join(f"def {name}(x):\n    y = x\n{calls}" for name in names)

    findings = judged(SCRIPT + module + "f0(WORLD_SIZE > 1)\n" + module.replace("if x", "if WORLD_SIZE > x"))

    assert set(findings) == set(RULES)


def test_a_script_without_torch_is_unknown():
    assert set(verdicts("import tensorflow\n").values()) == {"unknown"}


FRAMEWORKS = {
    "Lightning": """
        import lightning as L
        from torch.utils.data import DataLoader
        L.Trainer(devices=8, num_nodes=2).fit(Net(), DataLoader(data, shuffle=True))
    """,
    "Accelerate": """
        from accelerate import Accelerator
        from torch.utils.data import DataLoader
        accelerator = Accelerator()
        model, loader = accelerator.prepare(Net(), DataLoader(data))
    """,
    "Transformers' Trainer": """
        from transformers import Trainer, TrainingArguments
        Trainer(model=Net(), args=TrainingArguments("out"), train_dataset=data).train()
    """,
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_rules_implemented_by_a_framework_pass(name):
    findings = judged(FRAMEWORKS[name])

    assert {rule: finding.verdict.value for rule, finding in findings.items()} == ALL_HOLD
    assert {finding.framework for finding in findings.values()} == {name}
    assert all("does it" in finding.evidence and finding.line for finding in findings.values())


def test_ray_leaves_the_epoch_to_the_script():
    """Its loader has a DistributedSampler, and the script calls set_epoch."""
    script = """
        import ray.train.torch
        from ray.train.torch import TorchTrainer
        def loop(config):
            model = ray.train.torch.prepare_model(Net())
            loader = ray.train.torch.prepare_data_loader(DataLoader(data))
            for epoch in range(3):
                loader.sampler.set_epoch(epoch)
        TorchTrainer(loop).fit()
    """

    assert verdicts(script) == ALL_HOLD
    assert verdicts(script.replace(".set_epoch(epoch)", ""))["set_epoch"] == "broken"


def test_arguments_of_a_loader_may_be_in_a_variable():
    """As in the examples for FSDP."""
    text = changed(
        ("    train_loader = DataLoader(dataset, shuffle=train_sampler is None, sampler=train_sampler)\n",
         "    options = {'sampler': train_sampler}\n    train_loader = DataLoader(dataset, **options)\n")
    )  # fmt: skip

    assert verdicts(text) == ALL_HOLD
    assert verdicts(text.replace("{'sampler': train_sampler}", "read_options()"))["sampler"] == "unknown"


def test_a_framework_call_that_is_missing_is_broken():
    """Accelerator alone wraps nothing, and DeepSpeed without training_data splits no data."""
    accelerate = judged(FRAMEWORKS["Accelerate"].replace("accelerator.prepare(Net(), DataLoader(data))", "1, 2"))
    deepspeed = judged(
        """
        import deepspeed
        from torch.utils.data import DataLoader
        loader = DataLoader(data)
        engine, *_ = deepspeed.initialize(model=net)
        """
    )

    assert accelerate["ddp"].verdict is RuleVerdict.BROKEN
    assert "prepare" in accelerate["ddp"].remedy
    assert [deepspeed[rule].verdict.value for rule in ("init", "ddp", "sampler")] == ["holds", "holds", "broken"]


def test_an_unused_framework_import_has_no_effect():
    assert (
        verdicts("import accelerate\n" + changed(("nn.parallel.DistributedDataParallel(model)", "model")))["ddp"]
        == "broken"
    )


def test_modules_beside_the_script_are_read():
    text = "from setup import begin\n" + changed((INIT, "    begin(args.backend)\n"))
    module = "import torch.distributed as dist\n\ndef begin(backend):\n    dist.init_process_group(backend)\n"

    finding = judged(text, setup=module)["init"]

    assert (finding.verdict, finding.file, finding.line) == (RuleVerdict.BROKEN, "setup.py", 4)


@pytest.mark.parametrize(
    "source",
    [b"import torch\nprint 'old'\n", b"\0", b"\xff\xfe", b"(" * 5000, b"x = 1\n" + b"-" * 200_000 + b"1"],
)
def test_invalid_python_is_an_error_with_its_line(source):
    with pytest.raises(UsageError) as raised:
        lint_script({"train.py": source})

    assert str(raised.value).startswith("train.py")
    if b"print" in source:
        assert "line 2" in str(raised.value)


def test_an_expression_that_is_nested_too_deeply_is_an_error():
    source = f"import torch\nif {'+'.join(['x'] * 1500)}:\n    torch.distributed.init_process_group()\n"
    with pytest.raises(UsageError, match="nested too deeply"):
        lint_script({"train.py": source.encode()})


def test_incomplete_scripts_do_not_raise():
    lines = SCRIPT.splitlines(keepends=True)
    for cut in range(len(lines)):
        try:
            findings = lint_script({"train.py": "".join(lines[:cut] + lines[cut + 1 :]).encode()})
        except UsageError:
            continue
        assert [finding.rule for finding in findings] == list(RULES)


def test_nothing_is_executed(tmp_path):
    verdicts(f"import torch\nopen({str(tmp_path / 'seen')!r}, 'w')\n")

    assert list(tmp_path.iterdir()) == []
