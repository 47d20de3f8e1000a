"""The options that describe a job, and the job they mean: `hpcdl job render`, `submit`, `sweep`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdl import facts
from hpcdl.cli.framework import Parser, the_site
from hpcdl.cli.train import train_arguments
from hpcdl.jobs import JobSpec, Module
from hpcdl.jobs.launch import with_version
from hpcdl.jobs.program import NotHere
from hpcdl.jobs.script import as_ours
from hpcdl.jobs.spec import command_of, is_train, load_request, looks_secret
from hpcdl.system.declare import build, configure, entries, merged, typed
from hpcdl.system.errors import BadInput, HpcdlError
from hpcdl.system.resources import cached
from hpcdl.system.text import count_of, did_you_mean

if TYPE_CHECKING:
    from hpcdl.site import Site


PROGRAM = "the program, or options of `hpcdl train`"
"""What follows two dashes."""
_SHORT = {"partition", "gpus", "cpus_per_task", "mem", "minutes", "modules"}


def options(parser: argparse.ArgumentParser, leave_out: Collection[str] = ()) -> None:
    """The options that describe a job; those of the fields `leave_out` are not for this command."""
    configure(parser, JobSpec, leave_out)
    add = parser.add_argument
    add("--file", type=Path, metavar="FILE", help="job.yaml; options override its values")
    parser.set_defaults(elsewhere=_elsewhere)


def short_options(parser: argparse.ArgumentParser) -> None:
    """The options of a job at which somebody works; `--file` has the rest."""
    options(parser, {entry.name for entry in entries(JobSpec)} - _SHORT)


def _elsewhere(option: str) -> str:
    behind = option.lstrip("-") in train_options(command_of(()))
    hint = "`hpcdl train` takes it: write it after --" * behind
    return "; or ".join(filter(None, [as_ours(option), hint]))


def asked_site(args: argparse.Namespace) -> Site:
    """Return the site, with --slurm-version; reports faults of file and options first."""
    args.asked = _asked(args)
    site, version = the_site(args), getattr(args, "slurm_version", None)
    return with_version(site, version) if version else site


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """The written forms of the file and the options, which go before it."""
    file = {} if args.file is None else load_request(args.file)
    if getattr(args, "environment", None) is not None:
        args.environment = [_variable(text) for text in args.environment]
    if args.gpus and (model := re.fullmatch(r"(\w+):(\d+)", args.gpus)):
        hint = f"write --gpus {model[2]}; --partition, or --gpu-model {model[1]}, says which GPU"
        raise BadInput(f"argument --gpus: '{args.gpus}' is not a number", hint=hint)
    values = merged(JobSpec, file, typed(JobSpec, args))
    return {**values, "program": command_of(args.rest or values.get("program", ()))}


def spec_of(args: argparse.Namespace, site: Site) -> JobSpec:
    """The job that a file and the options mean; a missing partition is the site's default."""
    from hpcdl.jobs.program import seen_from

    return seen_from(
        Path.cwd(), build(JobSpec, {"partition": site.default_partition, **args.asked})
    )


def checked(site: Site, spec: JobSpec, *, queued: bool, module: Module | None = None) -> Module:
    """The module of a job, after all that can be known of the job before it is queued is checked.

    `queued` says whether it is to be queued here: then its release, program and data set must be
    there. A script that is only printed may be for another machine, where a note does. With a
    `module` no other is looked for.

    Raises:
        BadInput: everything that is wrong with the job, at once.
        MissingPrerequisite: only the release is missing.
    """
    from hpcdl.jobs.program import check_program
    from hpcdl.jobs.script import check_request

    faults: list[HpcdlError] = []
    loaded = module or Module(())
    checks: list[Callable[[], object]] = [
        lambda: check_request(site, spec),
        lambda: _check_words(spec.program, queued=queued),
        lambda: _check_datasets(site, spec),
        lambda: check_program(Path.cwd(), spec, loaded, queued=queued),
    ]
    if module is None:
        try:
            loaded = module_of(site, spec, published=queued)
        except HpcdlError as fault:
            faults.append(fault)
    for check in checks:
        try:
            check()
        except HpcdlError as fault:
            faults.append(fault)
    elsewhere = [] if queued else [one.message for one in faults if isinstance(one, NotHere)]
    _raise([one for one in faults if one.message not in elsewhere])
    for message in elsewhere:
        print(f"note: {message}", file=sys.stderr)
    _note_directives(spec)
    return loaded


def _raise(faults: Sequence[HpcdlError]) -> None:
    """Raise one error for all faults, each once."""
    apart = list({fault.message: fault for fault in faults}.values())
    if len(apart) == 1:
        raise apart[0]
    if apart:
        message = f"{count_of(len(apart), 'thing')} are wrong with this job"
        raise BadInput(message, details=[one.in_one_line() for one in apart])


def _check_datasets(site: Site, spec: JobSpec) -> None:
    if spec.container and not site.paths.datasets.is_dir():
        message = f"there is no directory {site.paths.datasets}, which containers of this site see"
        raise BadInput(message, hint="make it, or correct `datasets` in the site file")


def _note_directives(spec: JobSpec) -> None:
    from hpcdl.jobs.program import unread_directives

    if script := unread_directives(spec):
        print(
            f"note: the #SBATCH lines of {script.name} do not count here: options of `hpcdl job` "
            "say what the job gets",
            file=sys.stderr,
        )


def _variable(text: str) -> str:
    """`NAME=VALUE`; the value of a name alone is taken from our environment, or asked for."""
    name, sign, _ = text.partition("=")
    if sign:
        if looks_secret(name):
            message = f"note: other users of this machine may have seen {name} on the command line"
            print(
                f"{message}; `--env {name}` takes it from your environment, or asks",
                file=sys.stderr,
            )
        return text
    if name in os.environ:
        return f"{name}={os.environ[name]}"
    if sys.stdin is not None and sys.stdin.isatty():
        from getpass import getpass

        return f"{name}={getpass(f'{name}: ')}"
    raise BadInput(f"--env {name!r} has no value here", hint=f"write {name}=VALUE, or export it")


def pair(option: str, text: str, form: str) -> tuple[str, str]:
    """`NAME=VALUE` as two."""
    name, sign, value = text.partition("=")
    if not sign:
        raise BadInput(f"{option} {text!r} has no '='", hint=f"write {form}")
    return name, value


def module_of(site: Site, spec: JobSpec, *, published: bool) -> Module:
    """The module that the job loads; `published`: it must be there now."""
    from hpcdl.workflows.modules import modules_of_job

    module = modules_of_job(site, spec, published=published)[spec.partition]
    if module.names and module.release is None and not spec.modules:
        print(
            f"note: no release is published for '{spec.partition}': the script loads the module "
            f"{module.names[0]} in whatever version there is",
            file=sys.stderr,
        )
    return module


# ---- the arguments of `hpcdl train` ----


@cache
def _parser() -> Parser:
    parser = Parser(prog="hpcdl train", allow_abbrev=False)
    train_arguments(parser)
    parser.add_argument("--json", action="store_true")
    return parser


def train_options(program: Sequence[str]) -> set[str]:
    """The names of the options of `hpcdl train`; none for another program."""
    from hpcdl.train.options import OPTIONS

    return {str(one.flag).removeprefix("--") for one in OPTIONS} if is_train(program) else set()


def _check_words(program: Sequence[str], *, queued: bool) -> None:
    """Refuse arguments of `hpcdl train` that it would refuse when the job runs.

    A data set is looked for where the job is queued: a script that is only printed may be for
    another machine.
    """
    if not is_train(program) or len(program) == 2:
        return
    from hpcdl.train.options import SYNTHETIC, from_namespace

    options = from_namespace(_parser().parse_args(program[2:]))
    models = cached("facts", [facts.path("models")], lambda: facts.load("models"))["models"]
    if options.model not in models and ":" not in options.model:
        raise BadInput(f"unknown model '{options.model}'", hint=did_you_mean(options.model, models))
    data = options.data if queued else ""
    if data and data != SYNTHETIC and "$" not in data and not Path(data, "dataset.json").is_file():
        there = Path(data).is_dir()
        raise BadInput(
            f"{data} has no dataset.json" if there else f"there is no data set {data}",
            hint="`hpcdl data make` writes one; `--data synthetic` needs none",
        )
