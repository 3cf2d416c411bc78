"""Random specifications of jobs that `provision.batch.spec_checks` accepts."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from provision.batch.spec_checks import check
from provision.errors import UsageError
from provision.launchers import launcher_names
from provision.model.job import CodeSource, JobSpec, Kind

__all__ = ["job_specs"]

_HOSTILE = st.sampled_from(
    [
        "",
        "$(id)",
        "`id`",
        "'; id; '",
        '"',
        "$$",
        "$(workers)",
        "\n",
        "---\nkind: Pod",
        "# no",
        "yes",
        "0x10",
        "1e3",
        "é\u2028",
        "null",
    ]
) | st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
_WORD = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True)
_PATH = st.from_regex(r"/[a-z][a-z0-9._-]{0,8}", fullmatch=True)
_NAME = st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True)
_KEY = st.from_regex(r"([a-z]{1,5}/)?[a-z][a-z.]{0,6}[a-z]", fullmatch=True) | _HOSTILE
_PAIRS = st.dictionaries(_KEY, _HOSTILE, max_size=2)
_SECONDS = st.sampled_from([0.0, 1.0, 90.0, 3600.0, 0.5])
_SOURCE = st.builds(
    CodeSource,
    st.sampled_from(["git", "rsync", "local"]),
    st.sampled_from(["https://example.com/a/b.git", "rsync://host/module", "/home/user/code"]),
    st.sampled_from(["", "main", "v1.0"]),
    st.just({}) | st.just({"GIT_SYNC_DEPTH": "1"}),
)
_COMMANDS = {
    Kind.MPI: ["mpirun -np 1 python3 a.py", "python3 driver.py", "mpirun -np $$ -x A python3 'a b.py'"],
    Kind.PYTORCH: ["python3 a.py", "torchrun a.py", "cd /x && torchrun --nproc-per-node=$PET_NPROC_PER_NODE a.py"],
    Kind.RUN: ["hostname", "sh -c 'echo $RANK'"],
}


@st.composite
def job_specs(draw, kinds=(Kind.MPI, Kind.PYTORCH)):
    """Return a valid specification that uses any of the options."""
    kind = draw(st.sampled_from(kinds))
    line = st.sampled_from(_COMMANDS[kind]) | _HOSTILE.map("python3 a.py {}".format)
    words = st.lists(_HOSTILE, max_size=2).map(lambda more: ("python3", "a.py", *more))
    spec = JobSpec(
        name=draw(_WORD),
        kind=kind,
        command=draw(line.map(lambda text: (text,)) | words),
        image=draw(st.sampled_from(["image:1", "registry.example.com:5000/a/b@sha256:" + "0" * 64])),
        worker_image=draw(st.sampled_from(["", "other:2"])),
        shell=draw(st.sampled_from(["sh", "bash"])),
        gpus=draw(st.integers(0, 8)),
        workers=draw(st.integers(1, 4)),
        env=draw(st.dictionaries(_NAME, _HOSTILE, max_size=3)),
        secret_env=tuple(draw(st.lists(_NAME.map("S_{}".format), max_size=2, unique=True))),
        working_dir=draw(_PATH),
        data=tuple(draw(st.lists(st.tuples(_WORD, _PATH), max_size=2, unique_by=lambda pair: pair[0]))),
        mounts=tuple(
            draw(st.lists(st.builds("{}:{}{}".format, _PATH, _PATH, st.sampled_from(["", ":ro", ":rw"])), max_size=2))
        ),
        config_files=tuple(draw(st.lists(st.builds("{}:{}".format, _PATH, _PATH), max_size=2))),
        sync=draw(st.none() | _SOURCE),
        nodes=tuple(draw(st.lists(_WORD, max_size=2, unique=True))),
        exclude=tuple(draw(st.lists(_WORD.map("x-{}".format), max_size=2, unique=True))),
        selector=draw(_PAIRS),
        launcher=draw(st.sampled_from(["", "", *launcher_names()])),
        nproc_per_node=draw(st.sampled_from(["", "auto", "gpu", "2"])),
        share_memory=draw(st.sampled_from(["32g", "512m", "64k", "1024b", "2t"])),
        user=draw(st.sampled_from(["", "0:0", "1000:1000", "1000:1000,44,109"])),
        pull=draw(st.sampled_from(["always", "missing", "never"])),
        running_timeout=draw(_SECONDS),
        ttl_after_finished=draw(_SECONDS),
        starting_timeout=draw(st.sampled_from([600.0, 30.0])),
        clean_task_policy=draw(st.sampled_from(["", "None", "Running", "All"])),
        labels=draw(_PAIRS),
        annotations=draw(_PAIRS),
        ulimits=draw(st.just({}) | st.just({"memlock": "-1"})),
        **{name: draw(st.booleans()) for name in _SWITCHES},
        **{name: draw(st.integers(0, 2)) for name in ("retry", "max_per_node", "priority", "procs_per_gpu", "ranks")},
        preset=draw(st.sampled_from(["", "horovod-lightcc"])),
        depends=tuple(draw(st.lists(_WORD.map("d-{}".format), max_size=2, unique=True))),
    )
    try:
        check(spec)
    except (UsageError, ValueError):
        assume(condition=False)
    return spec


_SWITCHES = (
    "gang",
    "spread",
    "exclusive",
    "gputopology",
    "allow_drained",
    "privileged",
    "rdma",
    "lint",
    "hold",
    "tensorboard",
)
