"""Job submissions: the reference documents' own commands."""

from __future__ import annotations

import re

import pytest

from provision.batch.submission import Here, read_words, submission
from provision.cli.job_options import is_secret
from provision.model.job import CodeSource, JobSpec, Kind
from tests.recorded.data import commands
from tests.unit.batch.test_submission import submitted
from tests.unit.cli.test_submit_again import reread

ACK = ("ack-topology-aware-scheduling-zh.txt", "ack-topology-aware-scheduling-ja.txt")


@pytest.mark.row(10, 11, 13, 22, 23, 25, 27, 28)
def test_the_documents_pytorch_job():
    """The command of the page on PyTorch, word for word: three nodes, code, data and TensorBoard."""
    words = next(words for words in commands("arena-pytorch-distributed.txt") if "--name=pytorch-dist" in words)
    result = submitted(words[1:])
    line = "python /root/code/mnist-pytorch/mnist.py --epochs 10 --backend nccl"
    line += " --dir /mnist_data/pytorch_data/logs --data /mnist_data/pytorch_data/"

    assert result.spec == JobSpec(
        "pytorch-dist",
        Kind.PYTORCH,
        (line,),
        image="registry.cn-beijing.aliyuncs.com/ai-samples/pytorch-with-tensorboard:1.5.1-cuda10.1-cudnn7-runtime",
        gpus=1,
        workers=3,
        data=(("training-data", "/mnist_data"),),
        sync=CodeSource("git", "https://code.aliyun.com/370272561/mnist-pytorch.git"),
        tensorboard=True,
        logdir="/mnist_data/pytorch_data/logs",
    )
    assert f"{result.spec.working_dir}/code/{result.spec.sync.name}" == "/root/code/mnist-pytorch"
    assert result.notes == ()


@pytest.mark.row(6, 13, 14)
@pytest.mark.parametrize("name", ACK)
def test_the_documents_mpi_jobs(name):
    """Four jobs of four workers, with and without topology; mpirun's own line is one word and stays as it is."""
    result = [submitted(words[1:]) for words in commands(name) if "--gpus=1" in words]

    assert len(result) == 4
    assert [job.spec.gputopology for job in result] == [True, False, True, False]
    for job in result:
        assert (job.spec.kind, job.spec.gpus, job.spec.workers) == (Kind.MPI, 1, 4)
        assert len(job.spec.command) == 1
        assert re.fullmatch(
            r"mpirun --allow-run-as-root -np 4 -bind-to none .* --mca btl \^openib python \S+ --model=\w+ "
            r"--batch-size=64",
            job.spec.command[0],
        )
        assert job.notes == ()


@pytest.mark.parametrize("name", ["arena-pytorch-distributed.txt", "ack-topology-aware-scheduling-zh.txt"])
def test_each_example_of_the_reference_documents_survives_the_round_trip(name):
    """With the logins that they type."""
    for words in commands(name):
        environ = {"GIT_SYNC_USERNAME": "yourname", "GIT_SYNC_PASSWORD": "yourpwd"}
        first = submission(read_words(words[1:]), Here(is_secret=is_secret))
        second = submission(read_words([]), Here(environ=environ, is_secret=is_secret), reread(first))

        assert second.spec == first.spec
        assert dict(second.sync) == dict(first.sync)
