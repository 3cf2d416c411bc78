"""Ranks that mpirun starts with torch's variables, for programs that call ``init_process_group`` themselves."""

from provision.launchers.base import Launcher

LAUNCHERS = (Launcher("python", order=4, rendezvous=True),)
