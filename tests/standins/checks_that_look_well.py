"""Checks of which each tries to pass without deserving it, and one honest one.

Each job is a real one on a real Slurm; only the program is small. They print their pattern and
write their result, and then go wrong in the way that their name says.
"""

import json
import shlex
import sys

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import performance_function, sanity_function
from reframe.core.meta import make_test

from hpcdl.jobs.spec import JobSpec
from hpcdl.regress.checkbase import HpcdlCheck, Metric

RAN = {"layout": {"ranks": 1}, "outcome": {"status": "completed"}, "release": "newer"}
GOOD = {**RAN, "summary": {"images_per_second": 1000.0}}
WRITE = """
import json, os, sys, time
own = {"job": {"id": os.environ["SLURM_JOB_ID"]}, "ended": time.time()}
open("result.json", "w").write(json.dumps({**own, **json.loads(sys.argv[1])}))
"""


def writes(result):
    """Words of bash that leave this result."""
    return shlex.join([sys.executable, "-c", WRITE, json.dumps(result)])


class Small(HpcdlCheck):
    """One rank on one node; `then` is what it does after its result is written.

    No preflight: an hpcdl on the PATH, as of a developer's shell, is of another release.
    """

    tags = {"small"}
    result = GOOD
    then = "echo well"

    def request(self, site, partition):
        line = f"{writes(self.result)}; echo measured; {self.then}"
        return JobSpec(
            partition=partition.name,
            gpus=1,
            minutes=1,
            name=self.check_name,
            program=("bash", "-c", line),
            preflight=False,
        )

    def metrics(self):
        read = lambda measured: measured.number("summary", "images_per_second")  # noqa: E731
        return [Metric("images_per_second", "images/s", read)]


class Says(Small):
    """A check with a fault of its own, in words that sound like one of hpcdl's."""

    words = ""

    def faults(self, measured):
        return [*super().faults(measured), self.words]


class Plain(rfm.RunOnlyRegressionTest):
    """A check in ReFrame's own way, as a team has them."""

    valid_systems = ["*:p100"]
    valid_prog_environs = ["hpcdl"]
    sourcesdir = None
    executable = "echo rate 42"
    time_limit = "1m"

    @sanity_function
    def printed(self):
        return sn.assert_found("rate", self.stdout)


class Rated(Plain):
    @performance_function("1/s")
    def rate(self):
        return sn.extractsingle(r"rate (\d+)", self.stdout, 1, float)


class Unrated(Plain):
    @performance_function("1/s")
    def speed(self):
        return sn.extractsingle(r"speed (\d+)", self.stdout, 1, float)


def result(**changes):
    """What a check leaves, but for some values."""
    return {"result": {**GOOD, **changes}}


REFERENCE = (40, -0.1, None, "1/s")
CANCELS = "scancel $SLURM_JOB_ID; sleep 30"
CHECKS = {
    Small: {
        "honest": {},
        "on_a_node": {"tags": {"node"}},
        "slower": result(summary={"images_per_second": 500.0}),
        "no_reference": {},
        "cancelled_after_its_result": {"then": CANCELS},
        "exit_code": {"then": "exit 3"},
        "no_metric": result(summary={}),
        "infinite_metric": result(summary={"images_per_second": float("inf")}),
        "nonsense": {"then": "head -c 2000 /dev/urandom > result.json"},
        "of_another_job": result(job={"id": "1"}),
        "of_another_node": result(layout={"ranks": 1, "nodes": ["k80-09"]}),
        "of_2020": result(ended=1_580_000_000.0),
        "on_another_gpu": result(layout={"ranks": 1, "gpu": "Tesla K80"}),
        "too_fast": result(summary={"images_per_second": 1e6}),
        "no_result": {"then": "rm result.json"},
    },
    Says: {
        "says_insufficient": {"words": "insufficient data quality: accuracy 0.1"},
        "says_missing": {"words": "missing accuracy"},
    },
    Rated: {
        "plain_honest": {"reference": {"*": {"rate": REFERENCE}}},
        "plain_without_reference": {},
    },
    Unrated: {"plain_metric_not_found": {"reference": {"*": {"speed": REFERENCE}}}},
    Plain: {"plain_cancelled_after_its_pattern": {"postrun_cmds": CANCELS.split("; ")}},
}
for base, checks in CHECKS.items():
    for name, body in checks.items():
        rfm.simple_test(make_test(name, (base,), body))
