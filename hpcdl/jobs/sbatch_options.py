"""Further options of sbatch that a user asks for: `--mail-type`, `--reservation`, `--exclude`.

Slurm's own table (facts/slurm_options.yaml) says what there is. What the script decides itself
is refused with hpcdl's own option for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcdl.jobs.quote import directive
from hpcdl.slurm.rules import as_release
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

_SHAPE = "use --gpus, --nodes, --gpus-per-node, --tasks, --tasks-per-node or --cpus-per-task"
_WHOLE = "a job has its share of each node; --nodes N asks for whole ones"
_FILES = "use --job-dir: log and results lie there"
_AGAIN = "the script handles the signal before its end and requeues itself"
_ONE_KIND = (
    "all its nodes are alike: name them by --partition and --gpu-model; a job of several "
    "components is written by hand, and `hpcdl job lint` checks it"
)

_EACH = "leave it out: each rank has one GPU, and --gpus N says how many there are"

# What the script decides itself, and what to say instead.
_OWN = {
    **dict.fromkeys(
        ("cores-per-socket", "extra-node-info", "gpus-per-socket", "mincpus", "ntasks-per-core",
         "ntasks-per-socket", "ntasks-per-tres", "overcommit", "sockets-per-node",
         "threads-per-core", "tres-per-task"),
        _SHAPE,
    ),
    "cpus-per-gpu": "use --cpus-per-task: each rank has one GPU",
    "gres": "use --gpus-per-node N, or --gpus N for all nodes; --partition says of which model",
    "ntasks": "use --gpus N, a rank each; without GPUs --tasks N",
    "ntasks-per-node": "use --gpus-per-node N, a rank each; without GPUs --tasks-per-node N",
    **dict.fromkeys(("gpus-per-task", "ntasks-per-gpu"), _EACH),
    **dict.fromkeys(("exclusive", "oversubscribe"), _WHOLE),
    **dict.fromkeys(("error", "open-mode", "output"), _FILES),
    **dict.fromkeys(("no-requeue", "requeue", "signal"), _AGAIN),
    **dict.fromkeys(("help", "parsable", "quiet", "test-only", "usage", "verbose", "version"),
                    "it is for the command line of sbatch, not for a job"),
    **dict.fromkeys(("cluster", "clusters"), "give the site of that cluster: --site"),
    **dict.fromkeys(("export", "export-file"), "use --env"),
    **{name: f"use --{name}"
       for name in ("account", "chdir", "cpus-per-task", "gpus", "gpus-per-node", "mem",
                    "mem-per-cpu", "mem-per-gpu", "nodes", "partition", "qos", "tasks-per-node",
                    "time")},
    "array": "use `hpcdl job sweep`",
    "input": "the program reads nothing from there",
    "job-name": "use --name",
    "wait": "use --watch",
    "wrap": "write the program after --",
}  # fmt: skip

# What other schedulers, and people, call it.
_FOREIGN = {
    **dict.fromkeys(("cores", "cpus", "ncpus", "threads"), "use --cpus-per-task"),
    **dict.fromkeys(("num-gpus", "num_gpus", "ngpus"), "use --gpus"),
    **dict.fromkeys(("nnodes", "num-nodes", "num_nodes"), "use --nodes"),
    **dict.fromkeys(("nproc-per-node", "nproc_per_node", "ppn"), "use --gpus-per-node"),
    **dict.fromkeys(("cwd", "workdir", "working-directory"), "use --chdir"),
    **dict.fromkeys(("log", "logfile", "out"), _FILES),
    **dict.fromkeys(("email", "mail"), "write --sbatch mail-type=END --sbatch mail-user=ADDRESS"),
    **dict.fromkeys(("interactive", "pty"), "a batch job has no terminal: `salloc`, then `srun`"),
    **dict.fromkeys(("host", "hosts", "node"), "use --nodes N; by name --sbatch nodelist=NAMES"),
    **dict.fromkeys(("conda", "venv", "virtualenv"), "name its Python after --: ENV/bin/python"),
    "project": "use --account", "queue": "use --partition", "walltime": "use --time",
}  # fmt: skip
# Options of the same names, beside those above.
_SAME = frozenset({"licenses", "reservation"})


def directives(version: str, asked: Sequence[str], chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """The directives of options such as `mail-type=END`, with or without leading dashes.

    `chosen` are directives that the script has already, by which Slurm finds the GPU model.

    Raises:
        BadInput: an option that the script decides itself, that the release does not have, or that
            is given twice, or without the value that it needs.
    """
    found: dict[str, str] = {}
    for text in asked:
        name, sign, value = text.removeprefix("--").partition("=")
        if any(one.startswith(f"--{name}=") for one in chosen):
            raise BadInput(
                f"--sbatch {name}: the script says by it which GPU model the job is for",
                hint="give the nodes' GPUs a type in Slurm's Gres, so that it need not",
            )
        if name in found:
            raise BadInput(f"--sbatch {name} is given twice", hint="give one of them")
        _check(version, name, value if sign else None)
        found[name] = f"--{name}={directive(value)}" if sign else f"--{name}"
    return tuple(found.values())


def as_ours(option: str) -> str:
    """How a job is asked for what this option of sbatch, or of others, asks for; '' for no such.

    `option` is as it was typed, up to a `=`: `--nodes`, `-N`, `-N2`, or `-nodes`.
    """
    from hpcdl.jobs.lint.options import known_options, letters

    known, name = known_options("sbatch"), option.lstrip("-")
    if name not in known and not option.startswith("--") and name[:1] in letters("sbatch"):
        name = letters("sbatch")[name[:1]].name
    if name in _SAME:
        return f"use --{name}"
    fact = known.get(name)
    value = "=VALUE" if fact and fact.argument == "required" else ""
    if fact is None:
        return _own(name) or _FOREIGN.get(name, "")
    return _own(name) or f"write --sbatch {name}{value}"


def _own(name: str) -> str:
    """What to say instead of an option that the script decides itself."""
    if name in {"hetjob", "packjob"}:  # no options, but lines of a script
        return _ONE_KIND
    return "use --container" if name.startswith("container") else _OWN.get(name, "")


def _check(version: str, name: str, value: str | None) -> None:
    from hpcdl.jobs.lint.options import known_options

    if own := _own(name):
        raise BadInput(f"--sbatch {name}: the script decides that itself", hint=own)
    release = as_release(version)
    known = {key: fact for key, fact in known_options("sbatch").items() if fact.span.holds(release)}
    if " " in name and name.split()[0] in known:
        said = f"--sbatch '{name}' has a blank for the '='"
        raise BadInput(said, hint=f"write --sbatch {name.split()[0]}={name.split()[1]}")
    if name not in known:
        choices = sorted(known.keys() - _OWN.keys())
        said = f"sbatch of Slurm {release} has no option {name!r}"
        raise BadInput(said, hint=did_you_mean(name, choices))
    needs = known[name].argument
    if needs == "required" and not value:
        raise BadInput(f"--sbatch {name} needs a value", hint=f"write --sbatch {name}=VALUE")
    if needs == "none" and value is not None:
        raise BadInput(f"--sbatch {name} takes no value", hint=f"write --sbatch {name}")
    if value and not value.isprintable():
        raise BadInput(f"the value of --sbatch {name} has characters that no directive can hold")
