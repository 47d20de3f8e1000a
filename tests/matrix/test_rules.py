"""The consequence of a rule is real: each script is judged by lint and run by every release.

A rule's consequence must show where its row in facts/slurm_rules.yaml says that it holds, and
nowhere else; lint must find the rule in the script just there.
"""

import re
from dataclasses import dataclass

import pytest

from hpcdl.jobs.layout import cluster_of
from hpcdl.jobs.lint import lint
from hpcdl.site import load_site
from hpcdl.slurm.rules import SlurmRelease, Span, rule

# What Slurm has written down about the running step: its CPUs.
STEP_CPUS = "scontrol show step -o $SLURM_JOB_ID.$SLURM_STEP_ID | grep -o ' CPUs=[0-9]*'"
# A step of one task that says so; what does no work at all needs no CPUs, as lint sees it.
SHOW = f'sh -c "sleep 0; {STEP_CPUS.replace("$", chr(92) + "$")}"'
SHOW_COMMENT = "scontrol show job -o $SLURM_JOB_ID | grep -o ' Comment=[^ ]*'"
STAND_IN_AGENT = (
    "mkdir $SLURM_JOB_ID; cd $SLURM_JOB_ID; printf '#!/bin/sh\\necho agent\\n' > torchrun\n"
    "chmod +x torchrun; cd .."
)
GPUS_SEEN = "sh -c 'echo sees $CUDA_VISIBLE_DEVICES;'"


@dataclass(frozen=True)
class Case:
    """A script that breaks `rules`, and a pattern of what is said only where they hold.

    `not_said` is the opposite: where the rules hold this is missing. `lint` False: the script is
    right, and shows what the rule advises, or the rule is the generator's only. `span` is where an
    option is unknown, of which the rule itself knows nothing. `but` is a release where the rule
    warns of what was not seen there.
    """

    rules: str
    directives: str
    body: str
    said: str
    not_said: bool = False
    lint: bool = True
    gpus: bool = True
    span: Span | None = None
    but: str = ""

    def holds(self, release):
        """Whether the consequence must show on a release."""
        if self.span is not None:
            return self.span.holds(release)
        return any(rule(one).holds(release) for one in self.rules.split())

    @property
    def script(self):
        partition = "p100" if self.gpus else "cpu"
        lines = "".join(f"#SBATCH {one}\n" for one in self.directives.split("\n") if one)
        return f"#!/bin/bash\n#SBATCH --partition={partition} --time=5\n{lines}{self.body}\n"


FOUR = "--nodes=1 --ntasks-per-node=4 --gpus-per-node=4"
EXCLUSIVE = "mutually exclusive"
CASES = {
    "CPUs of the job do not reach srun": Case(
        "cpus-per-task-lost",
        "--nodes=1 --ntasks-per-node=2 --cpus-per-task=4",
        f"srun --kill-on-bad-exit=1 --exact {SHOW}",
        r" CPUs=2\b",
        gpus=False,
    ),
    "a plain step has all CPUs and counts one a task": Case(
        "cpus-per-task-default cpus-per-task-lost",
        "--nodes=1 --ntasks-per-node=2 --cpus-per-task=4",
        f"srun --kill-on-bad-exit=1 {SHOW} | head -1\nsrun --kill-on-bad-exit=1 --exact {SHOW}",
        r" CPUs=8\n(?:srun: .*\n)* CPUs=2\b",
        gpus=False,
    ),  # which may wait for the first step
    "CPUs of the job do not reach a step of its own": Case(
        "cpus-per-task-lost",
        "--nodes=1 --ntasks-per-node=2 --cpus-per-task=4",
        f"srun --kill-on-bad-exit=1 --exclusive {SHOW}",
        r" CPUs=2\b",
        gpus=False,
    ),
    "CPUs said again on srun reach it": Case(
        "cpus-per-task-repeat",
        "--nodes=1 --ntasks-per-node=2 --cpus-per-task=4",
        f"srun --kill-on-bad-exit=1 --exact -c4 {SHOW}",
        r" CPUs=8\b",
        lint=False,
        gpus=False,
    ),
    "SRUN_CPUS_PER_TASK is not heard": Case(
        "srun-cpus-per-task-ignored srun-cpus-per-task-unknown",
        "--nodes=1 --ntasks-per-node=2 --exclusive",
        f"export SRUN_CPUS_PER_TASK=4\nsrun --kill-on-bad-exit=1 --exact {SHOW}",
        r" CPUs=2\b",
        gpus=False,
    ),
    "a changed SLURM_CPUS_PER_TASK": Case(
        "cpus-per-task-mismatch",
        "--nodes=1 --ntasks-per-node=2 --cpus-per-task=4",
        "export SLURM_CPUS_PER_TASK=2\nsrun --kill-on-bad-exit=1 true",
        "different environment var",
        gpus=False,
    ),
    "-c on srun implies --exact": Case(
        "exact-implied",
        "--nodes=1 --ntasks-per-node=4",
        f"srun --kill-on-bad-exit=1 -n1 -c2 {SHOW}",
        r" CPUs=2\b",
        gpus=False,
        lint=False,
    ),
    "a bare step takes all": Case(
        "steps-whole",
        "--nodes=1 --ntasks-per-node=4",
        "a=$SECONDS\nsrun -n1 sleep 4 & srun -n1 sleep 4 & wait\n"
        "echo took $(( (SECONDS - a) / 7 ))",
        "took 1",
        lint=False,
        gpus=False,
    ),
    "--overlap shares CPUs only": Case(
        "overlap-cpus-only",
        FOUR,
        "srun -n1 sleep 8 & sleep 2; a=$SECONDS\nsrun --overlap -n1 true\n"
        "echo waited $(( (SECONDS - a) > 4 )); wait",
        "waited 1",
    ),
    "--overlap shares GPUs too": Case(
        "overlap-shares-gres",
        FOUR,
        "srun -n1 sleep 8 & sleep 2; a=$SECONDS\nsrun --overlap -n1 true\n"
        "echo waited $(( (SECONDS - a) > 4 )); wait",
        "waited 0",
    ),
    "two forms of GPU request": Case(
        "gpu-flag-pair", "--gpus-per-node=2\n--gres=gpu:2", "srun true", EXCLUSIVE
    ),
    "two forms, one on the step": Case("gpu-flag-pair", FOUR, "srun --gres=gpu:4 true", EXCLUSIVE),
    "GPUs with and without a type": Case(
        "gpu-type-mixed", "--gpus=p100:2\n--gres=gpu:2", "true", "with and without type"
    ),
    "--gpus-per-task hides the others": Case(
        "gpus-per-task-isolates",
        "--nodes=1 --ntasks-per-node=2 --gpus-per-task=1",
        f"srun --kill-on-bad-exit=1 {GPUS_SEEN}",
        r"sees \d\n",
    ),
    "--ntasks-per-gpu hides the others": Case(
        "ntasks-per-gpu-isolates",
        "--gpus=2 --ntasks-per-gpu=1",
        f"srun --kill-on-bad-exit=1 {GPUS_SEEN}",
        r"sees \d\n",
    ),
    "--ntasks-per-gpu and a count per node": Case(
        "ntasks-per-gpu-excludes",
        "--gpus=4 --ntasks-per-gpu=1 --ntasks-per-node=4",
        "true",
        EXCLUSIVE,
    ),
    "--ntasks-per-gpu and CPUs per task": Case(
        "ntasks-per-gpu-with-cpus",
        "--ntasks=2 --gpus=2 --ntasks-per-gpu=1 --cpus-per-task=2",
        "srun -c2 --kill-on-bad-exit=1 true",
        EXCLUSIVE,
    ),
    "steps ignore --cpus-per-gpu": Case(
        "cpus-per-gpu-ignored",
        "--nodes=1 --ntasks=2 --gpus=2 --cpus-per-gpu=4",
        f"srun --kill-on-bad-exit=1 --exact {SHOW}",
        r" CPUs=2\b",
    ),
    "CPUs per GPU and per task": Case(
        "cpus-per-gpu-excludes",
        "--nodes=1 --gpus-per-node=2 --cpus-per-gpu=2 --cpus-per-task=2",
        "true",
        EXCLUSIVE,
    ),
    "task sharing on sbatch": Case(
        "allow-task-sharing-srun-only",
        f"{FOUR} --gres-flags=allow-task-sharing",
        "true",
        "only used with srun",
    ),
    "tasks of the job, not of a node": Case(
        "ntasks-per-node",
        "--nodes=2 --ntasks=4",
        "srun --kill-on-bad-exit=1 sh -c 'sleep 0; echo on $SLURM_NODEID;' | sort | uniq -c",
        r"3 on \d",
        gpus=False,
        but="20.11",
        lint=False,
    ),
    "--exclusive and --oversubscribe": Case(
        "exclusive-oversubscribe", "--exclusive --oversubscribe", "true", EXCLUSIVE, gpus=False
    ),
    "two kinds of memory": Case(
        "memory-flags", "--mem=1G --mem-per-cpu=1G", "true", EXCLUSIVE, gpus=False
    ),
    "--exact and --whole": Case(
        "exact-whole", "--ntasks=1", "srun --exact --whole true", EXCLUSIVE, gpus=False
    ),
    "--exclusive and --overlap": Case(
        "exclusive-overlap", "--ntasks=1", "srun --exclusive --overlap true", EXCLUSIVE, gpus=False
    ),
    "binding by rank": Case(
        "cpu-bind-rank",
        "--nodes=1 --ntasks-per-node=2",
        "srun --cpu-bind=rank true",
        "obsolete",
        gpus=False,
    ),
    "a plug-in that no release has": Case(
        "mpi-plugin",
        "--ntasks=1",
        "srun --mpi=mvapich true",
        "Couldn't find|Invalid MPI type|annot find",
        gpus=False,
    ),
    "nobody ends the others": Case(
        "kill-on-bad-exit",
        "--nodes=1 --ntasks-per-node=2",
        "srun sh -c 'RANK=$SLURM_PROCID; [ $RANK = 0 ] && exit 3; sleep 6; echo lived on'",
        "lived on",
        gpus=False,
    ),
    "a directive behind a command": Case(
        "directive-after-command",
        "",
        "true\n#SBATCH --ntasks=3\necho tasks ${SLURM_NTASKS:-1}",
        "tasks 1",
        gpus=False,
    ),
    "a word that is no option": Case(
        "directive-argument", "--ntasks=1 two", "true", "Invalid directive", gpus=False
    ),
    "a continued directive": Case(
        "directive-continued",
        "--ntasks=2 \\",
        "  --exclusive\necho",
        "--exclusive: command not found",
        gpus=False,
    ),
    "a misspelt option": Case("option-misspelt", "--gpu-per-node=4", "true", "unrecognized option"),
    "an option not yet known": Case(
        "option-unknown",
        "--ntasks=1 --tres-per-task=cpu:1",
        "true",
        "unrecognized option",
        gpus=False,
        span=Span(None, SlurmRelease(23, 2, 0)),
    ),
    "an option dropped": Case(
        "option-removed",
        "--ntasks=1 --power=level",
        "true",
        "unrecognized option",
        gpus=False,
        span=Span(SlurmRelease(24, 5, 0), None),
    ),
    "--export without ALL flows on": Case(
        "export-flows",
        "--export=NONE",
        "export OURS=1\nsrun sh -c 'echo has ${OURS:-nothing};'",
        "has nothing|No such file",
        gpus=False,
        lint=False,
    ),
    "a comma ends a value": Case(
        "export-comma",
        "--export=ALL,LAYERS=64,128",
        'echo "layers $LAYERS."',
        r"layers 64\.",
        gpus=False,
    ),
    "the second --export counts": Case(
        "export-twice",
        "--export=ALL,FIRST=1\n--export=ALL,SECOND=2",
        'echo "first ${FIRST-lost}"',
        "first lost",
        gpus=False,
    ),
    "the batch shell's own rank": Case(
        "rank-of-batch-shell",
        "--nodes=1 --ntasks-per-node=3",
        'srun --kill-on-bad-exit=1 sh -c "echo rank $SLURM_PROCID" | sort | uniq -c',
        "3 rank 0",
        gpus=False,
    ),
    "the global rank, as a GPU of the second node": Case(
        "local-rank-global",
        "--nodes=2 --ntasks-per-node=1 --gpus-per-node=1",
        "srun --kill-on-bad-exit=1 bash -c 'export CUDA_VISIBLE_DEVICES=$SLURM_PROCID; "
        "echo asks for $CUDA_VISIBLE_DEVICES, is $SLURM_LOCALID there'",
        "asks for 1, is 0 there",
    ),
    "srun sets CUDA_VISIBLE_DEVICES anew": Case(
        "cuda-visible-devices",
        FOUR,
        f"export CUDA_VISIBLE_DEVICES=3\nsrun --kill-on-bad-exit=1 {GPUS_SEEN}",
        "sees 0,1,2,3",
        lint=False,
    ),
    "an untrapped signal ends the shell": Case(
        "signal-not-trapped",
        "--signal=B:USR2@60",
        '(sleep 1; scancel -b -s USR2 $SLURM_JOB_ID) &\nsrun sleep 3\necho "went on"',
        "went on",
        not_said=True,
        gpus=False,
    ),
    "a foreground step holds the trap back": Case(
        "trap-deferred",
        "--signal=B:USR2@60",
        "trap 'echo caught after $(( (SECONDS - a) / 4 ))' USR2; a=$SECONDS\n"
        "(sleep 1; scancel -b -s USR2 $SLURM_JOB_ID) &\nsrun sleep 6",
        "caught after [1-9]",
        gpus=False,
    ),
    "the first wait is no end": Case(
        "wait-once",
        "--signal=B:USR2@60",
        "trap 'true' USR2\n(sleep 1; scancel -b -s USR2 $SLURM_JOB_ID) &\n"
        'srun sh -c "sleep 4; exit 3" &\nwait "$!"; echo "code $?"',
        "code 140",
        gpus=False,
    ),
    "a bare wait is always well": Case(
        "wait-status",
        "",
        'srun sh -c "exit 3" &\nwait; code=$?\necho "code $code"\nexit $code',
        "code 0",
        gpus=False,
    ),
    "a pipe hides the code": Case(
        "status-lost", "", 'srun sh -c "exit 3" | tee x\necho "code $?"', "code 0", gpus=False
    ),
    "a signal without B: passes the batch shell by": Case(
        "signal-steps-only",
        "--signal=USR2@60",
        "trap 'echo the shell heard it' USR2\n"
        "(sleep 1; scancel -s USR2 $SLURM_JOB_ID) &\nsrun sleep 3; sleep 1",
        "the shell heard it",
        not_said=True,
        gpus=False,
    ),
    "a variable in a directive": Case(
        "directive-variable",
        "--comment=$HOME --job-name=$USER",
        "scontrol show job -o $SLURM_JOB_ID",
        r"JobName=\$USER ",
        gpus=False,
    ),
    "a job of a job": Case(
        "nested-environment",
        "--nodes=1 --ntasks-per-node=2",
        "sbatch --wait --partition=cpu --time=2 --output=$SLURM_JOB_ID.in "
        "--wrap='echo inner ${SLURM_NTASKS_PER_NODE:-none}' >/dev/null; cat $SLURM_JOB_ID.in",
        "inner 2",
        lint=False,
        gpus=False,
    ),
    "an open end of requeues": Case(
        "requeue-truncates",
        "--requeue",
        'echo "run ${SLURM_RESTART_COUNT:-0}"\n[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0\n'
        "scontrol requeue $SLURM_JOB_ID; sleep 30",
        "run 0",
        not_said=True,
        gpus=False,
    ),
    "nobody waits for the last step": Case(
        "background-unawaited",
        "",
        "srun sh -c 'sleep 60 && echo its work is done' &",
        "its work is done",
        not_said=True,
        gpus=False,
    ),
    "blanks before a directive": Case(
        "directive-indented",
        "",
        "  #SBATCH --ntasks=3\necho tasks ${SLURM_NTASKS:-1}",
        "tasks 1",
        gpus=False,
    ),
    "a directive in small letters": Case(
        "directive-misspelt",
        "",
        "#Sbatch --ntasks=3\necho tasks ${SLURM_NTASKS:-1}",
        "tasks 1",
        gpus=False,
    ),
    "typographic quotes": Case(
        "typographic", "--comment=“nightly”", SHOW_COMMENT, "Comment=“nightly”", gpus=False
    ),
    "an agent per task": Case(
        "torchrun-per-task",
        "--nodes=1 --ntasks-per-node=4",
        f"{STAND_IN_AGENT}\n"
        'export PATH="$PWD/$SLURM_JOB_ID:$PATH"\n'
        "srun --kill-on-bad-exit=1 torchrun --nproc-per-node=4 a.py | sort | uniq -c",
        "4 agent",
        gpus=False,
    ),
    "mpirun with more ranks than tasks": Case(
        "mpirun-beyond", "--nodes=1 --ntasks=2", "mpirun -np 4 true", "not enough slots", gpus=False
    ),
    "16 are megabytes": Case(
        "memory-unit",
        "--mem=16",
        "python3 --version; scontrol show job -o $SLURM_JOB_ID",
        "MinMemoryNode=16M",
        gpus=False,
    ),
    "hours by a letter": Case("option-value", "--time=24h", "true", "nvalid", gpus=False),
    "an option of a plug-in": Case(
        "option-foreign", "--image=x", "true", "unrecognized option", gpus=False
    ),
    "a partition that is not there": Case(
        "partition-unknown", "--partition=p10", "true", "nvalid partition", gpus=False
    ),
    "GPUs that are not there": Case(
        "partition-limit",
        "--gres=gpu:v100:1",
        "true",
        "Invalid generic resource|node configuration is not available",
    ),
    "a partition's limit": Case(
        "partition-limit", "--nodes=9", "true", "Node count specification invalid", gpus=False
    ),
}
TEXTS = {
    "byte-order-mark": (b"\xef\xbb\xbf#!/bin/sh\n#SBATCH -n1\ntrue\n", "look like a batch script"),
    "shebang": (b"#SBATCH --ntasks=1\necho hello\n", "does not look like a batch script"),
    "dos-line-ends": (b"#!/bin/sh\r\ntrue\r\n", "DOS line breaks"),
    "nul-character": (b"#!/bin/sh\necho \0\n", "NULL character"),
}


@pytest.fixture(scope="session")
def outcomes(machines):
    return {
        (machine.name, name): machine.submit(case.script)
        for name, case in CASES.items()
        for machine in machines.values()
        if not isinstance(machine, str)
    }


@pytest.mark.parametrize("name", CASES)
def test_the_consequence_shows_where_the_rule_holds_and_nowhere_else(machine, outcomes, name):
    case, said = CASES[name], outcomes[machine.name, name].end(180).said
    shown = (re.search(case.said, said) is not None) != case.not_said
    expected = case.holds(machine.release) and machine.name != case.but
    assert shown == expected, said


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.lint])
def test_lint_finds_it_there(machine, name):
    case = CASES[name]
    version = machine.release
    cluster = cluster_of(load_site(machine.state.site_file))
    findings = lint(case.script, name="job.sh", version=version, cluster=cluster)
    found = {one.rule.id for one in findings}
    wanted = {one for one in case.rules.split() if rule(one).lint}
    there = {one for one in wanted if rule(one).holds(version)}
    if case.span is not None and not case.span.holds(version):
        there = set()
    assert found & wanted == there


@pytest.mark.parametrize("rule_id", TEXTS)
def test_text_that_sbatch_refuses(machine, rule_id):
    data, said = TEXTS[rule_id]
    assert said in machine.submit(data).refusal
    found = {one.rule.id for one in lint(data.decode(), name="job.sh", version=machine.release)}
    assert rule_id in found
