"""STAND-IN of Slurm for an ordinary user: batch scripts run as processes of this machine, on nodes that do not exist.

The first argument is the folder, the second the command; the others are those of the command. ``job-N`` in the folder
is the job N: a file for each value. Without the file ``free``, jobs wait.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

FOLDER, COMMAND, WORDS = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
SEPARATOR = "\x1f"
NODES = ("n1", "n2")


def option(name, text=""):
    words = [*WORDS, *(line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH "))]
    return next((word.partition("=")[2] for word in words if word.startswith(f"--{name}=")), "")


def jobs():
    return sorted(FOLDER.glob("job-*"), key=lambda path: int(path.name.partition("-")[2]))


def value(job, name):
    path = job / name
    return path.read_text().strip() if path.exists() else ""


def sbatch():
    script = sys.stdin.read()
    nodes, hold = option("nodes", script), "--hold" in WORDS or "#SBATCH --hold" in script
    if int(nodes) > len(NODES):
        sys.exit("sbatch: error: Batch job submission failed: Requested node configuration is not available")
    if "--test-only" in WORDS:
        return
    job = FOLDER / f"job-{len(jobs()) + 1}"
    job.mkdir()
    for name, text in {
        "script": script,
        "options": "\n".join(WORDS),
        "comment": option("comment"),
        "nodes": ",".join(NODES[: int(nodes)]),
        "reason": "JobHeldUser" if hold else "Dependency" if option("dependency") else "Resources",
        "home": os.environ["HOME"],
    }.items():
        (job / name).write_text(text)
    (job / "output").write_text(option("output"))
    if not hold and not option("dependency") and (FOLDER / "free").exists():
        start(job)
    print(job.name.partition("-")[2])


def start(job):
    """Start a job that waits, in a session of its own."""
    number = job.name.partition("-")[2]
    environment = {**os.environ, "SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": value(job, "nodes")}
    line = f"trap : TERM; bash {job}/script; echo $? >{job}/exit.new; mv {job}/exit.new {job}/exit"
    with (job / "output").open() as named, Path(named.read()).open("wb") as output:
        child = subprocess.Popen(
            ["sh", "-c", line],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    (job / "process").write_text(str(child.pid))


def state(job):
    if value(job, "forgotten"):
        return ""
    if value(job, "state"):
        return value(job, "state")
    if value(job, "exit"):
        return "CANCELLED" if value(job, "cancelled") else "COMPLETED" if value(job, "exit") == "0" else "FAILED"
    if value(job, "process"):
        return "RUNNING"
    return "CANCELLED" if value(job, "cancelled") else "PENDING"


def squeue():
    assert WORDS[WORDS.index("-u") + 1] == str(os.getuid())
    for job in jobs():
        now = state(job)
        if now:
            nodes = value(job, "nodes") if now != "PENDING" else ""
            row = [
                job.name.partition("-")[2],
                str(os.getuid()),
                now,
                value(job, "reason"),
                "0",
                "1",
                "NONE",
                "NONE",
                "all",
            ]
            print(SEPARATOR.join([*row, nodes, "", "N/A", value(job, "comment"), ""]))


def scancel():
    for number in (word for word in WORDS if word.isdigit()):
        job = FOLDER / f"job-{number}"
        (job / "cancelled").write_text("yes")
        if value(job, "process") and not value(job, "exit"):
            os.killpg(int(value(job, "process")), signal.SIGTERM)


def srun():
    """Run the tasks; output goes to the files that SLURM_STDOUTMODE names."""
    words = WORDS[next(at for at, word in enumerate(WORDS) if not word.startswith("--")) :]
    children = []
    for task in range(int(option("ntasks"))):
        output = Path(os.environ["SLURM_STDOUTMODE"].replace("%t", str(task)))
        environment = {**os.environ, "SLURM_PROCID": str(task), "SLURM_NODEID": str(task)}
        with output.open("ab") as stream:
            children.append(subprocess.Popen(words, env=environment, stdout=stream, stderr=stream))
    signal.signal(signal.SIGTERM, lambda *_: None)
    codes = [child.wait() for child in children]
    for task, code in enumerate(codes):
        if code > 0:
            sys.stderr.write(f"srun: error: {NODES[task]}: task {task}: Exited with exit code {code}\n")
    if any(code > 0 for code in codes) and len(codes) > 1:  # the others are ended by a signal
        sys.stderr.write("srun: Force Terminated StepId=1.0\n")
        sys.exit(143)
    sys.exit(max(code % 256 for code in codes))


def scontrol():
    if WORDS[:2] == ["show", "hostnames"]:
        print("\n".join(WORDS[2].split(",")))
    elif WORDS[0] == "release":
        job = FOLDER / f"job-{WORDS[1]}"
        (job / "reason").write_text("Resources")
        if (FOLDER / "free").exists():
            start(job)


def sinfo():
    for name in NODES:
        print(SEPARATOR.join([name, "idle", "gpu:2", "gpu:1(IDX:0)", "0/8/0/8", "none", ""]))


def sacct():
    """Print how forgotten jobs ended, where the file ``accounting`` exists."""
    if not (FOLDER / "accounting").exists():
        sys.exit("sacct: error: Slurm accounting storage is disabled")
    print((FOLDER / "accounting").read_text())


def main():
    if (FOLDER / "silent").exists():
        sys.exit(f"{COMMAND}: error: Unable to contact slurm controller (connect failure)")
    {
        "sbatch": sbatch, "squeue": squeue, "scancel": scancel, "srun": srun, "scontrol": scontrol, "sinfo": sinfo,
        "sacct": sacct,
    }[COMMAND]()  # fmt: skip


if __name__ == "__main__":
    main()
