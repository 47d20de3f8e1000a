"""Checks: what ReFrame adds to a job, and how long the smoke set of the embedded cluster takes."""

import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from hpcdl.cluster import down, environment, up
from hpcdl.jobs import Module
from hpcdl.jobs.script import render_script
from hpcdl.jobs.spec import JobSpec
from hpcdl.regress.check_request import CheckRequest
from hpcdl.regress.runner import run_checks
from hpcdl.site import Site, find_site_file, load_site
from hpcdl.system.errors import HpcdlError, MissingPrerequisite
from hpcdl.system.resources import cache
from hpcdl.workflows.modules import modules_by_partition
from tests.bench import report

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


def checks(folder: Path, count: int) -> Path:
    """A file of `count` checks."""
    path = folder / f"nothing{count}.py"
    classes = [f"\n@rfm.simple_test\nclass nothing_{n}(Nothing):\n    pass\n" for n in range(count)]
    path.write_text(CHECKS + "".join(classes))
    return path


def bare(site: Site, folder: Path) -> float:
    """Seconds of the same job by sbatch."""
    spec = JobSpec("p100", gpus=1, minutes=1, program=("true",), job_dir=folder)
    script = folder / "bare.sh"
    script.write_text(render_script(site, spec, NO_MODULE).text)
    start = time.monotonic()
    subprocess.run(["sbatch", "--wait", script], check=True, capture_output=True)
    return time.monotonic() - start


def overhead(site: Site, folder: Path) -> None:
    """One check and several of them, beside the bare job, in turn."""
    request = CheckRequest(partitions=("p100",))
    times: dict[int, list[float]] = {0: [], 1: [], MANY: []}
    for _ in range(RUNS):
        times[0].append(bare(site, folder))
        for count in (1, MANY):
            outcome = run_checks(site, NO_MODULE, replace(request, paths=(checks(folder, count),)))
            assert outcome.ok, outcome.verdicts
            times[count].append(outcome.seconds)
    job, one, many = (median(times[count]) for count in (0, 1, MANY))
    load = f"load {os.getloadavg()[0]:.0f}"
    report("checks: ReFrame's own start", one - job, "s", yardstick=f"the bare job: {job:.2f} s",
           note=f"one check that does nothing takes {one:.1f} s; {load}")  # fmt: skip
    report("checks: each further check, one after the other", (many - one) / (MANY - 1) - job, "s",
           yardstick=f"the bare job: {job:.2f} s", note=load)  # fmt: skip


def smoke(site: Site) -> None:
    """The smoke checks of all partitions on the built release."""
    try:
        modules = modules_by_partition(site, published=True)
    except HpcdlError as lack:
        report("checks: the whole smoke set", None, "s", note=lack.message)
        return
    subprocess.run([site.paths.prefix / "current/stack/bin/hpcdl", "data", "make", "digits",
                    site.paths.datasets / "digits"], check=True, capture_output=True)  # fmt: skip
    request = CheckRequest(tags=("smoke",), measuring=True)
    outcome = run_checks(site, modules, request)
    report("checks: the whole smoke set", outcome.seconds, "s", goal="<= 300 s",
           met=outcome.seconds <= 300,
           note=f"{len(outcome.verdicts)} checks on {len(site.partitions)} partitions, "
           f"load {os.getloadavg()[0]:.0f}")  # fmt: skip


def main() -> None:
    """On an embedded cluster of its own, with the release that the tests have built."""
    home = Path(tempfile.mkdtemp(prefix="hpcdl-", dir="/tmp"))
    os.environ["HPCDL_HOME"] = str(home)
    text = find_site_file("embedded").read_text()
    file = home / "site.yaml"
    prefix = cache() / "tests" / "prefix"
    file.write_text(text.replace("$HPCDL_HOME/embedded/prefix", str(prefix)))
    site = load_site(file)
    directory = home / "cluster" / "embedded"
    try:
        os.environ.update(environment(up(site, directory=directory), dict(os.environ)))
        overhead(site, home)
        smoke(site)
    except MissingPrerequisite as lack:
        report("checks", None, "s", note=lack.message)
    finally:
        down(directory, purge=True)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
