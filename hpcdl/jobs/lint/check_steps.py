"""Checks of steps: the CPUs, GPUs and neighbours that an srun really gets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcdl.jobs.lint.job import Hit, Job, at, checks
from hpcdl.jobs.lint.parse import Step

_INTERPRETER = re.compile(r"(?:python[\d.]*|(?:ba|da|k|z)?sh)\Z", re.A)
_RANKS = re.compile(
    r"\b(?:python[\d.]*(?!\s+-c)|torchrun|accelerate|deepspeed|(?:node|local)?_?rank|train\w*)\b|\.py\b",
    re.I | re.A,
)
"""In the words of a step: ranks that wait for each other, and that no MPI ends."""
_TRAINING = re.compile(r"torchrun|accelerate|deepspeed|rank\b|train|ddp", re.I)
"""The same without GPUs, where Python's ranks may as well share out work, or abort by MPI."""
_TF_SERVER = re.compile(
    r"\bTF_CONFIG=|\b(MultiWorkerMirrored|ParameterServer)Strategy\b|--launcher[= ]multiworker\b",
    re.A,
)
_OF_THE_SHELL = {"module", "source", ".", "export", "set", "eval", "shopt", "alias"}
_SHELL_LINE = re.compile(r"[\w.+-]+[ \t;]+\S", re.A)
"""`sleep 5; echo`; a first word with a slash may be a path with a blank in it."""
_MPIRUN = ("mpirun", "mpiexec", "orterun")


@checks("cpus-per-task-lost", "cpus-per-task-default")
def cpus_not_repeated(job: Job) -> Iterator[Hit]:
    """A step that leaves its CPUs per task to the job."""
    asked = job.options.last("cpus-per-task")
    if asked is None or asked.number == 1 or _set_for(job, "SRUN_CPUS_PER_TASK"):
        return
    for step in _launches(job):
        if _has_cpus(step) or _unbound(step) or step.options.has("cpus-per-gpu", "tres-per-task"):
            continue
        other = step.options.text("jobid").isdigit()
        if step.program == "docker" or step.options.has("pty") or other:
            continue  # Its daemon starts the work; a shell to look around; another job's step.
        yield at(f"cpus-per-task-{'lost' if counts_cpus(job, step) else 'default'}", step)


def _launches(job: Job) -> Iterator[Step]:
    """The sruns that run the work, with all their options in sight; `$(srun ...)` only asks."""
    works = (step for step in job.sruns if not step.command.within("substitution"))
    return (step for step in works if not (step.options.opaque or step.trivial))


def _has_cpus(step: Step) -> bool:
    """Whether a step says its CPUs per task itself, or as a prefix."""
    prefix = {word.raw.partition("=")[0] for word in step.command.assignments}
    named = prefix & {"SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_TASK"}
    return step.options.has("cpus-per-task") or bool(named)


def counts_cpus(job: Job, step: Step) -> bool:
    """Whether a step gets just the CPUs that it counts for its tasks; only task/affinity binds."""
    bound = _cpu_bind(step) in {"cores", "threads"}
    binds = bound and job.cluster.sets("TaskPlugin", "affinity")
    return binds or step.options.has("exact", "exclusive")


def _unbound(step: Step) -> bool:
    return _cpu_bind(step) in {"none", "no"}


def _cpu_bind(step: Step) -> str:
    return step.options.text("cpu-bind").rpartition(",")[2]


def _set_for(job: Job, name: str) -> bool:
    """Whether the script exports a variable for all its steps."""
    return any(one.exported for one in job.script.assigned(name))


@checks("srun-cpus-per-task-ignored")
def cpus_by_variable(job: Job) -> Iterator[Hit]:
    """CPUs per task said through the environment, where srun listens to another variable."""
    asked, own = job.options.has("cpus-per-task"), job.options.text("cpus-per-task")
    relying = any(
        not (step.options.has("cpus-per-task") or _unbound(step)) for step in _launches(job)
    )
    for one in job.script.assigned("SRUN_CPUS_PER_TASK") if relying else ():
        same = one.value == own or "SLURM_CPUS_PER_TASK" in one.value
        if not (asked and same):
            yield at("srun-cpus-per-task-ignored", one)


@checks("cpus-per-task-mismatch")
def cpus_changed(job: Job) -> Iterator[Hit]:
    """SLURM_CPUS_PER_TASK set to something else: every srun without its own dies, brief or not."""
    asked, own = job.options.has("cpus-per-task"), job.options.text("cpus-per-task")
    started = (step for step in job.sruns if not (step.asks or step.options.opaque))
    if all(step.options.has("cpus-per-task") for step in started):
        return
    unset = any("SLURM_TRES" in word for word in job.script.words_of("unset"))
    if unset or job.script.assigned("SLURM_TRES_PER_TASK"):
        return
    for one in job.script.assigned("SLURM_CPUS_PER_TASK"):
        if asked and one.value != own and "SLURM_CPUS_PER_TASK:-" not in one.value:
            yield at("cpus-per-task-mismatch", one)


@checks("step-of-shell")
def lines_of_the_shell(job: Job) -> Iterator[Hit]:
    """What only a shell can run, handed to srun as a program: a builtin, or a quoted line."""
    for step in job.sruns:
        first = next(iter(step.options.rest), None)
        if first is None or step.options.opaque:
            continue
        quoted = first.raw[:1] in {"'", '"'} and _SHELL_LINE.match(first.value)
        if quoted or first.value in _OF_THE_SHELL:
            yield at("step-of-shell", first)


@checks("steps-exclusive")
def mpirun_without_whole(job: Job) -> Iterator[Hit]:
    """An mpirun where steps get only what they ask for."""
    if job.script.assigned("SLURM_WHOLE"):
        return
    for step in job.script.steps:
        if step.launcher in _MPIRUN:
            yield at("steps-exclusive", step)


@checks("overlap-cpus-only")
def overlap_and_gpus(job: Job) -> Iterator[Hit]:
    """A monitor beside the training step, where --overlap shares CPUs only."""
    if len(job.script.steps) < 2 or not job.options.gpus:
        return
    for step in job.sruns:
        option, gres = step.options.last("overlap"), step.options.last("gres", "gpus")
        if option and (gres is None or step.options.gpus):
            yield at("overlap-cpus-only", option)


@checks("cpu-bind-rank")
def rank_binding(job: Job) -> Iterator[Hit]:
    """Binding by rank, which newer releases ignore."""
    for step in job.sruns:
        option = step.options.last("cpu-bind")
        if option and _cpu_bind(step) in {"rank", "rank_ldom"}:
            yield at("cpu-bind-rank", option)


@checks("kill-on-bad-exit")
def survivors_hang(job: Job) -> Iterator[Hit]:
    """A step of many ranks that continues without one of them."""
    always = job.cluster.sets("KillOnBadExit", "1") or _set_for(job, "SLURM_KILL_BAD_EXIT")
    if always or not job.script.is_batch:
        return
    mpirun = len(job.sruns) < len(job.script.steps)
    for step in _launches(job):
        if mpirun and step.command.background:
            continue  # It serves the ranks, which mpirun starts.
        mpi = step.options.last("mpi")
        tasks = job.step_tasks(step)
        together = job.has_gpus or (mpi is not None and mpi.text != "none")
        # The parts of an array share out work, one by one.
        counted = mpi is None and tasks is not None and not job.options.has("array")
        alone = counted and _INTERPRETER.match(step.program)
        words = " ".join(word.raw for word in step.options.rest)
        ranks = _RANKS.search(words) if together else _TRAINING.search(words)
        ends = tasks == 1 or step.options.has("kill-on-bad-exit", "wait")
        if ranks and (together or alone) and not ends:
            yield at("kill-on-bad-exit", step)


@checks("horovodrun", "horovod-elastic")
def horovod_launcher(job: Job) -> Iterator[Hit]:
    """horovodrun, and its elastic mode."""
    elastic = ("--min-np", "--max-np", "--host-discovery-script", "--min-num-proc")
    for step in job.script.steps if job.nodes != 1 else ():  # On one node it needs no ssh.
        words = [w for w in step.command.words if w.raw.partition("=")[0] in elastic]
        if step.launcher == "horovodrun":
            yield at("horovod-elastic", words[0]) if words else at("horovodrun", step)


@checks("tf-server-shared")
def servers_for_everybody(job: Job) -> Iterator[Hit]:
    """TensorFlow's server, which asks for no password, on nodes that others use, too."""
    if not job.script.is_batch or job.options.has("exclusive"):
        return
    for line in job.script.lines:
        found = _TF_SERVER.search(line.text)
        if found and not line.text.lstrip().startswith("#"):
            yield Hit("tf-server-shared", line.start + found.start(), len(found.group()))
            return
