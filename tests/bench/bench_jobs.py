"""Jobs: many points rendered, many submitted, and what the script adds before the first step."""

import os
import resource
import subprocess
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from hpcdl.cluster.state import environment
from hpcdl.jobs import JobSpec, Module
from hpcdl.jobs.sweep import groups, plan, render
from hpcdl.site import find_site_file, load_site
from hpcdl.system.errors import MissingPrerequisite
from tests.bench import children, middle, report, timed
from tests.homes import short_home
from tests.integration.conftest import HPCDL, site_file
from tests.make import up

RUNS = 5

# What a careful user would write by hand for the same program.
BY_HAND = """#!/bin/bash
#SBATCH --partition=cpu --nodes=2 --ntasks-per-node=1 --cpus-per-task=16 --output={log}
srun --mpi=pmix --cpus-per-task=16 --kill-on-bad-exit=1 \\
  bash -c 'date +%s.%N > {stamp}.$SLURM_PROCID'
"""


def clear(env):
    subprocess.run(["scancel", "--state=PENDING"], env=env, check=True)
    subprocess.run(["scancel", "--state=RUNNING"], env=env, check=True)
    time.sleep(2)


def submit_many(env, folder):
    """100 jobs of one shape, beside 100 bare sbatch calls and one --test-only."""
    script = folder / "bare.sh"
    script.write_text("#!/bin/bash\n#SBATCH --partition=cpu --hold --output=/dev/null\ntrue\n")

    def bare():
        subprocess.run(["sbatch", "--test-only", script], env=env, check=True, capture_output=True)
        for _ in range(100):
            subprocess.run(["sbatch", script], env=env, check=True, capture_output=True)

    def ours(name):
        words = [
            "job",
            "sweep",
            "--no-module",
            "--partition",
            "cpu",
            "--name",
            name,
            "--over",
            "n=" + ",".join(map(str, range(100))),
            "--",
            "true",
        ]
        subprocess.run([HPCDL, *words], env=env, check=True, capture_output=True)

    times = {"bare": [], "ours": []}
    for index in range(3):
        times["bare"].append(timed(bare))
        clear(env)
        times["ours"].append(timed(partial(ours, f"bench{index}")))
        clear(env)
    ratio = median(times["ours"]) / median(times["bare"])
    report(
        "jobs: 100 submitted",
        ratio,
        "x",
        most=1.2,
        yardstick=f"100 sbatch and one --test-only: {median(times['bare']):.2f} s",
        note=f"{median(times['ours']):.2f} s, as job arrays",
    )


def report_many(env):
    """A sweep of 1,000 tasks, of which some have ended, some were cancelled."""
    sweep = [HPCDL, "job", "sweep", "--no-module", "--partition", "cpu", "--name", "thousand"]
    points = ["--over", "n=" + ",".join(map(str, range(1000))), "--", "true"]
    subprocess.run([*sweep, *points], env=env, check=True, capture_output=True)
    time.sleep(30)
    clear(env)
    status = [*sweep, "--status", *points]
    look = partial(subprocess.run, status, env=env, capture_output=True, text=True)
    before = children()
    seconds = middle(RUNS, look)
    used = (children() - before) / RUNS
    told = look().stdout.splitlines()
    report(
        "jobs: state of a sweep of 1,000 tasks",
        seconds,
        "s",
        most=2,
        note=f"{used:.2f} CPU-s; {told[0]}",
    )


def first_step(env, folder):
    """From submit to the first line of the program, beside a hand-written script."""
    gaps = {"hand": [], "ours": []}
    for index in range(RUNS):
        for key in gaps:
            stamp = folder / f"{key}{index}"
            start = time.time()
            if key == "hand":
                script = folder / f"{key}{index}.sh"
                script.write_text(BY_HAND.format(log=folder / f"{key}.log", stamp=stamp))
                subprocess.run(["sbatch", script], env=env, check=True, capture_output=True)
            else:
                program = f"date +%s.%N > {stamp}.$SLURM_PROCID"
                words = [
                    "job",
                    "submit",
                    "--no-module",
                    "--no-preflight",
                    "--partition",
                    "cpu",
                    "--nodes",
                    "2",
                    "--",
                    "bash",
                    "-c",
                    program,
                ]
                subprocess.run([HPCDL, *words], env=env, check=True, capture_output=True)
            gaps[key].append(started(stamp, 2) - start)
            time.sleep(1)
    ratio = median(gaps["ours"]) / median(gaps["hand"])
    report(
        "jobs: submit to first step",
        ratio,
        "x",
        most=1.1,
        yardstick=f"a hand-written script: {median(gaps['hand']):.2f} s",
        note=f"{median(gaps['ours']):.2f} s, without preflight",
    )


def preflight(env, folder):
    words = [
        HPCDL,
        "job",
        "render",
        "--no-module",
        "--partition",
        "cpu",
        "--nodes",
        "4",
        "--tasks-per-node",
        "4",
        "--",
        "true",
    ]
    text = subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout
    lines = text.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("preflight --"))
    lines.insert(place, "begun=$(date +%s.%N)")
    lines.insert(place + 2, f'echo "$begun $(date +%s.%N)" > {folder}/preflight.time')
    script = folder / "preflight.sh"
    script.write_text("\n".join(lines))
    subprocess.run(
        ["sbatch", "--wait", script], env=env, check=True, capture_output=True, cwd=folder
    )
    begun, ended = map(float, (folder / "preflight.time").read_text().split())
    report(
        "jobs: preflight of 4 nodes",
        ended - begun,
        "s",
        most=10,
        note="16 ranks on this machine's cores",
    )


def started(stamp, ranks):
    """When the last rank of a job began; it wrote so."""
    deadline = time.time() + 60
    while time.time() < deadline:
        found = [Path(f"{stamp}.{rank}") for rank in range(ranks)]
        if all(path.exists() and path.stat().st_size for path in found):
            return max(float(path.read_text()) for path in found)
        time.sleep(0.02)
    raise SystemExit("a job did not start within a minute")


@contextmanager
def cluster():
    with short_home() as folder:
        # The preflight's goal is for four nodes.
        cpu = "  cpu:\n    nodes: "
        site = site_file(folder, ("$HPCDL_HOME", folder), (f"{cpu}2", f"{cpu}4"))
        state = up(load_site(site), directory=folder / "c")
        yield (
            {
                **environment(state),
                "HPCDL_SITE": str(site),
                "HPCDL_HOME": str(folder),
                "PATH": f"{HPCDL.parent}:{os.environ['PATH']}",
            },
            folder,
        )


def render_many():
    """10,000 points of a sweep, in a process of its own for its memory."""
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    site = load_site(find_site_file("p100-v100-k80"))
    matrix = {"gpus": ["1", "2", "4", "8"], "lr": [str(n) for n in range(2500)]}
    start = time.perf_counter()
    points = plan(site, JobSpec("v100", name="bench"), matrix)
    for number, group in enumerate(groups(points)):
        render(site, group, Module(()), Path(f"/tmp/none/array-{number:03d}.args"), 8)
    seconds = time.perf_counter() - start
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    report("sweep: 10,000 points rendered", seconds, "s", most=3)
    report("sweep: memory for them", size, "MB", most=200)
    os._exit(0)


def main():
    render_many()
    try:
        with cluster() as (env, folder):
            first_step(env, folder)
            preflight(env, folder)
            submit_many(env, folder)
            report_many(env)
    except MissingPrerequisite as lack:
        report("jobs on the embedded cluster", None, "", note=lack.message)
