"""Checks of steps: the CPUs, GPUs and neighbours that an srun gets, and how GPUs are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from hpcdl.jobs.lint.job import Hit, Job, at, checks
from hpcdl.jobs.lint.parse import JobStep
from hpcdl.jobs.lint.shell import names

_OF_THE_SHELL = {"module", "source", ".", "export", "set", "eval", "shopt", "alias"}
_SHELL_LINE = re.compile(r"[\w.+-]+[ \t;]+\S", re.A)
"""`sleep 5; echo`; a first word with a slash may be a path with a blank in it."""


@checks("cpus-per-task-lost", "cpus-per-task-default")
def cpus_not_repeated(job: Job) -> Iterator[Hit]:
    """A step that leaves its CPUs per task to the job."""
    asked = job.options.last("cpus-per-task")
    exported = any(one.exported for one in job.script.assigned("SRUN_CPUS_PER_TASK"))
    if asked is None or asked.number == 1 or exported:
        return
    binds = job.cluster.sets("TaskPlugin", "affinity")  # nothing else does
    for step in job.sruns:
        options, bound = step.options, step.options.text("cpu-bind").rpartition(",")[2]
        prefix = {word.raw.partition("=")[0] for word in step.command.assignments}
        said = options.has("cpus-per-task", "cpus-per-gpu", "tres-per-task") or bool(
            prefix & {"SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_TASK"}
        )
        # `$(srun ...)` only asks, docker's daemon starts the work, a shell is to look around.
        looks = step.trivial or step.command.within("substitution") or options.has("pty")
        apart = step.program == "docker" or options.text("jobid").isdigit()
        if said or looks or apart or options.opaque or bound in {"none", "no"}:
            continue
        exact = options.has("exact", "exclusive") or (binds and bound in {"cores", "threads"})
        yield at(f"cpus-per-task-{'lost' if exact else 'default'}", step)


@checks("cpus-per-task-mismatch")
def cpus_by_variable(job: Job) -> Iterator[Hit]:
    """CPUs per task in a variable that has to agree with another one."""
    own, agreed = job.options.text("cpus-per-task"), "SLURM_TRES_PER_TASK" in job.script.text
    started = (step.options for step in job.sruns if not (step.asks or step.options.opaque))
    relying = any(not options.has("cpus-per-task", "cpu-bind") for options in started)
    for one in job.script.assigned("SLURM_CPUS_PER_TASK") if relying and own else ():
        if not agreed and one.value != own and one.name not in one.value:
            yield at("cpus-per-task-mismatch", one)


@checks("step-of-shell")
def lines_of_the_shell(job: Job) -> Iterator[Hit]:
    """A builtin or a quoted line, which only a shell can run, given to srun as a program."""
    for step in job.sruns:
        first = next(iter(step.options.rest), None)
        if first is None or step.options.opaque:
            continue
        quoted = first.raw[:1] in {"'", '"'} and _SHELL_LINE.match(first.value)
        if quoted or first.value in _OF_THE_SHELL:
            yield at("step-of-shell", first)


@checks("horovodrun")
def horovod_launcher(job: Job) -> Iterator[Hit]:
    """horovodrun, which starts ranks of other nodes by ssh."""
    for step in job.script.steps if job.nodes != 1 else ():
        local = any(word.raw.startswith("localhost") for word in step.options.rest)
        if step.launcher == "horovodrun" and not local:
            yield at("horovodrun", step)


# ---- GPUs: how they are asked for, bound to tasks and shown to them ----

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_LOCAL_RANKS = names(
    "LOCAL_RANK HOROVOD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID "
    "MV2_COMM_WORLD_LOCAL_RANK SLURM_LOCALID"
)
_GLOBAL_RANKS = names(
    "RANK HOROVOD_RANK OMPI_COMM_WORLD_RANK PMI_RANK PMIX_RANK SLURM_PROCID "
    "MV2_COMM_WORLD_RANK WORLD_RANK"
)
_GLOBAL = re.compile(r"\$\{?(?:SLURM_PROCID|OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK|RANK)\b", re.A)
_OWN_RANK = re.compile(r"(?<!\\)\$\{?SLURM_(?:PROCID|LOCALID|NODEID)\b", re.A)
_NODE_RANK = re.compile(r"(?:node|machine)[-_]rank|NODEID")
AMD = re.compile(r"(?<![a-z])(?:rocm|miopen|rccl|HIP_|ROCR_)|amd\d|instinct|\bmi[123]\d\d", re.I)
"""Of AMD's GPUs, for which Slurm leaves NVIDIA's variables alone."""


@checks("gpu-flag-pair", "gpu-flag-twice")
def gpus_asked_twice(job: Job) -> Iterator[Hit]:
    """--gpus-per-node with --gres=gpu: in one command, or from the job into a step."""
    per_node_job = job.options.has("gpus-per-node") and not job.heterogeneous
    for command, options in job.commands_at():
        gres = options.last("gres")
        # Of gpumem:32G, too, Slurm says that it is gpu.
        if gres is None or not re.search(r"(?:^|[,:/])gpu", gres.text):
            continue
        if options.has("gpus-per-node"):
            yield at("gpu-flag-pair", gres)
            if any(one.option is gres for one in options.gpus):
                yield at("gpu-flag-twice", gres)
        elif command == "srun" and per_node_job:
            detail = "the job's --gpus-per-node reaches srun as SLURM_GPUS_PER_NODE"
            yield at("gpu-flag-pair", gres, detail)


@checks("gpu-type-mixed")
def typed_and_untyped(job: Job) -> Iterator[Hit]:
    """GPUs with and without a type in one component."""
    for part in job.script.components:
        # Of an option that is given twice only the last one counts.
        requests = [one for one in part.gpus if one.option is part.last(one.option.name)]
        if len({bool(one.kind) for one in requests if "$" not in one.option.text}) == 2:
            yield at("gpu-type-mixed", requests[-1].option)


@checks("local-rank-global")
def global_for_local(job: Job) -> Iterator[Hit]:
    """The global rank where the local one belongs."""
    if job.nodes == 1:
        return
    for one in job.script.assigned(*_LOCAL_RANKS, *_VISIBLE):
        apart = one.name in _VISIBLE and one.command.within("substitution")
        if _GLOBAL.search(one.value) and "%" not in one.value and not apart:
            yield at("local-rank-global", one)


@checks("rank-of-batch-shell")
def ranks_of_the_batch_shell(job: Job) -> Iterator[Hit]:
    """$SLURM_PROCID and its like, filled in before srun: in an export or in srun's line."""
    if not job.script.is_batch or job.tasks == 1:
        return
    meeting = any(map(_meets, job.sruns))
    for one in job.script.assignments if job.script.steps else ():
        # Of a single node it is 0.
        node_rank = one.name == "NODE_RANK" and job.nodes != 1 and not meeting
        named = node_rank or one.name in (*_LOCAL_RANKS, *_GLOBAL_RANKS)
        if named and one.exported and not one.command.scopes and _filled_in(one.raw):
            yield at("rank-of-batch-shell", one)
    for step in job.sruns:
        if step.command.within("inner"):
            continue
        settled = _meets(step) or job.step_nodes(step) == 1  # that of a single node is 0
        for before, word in pairwise((step.command.words[0], *step.options.rest)):
            of_node = _NODE_RANK.search(f"{before.raw} {word.raw}")
            # A file that the batch shell wrote itself has that very name.
            own = job.script.text.count(word.raw) > 1
            if _filled_in(word.raw) and not (own or (settled and of_node)):
                yield at("rank-of-batch-shell", word)


def _meets(step: JobStep) -> bool:
    """Whether it starts agents that meet by a rendezvous: they take no heed of a node's rank."""
    return any("rdzv_backend" in one.value.replace("-", "_") for one in step.options.rest)


def _filled_in(raw: str) -> bool:
    """Whether the shell that reads a word puts its own rank there."""
    match = _OWN_RANK.search(raw)
    return match is not None and raw[: match.start()].count("'") % 2 == 0
