"""Synthetic training benchmarks: parse their output, compute their scaling, and compare results statistically."""

from provision.benchmarks.base import Run, Unfinished
from provision.benchmarks.compare import Comparison, Verdict, compare
from provision.benchmarks.parse import parse
from provision.benchmarks.record import NodeInfo, Record
from provision.benchmarks.scaling import efficiencies

__all__ = ["Comparison", "NodeInfo", "Record", "Run", "Unfinished", "Verdict", "compare", "efficiencies", "parse"]
