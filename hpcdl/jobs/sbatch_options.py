"""Further options of sbatch that a user asks for: `--mail-type`, `--reservation`, `--exclude`.

Slurm's own table (facts/slurm_options.yaml) says what there is, and what the script decides itself:
that is refused with hpcdl's own option for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hpcdl.facts import load
from hpcdl.jobs.quote import directive
from hpcdl.slurm.rules import as_release
from hpcdl.system.errors import BadInput
from hpcdl.system.text import did_you_mean

_ONE_KIND = (
    "all its nodes are alike: name them by --partition and --gpu-model; a job of several "
    "components is written by hand, and `hpcdl job lint` checks it"
)


@cache
def own_options() -> dict[str, str]:
    """What the script decides itself of sbatch's options, and what to say instead, by name."""
    said = load("slurm_options")["own"].items()
    return {name: instead for instead, names in said for name in names}


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


def as_ours(name: str) -> str:
    """How a job is asked for what this option of sbatch asks for; '' where sbatch has none."""
    from hpcdl.jobs.lint.options import known_options

    fact = known_options("sbatch").get(name)
    value = "=VALUE" if fact and fact.argument == "required" else ""
    return _own(name) or (f"write --sbatch {name}{value}" if fact else "")


def _own(name: str) -> str:
    """What to say instead of an option that the script decides itself."""
    if name in {"hetjob", "packjob"}:  # no options, but lines of a script
        return _ONE_KIND
    return "use --container" if name.startswith("container") else own_options().get(name, "")


def _check(version: str, name: str, value: str | None) -> None:
    from hpcdl.jobs.lint.options import known_options

    if own := _own(name):
        raise BadInput(f"--sbatch {name}: the script decides that itself", hint=own)
    release = as_release(version)
    known = {key: fact for key, fact in known_options("sbatch").items() if fact.span.holds(release)}
    if name not in known:
        choices = sorted(known.keys() - own_options().keys())
        said = f"sbatch of Slurm {release} has no option {name!r}"
        raise BadInput(said, hint=did_you_mean(name, choices))
    needs = known[name].argument
    if needs == "required" and not value:
        raise BadInput(f"--sbatch {name} needs a value", hint=f"write --sbatch {name}=VALUE")
    if needs == "none" and value is not None:
        raise BadInput(f"--sbatch {name} takes no value", hint=f"write --sbatch {name}")
    if value and not value.isprintable():
        raise BadInput(f"the value of --sbatch {name} has characters that no directive can hold")
