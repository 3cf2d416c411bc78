"""Batch jobs of a lab, through the command as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.command import Done, Provision, eventually

__all__ = ["Jobs", "use_engine"]


def use_engine(provision: Provision, lab: str, engine: str) -> None:
    """Let the inventory of a lab choose a job engine; `apply` installs Slurm where it is `slurm`."""
    variables = Path(provision.ok("lab", "inventory", lab).out.strip()).parent / "group_vars/all.yml"
    variables.parent.mkdir(exist_ok=True)
    variables.write_text(f"cluster_engine: {engine}\n")


class Jobs:
    """Submits jobs and asks about them."""

    def __init__(self, provision: Provision, engine: str, lab: str) -> None:
        self.provision = provision
        self.engine = engine
        self.lab = lab
        command = "docker image inspect $(docker image ls -q | head -1)"
        images = provision.ok("lab", "ssh", lab, f"{lab}-1", "--", command).out
        self.image: str = json.loads(images)[0]["RepoTags"][0]
        """The lab's training image, which all nodes have."""
        self.seconds = 60 if engine == "direct" else 180
        """How long a job may take to reach a state; an engine of its own uses the same few processors."""

    def __call__(self, verb: str, *words: str, **options: Any) -> Done:
        """Run a verb for the lab's nodes; of a verb with a noun, such as ``top node``, both are given as one word."""
        engine = [] if self.engine == "direct" else ["--engine", self.engine]
        return self.provision(*verb.split(), "--lab", self.lab, *engine, *words, **options)

    def ok(self, verb: str, *words: str) -> Done:
        """Run it and insist on success."""
        done = self(verb, *words)
        assert done.code == 0, str(done)
        return done

    def submit(self, kind: str, name: str, *words: str, code: int = 0) -> Done:
        """Hand a job in with the lab's image; the command has to end with `code`."""
        done = self("submit", kind, f"--name={name}", f"--image={self.image}", *words, timeout=300)
        assert done.code == code, str(done)
        return done

    def get(self, name: str) -> Any:
        """What is known of a job."""
        return self.ok("get", name, "-o", "json").document

    def until(self, name: str, *statuses: str, seconds: float = 0) -> Any:
        """The job, once it has one of these statuses."""
        wanted = f"{name} becomes {' or '.join(statuses)}"
        seconds = seconds or self.seconds
        return eventually(lambda: (job := self.get(name))["status"] in statuses and job, seconds=seconds, what=wanted)

    def logs(self, name: str, instance: str = "") -> list[str]:
        """The lines of its first instance, or of another one."""
        return self.ok("logs", name, *(["-i", instance] if instance else [])).out.splitlines()
