"""The batch script: the template filled in, every line with its reason and rule.

The template (templates/sbatch/job.sh.j2) is the script; this module only works out its
values. Reasons ride behind their lines on a separator that no value can contain, because
`bash_word` writes control characters as escapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcdl import __version__
from hpcdl.facts import load
from hpcdl.jobs import launch
from hpcdl.jobs.layout import Layout, plan_on, selection
from hpcdl.jobs.spec import SIGNAL_SECONDS, JobSpec, Module, check_environment, check_spec, is_train
from hpcdl.site import Partition, Site
from hpcdl.slurm.options import known_options, letters, walltime
from hpcdl.slurm.rules import as_release, rule
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite
from hpcdl.system.frozen import dataclass
from hpcdl.system.resources import cache as cache_folder
from hpcdl.system.resources import templates
from hpcdl.system.text import (
    Expandable,
    bash_expandable,
    bash_word,
    bash_words,
    count_of,
    one_of,
    sbatch_value,
)
from hpcdl.system.trust import make_private

if TYPE_CHECKING:
    import jinja2

VALUES = "environment"
"""The file of a job's directory with the values that its user gave variables (of an array:
`array-NNN.environment` of its sweep).

A script is read by others: it is in a shared directory, Slurm keeps a copy, people mail it. So it
holds the names, and reads the values from this file of mode 0600, which stays as long as the
directory: a requeued job, the next of a chain and every task of an array read it again. A script
that was only rendered has no such file: it takes the values from where `sbatch` is run, or from the
file where somebody writes it.
"""
_OF_CLUSTER = "$SLURM_CLUSTER_NAME-$SLURM_JOB_ID"
_MARK = "\x1f"
_GRACE_SECONDS = 60


class ScriptLine(NamedTuple):
    """A line of a script, why it is there, and the ids of the rules it follows.

    Of several ids, separated by blanks, the first that holds in the release counts.
    """

    text: str
    reason: str = ""
    rules: str = ""

    def rule(self, version: str) -> str:
        """The id of the rule that this line follows on a release, '' where there is none."""
        if not self.rules:
            return ""
        release = as_release(version)
        return next((one for one in self.rules.split() if rule(one).holds(release)), "")


@dataclass(frozen=True)
class JobScript:
    """A whole script. `text` is what sbatch gets."""

    lines: tuple[ScriptLine, ...]
    layout: Layout
    slurm_version: str

    @property
    def text(self) -> str:
        """The script itself, ending in a newline."""
        return "\n".join(line.text for line in self.lines) + "\n"

    @property
    def directives(self) -> tuple[str, ...]:
        """The options on its #SBATCH lines."""
        sbatch = "#SBATCH "
        found = (line.text for line in self.lines if line.text.startswith(sbatch))
        return tuple(text.removeprefix(sbatch) for text in found)

    @property
    def explained(self) -> str:
        """The script with the reason, and the rule where there is one, before each line.

        Reasons of a continued line come before its first line.
        """
        shown, start = list[str](), 0
        for line in self.lines:
            if not shown or not shown[-1].endswith("\\"):
                start = len(shown)
            if line.reason:
                rule = line.rule(self.slurm_version)
                indent = line.text[: len(line.text) - len(line.text.lstrip())]
                shown.insert(start, f"{indent}#  {line.reason}" + (f"  [{rule}]" if rule else ""))
                start += 1
            shown.append(line.text)
        return "\n".join(shown)


@dataclass(frozen=True)
class ArrayOf:
    """A job array: its tasks, and the file with a line of arguments for each.

    The first argument of a line is the task's directory, the rest its program; logs go to `logs`
    beside the file. `running` is the most tasks at a time, None for no limit.
    """

    tasks: int
    arguments: Path
    running: int | None = None


def render_script(
    site: Site, spec: JobSpec, module: Module, array: ArrayOf | None = None
) -> JobScript:
    """The script of a job on a site, or of an array of jobs that differ in their programs.

    Raises BadInput: the request is impossible; says what would fit.
    """
    spec, nodes, layout = check_request(site, spec)
    values = _values(site, spec, nodes, layout, module)
    values |= _of_program(site, spec, array, values["rank_name"] is not None)
    text = _template("job.sh.j2").render(values)
    lines = (ScriptLine(*one.split(_MARK)[:3]) for one in text.removesuffix("\n").split("\n"))
    return JobScript(tuple(lines), layout, site.slurm.version)


def check_request(site: Site, spec: JobSpec) -> tuple[JobSpec, Partition, Layout]:
    """The job with its nodes and its layout on them; BadInput: it is impossible on this site."""
    spec = check_spec(spec)
    _check_setup(spec.setup)
    nodes, layout = plan_on(site, spec)
    launch.check_launcher(spec)
    launch.check_ranks(site, spec, nodes, layout)
    try:
        check_environment(nodes.environment)
    except BadInput as fault:
        message = f"the environment of '{nodes.name}' in the site file {fault.message}"
        raise BadInput(message, hint=fault.hint) from fault
    return spec, nodes, layout


@cache
def _check_setup(setup: tuple[str, ...]) -> None:
    """Raise BadInput for lines that bash would end elsewhere: the program would not start.

    Bash is asked, where there is one; as a group, which an open quote or document would not end.
    """
    from hpcdl.system.run import run

    if not setup:
        return
    group = "\n".join(["{ :", *setup, "}\n"])
    with suppress(MissingPrerequisite):
        asked = run(["bash", "-O", "extglob", "-n"], stdin=group, env={"BASH_ENV": ""}, check=False)
        if not asked.ok or asked.stderr.strip():
            message = (
                "--setup has a line that bash cannot parse, or that swallows the lines after it"
            )
            hint = "end every quote, `\\` and `if` that it begins"
            raise BadInput(message, details=[repr(line) for line in setup], hint=hint)


def render_shell(site: Site, spec: JobSpec, module: Module, where: Path) -> str:
    """Return bash's start-up of an interactive job: modules and variables as in a batch job."""
    nodes, layout = plan_on(site, spec)
    values = _values(site, spec, nodes, layout, module)
    return _template("shell.sh.j2").render(values, where=where, why=lambda *_: "")


def gpu_request(site: Site, partition: Partition, count: int) -> str:
    """The option that asks for `count` GPUs per node, as this site takes it."""
    assert partition.gpu is not None
    typed = f"{partition.gpu.gres_type}:" if partition.gpu.gres_type else ""
    if site.slurm.gpu_request == "gres":
        return f"--gres=gpu:{typed}{count}"
    return f"--gpus-per-node={typed}{count}"


def _memory_request(site: Site, partition: Partition, layout: Layout) -> str:
    """The option that asks for the job's memory as this site takes it, '' for none."""
    per = site.slurm.memory
    if per in {"none", "node"}:
        return f"--mem={layout.memory_mb}" if per == "node" else ""
    total = layout.memory_mb or int(partition.memory_gb * 1000)
    if per == "gpu" and layout.gpus_per_node:
        return f"--mem-per-gpu={total // layout.gpus_per_node}"
    return f"--mem-per-cpu={max(1, total // (layout.tasks_per_node * layout.cpus_per_task))}"


def _values(
    site: Site, spec: JobSpec, partition: Partition, layout: Layout, module: Module
) -> dict[str, Any]:
    slurm, job_dir = site.slurm, spec.job_dir
    chosen = selection(partition, layout.nodes)
    nice = () if spec.nice is None else (f"nice={spec.nice}",)
    warned = _warned(spec, layout)
    each = layout.gpus_per_node or layout.tasks_per_node
    kind = "GPU" if layout.gpus_per_node else "rank"
    # Clusters that share a file system have jobs of the same numbers.
    own_folder = f'{bash_word(str(site.paths.work / "jobs" / spec.name))}-"{_OF_CLUSTER}"'
    return {
        "site": site,
        "spec": spec,
        "layout": layout,
        "partition": partition,
        "module": module,
        "hpcdl_version": __version__,
        "shape": f"{count_of(layout.nodes, 'node')} x {count_of(each, kind)}",
        "further": directives((*nice, *spec.sbatch), chosen),
        "chosen": chosen,
        "account": spec.account or partition.account or slurm.account,
        "qos": spec.qos or partition.qos or slurm.qos,
        "gpu_request": partition.gpu and gpu_request(site, partition, layout.gpus_per_node),
        "memory": _memory_request(site, partition, layout),
        "requeues": spec.requeues if slurm.requeue else 0,
        "time": walltime(layout.minutes),
        "signal_seconds": warned,
        "grace": warned * 3 // 4 or _GRACE_SECONDS,
        "log": sbatch_value(_literal(job_dir / "job.log")) if job_dir else "%x-%j.log",
        "job_dir": bash_word(str(job_dir)) if job_dir else own_folder,
        "foreseen": job_dir is None,
        "traps": launch.traps(spec) or not spec.signal_before,
        "inherited": launch.inherited(slurm, gpus=layout.gpus_per_node > 0),
        "step_environment": launch.variables(slurm, spec.launcher, layout.nodes),
        "writes_result": is_train(spec.program) and not _has_option(spec.program, "--job-dir"),
        "stage": _stage(partition, spec),
        "preflight": _preflight(partition, spec, layout, module),
        "step": launch.launch_options(site, replace(spec, launcher="single"), layout),
        "values": str(job_dir / VALUES) if job_dir else "",
        **launch.rank_values(site, spec, partition, layout),
    }


def _warned(spec: JobSpec, layout: Layout) -> int:
    """Seconds before the limit at which the signal is sent; 0: it is not.

    Slurm may send it a minute early; the first half of the time is for work.
    """
    most = max(0, layout.minutes * 30 - 60)
    if spec.signal_before > most and spec.signal_before != SIGNAL_SECONDS:
        raise BadInput(
            f"--signal-before {spec.signal_before}: a job of {count_of(layout.minutes, 'minute')} "
            "would get the signal in the first half of its time",
            hint=f"ask for more --time, or for at most --signal-before {most or 'none'}",
        )
    return min(spec.signal_before, most)


def _stage(partition: Partition, spec: JobSpec) -> dict[str, object] | None:
    """Return the template's values for staging; None if nothing is staged."""
    if not spec.stage:
        return None
    if not spec.data:
        raise BadInput("stage_data needs the data set", hint="give --data DIR as well")
    if partition.scratch is None:
        message = f"'{partition.name}' has no node-local scratch to stage data to"
        raise BadInput(message, hint="leave stage_data out, or describe `scratch` in the site file")
    return {"target": f"{partition.scratch.path.rstrip('/')}/hpcdl-{_OF_CLUSTER}"}


def _of_program(site: Site, spec: JobSpec, array: ArrayOf | None, waits: bool) -> dict[str, object]:
    """Return the program; for an array also the log, the directory and the program of a task."""
    # `hpcdl train` gets the job's data directory, unless its options name one already.
    named = _has_option(spec.program, "--data")
    data = ' --data "$HPCDL_DATA"' if spec.data and is_train(spec.program) and not named else ""
    if array is None:
        argv = bash_words(launch.program_argv(site, spec, waits))
        return {"array": None, "program": argv + data}
    wrapper = launch.program_argv(site, replace(spec, program=("x",)), waits)[:-1]
    return {
        "array": f"0-{array.tasks - 1}" + (f"%{array.running}" if array.running else ""),
        "foreseen": False,
        "arguments": array.arguments,
        "log": sbatch_value(_literal(array.arguments.parent / "logs") + "/%A_%a.log"),
        "job_dir": '"${hpcdl_point[0]}"',
        "values": str(array.arguments.with_suffix(f".{VALUES}")),
        "program": f'{bash_words(wrapper)} "${{hpcdl_point[@]:1}}"'.lstrip() + data,
    }


def _has_option(program: tuple[str, ...], option: str) -> bool:
    return any(one == option or one.startswith(f"{option}=") for one in program)


def _preflight(
    partition: Partition, spec: JobSpec, layout: Layout, module: Module
) -> list[str] | None:
    """Further options of `hpcdl preflight judge`; None where the user wants no preflight."""
    if not spec.preflight:
        return None
    scratch = partition.scratch.path if partition.scratch else ""
    options = [f"--release={module.release}"] if module.release else []
    if scratch:
        option = f"--scratch={scratch}"
        options += [Expandable(option) if "$" in scratch else option]
    return [*options, *([f"--data={spec.data}"] if spec.data else [])]


def _literal(path: Path) -> str:
    """A path in which sbatch expands nothing."""
    return str(path).replace("%", "%%")


@cache
def _template(name: str) -> jinja2.Template:
    jinja = templates("sbatch", bytecode_cache=_compiled_templates())
    jinja.filters["word"] = bash_word
    jinja.filters["words"] = bash_words
    jinja.filters["expandable"] = bash_expandable
    jinja.globals["why"] = lambda reason, rules="": f"{_MARK}{reason}{_MARK}{rules}"
    return jinja.get_template(name)


def _compiled_templates() -> jinja2.BytecodeCache | None:
    """Return the cache of compiled templates: compiling takes longer than the rest of a render.

    None where the directory cannot be ours alone; what is read from it is run.
    """
    import jinja2

    try:
        place = make_private(cache_folder("templates"))
    except HpcdlError:
        return None

    class Kept(jinja2.FileSystemBytecodeCache):
        """Writes what it can: a script is rendered on a full disk, too."""

        def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
            with suppress(OSError):
                super().dump_bytecode(bucket)

    return Kept(str(place))


def as_shell(values: Mapping[str, str]) -> bytes:
    """Return the content of a file `VALUES`: lines of bash."""
    lines = (f"export {name}={bash_word(value)}\n" for name, value in values.items())
    return "".join(lines).encode(errors="surrogateescape")


def default_job_dir(site: Site, name: str, stamp: str) -> Path:
    """Return the directory where a submitted job keeps its files."""
    return site.paths.work / "jobs" / f"{name}-{stamp}"


# ---- further options of sbatch: `--mail-type`, `--reservation`, `--exclude` ----


@cache
def answers(key: str) -> dict[str, str]:
    """The advice for options, by name: those that the script decides (`own`), or `foreign` ones."""
    rows = load("slurm_options")[key].items()
    return {name: instead for instead, names in rows for name in names}


def directives(asked: Sequence[str], chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """The directives of options such as `mail-type=END`, with or without leading dashes.

    `chosen` are directives that the script has already, by which Slurm finds the GPU model.

    Raises BadInput: an option that the script decides itself, or that is given twice.
    """
    lines: dict[str, str] = {}
    for text in asked:
        name, sign, value = text.removeprefix("--").partition("=")
        if any(one.startswith(f"--{name}=") for one in chosen):
            raise BadInput(
                f"--sbatch {name}: the script says by it which GPU model the job is for",
                hint="give the nodes' GPUs a type in Slurm's Gres, so that it need not",
            )
        if name in lines:
            raise BadInput(f"--sbatch {name} is given twice", hint="give one of them")
        _check(name, value if sign else None)
        lines[name] = f"--{name}={sbatch_value(value)}" if sign else f"--{name}"
    return tuple(lines.values())


def as_ours(option: str) -> str:
    """Return our option for `--nodes`, `-N2` or another program's option, as typed; or ''."""
    known, name = known_options("sbatch"), option.lstrip("-")
    if name not in known and not option.startswith("--") and name[:1] in letters("sbatch"):
        name = letters("sbatch")[name[:1]].name
    if (answer := answers("own").get(name) or answers("foreign").get(name, "")) or (
        name not in known
    ):
        return answer
    return f"write --sbatch {name}" + "=VALUE" * (known[name].argument == "required")


def _check(name: str, value: str | None) -> None:
    """Raise BadInput for what the script decides itself; of all others sbatch is the judge."""
    if own := answers("own").get(name):
        raise BadInput(f"--sbatch {name}: the script sets this itself", hint=own)
    if name.startswith("-") and (hint := as_ours(name)):
        raise BadInput(f"--sbatch takes long names of options, not '{name}'", hint=hint)
    options = known_options("sbatch")
    if name not in options and (whole := [one for one in options if one.startswith(name)]):
        message = f"--sbatch {name}: an abbreviation may be what the script sets itself"
        raise BadInput(message, hint=f"write --sbatch {one_of(sorted(whole)[:4])}")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise BadInput(f"--sbatch {name!r} is no option", hint="write --sbatch NAME=VALUE")
    # sbatch would take the next line of the script for the value: `--comment` ate `--nodes=1`.
    if value is None and name in options and options[name].argument == "required":
        raise BadInput(f"--sbatch {name} has no value", hint=f"write --sbatch {name}=VALUE")
    if value and not value.isprintable():
        raise BadInput(f"the value of --sbatch {name} has characters that no directive can hold")
