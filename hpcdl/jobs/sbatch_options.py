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
def answers(key: str) -> dict[str, str]:
    """Return the advice for options, by name: the script's `own`, or `foreign` ones."""
    rows = load("slurm_options")[key].items()
    return {name: instead for instead, names in rows for name in names}


def directives(version: str, asked: Sequence[str], chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """The directives of options such as `mail-type=END`, with or without leading dashes.

    `chosen` are directives that the script has already, by which Slurm finds the GPU model.

    Raises:
        BadInput: an option that the script decides itself, that the release does not have, or that
            is given twice, or without the value that it needs.
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
        _check(version, name, value if sign else None)
        lines[name] = f"--{name}={directive(value)}" if sign else f"--{name}"
    return tuple(lines.values())


def as_ours(option: str) -> str:
    """Return our option for `--nodes`, `-N2` or another program's option, as typed; or ''."""
    from hpcdl.slurm.options import known_options, letters

    known, name = known_options("sbatch"), option.lstrip("-")
    if name not in known and not option.startswith("--") and name[:1] in letters("sbatch"):
        name = letters("sbatch")[name[:1]].name
    if (answer := _own(name) or answers("foreign").get(name, "")) or name not in known:
        return answer
    return f"write --sbatch {name}" + "=VALUE" * (known[name].argument == "required")


def _own(name: str) -> str:
    """Return the advice for an option that the script decides itself."""
    if name in {"hetjob", "packjob"}:  # no options, but lines of a script
        return _ONE_KIND
    return "use --container" if name.startswith("container") else answers("own").get(name, "")


def _check(version: str, name: str, value: str | None) -> None:
    from hpcdl.slurm.options import known_options

    if own := _own(name):
        raise BadInput(f"--sbatch {name}: the script sets this itself", hint=own)
    release = as_release(version)
    options = {
        key: fact for key, fact in known_options("sbatch").items() if fact.span.holds(release)
    }
    words = name.split()
    if len(words) == 2 and words[0] in options:
        message = f"--sbatch '{name}' has a blank for the '='"
        raise BadInput(message, hint=f"write --sbatch {words[0]}={words[1]}")
    if name.startswith("-") and (hint := as_ours(name)):
        raise BadInput(f"--sbatch takes long names of options, not '{name}'", hint=hint)
    if name not in options:
        choices = sorted(options.keys() - answers("own").keys())
        message = f"sbatch of Slurm {release} has no option {name!r}"
        raise BadInput(message, hint=did_you_mean(name, choices))
    needs = options[name].argument
    if needs == "required" and not value:
        raise BadInput(f"--sbatch {name} needs a value", hint=f"write --sbatch {name}=VALUE")
    if needs == "none" and value is not None:
        raise BadInput(f"--sbatch {name} takes no value", hint=f"write --sbatch {name}")
    if value and not value.isprintable():
        raise BadInput(f"the value of --sbatch {name} has characters that no directive can hold")
