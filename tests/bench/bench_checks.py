"""Checks: what ReFrame adds to a job, and how long the smoke set of the embedded cluster takes."""

import os
import subprocess
from dataclasses import replace
from statistics import median

from hpcdl.cluster.lifecycle import up
from hpcdl.cluster.state import environment
from hpcdl.jobs import Module
from hpcdl.jobs.script import render_script
from hpcdl.jobs.spec import JobSpec
from hpcdl.regress.reframe_adapter.process import CheckRequest
from hpcdl.regress.runner import run_checks
from hpcdl.site import load_site
from hpcdl.system.errors import HpcdlError, MissingPrerequisite
from hpcdl.system.resources import cache
from hpcdl.workflows.modules import modules_by_partition
from tests.bench import load, report, timed
from tests.homes import short_home
from tests.integration.conftest import site_file

RUNS, MANY = 3, 5
NO_MODULE = Module(())
# Checks whose job does nothing: what is left is ReFrame, hpcdl and Slurm.
CHECKS = """
import reframe as rfm
from hpcdl.jobs.spec import JobSpec
from hpcdl.regress.checkbase import HpcdlCheck

class Nothing(HpcdlCheck):
    def request(self, site, partition):
        line = "echo '{}' > result.json"
        return JobSpec(partition=partition.name, gpus=1, minutes=1, name=self.check_name,
                       program=("bash", "-c", line))

    def faults(self, measured):
        return measured.faults
"""


def checks(folder, count):
    path = folder / f"nothing{count}.py"
    classes = [f"\n@rfm.simple_test\nclass nothing_{n}(Nothing):\n    pass\n" for n in range(count)]
    path.write_text(CHECKS + "".join(classes))
    return path


def bare(site, folder):
    """Seconds of the same job by sbatch."""
    spec = JobSpec("p100", gpus=1, minutes=1, program=("true",), job_dir=folder)
    script = folder / "bare.sh"
    script.write_text(render_script(site, spec, NO_MODULE).text)
    wait = ["sbatch", "--wait", script]
    return timed(lambda: subprocess.run(wait, check=True, capture_output=True))


def overhead(site, folder):
    """One check and several of them, beside the bare job, in turn."""
    request, modules = CheckRequest(partitions=("p100",)), {"p100": NO_MODULE}
    times = {0: [], 1: [], MANY: []}
    for _ in range(RUNS):
        times[0].append(bare(site, folder))
        for count in (1, MANY):
            outcome = run_checks(site, modules, replace(request, paths=(checks(folder, count),)))
            assert outcome.ok, outcome.verdicts
            times[count].append(outcome.seconds)
    job, one, many = (median(times[count]) for count in (0, 1, MANY))
    report(
        "checks: ReFrame's own start",
        one - job,
        "s",
        yardstick=f"the bare job: {job:.2f} s",
        note=f"one check that does nothing takes {one:.1f} s; {load()}",
    )
    report(
        "checks: each further check, one after the other",
        (many - one) / (MANY - 1) - job,
        "s",
        yardstick=f"the bare job: {job:.2f} s",
        note=load(),
    )


def smoke(site):
    try:
        modules = modules_by_partition(site, published=True)
    except HpcdlError as lack:
        report("checks: the whole smoke set", None, "s", note=lack.message)
        return
    subprocess.run(
        [
            site.paths.prefix / "current/stack/bin/hpcdl",
            "data",
            "make",
            "digits",
            site.paths.datasets / "digits",
        ],
        check=True,
        capture_output=True,
    )
    outcome = run_checks(site, modules, CheckRequest(tags=("smoke",), measuring=True))
    report(
        "checks: the whole smoke set",
        outcome.seconds,
        "s",
        most=300,
        note=f"{len(outcome.verdicts)} checks on {len(site.partitions)} partitions, {load()}",
    )


def main():
    """On an embedded cluster of its own, with the release that the tests have built."""
    with short_home() as home:
        os.environ["HPCDL_HOME"] = str(home)
        prefix = ("$HPCDL_HOME/embedded/prefix", cache() / "tests" / "prefix")
        site = load_site(site_file(home, prefix))
        try:
            state = up(site, directory=home / "cluster/embedded")
            os.environ.update(environment(state, dict(os.environ)))
            overhead(site, home)
            smoke(site)
        except MissingPrerequisite as lack:
            report("checks", None, "s", note=lack.message)
