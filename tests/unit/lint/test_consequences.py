"""The consequence of each rule, in every release where it holds and in no other.

Slurm's side is shown by the recording stand-ins (tests/standins), release by release; what
bash does by itself is shown by the real bash.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import standin_batch
import standin_steps
from slurm_model import Fatal, Node, Slurm, allocation

from hpcdl.slurm.rules import Release, known_releases, rule

STANDINS = Path(__file__).parents[2] / "standins"
RELEASES = (
    *known_releases(), "20.11.0", "20.11.3", "21.08.0", "21.08.1", "21.08.5", "21.08.6", "23.11.3",
    "23.11.4", "25.05.0",
)  # fmt: skip
FOUR_RANKS = "--nodes=1 --ntasks-per-node=4 --gpus-per-node=4"


def holds(rule_id, version):
    return rule(rule_id).holds(Release.parse(version))


def job(version, directives, environment=None):
    """The environment of the batch step of a job, as the release makes it."""
    slurm, around = Slurm(version), {"PATH": "/usr/bin", **(environment or {})}
    text = f"#!/bin/bash\n#SBATCH {directives}\n"
    given = standin_batch.plan(slurm, [], text.encode(), around)
    made = allocation(slurm, given, Node(cpus=16, gpus=4))
    return standin_batch.job_environment(slurm, given, made, "1", around)


def step(version, directives, options="", **changes):
    """What `srun OPTIONS program` gets within a job."""
    environment = {**job(version, directives), **changes}
    words = [*options.split(), "program"]
    return standin_steps.plan(Slurm(version), words, environment)[1]


def refused(act):
    """What Slurm says, or nothing where it takes it."""
    try:
        act()
    except Fatal as fault:
        return str(fault)
    return ""


every_release = pytest.mark.parametrize("version", RELEASES)


@every_release
def test_cpus_per_task_of_the_job_are_lost_on_the_way_to_srun(version):
    got = step(version, "--ntasks=4 --cpus-per-task=4")
    assert got["cpus_per_task"] == (1 if holds("cpus-per-task-lost", version) else 4)


@every_release
def test_cpus_per_task_repeated_on_srun_are_right_everywhere(version):
    assert step(version, "--ntasks=4 --cpus-per-task=4", "-c4")["cpus_per_task"] == 4


@every_release
def test_srun_cpus_per_task_is_heard_only_between_22_05_and_23_11(version):
    got = step(version, "--ntasks=4", SRUN_CPUS_PER_TASK="4")
    heard = holds("cpus-per-task-lost", version)
    assert got["cpus_per_task"] == (4 if heard else 1)
    assert not (heard and holds("srun-cpus-per-task-ignored", version))


@every_release
def test_a_changed_slurm_cpus_per_task_kills_srun(version):
    said = refused(lambda: step(version, "--ntasks=4 --cpus-per-task=4", SLURM_CPUS_PER_TASK="2"))
    assert ("two different environment variables" in said) == holds(
        "cpus-per-task-mismatch", version
    )


@every_release
def test_cpus_per_task_makes_a_step_exact(version):
    got = step(version, "--ntasks=1 --exclusive", "-c4")
    exact = holds("exact-implied", version) or holds("exact-implied-once", version)
    exact = exact or holds("steps-exclusive", version)
    assert got["cpus_held_per_node"] == (4 if exact else 16)


@every_release
def test_a_bare_step_takes_the_whole_allocation_but_in_the_first_20_11(version):
    got = step(version, "--ntasks=1 --exclusive", "-n1")
    assert got["cpus_held_per_node"] == (1 if holds("steps-exclusive", version) else 16)
    assert holds("steps-whole", version) != holds("steps-exclusive", version)


@every_release
def test_overlap_shares_gpus_and_memory_or_only_cpus(version):
    shared = step(version, FOUR_RANKS, "--overlap")["shares"]
    assert (shared == "cpu") == holds("overlap-cpus-only", version)
    assert ("gres" in shared) == holds("overlap-shares-gres", version)


@every_release
@pytest.mark.parametrize("way", ["directives", "environment of sbatch", "from the job into srun"])
def test_two_ways_to_ask_for_gpus_are_refused(version, way):
    def ask():
        if way == "directives":
            job(version, "--gpus-per-node=4 --gres=gpu:4")
        elif way == "environment of sbatch":
            job(version, "--gres=gpu:4", {"SBATCH_GPUS_PER_NODE": "4"})
        else:
            step(version, FOUR_RANKS, "--gres=gpu:4")

    pair = "--gpus-per-node and --gres=gpu are mutually exclusive"
    assert (pair in refused(ask)) == holds("gpu-flag-pair", version)


@every_release
def test_gpus_per_task_hide_the_other_gpus_of_the_node(version):
    seen = step(version, "--ntasks-per-node=4 --gpus-per-task=1")["gpus_visible"]
    isolated = holds("gpus-per-task-isolates", version)
    assert seen == ([[0], [1], [2], [3]] if isolated else [[0, 1, 2, 3]] * 4)


@every_release
def test_ntasks_per_gpu_hide_the_other_gpus_of_the_node(version):
    seen = step(version, "--gpus-per-node=4 --ntasks-per-gpu=1")["gpus_visible"]
    assert seen == [[0], [1], [2], [3]]
    assert holds("ntasks-per-gpu-isolates", version)


@every_release
@pytest.mark.parametrize("options", ["", "-c4", "--overlap", "--kill-on-bad-exit=1 --mpi=pmix"])
def test_the_safe_shape_shows_every_gpu_to_every_rank(version, options):
    got = step(version, f"{FOUR_RANKS} --cpus-per-task=4", options)
    assert got["gpus_visible"] == [[0, 1, 2, 3]] * 4


@every_release
def test_ntasks_per_gpu_with_cpus_per_task_kills_every_step(version):
    asked = "--gpus-per-node=4 --ntasks-per-gpu=1 --cpus-per-task=4"
    said = refused(lambda: step(version, asked, "-c4"))
    fatal = "SLURM_TRES_PER_TASK is mutually exclusive with --ntasks-per-gpu"
    assert (fatal in said) == holds("ntasks-per-gpu-with-cpus", version)


REFUSED_TOGETHER = [
    ("ntasks-per-gpu-excludes", "--gpus=4 --ntasks-per-gpu=1 --ntasks-per-node=4", "sbatch"),
    ("ntasks-per-gpu-excludes", "--gpus-per-task=1 --ntasks-per-gpu=1", "sbatch"),
    ("cpus-per-gpu-excludes", "--gpus=4 --cpus-per-gpu=2 --cpus-per-task=2", "sbatch"),
    ("exclusive-oversubscribe", "--exclusive --oversubscribe", "sbatch"),
    ("memory-flags", "--mem=1G --mem-per-cpu=1G", "sbatch"),
    ("exclusive-overlap", "--exclusive --overlap", "srun"),
]


@every_release
@pytest.mark.parametrize(("rule_id", "options", "command"), REFUSED_TOGETHER)
def test_options_that_exclude_each_other_are_refused(version, rule_id, options, command):
    def ask():
        return job(version, options) if command == "sbatch" else step(version, "-n2", options)

    assert ("mutually exclusive" in refused(ask)) == holds(rule_id, version)


@every_release
def test_steps_ignore_cpus_per_gpu(version):
    got = step(version, f"{FOUR_RANKS} --cpus-per-gpu=4")
    assert got["cpus_per_task"] == (1 if holds("cpus-per-gpu-ignored", version) else 4)


@every_release
def test_task_sharing_is_known_to_srun_only_and_since_one_release(version):
    flag = "--gres-flags=allow-task-sharing"
    said = refused(lambda: job(version, f"{FOUR_RANKS} {flag}"))
    known = holds("allow-task-sharing-srun-only", version)
    assert ("only used with srun" if known else "Invalid --gres-flags") in said
    if known:  # it opens the devices to all tasks; their variables still name one each
        asked = "--ntasks-per-node=4 --gpus-per-task=1"
        assert step(version, asked, flag)["gpus_visible"] == [[0], [1], [2], [3]]


OPTIONS_BY_RELEASE = [
    ("--tres-per-task=gres/gpu:1", lambda release: release >= Release(23, 2, 0)),
    ("--gpu-bind=none", lambda release: release >= Release(21, 8, 1)),
    ("--gpu-bind=per_task:1", lambda release: release >= Release(21, 8, 0)),
    ("--power=level", lambda release: release < Release(24, 5, 0)),
    ("--exact", lambda release: release >= Release(20, 11, 3)),
]


@every_release
@pytest.mark.parametrize(("option", "known"), OPTIONS_BY_RELEASE, ids=lambda part: str(part)[:20])
def test_an_option_is_refused_before_its_first_and_after_its_last_release(version, option, known):
    said = refused(lambda: step(version, "--ntasks-per-node=4 --gpus-per-node=4", option))
    assert bool(said) != known(Release.parse(version)), said


@every_release
def test_binding_by_rank_is_ignored_not_refused(version):
    bound = step(version, "-n4", "--cpu-bind=rank")["cpu_bind"]
    assert bound == ("" if holds("cpu-bind-rank", version) else "rank")


@every_release
def test_an_mpi_plugin_of_another_release_is_refused(version):
    said = refused(lambda: step(version, "-n2", "--mpi=pmix_v1"))
    assert bool(said) == (Release.parse(version) >= Release(22, 5, 0))
    assert "specified plugin name for mpi/mvapich" in refused(
        lambda: step(version, "-n2", "--mpi=mvapich")
    )


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
    around = {"PATH": "/bin"}
    kept = standin_batch.exported("ALL,LAYERS=64,128", around)
    assert kept["LAYERS"] == "64"


def test_an_inner_job_inherits_variables_of_the_outer_one():
    outer = job("24.11", "--ntasks-per-node=4 --cpus-per-task=4")
    outer.pop("SLURM_STANDIN_ALLOCATION")
    inner = job("24.11", "--ntasks=1", outer)
    got = standin_steps.plan(Slurm("24.11"), ["program"], inner)[1]
    assert got["cpus_per_task"] == 4


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"#SBATCH -n1\ntrue\n", "does not look like a batch script"),
        (b"#!/bin/sh\r\ntrue\r\n", "DOS line breaks"),
        (b"#!/bin/sh\necho \0\n", "NULL character"),
        (b"#!/bin/sh\n#SBATCH -n1 two\n", "Invalid directive found in batch script: two"),
        (b"#!/bin/sh\n#SBATCH --gpu-per-node=4\n", "unrecognized option '--gpu-per-node=4'"),
    ],
)
def test_text_that_sbatch_does_not_take_is_refused(data, said):
    assert said in refused(lambda: standin_batch.plan(Slurm("24.11"), [], data, {}))


def test_directives_behind_the_first_command_are_ignored():
    text = b"#!/bin/sh\n#SBATCH -n1\ntrue\n#SBATCH --time=1\n"
    assert "time" not in standin_batch.plan(Slurm("24.11"), [], text, {}).values


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The stand-ins first on PATH; returns what runs a script as a job and gives its log."""
    monkeypatch.setenv("PATH", f"{STANDINS}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STANDIN_RECORD", str(tmp_path / "records"))
    monkeypatch.chdir(tmp_path)

    def submit(text, version):
        monkeypatch.setenv("SLURM_STANDIN_VERSION", version)
        (tmp_path / "job.sh").write_text(text)
        subprocess.run(["sbatch", "--output=log", "job.sh"], check=True, timeout=60)
        return (tmp_path / "log").read_text()

    return submit


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_a_whole_job_runs_through_both_stand_ins(cluster, tmp_path, version):
    log = cluster(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=3 --gpus-per-node=4\n"
        "srun sh -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_CPUS_PER_TASK"
        " $CUDA_VISIBLE_DEVICES'\n"
        "srun --kill-on-bad-exit=1 bash -c '[ $SLURM_PROCID = 1 ] && exit 7; sleep 60'\n"
        'echo "code $?"\n',
        version,
    )
    # On 22.05 ranks are told 3, the batch script's number, and hold 1.
    ranks = [f"{rank} {rank % 2} 3 0,1,2,3" for rank in range(4)]
    *lines, code = log.splitlines()
    assert sorted(lines) == ranks
    assert code.startswith("code ")
    assert code != "code 0"
    names = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert names == ["job-001.json", "step-001.json", "step-002.json"]
    step = json.loads((tmp_path / "records" / "step-001.json").read_text())["step"]
    assert step["cpus_per_task"] == (1 if version == "22.05" else 3)


def bash(script, timeout=20):
    return subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=timeout, check=False
    )


def test_a_bare_wait_is_always_0_and_a_named_one_is_not():
    assert bash("(exit 3) & wait; echo $?").stdout == "0\n"
    assert bash('(exit 3) & wait "$!"; echo $?').stdout == "3\n"


def test_an_assignment_with_blanks_is_a_command():
    done = bash('CORES = 64; echo "$CORES,$?"')
    assert (done.stdout, "CORES: command not found" in done.stderr) == (",127\n", True)


def test_a_pipe_hides_the_exit_code_without_pipefail():
    assert bash("(exit 3) | cat").returncode == 0
    assert bash("set -o pipefail; (exit 3) | cat").returncode == 3


def after_signal(trap, then):
    """Seconds until bash prints the first line after USR2, and all that it prints."""
    script = f"trap '{trap}' USR2; echo trapped; {then}"
    process = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "trapped\n"
    time.sleep(0.3)  # it has begun what comes next
    start = time.monotonic()
    process.send_signal(signal.SIGUSR2)
    first = process.stdout.readline()
    seconds = time.monotonic() - start
    return seconds, first + process.communicate(timeout=20)[0]


def test_a_trap_waits_for_the_foreground_child():
    foreground, _ = after_signal("echo caught", "sleep 1.5; :")
    background, _ = after_signal("echo caught", "sleep 1.5 & wait $!; :")
    assert foreground > 0.7
    assert background < 0.6


def test_a_trapped_signal_ends_the_first_wait_and_a_loop_gets_the_real_code():
    once = "(sleep 1; exit 3) & wait $!; echo $?"
    assert after_signal(":", once)[1] == f"{128 + signal.SIGUSR2}\n"
    loop = "(sleep 1; exit 3) & while kill -0 $!; do wait $!; c=$?; done 2>&-; echo $c"
    assert after_signal(":", loop)[1] == "3\n"
