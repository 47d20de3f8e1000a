"""Checks of what runs: launchers in launchers, ranks against GPUs and CPUs, nodes, variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from hpcdl.facts import load
from hpcdl.jobs.lint.check_steps import AMD
from hpcdl.jobs.lint.job import Hit, Job, at, checks
from hpcdl.jobs.lint.parse import LAUNCHERS, JobStep
from hpcdl.jobs.lint.shell import ShellCommand, Word, names
from hpcdl.slurm.rules import all_rules, rule
from hpcdl.slurm.unwrap import MPIRUN, is_agent
from hpcdl.system.text import count_of, nearest

Words = Sequence[Word]
_COUNTS = re.compile(
    r"--?(?:nproc[-_]per[-_]node|num[-_]gpus|num[-_]processes|nproc-per-node)(?:=(.*))?\Z"
)
_NNODES = re.compile(r"--?(?:nnodes|num[-_]machines)(?:=(.*))?\Z")
_NODE_RANK = re.compile(r"--?(?:node|machine)[-_]rank(?:=(.*))?\Z")
_WORKERS = re.compile(r"--(?:num|n)[-_]?workers(?:=(.*))?\Z")
_ONE_PER_GPU = re.compile(r"horovod|ddp|distributed|torch|deepspeed|lightning|train", re.I)
_NODELIST = r"[\"']?\$\{?SLURM_(?:JOB_)?NODELIST\b(?:%%?,\*)?\}?[\"']?"
_ECHOED = rf"[\"']?(?:\$\(|`) *echo +{_NODELIST}(?: *\| *(?:cut|tr) [^|\[\]\n]*)?[)`][\"']?"
_AS_LIST = re.compile(
    r"^[^#\n]*?(?<![\w-])("
    rf"for +\w+ +in +(?:{_NODELIST}|{_ECHOED})(?= *(?:;|$))"
    rf"|ssh +(?:-\S+ +)*{_NODELIST}(?=\s)"
    rf"|read +(?:-\w+ +)+\w+ *<<< *{_NODELIST}"
    rf"|(?:-H|--?hosts?|--?master[-_]addr)[= ]{_NODELIST}(?::\d+)?(?=\s|$)"
    rf"|(?:MASTER_ADDR|MASTER|HEAD_NODE|head_node)=(?:{_NODELIST}|{_ECHOED})(?=\s|;|$)"
    rf"|echo +{_NODELIST} *>+ *\S*(?:host|machine|node)\S*)",
    re.A | re.M,
)
"""The list of nodes, where names of nodes belong: in a loop, ssh, an option, a variable, a file."""
_ADDRESS = r"(?:MASTER_ADDR=|--?master[-_]addr[= ]|--?rdzv[-_]endpoint[= ]|tcp://)[\"']?"
_LOCAL = re.compile(_ADDRESS + r"(?:localhost|127\.0\.0\.1)\b", re.A)
_OWN_NAME = re.compile(
    _ADDRESS + r"(?:\$\(hostname|`hostname|\$\{?(?:HOSTNAME|SLURMD_NODENAME)\b)", re.A
)
_ALL_CPUS = re.compile(r"SLURM_(?:CPUS_ON_NODE|JOB_CPUS_PER_NODE)|\$\(nproc|`nproc")
_VARIABLE = re.compile(r"(?<!\\)\$(?:([A-Za-z_]\w*)|\{[#!]?([A-Za-z_]\w*))", re.A)
_NV = re.compile(
    r"--nv\b|--nvccli|--rocm|--gpus|--device|(?:APPTAINER|SINGULARITY)_NV|NVIDIA_VISIBLE"
)


def _value(words: Words, option: re.Pattern[str]) -> str:
    """The value of a program's option, behind `=` or in the next word; '' where it is absent."""
    for word, after in pairwise([*words, Word("", 0)]):
        if match := option.match(word.value):
            return match[1] if match[1] is not None else after.value
    return ""


@checks("launcher-nested")
def launchers_in_launchers(job: Job) -> Iterator[Hit]:
    """Srun of several tasks, each of which starts mpirun or srun again."""
    for step in job.sruns:
        tasks = job.step_tasks(step)
        if tasks is None or tasks < 2:
            continue
        for words in job.launched(step):
            if words[0].program in LAUNCHERS and not any("--version" in one.value for one in words):
                detail = f"{tasks} tasks each start {words[0].program}"
                yield at("launcher-nested", step, detail)
                break


@checks("torchrun-per-task")
def agents_per_task(job: Job) -> Iterator[Hit]:
    """Torchrun and its like, which start the ranks of a node, once for each task of a node."""
    for step in job.script.steps:
        per_node = job.step_tasks_per_node(step)
        several = per_node is not None and per_node > 1 and step.launcher == "srun"
        for words in job.launched(step) if several else ():
            if is_agent([one.value for one in words]) and _value(words, _COUNTS) != "1":
                yield at("torchrun-per-task", step, f"{per_node} tasks per node")
                break


@checks("ranks-over-gpus", "agent-nodes")
def agents_and_their_ranks(job: Job) -> Iterator[Hit]:
    """Torchrun with more workers than GPUs, or with other nodes than it is started on."""
    within = {id(job.parent(step.command)): step for step in job.script.steps}
    for command in job.script.commands:
        for words in command.programs:
            if not is_agent([one.value for one in words]):
                continue
            workers, gpus = job.number(_value(words, _COUNTS)), job.gpus_per_node
            per_node = "accelerate" not in words[0].value
            if workers and gpus and per_node and workers > gpus:
                yield at(
                    "ranks-over-gpus", words[0], f"{workers} workers for {gpus} GPUs of a node"
                )
            step = within.get(id(job.parent(command)))
            yield from _wrong_nodes(job, command, words, step)


def _wrong_nodes(
    job: Job, command: ShellCommand, words: Words, step: JobStep | None
) -> Iterator[Hit]:
    nodes, value = job.number(_value(words, _NNODES)), _value(words, _NNODES)
    if nodes is None or nodes < 2 or not job.script.is_batch or words[0].program == "deepspeed":
        return
    # Each node has a script of its own, or the script an argument of its own.
    numbered = re.match(r"\d|\$\{?\d", _value(words, _NODE_RANK))
    elsewhere = numbered or command.within("function", "inner") or command.background
    if step is None and not elsewhere:
        yield at("agent-nodes", words[0], f"--nnodes={value[:20]}, and nothing starts it elsewhere")
    elif step is not None and step.launcher == "srun":
        there = job.step_nodes(step)
        if there is not None and there != nodes:
            yield at("agent-nodes", words[0], f"it waits for {nodes} nodes, the step has {there}")


@checks("ranks-over-gpus")
def ranks_beyond_gpus(job: Job) -> Iterator[Hit]:
    """More ranks of a training that takes one GPU for each than the job has GPUs."""
    total = job.gpus
    for step in job.script.steps if total else ():
        words = " ".join(word.raw for word in step.options.rest)
        python = step.program.startswith("python") and _ONE_PER_GPU.search(words)
        if not python or any(is_agent([one.value for one in part]) for part in step.programs):
            continue
        ranks = job.step_tasks(step) if step.launcher == "srun" else job.mpirun_ranks(step)
        if ranks and total and ranks > total:
            yield at("ranks-over-gpus", step, f"{ranks} ranks for {total} GPUs")


@checks("mpirun-beyond")
def more_ranks_than_tasks(job: Job) -> Iterator[Hit]:
    """`mpirun -np 8` in an allocation of four tasks."""
    for step in job.script.steps:
        spread = any("oversubscribe" in word.value for word in step.options.rest)
        asked = job.options.has("ntasks", "ntasks-per-node") and not job.options.has(
            "ntasks-per-gpu"
        )
        if step.launcher not in MPIRUN or job.tasks is None or spread or not asked:
            continue
        ranks = job.mpirun_ranks(step)
        if ranks is not None and ranks > job.tasks and not step.command.within("inner"):
            detail = f"{count_of(ranks, 'rank')} for {count_of(job.tasks, 'task')}"
            yield at("mpirun-beyond", step, detail)


@checks("step-beyond")
def steps_beyond_the_job(job: Job) -> Iterator[Hit]:
    """Srun that asks for more tasks, nodes or GPUs than the job has."""
    counted = job.options.has("ntasks", "ntasks-per-node") and not job.options.has("exclusive")
    for step in job.sruns if job.script.is_batch and not job.heterogeneous else ():
        options = step.options
        if options.has("overcommit", "oversubscribe", "jobid") or job.nodes is None:
            continue
        each = options.number("cpus-per-task") or 1
        cpus = (job.tasks or 0) * (job.options.number("cpus-per-task") or 1)
        tasks, nodes, gpus = options.number("ntasks"), options.number("nodes"), job.gpus_per_node
        wanted = [
            one.number for one in options.gpus if one.option.name in {"gres", "gpus-per-node"}
        ]
        if nodes and nodes > job.nodes:
            yield at("step-beyond", step, f"{nodes} nodes of {job.nodes}")
        elif counted and tasks and cpus and tasks * each > cpus:
            yield at("step-beyond", step, f"{tasks * each} CPUs of {cpus}")
        elif gpus and wanted and wanted[-1] > gpus:
            yield at("step-beyond", step, f"{wanted[-1]} GPUs of {gpus} on a node")


_RUNTIMES = {"apptainer", "singularity", "docker", "podman"}


@checks("container-without-gpus")
def containers_without_gpus(job: Job) -> Iterator[Hit]:
    """A container in a job with GPUs that is not shown any."""
    # AMD's devices are files that containers see anyway.
    raws = (
        word.raw
        for command in job.script.commands
        for word in (*command.assignments, *command.words)
    )
    if not job.has_gpus or AMD.search(job.script.text) or any(map(_NV.search, raws)):
        return
    for command in job.script.commands:
        for words in command.programs:
            runs = words[0].program in _RUNTIMES and len(words) > 2
            hidden = any("$" in word.raw for word in words[2:4])  # it may hold --nv
            runs = runs and command.programs[-1][0].program not in {"tar", "cp", "ls"}
            if runs and words[1].value in {"exec", "run"} and not hidden:
                yield at("container-without-gpus", words[0])
                return


@checks("master-address")
def addresses_of_each_node(job: Job) -> Iterator[Hit]:
    """A rendezvous address that each node takes for itself."""
    wide = [
        step for step in job.script.steps if (job.step_nodes(step) or 1) > 1 and not step.trivial
    ]
    later = any("MASTER_ADDR=" in word.raw for step in wide for word in step.options.rest)
    for one in job.script.assigned("MASTER_ADDR") if wide and not later else ():
        if one.value in {"localhost", "127.0.0.1"} and not one.command.scopes:
            yield at("master-address", one, one.value)
    for step in wide:
        for words in pairwise([*step.options.rest, Word("", 0)]):
            text, line = " ".join(word.raw for word in words), " " in words[0].raw
            match = _LOCAL.search(text) if line else _LOCAL.match(text)
            if words[0].raw[:1] == "'":  # in "..." the batch shell puts its own name there
                match = match or _OWN_NAME.search(words[0].raw)
            if match:
                yield at("master-address", step, match[0])
                break


@checks("nodelist-compressed")
def node_lists_as_lists(job: Job) -> Iterator[Hit]:
    """`for n in $SLURM_NODELIST`, `mpirun -H $SLURM_NODELIST`: one word like p100-[01-02]."""
    for match in _AS_LIST.finditer(job.script.text) if job.nodes != 1 else ():
        yield Hit("nodelist-compressed", match.start(1), len(match[1]))


@checks("threads-beyond")
def threads_of_every_task(job: Job) -> Iterator[Hit]:
    """More threads for each of several tasks of a node than the task has CPUs."""
    steps = [step for step in job.script.steps if not (step.trivial or step.options.opaque)]
    alone = job.options.has("exclusive")
    for variable in job.script.assigned("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        for step in steps:
            tasks = job.step_tasks_per_node(step) if step.launcher == "srun" else job.tasks_per_node
            before = variable.exported and variable.command.start < step.start
            reaches = before or variable.command is step.command or not variable.command.words
            if tasks is None or tasks < 2 or not reaches or job.mpirun_ranks(step) == 1:
                continue
            cpus = step.options.number("cpus-per-task") or job.options.number("cpus-per-task")
            threads = job.number(variable.value)
            every = _ALL_CPUS.search(variable.value) and "/" not in variable.value
            beyond = threads is not None and threads > (cpus or 3) and not (alone and not cpus)
            if every or beyond:
                count = "all CPUs of the node" if every else f"{threads} threads"
                detail = f"{count} for each of {tasks} tasks with {count_of(cpus or 1, 'CPU')}"
                yield at("threads-beyond", variable, detail)
                break


_WAITS_FOR_DISKS = names("rsync cp mv rm ln tar scp wget curl aws gsutil")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "JULIA_NUM_THREADS")


@checks("workers-beyond")
def workers_beyond_cpus(job: Job) -> Iterator[Hit]:
    """`--num-workers 16` or `xargs -P 64` in a job of four CPUs."""
    each = job.options.number("cpus-per-task")
    if each is None or job.options.has("exclusive"):
        return
    for variable in job.script.assigned(*_THREADS) if job.tasks_per_node == 1 else ():
        threads = job.number(variable.value)
        if threads and threads > each and not variable.command.scopes:
            yield at("workers-beyond", variable, f"{threads} threads for {count_of(each, 'CPU')}")
    for command in job.script.commands:
        for words in command.programs:
            if words[0].program in {"xargs", "parallel", "make"}:
                if command.programs[-1][0].program in _WAITS_FOR_DISKS:
                    continue
                letter = re.compile(r"(?:-[PjJ]|--jobs|--max-procs)(?:=?(\d+))?\Z")
                count, cpus = job.number(_value(words, letter)), each * (job.tasks_per_node or 1)
            elif words[0].program.startswith("python") or is_agent([word.value for word in words]):
                count, cpus = job.number(_value(words, _WORKERS)), each
            else:
                continue
            if count and count > cpus:
                yield at("workers-beyond", words[0], f"{count} for {cpus} CPUs")
                break


@checks("steps-whole")
def steps_one_after_the_other(job: Job) -> Iterator[Hit]:
    """Steps in the background, each of which takes the whole node and waits for the one before."""
    if job.nodes != 1 or job.heterogeneous:
        return
    wide = [step for step in job.sruns if step.command.background and _takes_all(job, step)]
    if len(wide) > 1 or any(step.command.within("loop") for step in wide):
        yield at("steps-whole", wide[0])


def _takes_all(job: Job, step: JobStep) -> bool:
    """Whether a step asks for a part of the node's tasks, and gets all of it."""
    options = step.options
    shares = options.has("exact", "exclusive", "overlap", "oversubscribe", "jobid", "het-group")
    exact = options.has("cpus-per-task") and rule("exact-implied").holds(job.release)
    tasks = options.number("ntasks")
    part = tasks is not None and job.tasks is not None and tasks < job.tasks
    return part and not (shares or exact or options.opaque or step.trivial)


@checks("cuda-visible-devices")
def devices_that_the_job_has_not(job: Job) -> Iterator[Hit]:
    """`CUDA_VISIBLE_DEVICES=3` in a job of one GPU, whose number is 0."""
    gpus = job.gpus_per_node
    anew = bool(job.sruns) and len(job.sruns) == len(job.script.steps)  # srun sets it itself
    for one in job.script.assigned("CUDA_VISIBLE_DEVICES") if gpus and not anew else ():
        numbers = one.value.split(",")
        plain = gpus is not None and all(number.isdigit() for number in numbers)
        if gpus and plain and any(int(number[:6]) >= gpus for number in numbers):
            yield at("cuda-visible-devices", one, f"the job has {count_of(gpus, 'GPU')} of a node")


@checks("het-group-missing")
def steps_of_one_component(job: Job) -> Iterator[Hit]:
    """Steps of a heterogeneous job, none of which runs in a later component."""
    joined = any(word.raw == ":" for step in job.script.steps for word in step.command.words)
    named = any(step.options.has("het-group", "pack-group") for step in job.sruns)
    if not job.heterogeneous or joined or named or "SLURM_HET" in job.script.text:
        return
    work = [step for step in job.sruns if not (step.brief or step.options.opaque)]
    if work:
        count = len(job.script.components)
        yield at("het-group-missing", work[0], f"the job has {count} components")


# ---- variables ----


def _used(job: Job) -> Iterator[tuple[str, Word, int]]:
    """The variables that commands use: name, word, and offset of the `$`."""
    for command in job.script.commands:
        if command.within("inner"):
            continue  # a part of a word that was looked at
        for word in (*command.assignments, *command.words):
            for match in _VARIABLE.finditer(word.raw) if "$" in word.raw else ():
                yield match[1] or match[2], word, match.start()


@checks("variable-unknown")
def variables_of_nobody(job: Job) -> Iterator[Hit]:
    """`$SLURM_ARRAYID`: Slurm sets no such variable."""
    facts = load("slurm_variables")
    known, meant = set(facts["variables"]), facts["meant"]
    own = {one.name for one in job.script.assignments}
    for name, word, start in _used(job):
        unknown = re.match(r"S[A-Z]{2,5}_", name) and name not in known | own
        close = (meant.get(name) or nearest(name, known, 0.9)) if unknown else None
        # Heterogeneous jobs have known ones with a number behind them.
        if close and not re.fullmatch(rf"{close}(?:_[A-Z_]*)?_?\d+", name):
            place = Word(f"${name}", word.start + start)
            yield at("variable-unknown", place, f"did you mean ${close}?")


_ASKING = {"echo", "printf", "test", "[", "[["}
_BY_WORDS = [(one.id, re.compile(one.uses, re.A)) for one in all_rules() if one.uses]


@checks(*(rule for rule, _ in _BY_WORDS))
def words_that_rules_name(job: Job) -> Iterator[Hit]:
    """Rules that are a pattern of the words of a command: they need no code."""
    own = {one.name for one in job.script.assignments}
    for command in job.script.commands if job.script.is_batch else ():
        # A script for several batch systems asks first which one it runs in.
        sure = not command.scopes and command.name not in _ASKING
        for word in (*command.assignments, *command.words) if sure else ():
            for rule_id, pattern in _BY_WORDS:
                match = pattern.search(word.raw)
                if match and not own & set(match.groups()):
                    yield Hit(rule_id, word.start + match.start(), len(match[0]), match[0][:40])
