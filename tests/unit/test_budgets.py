"""Cost is linear in the site: a command's own CPU seconds and memory, on the largest sites.

A process's CPU time tells little of what else the machine does; that of programs which it starts is
not counted.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from hpcdl.regress.history import open_history
from tests.make import nights, sites

RUN = """
import sys, time
from pathlib import Path
from hpcdl.cli import main
code = main(sys.argv[1:])
peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
print(code, time.process_time(), peak, file=sys.__stderr__)
"""
GPUS = (
    ("P100-PCIe", "580.95.05"),
    ("V100-PCIe", "550.54.15"),
    ("A100-SXM4-40GB", "535.183.06"),
    ("H100-SXM5", "580.95.05"),
    ("T4", "550.54.15"),
    ("K80", "470.256.02"),
)


def cost(*words, codes=(0,), **env):
    """CPU seconds and peak memory in MB of an hpcdl command."""
    argv = [sys.executable, "-c", RUN, *map(str, words)]
    done = subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, check=False)
    code, seconds, peak = done.stderr.splitlines()[-1].split()
    assert int(code) in codes, done.stderr
    return float(seconds), float(peak) / 1024


@pytest.fixture(scope="module")
def large_site(tmp_path_factory):
    """A site file by its number of partitions: six GPUs and many kinds of nodes."""

    def partition(number):
        model, driver = GPUS[number % len(GPUS)]
        gpu = f"{{model: {model}, gres_type: {model.split('-')[0].lower()}, per_node: 4}}"
        nodes = f"nodes: {1 + number % 7}, sockets: 2, cores_per_socket: 8"
        return (
            f"p{number}: {{{nodes}, gpu: {gpu}, driver: {driver}, memory_gb: {60 + number % 13}}}"
        )

    def made(count):
        return sites.site_file(folder, *map(partition, range(count)), work=folder, name=f"s{count}")

    folder = tmp_path_factory.mktemp("sites")
    return {count: made(count) for count in (100, 2000)}


@pytest.mark.parametrize(
    ("words", "few", "many"),
    [
        ("site show", 0.5, 3),
        ("job render --partition p3 --gpus 4 -- true", 0.5, 3),
        ("check settings", 2, 10),
        ("stack plan", 2, 10),
    ],
)
@pytest.mark.parametrize("count", [100, 2000])
def test_many_partitions(large_site, tmp_path, words, few, many, count):
    """A solve per pair of partitions took 26 s for 100, and never ended for 200."""
    two, rest = words.split()[:2], words.split()[2:]
    home = {"HPCDL_HOME": str(tmp_path), "HPCDL_CACHE": str(tmp_path / "cache")}
    codes = (0, 1, 10)  # a plan is blocked where no Python here fits a K80
    seconds, _ = cost(*two, "--site", large_site[count], *rest, codes=codes, **home)
    assert seconds < (few if count == 100 else many)


SQUEUE = """#!{python}
import sys
fields = ("{{id}}", "RUNNING", "{{id}}", "N/A", "p100", "n[01-04]", *["2026-11-20T10:00:00"] * 3,
          "1-00:00:00", "None", "/home/user/project/job.sh", "train-resnet50")
for option in sys.argv:
    if option.startswith("--format="):
        print(option[9:], end="")  # `<mark>%A|mark|%T...`: it is its own heading
        mark = option[9:].partition(">")[0][1:]
        row = f"<{{mark}}>" + f"|{{mark}}|".join(fields)
        chosen = [int(job) for one in sys.argv if one.startswith("--jobs=")
                  for job in one[7:].split(",")]
        jobs = chosen or range(1, {mine} if "--me" in sys.argv else 50_001)
        sys.stdout.writelines(row.format(id=job) for job in jobs)
    elif option.startswith("--Format="):
        print("JOBID EXIT_CODE RESTART_CNT")
        sys.stdout.writelines(f"{{job}} 0 0\\n" for job in range(1, {mine}))
"""


@pytest.mark.parametrize("mine", [1000, 50_000])
def test_jobs_where_50000_are_queued(tmp_path, mine):
    """Of others or of this user, with a directory each: all their records took 118 MB."""
    program = tmp_path / "squeue"
    program.write_text(SQUEUE.format(python=sys.executable, mine=mine + 1))
    program.chmod(0o755)
    site = sites.site_file(tmp_path, work=tmp_path)
    links = tmp_path / "work/jobs/by-id"
    links.mkdir(parents=True)
    for number in range(1, mine + 1):
        folder = tmp_path / f"work/jobs/{number}"
        folder.mkdir()
        job = {"schema": 1, "job_id": number, "chain": [number], "name": "x", "partition": "cpu"}
        (folder / "job.json").write_text(json.dumps(job))
        (links / str(number)).symlink_to(folder)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HPCDL_HOME": str(tmp_path)}
    seconds, peak = cost("job", "list", "--site", site, **env)
    assert seconds < 1.5
    assert peak < 60


NODE = (
    "NodeName=n{number} CPUAlloc={number} CPUEfctv=9999 CPUTot=9999 Gres=gpu:v100:4(S:0-1) "
    "GresUsed=gpu:v100:2(IDX:0-1) State=MIXED Partitions=gpu,long,debug "
    "OS=Linux 5.14.0 #1 SMP Thu Apr 14 12:42:38 EDT 2022 CfgTRES=cpu=64,mem=515000M,gres/gpu=4\n"
)


def test_free_gpus_of_1000_nodes(tmp_path):
    lines = "".join(NODE.format(number=number) for number in range(1000))
    (tmp_path / "nodes").write_text(lines)
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\nexec cat {tmp_path}/nodes\n")
    (tmp_path / "scontrol").chmod(0o755)
    seconds, peak = cost("site", "gpus", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert seconds < 0.6  # 0.17 alone
    assert peak < 60


def results():
    """A million results: 5,000 series on 200 nights."""
    each = [nights.simulated(200, seed=copy) for copy in range(125)]
    for step in zip(*each, strict=True):
        for copy, one in enumerate(step):
            if one.check_name != "storage":
                yield replace(one, case_name=f"{one.case_name}-{copy}")


@pytest.mark.long
def test_a_history_of_a_million_results(tmp_path):
    """The gate, and an import."""
    with open_history(tmp_path / "first.sqlite", "embedded") as history:
        assert history.add(results()) == 1_000_000
    env = {"HPCDL_HISTORY": str(tmp_path / "first.sqlite"), "HPCDL_SITE": "embedded"}
    rows = tmp_path / "rows.jsonl"
    with rows.open("w") as file:
        file.writelines(json.dumps(vars(one)) + "\n" for one in results())
    gate = cost("check", "gate", codes=(0, 1), **env)
    env["HPCDL_HISTORY"] = str(tmp_path / "second.sqlite")
    taken = cost("check", "history", "import", rows, **env)
    budgets = ((4, 100), (30, 100))
    for (seconds, peak), (most, memory) in zip((gate, taken), budgets, strict=True):
        assert (seconds < most, peak < memory) == (True, True), (gate, taken)
