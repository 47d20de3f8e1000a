"""Drills of jobs, checks and their history: nothing queued twice, nothing that nobody knows."""

import errno
import json
import random
import shutil
import sys
import time
from pathlib import Path

from hpcdl.site import load_site
from tests.drill.clusters import running
from tests.drill.harness import HPCDL, ROOT, Drill
from tests.drill.shim import Fault
from tests.drill.stacks import RESULT, count
from tests.make.nights import simulated
from tests.make.releases import make_current

STANDINS = ROOT / "tests" / "standins" / "checks_that_look_well.py"
CHECK = """
import sys
from pathlib import Path

from hpcdl import __main__, cli
from hpcdl.jobs.spec import Module
from hpcdl.regress.reframe_adapter.process import CheckRequest
from hpcdl.regress.runner import measure
from hpcdl.regress.runner import run_checks
from hpcdl.site import load_site


def check(argv):
    measures = sys.argv[3] == "measure"
    request = CheckRequest(partitions=("p100",), names=("honest",), paths=(Path(sys.argv[2]),),
                           repeat=5 if measures else 1)
    (measure if measures else run_checks)(
        load_site(Path(sys.argv[1])), {"p100": Module(())}, request)
    return 0


cli._dispatch = check  # faults are told as the command tells them
__main__.run()
"""


def queue(bench):
    """Every job that waits or runs: number, name, directory of its work."""
    done = bench.run(["squeue", "-h", "-r", "-o", "%A|%j|%Z"])
    rows = [line.split("|") for line in done.out.splitlines()]
    return [(int(row[0]), row[1], row[2]) for row in rows if len(row) == 3]


def cleared(bench):
    bench.run(["scancel", "--user", "root"])
    end = time.monotonic() + 30
    while queue(bench) and time.monotonic() < end:
        time.sleep(0.2)


def submit_words(bench, number):
    """A submit, a chain of three, or a sweep of four, that waits for a date far away."""
    name = f"j{number}"
    shared = ["--no-module", "--partition", "p100", "--name", name, "--sbatch", "begin=2040-01-01"]
    if number % 3 == 2:
        words = ["job", "sweep", *shared, "--gpus", "1", "--over", "lr=1,2,3,4"]
    else:
        words = ["job", "submit", *shared, "--gpus", "1", *(["--chain", "3"] * (number % 3))]
        words += ["--job-dir", str(bench.home / "work" / name)]
    return [*HPCDL, *words, "--", "python", "train.py"]


KINDS = ("submit", "chain", "sweep")


def struck_submits(bench):
    """A submit, a chain or a sweep; the same again: each job once, and each is known."""
    running(bench)
    (bench.home / "train.py").write_text("")
    for kind, turn in bench.turns(*KINDS):
        number = 3 * turn + KINDS.index(kind)
        wanted = (1, 3, 4)[number % 3]
        words = submit_words(bench, number)
        at = bench.moment(kind, turn, submit_words(bench, number + 30_000))
        cleared(bench)
        bench.ended(bench.run(words, fault=Fault(bench.home, at, **bench.how)))
        again = bench.run(words)
        bench.clear(again)
        jobs = [job for job in queue(bench) if job[1].startswith(f"j{number}")]
        bench.must(len(jobs) <= wanted, f"{len(jobs)} jobs for {wanted}, struck at {at}")
        bench.kept(len(jobs) >= wanted or not again.ok, f"{len(jobs)} of {wanted} at {at}: {again}")
        _known(bench, [job[0] for job in jobs], at)
        cleared(bench)


STUDY = """
from hpcdl.api import study
SCALE = study.Scale(
    shows="jobs", minutes=5, cpus_per_rank=1, judge=lambda results: None,
    jobs=[study.Jobs("training", "model=mlp,resnet50 gpus=1,2,4", "--steps=30")],
)
STUDY = study.Study(
    title="Six cells", question="Is each queued once?", origin="a drill", found="that it is",
    series=["model"], small=SCALE, full=SCALE, report=lambda results: [study.rate(results)],
)
"""
CELLS = 6


def struck_studies(bench):
    """A study queues its cells; the same again: each has a job of its own, once."""
    running(bench)
    site = load_site(Path(bench.extra["HPCDL_SITE"]))
    make_current(site, "a")
    bench.run(["scontrol", "update", "NodeName=ALL", "State=DRAIN", "Reason=drill"])
    (bench.home / "six.py").write_text(STUDY)
    folder = site.paths.work / "studies"
    words = [*HPCDL, "study", "run", str(bench.home / "six.py"), "--no-wait"]

    def anew():
        cleared(bench)
        shutil.rmtree(folder, ignore_errors=True)

    for name, turn in bench.turns("study run"):
        what = bench.strike(name, turn, words, prepare=anew)
        again = bench.run(words)
        bench.must(again.ok, f"{what}, then again: {again}")
        points = json.loads((folder / "six-small/sweep.json").read_text())["points"]
        cells = [(one["job_id"], one["task"]) for one in points]
        bench.must(len(set(cells)) == CELLS, f"two cells have one job, {what}: {cells}")
        queued = [job[0] for job in queue(bench)]
        bench.must(len(queued) <= CELLS, f"{len(queued)} jobs for {CELLS} cells, {what}")
        bench.kept(len(queued) >= CELLS, f"{len(queued)} jobs of {CELLS} cells, {what}")


def _known(bench, jobs, at):
    """Every queued job is one that hpcdl tells of."""
    listed = bench.hpcdl("job", "list", "--json").out
    manifests = "".join(path.read_text() for path in bench.home.glob("work/sweeps/*/sweep.json"))
    records = "".join(path.read_text() for path in bench.home.glob("work/**/job.json"))
    for job in jobs:
        known = str(job) in listed or str(job) in manifests or str(job) in records
        bench.must(known, f"job {job} is queued and unknown, struck at {at}")


def submits_twice(bench):
    """The same sweep from two shells at once: each point has one job."""
    running(bench)
    (bench.home / "train.py").write_text("")
    for number in bench.times():
        words = submit_words(bench, 3 * number + 2)
        for one in bench.together(words, words):
            bench.must(one.ok, f"two sweeps: {one}")
        jobs = queue(bench)
        bench.must(len(jobs) == 4, f"{len(jobs)} jobs for 4 points of two sweeps at once")
        cleared(bench)


def struck_checks(bench):
    """A check run or a measurement: no job outlives the next one, references are whole."""
    running(bench)
    site = bench.extra["HPCDL_SITE"]
    for action, turn in bench.turns("run", "measure"):
        words = [sys.executable, "-c", CHECK, site, str(STANDINS), action]
        kept = _references(bench)
        what = bench.strike(action, turn, words)
        bench.kept(_references(bench) >= kept, f"a reference, {what}")
        done = bench.run(words, seconds=300)
        bench.must(done.ok, f"{what}, then again: {done}")
        bench.must(not queue(bench), f"jobs of {what} are left: {queue(bench)}")


def _references(bench):
    """How many references the site has; they can be read at any moment."""
    done = bench.hpcdl("check", "references", "show", "--json")
    bench.must(done.ok, f"references cannot be read: {done}")
    return done.out.count('"check"')


def history(bench):
    """20 readers and 4 writers; then every result is there once."""
    lines = [json.dumps(row.__dict__) for row in simulated(max(8, bench.goal))]
    files = [bench.home / f"part-{one}.jsonl" for one in range(4)]
    for index, file in enumerate(files):  # a quarter of each is in the next one, too
        own = lines[index::4] + lines[(index + 1) % 4 :: 16]
        random.Random(index).shuffle(own)
        file.write_text("\n".join(own) + "\n")
    path = str(bench.home / "history.sqlite")
    show, take = (
        [*HPCDL, "check", "history", action, "--site", "embedded"] for action in ("show", "import")
    )
    bench.extra["HPCDL_HISTORY"] = path
    bench.run(show)
    for done in bench.together(*([*take, str(file)] for file in files), *[show] * 20):
        bench.clear(done)
        bench.must(done.ok, str(done))
        bench.tally.count += 1
    more = count(path) - len(lines)
    bench.kept(more >= 0, f"{-more} of {len(lines)} results")
    bench.must(more <= 0, f"{more} results twice")


EACH, ERROR = "each job once, and each is known", "I/O error at a change"
SUBMIT, CHECK_RUN = "job submit, submit --chain, sweep", "check run, check references measure"
CLEAN, SHOW = "no job is left, references are whole", "check history import, show"
EIO = {"error": errno.EIO, "once": True}
DRILLS = (
    Drill("submit-kill", SUBMIT, "SIGKILL", 100, EACH, 3600, struck_submits),
    Drill("submit-error", SUBMIT, ERROR, 100, EACH, 3600, struck_submits, EIO),
    Drill("study-kill", "study run", "SIGKILL", 100, EACH, 3600, struck_studies),
    Drill("sweep-twice", "job sweep", "two at once", 20, "each point once", 900, submits_twice),
    Drill("check-kill", CHECK_RUN, "SIGKILL", 50, CLEAN, 5400, struck_checks),
    Drill("check-error", CHECK_RUN, ERROR, 50, CLEAN, 5400, struck_checks, EIO),
    Drill("history-crowd", SHOW, "4 writers, 20 readers", 24, RESULT, 900, history),
)
