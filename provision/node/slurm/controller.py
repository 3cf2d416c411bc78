"""Requests to a node with Slurm's commands: slurm_state, slurm_job, slurm_submit, slurm_cancel, slurm_job_update, ...

Commands are argument lists that are built from checked fields. Output is machine-readable text with explicit fields,
which the controller parses.
"""

import os
import re
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from provision.node.files import Record, Refused

SECONDS = 30
SOON_SECONDS = 5  # a node refuses a start in the second in which it ended the attempt before: "credential revoked"
SEPARATOR = "\x1f"
JOB_FIELDS = (
    "JobID", "UserID", "State", "Reason", "RestartCnt", "SubmitTime", "StartTime", "EndTime", "Partition", "NodeList",
    "ReqNodes", "tres-per-node", "Comment",
)  # fmt: skip
NODE_FIELDS = ("NodeHost", "StateComplete", "Gres", "GresUsed", "CPUsState", "Reason")
OUTPUT_LIMIT = 32 * 1024 * 1024
SCRIPT_LIMIT = 4 * 1024 * 1024
"""Characters of a batch script; Slurm itself refuses scripts of 4 MiB."""
MOST = 100000
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,253}[A-Za-z0-9])?\Z")
COMMENT = re.compile(r"provision(-run)?:[A-Za-z0-9][-A-Za-z0-9_.:@]{0,199}\Z")
GRES = re.compile(r"gpu(:[A-Za-z0-9_.-]{1,64})?:[0-9]{1,4}\Z")
TIME = re.compile(r"UNLIMITED\Z|[1-9][0-9]{0,8}\Z")
LABEL = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.,/]{0,127}\Z")
PATH = re.compile(r"/[A-Za-z0-9_./%-]{1,200}\Z")
STATES = {"drain": "DRAIN", "resume": "RESUME"}
COUNTS = {
    "tasks": "--ntasks={}",
    "tasks_per_node": "--ntasks-per-node={}",
    "cpus_per_task": "--cpus-per-task={}",
    "gpus_per_node": "--gpus-per-node={}",
    "gpus_per_task": "--gpus-per-task={}",
    "memory": "--mem={}M",
}
"""Field with a positive number -> option of sbatch."""
LABELS = {
    "partition": "--partition={}",
    "account": "--account={}",
    "qos": "--qos={}",
    "reservation": "--reservation={}",
}
FLAGS = {
    "exclusive": "--exclusive",
    "hold": "--hold",
    "test_only": "--test-only",
}


def slurm(argv: Sequence[str], seconds: float = SECONDS, stdin: bytes = b"") -> Tuple[int, str, str]:
    """Run a command of Slurm in a small environment; return its exit code, output and errors.

    Times are printed as seconds since the epoch.
    """
    import subprocess

    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=dict(small_environment(), SLURM_TIME_FORMAT="%s"),
        )
    except OSError as problem:
        return 127, "", "{}: {}".format(argv[0], problem.strerror)
    try:
        out, err = child.communicate(stdin, timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        return 124, "", "{} did not end in time".format(argv[0])
    return child.returncode, out.decode(errors="replace"), err.decode(errors="replace").strip()


def small_environment() -> Dict[str, str]:
    """Return the environment of Slurm's commands, which a batch job inherits."""
    path = os.environ.get("PATH") or "/usr/sbin:/usr/bin:/sbin:/bin"
    env = {"PATH": path, "LC_ALL": "C", "HOME": "/root"}
    if os.geteuid():  # a job of an ordinary user
        env["HOME"] = os.path.expanduser("~")
        env.update({key: os.environ[key] for key in ("USER", "LOGNAME", "SHELL") if key in os.environ})
    if os.environ.get("SLURM_CONF"):
        env["SLURM_CONF"] = os.environ["SLURM_CONF"]
    return env


def succeeded(argv: Sequence[str], seconds: float = SECONDS) -> str:
    """Return the output of a command of Slurm; refuse the request if it fails."""
    code, out, err = slurm(argv, seconds)
    if code:
        raise failed(argv[0], code, err or out)
    if len(out) > OUTPUT_LIMIT:
        raise Refused("{} printed more than {} characters".format(argv[0], OUTPUT_LIMIT))
    return out


def failed(title: str, code: int, text: str) -> Refused:
    """Return the refusal because of a failed command of Slurm."""
    if code == 127:
        return Refused("there is no {} on this node".format(title), "Set slurm_controller to a node with Slurm.")
    lines = text.strip().splitlines()
    return Refused(
        "{}: {}".format(title, lines[-1] if lines else "exit {}".format(code)),
        "Check Slurm's controller: systemctl status slurmctld; scontrol ping",
        text[-2000:],
    )


def slurm_state(request: Record) -> Record:
    """Return all jobs of root in Slurm's queue, and with ``nodes`` all nodes, one line each with `SEPARATOR`."""
    answer = {"jobs": succeeded(["squeue", "-h", "-t", "all", "-u", "root", "-O", form(JOB_FIELDS)])}
    if request.get("nodes"):
        answer["nodes"] = succeeded(["sinfo", "-N", "-h", "-O", form(NODE_FIELDS)])
    return answer


def slurm_report(request: Record) -> Record:
    """Return the report of this node's jobs with Slurm's queue, or with the reason why Slurm does not answer.

    The queue is read first: the records of a job that has left it are complete.
    """
    from provision.node.jobs.reports import report

    try:
        queue = {"slurm": slurm_state({})["jobs"]}
    except Refused as problem:
        queue = {"slurm_problem": problem.answer["error"]}
    return dict(report(request), **queue)


def form(fields: Sequence[str]) -> str:
    """Return a format of squeue or sinfo: fields of any length that a character separates."""
    return ",".join("{}:{}".format(field, SEPARATOR) for field in fields)


def slurm_job(request: Record) -> Record:
    """Return what Slurm knows of one job, as lines of ``scontrol show job -d -o``."""
    return {"text": succeeded(["scontrol", "show", "job", "-d", "-o", str(job_number(request["job"]))])}


def slurm_submit(request: Record) -> Record:
    """Submit the batch script of the request; return the number of Slurm's job, or why it was refused.

    ``uncertain`` says that Slurm may have the job nevertheless. Every error of this request is uncertain too.
    """
    script = request["script"]
    if not isinstance(script, str) or not 0 < len(script) <= SCRIPT_LIMIT:
        return {"job": 0, "refused": "the batch script has an invalid size"}
    try:
        options = checked_options(request.get("options") or {})
    except Refused as problem:
        return {"job": 0, "refused": str(problem)}
    code, out, err = slurm(["sbatch", "--parsable", "--chdir=/", "--export=ALL", *options], stdin=script.encode())
    if code == 127:
        return {"job": 0, "refused": "there is no sbatch on this node"}
    if request.get("options", {}).get("test_only"):
        return {"job": 0, "refused": (err or out)[-2000:] if code else ""}
    number = out.strip().partition(";")[0]
    if code or not number.isdigit():
        is_uncertain = code <= 0 or code == 124 or "timed out" in err.lower()
        return {"job": 0, "refused": (err or out or "exit {}".format(code))[-2000:], "uncertain": is_uncertain}
    return {"job": int(number), "refused": ""}


def checked_options(fields: Mapping[str, Any]) -> List[str]:
    """Return the options of sbatch; refuse a field that is unknown or has another form."""
    words: List[str] = []
    for key in sorted(fields):
        value = fields[key]
        if key in COUNTS:
            words.append(COUNTS[key].format(count(key, value)))
        elif key in LABELS:
            words.append(LABELS[key].format(matching(key, value, LABEL)))
        elif key in FLAGS:
            words += [FLAGS[key]] if value is True else []
        elif key in OTHERS:
            words += OTHERS[key](value)
        else:
            raise Refused("{!r:.80}: unknown option of a job in Slurm".format(key))
    return words


def node_range(value: Any) -> List[str]:
    """Return the option for the number of nodes: one number, or the fewest and the most."""
    fewest, most = value
    few, many = count("nodes", fewest), count("nodes", most)
    return ["--nodes={}".format(few) if few == many else "--nodes={}-{}".format(few, many)]


def name_list(option: str, value: Any) -> List[str]:
    """Return an option with node names; none for an empty list."""
    if not isinstance(value, list) or len(value) > MOST:
        raise Refused("{}: not a list of nodes".format(option))
    return ["{}={}".format(option, ",".join(matching(option, name, NAME) for name in value))] if value else []


def nice(value: Any) -> List[str]:
    """Return the option for the priority among the other jobs."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 2147483645:
        raise Refused("{!r:.80}: invalid nice value".format(value))
    return ["--nice={}".format(value)]


def gres(value: Any) -> List[str]:
    """Return the option for exact GPUs of each node."""
    if not isinstance(value, list) or not 0 < len(value) <= 64:
        raise Refused("gres: not a list")
    return ["--gres=" + ",".join(matching("gres", one, GRES) for one in value)]


def after(value: Any) -> List[str]:
    """Return the option for jobs that have to succeed before."""
    return ["--dependency=afterok:" + ":".join(str(job_number(one)) for one in value)] if value else []


OTHERS: Dict[str, Callable[[Any], List[str]]] = {
    "nodes": node_range,
    "exclude": lambda value: name_list("--exclude", value),
    "nodelist": lambda value: name_list("--nodelist", value),
    "nice": nice,
    "gres": gres,
    "name": lambda value: ["--job-name=" + matching("name", value, NAME)],
    "comment": lambda value: ["--comment=" + matching("comment", value, COMMENT)],
    "time": lambda value: ["--time=" + matching("time", str(value), TIME)],
    "output": lambda value: ["--output=" + matching("output", value, PATH), "--open-mode=append"],
    "requeue": lambda value: ["--requeue" if value is True else "--no-requeue"],
    "after": after,
}
"""Field -> a function that returns options of sbatch."""


def count(title: str, value: Any) -> int:
    """Return a positive number of a request."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 100000000:
        raise Refused("{}: {!r:.80} is not a positive number".format(title, value))
    return value


def matching(title: str, value: Any, pattern: "re.Pattern[str]") -> str:
    """Return a text of a request that has the form of `pattern`."""
    if not isinstance(value, str) or not pattern.match(value):
        raise Refused("{}: {!r:.80} is not valid".format(title, value))
    return value


def job_number(value: Any) -> int:
    """Return the number of a job in Slurm."""
    return count("job", value)


def slurm_cancel(request: Record) -> Record:
    """Cancel jobs, with ``pending`` only those that wait; a job that has ended or is unknown is no error."""
    jobs = [job_number(one) for one in request["jobs"]]
    only = ["--state=PENDING"] if request.get("pending") is True else []
    for first in range(0, len(jobs), 500):
        code, _, err = slurm(["scancel", "--quiet", *only, *map(str, jobs[first : first + 500])])
        if code and "Invalid job id" not in err and "already completing" not in err:
            raise failed("scancel", code, err)
    return {"cancelled": True}


def slurm_job_update(request: Record) -> Record:
    """Change a job: ``release``, ``start_soon``, ``exclude`` (nodes) of a waiting one, ``more_minutes`` of any.

    ``any_node`` removes the nodes that a waiting job requires.
    """
    number = str(job_number(request["job"]))
    if request.get("release"):
        succeeded(["scontrol", "release", number])
    if request.get("any_node"):
        succeeded(["scontrol", "update", "JobId=" + number, "ReqNodeList="])
    words = []
    if request.get("exclude"):
        words.append("ExcNodeList=" + name_list("x", request["exclude"])[0].partition("=")[2])
    if request.get("more_minutes"):
        words.append("TimeLimit=+{}".format(count("more_minutes", request["more_minutes"])))
    if request.get("start_soon"):
        words.append("StartTime=now+{}".format(SOON_SECONDS))
    if words:
        succeeded(["scontrol", "update", "JobId=" + number, *words])
    return {"written": True}


def slurm_node_update(request: Record) -> Record:
    """Drain or resume a node; the reason is required for drain."""
    state = STATES.get(request.get("state") or "")
    if state is None:
        raise Refused("{!r:.80}: unknown state of a node".format(request.get("state")))
    words = ["scontrol", "update", "NodeName=" + matching("node", request["node"], NAME), "State=" + state]
    if state == "DRAIN":
        reason = " ".join(str(request.get("reason") or "").split())[:200]
        if not reason or any(not char.isprintable() for char in reason):
            raise Refused("the node cannot be drained without a valid reason")
        words.append("Reason=provision: " + reason)
    code, out, err = slurm(words)
    if code and not (state == "RESUME" and "Invalid node state" in err):
        raise failed("scontrol", code, err or out)
    return {"written": True}


def slurm_allocate(request: Record) -> Record:
    """Allocate nodes without running anything, at once or not at all; return the number of the job."""
    options = checked_options(request["options"])
    seconds = count("seconds", request["seconds"])
    argv = ["salloc", "--no-shell", "--immediate={}".format(seconds), *options]
    code, out, err = slurm(argv, seconds + SECONDS)
    match = re.search(r"Granted job allocation ([0-9]{1,9})", err + out)
    if code or match is None:
        return {"job": 0, "refused": (err or out or "exit {}".format(code))[-2000:]}
    return {"job": int(match.group(1)), "refused": ""}
