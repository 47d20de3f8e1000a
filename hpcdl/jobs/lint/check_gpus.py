"""Checks of GPUs: how they are asked for, bound to tasks and shown to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from hpcdl.jobs.lint.check_steps import counts_cpus
from hpcdl.jobs.lint.job import Hit, Job, at, checks
from hpcdl.jobs.lint.options import Options
from hpcdl.jobs.lint.parse import Assignment, Step
from hpcdl.jobs.lint.shell import Word, parser

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_LOCAL_RANKS = (
    "LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
)  # fmt: skip
_GLOBAL_RANKS = (
    "RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID",
    "MV2_COMM_WORLD_RANK", "WORLD_RANK",
)  # fmt: skip
_GLOBAL = re.compile(r"\$\{?(?:SLURM_PROCID|OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK|RANK)\b", re.A)
_OWN_RANK = re.compile(r"(?<!\\)\$\{?SLURM_(?:PROCID|LOCALID|NODEID)\b", re.A)
_NODE_RANK = re.compile(r"(?:node|machine)[-_]rank|NODEID")
_INDEXED = re.compile(r"\[\s*\$?\{?(?:SLURM_LOCALID|SLURM_PROCID|LOCAL_RANK)\b", re.A)
_RANK_ARGUMENT = re.compile(r"--?local[-_]rank(?:=(.*))?\Z", re.A | re.S)
_RANK = re.compile("SLURM_LOCALID|SLURM_PROCID|LOCAL_RANK")
_TESTED = re.compile(
    r"\b(?:SLURM_LOCALID|SLURM_PROCID|LOCAL_RANK)\}?[\"']?\s*(?:-eq|==?)\s*[\"']?(\d{1,6})\b", re.A
)
_AMD = re.compile(r"\b(?:rocm|miopen|rccl|HIP_|ROCR_)", re.I)
"""Of AMD's GPUs, for which Slurm leaves NVIDIA's variables alone."""


@checks("gpu-flag-pair", "gpu-flag-twice")
def gpus_asked_twice(job: Job) -> Iterator[Hit]:
    """--gpus-per-node with --gres=gpu: in one command, or from the job into a step."""
    per_node_job = job.options.has("gpus-per-node") and not job.heterogeneous
    for command, options in job.commands_at():
        gres = [one.option for one in options.gpus if one.option.name == "gres"]
        if gres and options.has("gpus-per-node"):
            yield at("gpu-flag-pair", gres[-1])
            yield at("gpu-flag-twice", gres[-1])
        elif gres and command == "srun" and per_node_job:
            detail = "the job's --gpus-per-node reaches srun as SLURM_GPUS_PER_NODE"
            yield at("gpu-flag-pair", gres[-1], detail)


@checks("gpu-type-mixed")
def typed_and_untyped(job: Job) -> Iterator[Hit]:
    """GPUs with and without a type in one component."""
    for part in job.script.components:
        # Of an option that is given twice only the last one counts.
        requests = [one for one in part.gpus if one.option is part.last(one.option.name)]
        if len({bool(one.kind) for one in requests if "$" not in one.option.text}) == 2:
            yield at("gpu-type-mixed", requests[-1].option)


@checks("gpus-per-task-isolates")
def gpus_per_task(job: Job) -> Iterator[Hit]:
    """GPUs asked for per task: what that does to binding depends on the release.

    It binds the tasks of srun; mpirun's are none of Slurm's.
    """
    batch = job.script.is_batch
    # What a batch script starts itself, or by mpirun, Slurm does not bind, unless it has an srun
    # that cannot be read; AMD's GPUs lose nothing.
    amd = _AMD.search(job.script.text)
    single = batch and job.sruns and all(job.step_tasks(step) == 1 for step in job.sruns)
    others = (job.script.steps and not job.sruns) or (batch and "srun" not in job.script.text)
    alone = amd or single or parser() is None or others
    parts = () if alone else job.script.components
    places = [(part, part.tasks_per_node if batch else None) for part in parts]
    places += [(s.options, job.step_tasks_per_node(s)) for s in job.sruns if not amd]
    for options, per_node in places:
        asked = [one.option for one in options.gpus
                 if one.option.name in {"gpus-per-task", "tres-per-task"}]  # fmt: skip
        if asked and per_node != 1 and not _bound_otherwise(job, options):
            yield at("gpus-per-task-isolates", asked[0])


def _bound_otherwise(job: Job, options: Options) -> bool:
    """Whether a binding is given, or lifted on the command itself or on every step."""

    def lifts(one: Options) -> bool:
        shared = "allow-task-sharing" in one.text("gres-flags")
        return shared or one.text("gpu-bind").startswith("none")

    steps = [step.options for step in job.sruns]
    given = options.has("gpu-bind", "tres-bind")
    return given or lifts(options) or (bool(steps) and all(map(lifts, steps)))


@checks("ntasks-per-gpu-isolates", "ntasks-per-gpu-with-cpus", "ntasks-per-gpu-pends")
def ntasks_per_gpu(job: Job) -> Iterator[Hit]:
    """Tasks counted per GPU: bound one by one, and at odds with CPUs per task."""
    for _, options, option in job.given("ntasks-per-gpu"):
        single = [request.number for request in options.gpus] == [1]
        if not single and not _bound_otherwise(job, options):
            yield at("ntasks-per-gpu-isolates", option)
    asked = job.options.last("ntasks-per-gpu")
    cpus = job.options.has("cpus-per-task") or "cpu" in job.options.text("tres-per-task")
    if asked is not None and cpus:
        yield at("ntasks-per-gpu-with-cpus", asked)
        yield at("ntasks-per-gpu-pends", asked)


@checks("cpus-per-gpu-ignored")
def cpus_per_gpu(job: Job) -> Iterator[Hit]:
    """CPUs counted per GPU, which steps know since one release only; a whole step has all CPUs."""
    alone = [step.options for step in job.sruns
             if counts_cpus(job, step) and not step.options.has("cpus-per-task")]  # fmt: skip
    for command, options, option in job.given("cpus-per-gpu"):
        ignored = alone if command == "sbatch" else any(one is options for one in alone)
        if ignored and not options.has("cpus-per-task"):
            yield at("cpus-per-gpu-ignored", option)


@checks("allow-task-sharing-srun-only", "allow-task-sharing-indices")
def task_sharing(job: Job) -> Iterator[Hit]:
    """--gres-flags=allow-task-sharing where it is refused, or counts wrongly."""
    for command, _, option in job.given("gres-flags"):
        where = "indices" if command == "srun" else "srun-only"
        if "allow-task-sharing" in option.text:
            yield at(f"allow-task-sharing-{where}", option)


@checks("local-rank-global")
def global_for_local(job: Job) -> Iterator[Hit]:
    """The global rank where the local one belongs, in a variable or an argument."""
    if job.nodes == 1:
        return
    for one in job.script.assigned(*_LOCAL_RANKS, *_VISIBLE):
        apart = one.name in _VISIBLE and one.command.within("substitution")
        if _GLOBAL.search(one.value) and "%" not in one.value and not apart:
            yield at("local-rank-global", one)
    for command in job.script.commands:
        for word, after in pairwise((*command.words, Word("", 0))):
            match = _RANK_ARGUMENT.match(word.raw) if word.raw[:2] == "--" else None
            value = match[1] if match and match[1] is not None else after.raw
            if match and _GLOBAL.search(value) and "%" not in value:
                yield at("local-rank-global", word)


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
        nodes = step.options.nodes if step.options.has("nodes") else job.nodes
        settled = _meets(step) or nodes == 1  # that of a single node is 0
        for before, word in pairwise((step.command.words[0], *step.options.rest)):
            of_node = _NODE_RANK.search(f"{before.raw} {word.raw}")
            if _filled_in(word.raw) and not (settled and of_node):
                yield at("rank-of-batch-shell", word)


def _meets(step: Step) -> bool:
    """Whether it starts agents that meet by a rendezvous: they take no heed of a node's rank."""
    return any("rdzv_backend" in one.value.replace("-", "_") for one in step.options.rest)


def _filled_in(raw: str) -> bool:
    """Whether the shell that reads a word puts its own rank there."""
    match = _OWN_RANK.search(raw)
    return match is not None and raw[: match.start()].count("'") % 2 == 0


@checks("rank-by-hand")
def ranks_by_hand(job: Job) -> Iterator[Hit]:
    """Ranks that a script renumbers: by a case, a test or a table of its own."""
    for one in job.script.assigned(*_LOCAL_RANKS, *_GLOBAL_RANKS):
        if _INDEXED.search(one.value):
            yield at("rank-by-hand", one)
        elif one.name in _GLOBAL_RANKS and one.value in {"$SLURM_LOCALID", "${SLURM_LOCALID}"}:
            if job.nodes != 1 and job.script.is_batch:
                yield at("rank-by-hand", one, "the local rank is taken for the global one")
        elif one.value.isdigit():
            rank = _rank_at(one)
            if rank is not None and int(rank) != int(one.value[:9]):
                yield at("rank-by-hand", one, f"rank {rank} becomes {one.value[:9]}")


def _rank_at(one: Assignment) -> str | None:
    """The single rank for which an assignment runs, by the case or test around it."""
    for scope in reversed(one.command.scopes):
        if scope.kind == "arm" and _RANK.search(scope.subject):
            numbers = [pattern for pattern in scope.patterns if pattern.isdigit()]
            return numbers[0] if len(numbers) == len(scope.patterns) == 1 else None
        if scope.kind == "then" and (match := _TESTED.search(scope.subject)):
            return match.group(1)
    return None
