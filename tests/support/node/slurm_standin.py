"""STAND-IN of Slurm's controller: commands that read and write two files of lines, and start nothing.

The first argument is the folder, the second the command; the others are those of the command. `jobs` and `nodes` have
the lines that squeue and sinfo print for the fields of `provision.node.slurm.controller`.
"""

import sys
from pathlib import Path

FOLDER, COMMAND, WORDS = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
SEPARATOR = "\x1f"
NUMBER, STATE, REASON, RESTARTS, NODES, REQUIRED, COMMENT = 0, 2, 3, 4, 9, 10, 12


def read(name):
    path = FOLDER / name
    return [line.split(SEPARATOR)[:-1] for line in path.read_text().splitlines()] if path.exists() else []


def write(name, rows):
    (FOLDER / name).write_text("".join(SEPARATOR.join([*row, ""]) + "\n" for row in rows))


def option(name):
    return next((word.partition("=")[2] for word in WORDS if word.startswith(f"--{name}=")), "")


def change(number, **fields):
    rows = read("jobs")
    for row in rows:
        if row[NUMBER] == number:
            for field, value in fields.items():
                row[globals()[field]] = value
    write("jobs", rows)


def sbatch():
    if int(option("gpus-per-task") or 0) > 4:
        sys.exit("sbatch: error: Batch job submission failed: Requested node configuration is not available")
    rows = read("jobs")
    number = str(len(rows) + 1)
    (FOLDER / f"script-{number}").write_text(sys.stdin.read())
    (FOLDER / f"options-{number}").write_text("\n".join(WORDS))
    reason = "JobHeldUser" if "--hold" in WORDS else "Resources"
    row = [number, "0", "PENDING", reason, "0", "1", "NONE", "NONE", "all", ""]
    row += [option("nodelist"), option("gres").replace("gpu:", "gres:gpu:") or "N/A", option("comment")]
    write("jobs", [*rows, row])
    print(number)


def scancel():
    waiting = {row[NUMBER] for row in read("jobs") if row[STATE] == "PENDING"}
    for number in WORDS:
        if number.isdigit() and (number in waiting or "--state=PENDING" not in WORDS):
            change(number, STATE="CANCELLED", REASON="None")


def scontrol():
    if WORDS[0] == "release":
        change(WORDS[1], REASON="Resources")
    elif WORDS[:3] == ["show", "job", "-d"]:
        comment = FOLDER / f"admin-{WORDS[-1]}"
        print(f"JobId={WORDS[-1]} AdminComment={comment.read_text() if comment.exists() else '(null)'} StdErr=/x")
    elif WORDS[1].startswith("JobId="):
        if "ReqNodeList=" in WORDS:
            change(WORDS[1].partition("=")[2], REQUIRED="")
    elif WORDS[1].startswith("NodeName="):
        drained = "State=DRAIN" in WORDS
        reason = WORDS[-1].partition("=")[2] if drained else "none"
        rows = read("nodes")
        for row in rows:
            if row[0] == WORDS[1].partition("=")[2]:
                row[1], row[5] = ("idle+drain" if drained else "idle"), reason
        write("nodes", rows)


def main():
    if COMMAND == "squeue":
        print((FOLDER / "jobs").read_text() if (FOLDER / "jobs").exists() else "")
    elif COMMAND == "sinfo":
        print((FOLDER / "nodes").read_text())
    else:
        {"sbatch": sbatch, "scancel": scancel, "scontrol": scontrol}[COMMAND]()


if __name__ == "__main__":
    main()
