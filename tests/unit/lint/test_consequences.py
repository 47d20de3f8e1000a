"""The consequence of each rule, in every release where it holds and in no other.

Slurm's side is shown by the recording stand-ins (tests/standins), release by release.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import standin_batch
import standin_steps
from slurm_model import Fatal, Node, Slurm, allocation

from hpcdl.slurm.rules import SlurmRelease, known_releases, rule

STANDINS = Path(__file__).parents[2] / "standins"
RELEASES = (
    *known_releases(),
    "20.11.0",
    "20.11.3",
    "21.08.0",
    "21.08.1",
    "21.08.5",
    "21.08.6",
    "23.11.3",
    "23.11.4",
    "25.05.0",
)
FOUR_RANKS = "--nodes=1 --ntasks-per-node=4 --gpus-per-node=4"


def holds(rule_id, version):
    return rule(rule_id).holds(SlurmRelease.parse(version))


def job(version, directives, environment=None):
    """The environment of the batch step of a job, as the release makes it."""
    slurm, around = Slurm(version), {"PATH": "/usr/bin", **(environment or {})}
    given = standin_batch.plan(slurm, [], f"#!/bin/bash\n#SBATCH {directives}\n".encode(), around)
    made = allocation(slurm, given, Node())
    return standin_batch.job_environment(slurm, given, made, around)


def step(version, directives, options="", **changes):
    """What `srun OPTIONS program` gets within a job."""
    environment = {**job(version, directives), **changes}
    return standin_steps.plan(Slurm(version), [*options.split(), "program"], environment)[1]


def refused(version, directives, options=None, **environment):
    """What sbatch says, or srun with `options`; nothing where Slurm takes it."""
    try:
        if options is None:
            job(version, directives, environment)
        else:
            step(version, directives, options, **environment)
    except Fatal as fault:
        return str(fault)
    return ""


every_release = pytest.mark.parametrize("version", RELEASES)
ONE_EACH, ALL = [[0], [1], [2], [3]], [[0, 1, 2, 3]] * 4
LOST = ("--ntasks=4 --cpus-per-task=4", "--ntasks=4")

# What a step has where the rule holds, and elsewhere.
STEPS = [
    ("cpus-per-task-lost", LOST[0], "", {}, "cpus_per_task", 1, 4),
    ("cpus-per-task-lost", LOST[0], "-c4", {}, "cpus_per_task", 4, 4),
    ("cpus-per-task-lost", LOST[1], "", {"SRUN_CPUS_PER_TASK": "4"}, "cpus_per_task", 4, 1),
    ("cpus-per-gpu-ignored", f"{FOUR_RANKS} --cpus-per-gpu=4", "", {}, "cpus_per_task", 1, 4),
    ("steps-exclusive", "--ntasks=1 --exclusive", "-n1", {}, "cpus_held_per_node", 1, 16),
    (
        "gpus-per-task-isolates",
        "--ntasks-per-node=4 --gpus-per-task=1",
        "",
        {},
        "gpus_visible",
        ONE_EACH,
        ALL,
    ),
    (
        "ntasks-per-gpu-isolates",
        "--gpus-per-node=4 --ntasks-per-gpu=1",
        "",
        {},
        "gpus_visible",
        ONE_EACH,
        None,
    ),
    ("cpu-bind-rank", "-n4", "--cpu-bind=rank", {}, "cpu_bind", "", "rank"),
]


@every_release
@pytest.mark.parametrize("row", STEPS, ids=lambda row: f"{row[0]} {row[2]} {len(row[3])}")
def test_a_step_has_what_the_rule_says_where_it_holds(version, row):
    rule_id, directives, options, changes, what, here, elsewhere = row
    got = step(version, directives, options, **changes)[what]
    assert got == (here if holds(rule_id, version) else elsewhere)


@every_release
def test_cpus_per_task_makes_a_step_exact(version):
    got = step(version, "--ntasks=1 --exclusive", "-c4")
    exact = ("exact-implied", "exact-implied-once", "steps-exclusive")
    assert got["cpus_held_per_node"] == (4 if any(holds(one, version) for one in exact) else 16)


@every_release
def test_overlap_shares_gpus_and_memory_or_only_cpus(version):
    shared = step(version, FOUR_RANKS, "--overlap")["shares"]
    assert (shared == "cpu") == holds("overlap-cpus-only", version)
    assert ("gres" in shared) == holds("overlap-shares-gres", version)


@every_release
@pytest.mark.parametrize("options", ["", "-c4", "--overlap", "--kill-on-bad-exit=1 --mpi=pmix"])
def test_the_safe_shape_shows_every_gpu_to_every_rank(version, options):
    assert step(version, f"{FOUR_RANKS} --cpus-per-task=4", options)["gpus_visible"] == ALL


_PAIR = "--gpus-per-node and --gres=gpu are mutually exclusive"
_TOGETHER = "mutually exclusive"
REFUSED = [
    (
        "cpus-per-task-mismatch",
        "two different environment variables",
        LOST[0],
        "",
        {"SLURM_CPUS_PER_TASK": "2"},
    ),
    ("gpu-flag-pair", _PAIR, "--gpus-per-node=4 --gres=gpu:4", None, {}),
    ("gpu-flag-pair", _PAIR, "--gres=gpu:4", None, {"SBATCH_GPUS_PER_NODE": "4"}),
    ("gpu-flag-pair", _PAIR, FOUR_RANKS, "--gres=gpu:4", {}),
    (
        "ntasks-per-gpu-with-cpus",
        "SLURM_TRES_PER_TASK is mutually exclusive with --ntasks-per-gpu",
        "--gpus-per-node=4 --ntasks-per-gpu=1 --cpus-per-task=4",
        "-c4",
        {},
    ),
    (
        "ntasks-per-gpu-excludes",
        _TOGETHER,
        "--gpus=4 --ntasks-per-gpu=1 --ntasks-per-node=4",
        None,
        {},
    ),
    ("ntasks-per-gpu-excludes", _TOGETHER, "--gpus-per-task=1 --ntasks-per-gpu=1", None, {}),
    ("cpus-per-gpu-excludes", _TOGETHER, "--gpus=4 --cpus-per-gpu=2 --cpus-per-task=2", None, {}),
    ("exclusive-oversubscribe", _TOGETHER, "--exclusive --oversubscribe", None, {}),
    ("memory-flags", _TOGETHER, "--mem=1G --mem-per-cpu=1G", None, {}),
    ("exclusive-overlap", _TOGETHER, "-n2", "--exclusive --overlap", {}),
]


@every_release
@pytest.mark.parametrize(("rule_id", "said", "directives", "options", "around"), REFUSED)
def test_slurm_refuses_where_the_rule_holds(version, rule_id, said, directives, options, around):
    found = refused(version, directives, options, **around)
    assert (said in found) == holds(rule_id, version)


@every_release
def test_task_sharing_is_known_to_srun_only_and_since_one_release(version):
    flag = "--gres-flags=allow-task-sharing"
    said = refused(version, f"{FOUR_RANKS} {flag}")
    known = holds("allow-task-sharing-srun-only", version)
    assert ("only used with srun" if known else "Invalid --gres-flags") in said
    if known:  # it opens the devices to all tasks; their variables still name one each
        asked = "--ntasks-per-node=4 --gpus-per-task=1"
        assert step(version, asked, flag)["gpus_visible"] == ONE_EACH


OPTIONS_BY_RELEASE = [
    ("--tres-per-task=gres/gpu:1", lambda release: release >= SlurmRelease(23, 2, 0)),
    ("--gpu-bind=none", lambda release: release >= SlurmRelease(21, 8, 1)),
    ("--gpu-bind=per_task:1", lambda release: release >= SlurmRelease(21, 8, 0)),
    ("--power=level", lambda release: release < SlurmRelease(24, 5, 0)),
    ("--exact", lambda release: release >= SlurmRelease(20, 11, 3)),
    ("--mpi=pmix_v1", lambda release: release < SlurmRelease(22, 5, 0)),
    ("--mpi=mvapich", lambda _: False),
]


@every_release
@pytest.mark.parametrize(("option", "known"), OPTIONS_BY_RELEASE, ids=lambda part: str(part)[:20])
def test_an_option_is_refused_before_its_first_and_after_its_last_release(version, option, known):
    said = refused(version, "--ntasks-per-node=4 --gpus-per-node=4", option)
    assert bool(said) != known(SlurmRelease.parse(version)), said


@every_release
def test_variables_override_directives_and_the_command_line_overrides_both(version):
    slurm, text = Slurm(version), b"#!/bin/bash\n#SBATCH --gpus-per-node=1 -t 1\n"
    around = {"SBATCH_GPUS_PER_NODE": "2", "SBATCH_TIMELIMIT": "2"}
    given = standin_batch.plan(slurm, ["--time=3"], text, around)
    assert (given.values["gpus-per-node"], given.values["time"]) == ("2", "3")


def test_export_without_all_flows_into_srun():
    environment = job("24.11", "--export=NONE", {"MY_DATA": "/data"})
    assert environment["SLURM_EXPORT_ENV"] == "NONE"
    given, got, _ = standin_steps.plan(Slurm("24.11"), ["program"], environment)
    inside = {**environment, "LD_LIBRARY_PATH": "/opt/lib"}
    assert "LD_LIBRARY_PATH" not in standin_steps.rank_environment(given, got, 0, inside)
    cured = {**inside, "SLURM_EXPORT_ENV": "ALL"}
    given, got, _ = standin_steps.plan(Slurm("24.11"), ["program"], cured)
    assert standin_steps.rank_environment(given, got, 0, cured)["LD_LIBRARY_PATH"] == "/opt/lib"


def test_a_comma_ends_a_value_of_export():
    assert standin_batch.exported("ALL,LAYERS=64,128", {"PATH": "/bin"})["LAYERS"] == "64"


def test_an_inner_job_inherits_variables_of_the_outer_one():
    outer = job("24.11", "--ntasks-per-node=4 --cpus-per-task=4")
    outer.pop("SLURM_STANDIN_ALLOCATION")
    inner = job("24.11", "--ntasks=1", outer)
    assert standin_steps.plan(Slurm("24.11"), ["program"], inner)[1]["cpus_per_task"] == 4


WHOLE_JOB = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=3 --gpus-per-node=4 --output=log
srun sh -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_CPUS_PER_TASK $CUDA_VISIBLE_DEVICES'
srun --kill-on-bad-exit=1 bash -c '[ $SLURM_PROCID = 1 ] && exit 7; sleep 60'
echo "code $?"
"""


@pytest.mark.parametrize(("version", "held"), [("22.05", 1), ("24.11", 3)])
def test_a_whole_job_runs_through_both_stand_ins(tmp_path, version, held):
    """On 22.05 ranks are told 3, the batch script's number, and hold 1."""
    path = f"{STANDINS}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    around = {
        **os.environ,
        "PATH": path,
        "SLURM_STANDIN_RECORD": "records",
        "SLURM_STANDIN_VERSION": version,
    }
    (tmp_path / "job.sh").write_text(WHOLE_JOB)
    subprocess.run(["sbatch", "job.sh"], env=around, cwd=tmp_path, check=True, timeout=60)
    *lines, code = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == [f"{rank} {rank % 2} 3 0,1,2,3" for rank in range(4)]
    assert re.fullmatch("code [1-9][0-9]*", code)
    records = {path.name: json.loads(path.read_text()) for path in (tmp_path / "records").iterdir()}
    assert sorted(records) == ["job-001.json", "step-001.json", "step-002.json"]
    assert records["step-001.json"]["step"]["cpus_per_task"] == held
