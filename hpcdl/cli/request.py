"""The options that describe a job, and the job they mean: `hpcdl job render`, `submit`, `sweep`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import the_site
from hpcdl.cli.train import check_words, train_options
from hpcdl.jobs import JobSpec, Module
from hpcdl.jobs.environment import looks_secret
from hpcdl.jobs.launch import with_version
from hpcdl.jobs.sbatch_options import as_ours
from hpcdl.jobs.spec import Memory, command_of, load_request, memory_of, minutes_of
from hpcdl.system.errors import BadInput

if TYPE_CHECKING:
    from hpcdl.site import Site

_MEMORY = ("mem", "mem_per_cpu", "mem_per_gpu")
_SHAPE = ("gpus", "nodes", "gpus_per_node", "tasks", "tasks_per_node")
_AS_GIVEN = (*_SHAPE, "cpus_per_task", "account", "qos", "gpu_model", "trusted_network")
"""Options that a JobSpec takes by the same names."""


def options(parser: argparse.ArgumentParser) -> None:
    """The options that describe a job."""
    add = parser.add_argument
    add("--partition", metavar="NAME", help="partition (default: the site's)")
    add("--gpus", type=int, metavar="N", help="total number of GPUs, one rank each")
    add("--gpu-model", metavar="MODEL", help="the GPU, where a partition has several models")
    add("--nodes", type=int, metavar="N", help="nodes")
    add("--gpus-per-node", type=int, metavar="N", help="GPUs per node")
    add("--tasks", type=int, metavar="N", help="processes in all, for jobs without GPUs")
    add("--tasks-per-node", type=int, metavar="N", help="ranks per node, for jobs without GPUs")
    add("--cpus-per-task", type=int, metavar="N", help="CPUs per rank (default: its share)")
    for option, per in (("--mem", "node"), ("--mem-per-cpu", "CPU"), ("--mem-per-gpu", "GPU")):
        add(option, metavar="SIZE", help=f"memory per {per}, such as 64G (default: its share)")
    add("--time", metavar="TIME", help="walltime, as for sbatch (default: 1 hour)")
    add("--name", help="job name (default: train)")
    add(
        "--launcher",
        metavar="NAME",
        help="horovod (default), horovod-mpirun, mpi, torch, torchrun, jax, multiworker, plain "
        "or single",
    )
    add(
        "--trusted-network",
        action="store_true",
        help="for multiworker: all who reach the nodes' ports may run code as you",
    )
    add(
        "--module",
        action="append",
        default=[],
        metavar="NAME[/VERSION]",
        help="module to load instead of the published release's; may be repeated",
    )
    add("--no-module", action="store_true", help="load no module")
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="variable of the job; without a value: yours, or asked for; repeatable",
    )
    add("--account", metavar="NAME", help="account to charge")
    add("--qos", metavar="NAME", help="quality of service")
    add("--reservation", metavar="NAME", help="reservation to run in")
    add("--licenses", metavar="NAME[:N],..", help="licences that the job needs")
    add(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="additional sbatch option, such as mail-type=END; may be repeated",
    )
    add("--data", metavar="DIR", help="data set; the job finds it in HPCDL_DATA")
    add("--stage-data", action="store_true", help="copy the data set to node-local disks first")
    add("--container", metavar="IMAGE", help="container image for the program, without modules")
    add(
        "--chdir",
        type=Path,
        metavar="DIR",
        help="where the program works (default: the job's own directory)",
    )
    add("--no-preflight", action="store_true", help="skip the preflight checks")
    add("--job-dir", type=Path, metavar="DIR", help="directory of the job's files")
    add("--file", type=Path, metavar="FILE", help="job.yaml; options override its values")
    add(
        "--standalone",
        action="store_true",
        help="write into the script what it would source from the release",
    )
    add(
        "--slurm-version",
        metavar="V",
        help="write the script for this Slurm release, not the site's",
    )
    parser.epilog = "after --: the program, or options of `hpcdl train`"
    parser.set_defaults(takes_program=True, elsewhere=_elsewhere)


def _elsewhere(option: str) -> str:
    behind = option.lstrip("-") in train_options(command_of(()))
    told = "`hpcdl train` takes it: write it after --" * behind
    return "; or ".join(filter(None, [as_ours(option), told]))


def asked_site(args: argparse.Namespace) -> Site:
    """The site, as of --slurm-version. What --file says fills the options that are not given."""
    if args.file is not None:
        _fill(args)
    site = the_site(args)
    return site if args.slurm_version is None else with_version(site, args.slurm_version)


def _fill(args: argparse.Namespace) -> None:
    said = load_request(args.file)
    said |= {key: Path(said[key]) for key in ("job_dir", "chdir") if key in said}
    for together in (_SHAPE, _MEMORY):
        if any(getattr(args, key) is not None for key in together):
            said = {key: value for key, value in said.items() if key not in together}
    for key, value in said.items():
        if getattr(args, key, "") is None:
            setattr(args, key, value)
    args.env = [*(f"{name}={value}" for name, value in said["env"].items()), *args.env]
    args.no_module = args.no_module or (said.get("modules") == [] and not args.module)
    args.module = args.module or ([] if args.no_module else said.get("modules", []))
    args.sbatch = args.sbatch or said.get("sbatch", [])
    args.stage_data = args.stage_data or said["stage_data"]
    args.trusted_network = args.trusted_network or said["trusted_network"]
    args.no_preflight = args.no_preflight or not said["preflight"]
    args.rest = args.rest or said.get("program", [])


def spec_of(args: argparse.Namespace, site: Site) -> JobSpec:
    """The job that the options mean; what is not given is the site's or the generator's default."""
    from hpcdl.jobs.program import seen_from

    named = {"reservation": args.reservation, "licenses": args.licenses}
    own = [f"{name}={value}" for name, value in named.items() if value is not None]
    asked = JobSpec(
        **{key: getattr(args, key) for key in _AS_GIVEN},
        partition=args.partition or site.default_partition,
        minutes=minutes_of(args.time) if args.time is not None else None,
        name="train" if args.name is None else args.name,
        launcher="horovod" if args.launcher is None else args.launcher,
        program=command_of(args.rest),
        environment=dict(map(_variable, args.env)),
        job_dir=_directory(args.job_dir),
        chdir=_directory(args.chdir),
        preflight=not args.no_preflight,
        data=str(_path(args.data)) if args.data else None,
        stage=args.stage_data,
        container=image_of(args.container),
        sbatch=(*own, *args.sbatch),
        memory=_memory(args),
    )
    return seen_from(Path.cwd(), asked)


def checked(site: Site, spec: JobSpec, module: Module, *, queued: bool = True) -> JobSpec:
    """The same, once its program, its image and what a container is to see are there.

    `queued` says whether it is to be queued here, so that its data set must be there, too.
    """
    from hpcdl.jobs.program import check_data, check_image_name, check_program, unread_directives

    check_words(spec.program, spec.launcher, queued=queued)
    if spec.container and not site.paths.datasets.is_dir():
        said = f"there is no directory {site.paths.datasets}, which containers of this site see"
        raise BadInput(said, hint="make it, or correct `datasets` in the site file")
    check_program(Path.cwd(), spec, module, queued=queued)
    if queued:
        check_data(spec)
    check_image_name(site.container, spec.container)
    if script := unread_directives(spec):
        print(
            f"note: the #SBATCH lines of {script.name} do not count here: options of `hpcdl job` "
            "say what the job gets",
            file=sys.stderr,
        )
    return spec


def _memory(args: argparse.Namespace) -> Memory | None:
    given = [key for key in _MEMORY if getattr(args, key) is not None]
    if len(given) > 1:
        raise BadInput(
            "--mem, --mem-per-cpu and --mem-per-gpu exclude each other", hint="give one of them"
        )
    for key in given:
        mb = memory_of(f"--{key.replace('_', '-')}", getattr(args, key))
        return Memory(mb, "node" if key == "mem" else key.removeprefix("mem_per_"))
    return None


def _variable(text: str) -> tuple[str, str]:
    """A variable of the job; a name alone is taken from our environment, or asked for."""
    name, sign, value = text.partition("=")
    if sign:
        if looks_secret(name):
            said = f"note: others of this machine may have seen {name} on the command line"
            print(
                f"{said}; `--env {name}` takes it from your environment, or asks", file=sys.stderr
            )
        if more := re.match(r"[^=,]*,([A-Z_]\w*)=", value):
            print(
                f"note: all of that is the value of {name}; {more[1]} is set by an --env of "
                "its own",
                file=sys.stderr,
            )
        return name, value
    if name in os.environ:
        return name, os.environ[name]
    if sys.stdin is not None and sys.stdin.isatty():
        from getpass import getpass

        return name, getpass(f"{name}: ")
    raise BadInput(f"--env {name!r} has no value here", hint=f"write {name}=VALUE, or export it")


def _path(given: str | Path) -> Path:
    """A path as the shell would have it: no shell expands what a file, or `--data=~/x`, says."""
    try:
        return Path(given).expanduser().absolute()
    except RuntimeError as fault:
        raise BadInput(f"{given}: there is no such user, or no home") from fault


def _directory(given: Path | None) -> Path | None:
    """A directory that is made or used here, so that no variable in its name is left."""
    path = _path(given) if given else None
    if path and (found := re.search(r"\$\{?\w+", str(given))) and not path.exists():
        raise BadInput(f"{given}: no shell has put in what {found[0]} is", hint="write the path")
    return path


def image_of(given: str | None) -> str | None:
    """A container's image, which may be a name instead of a path; jobs work elsewhere than here."""
    if given and (given[0] in "~." or os.access(given, os.F_OK)):
        return str(_path(given))
    return given


def pair(option: str, text: str, form: str) -> tuple[str, str]:
    """`NAME=VALUE` as two."""
    name, sign, value = text.partition("=")
    if not sign:
        raise BadInput(f"{option} {text!r} has no '='", hint=f"write {form}")
    return name, value


def module_of(args: argparse.Namespace, site: Site, *, published: bool) -> Module:
    """The module that the job loads; `published`: it must be there now."""
    partition = args.partition or site.default_partition
    return modules_of(args, site, (partition,), published=published)[partition]


def modules_of(
    args: argparse.Namespace, site: Site, partitions: Sequence[str], *, published: bool
) -> dict[str, Module]:
    """The module that the jobs of each of these partitions load: each may have its own stack."""
    from hpcdl.workflows.modules import modules_of_job

    if args.no_module and args.module:
        raise BadInput("--no-module and --module exclude each other", hint="give one of them")
    named = () if args.no_module else args.module or None
    found = modules_of_job(
        site,
        partitions,
        named,
        gpu_model=args.gpu_model,
        container=args.container is not None,
        published=published,
    )
    if args.standalone:
        found = {name: module._replace(functions=None) for name, module in found.items()}
    return found
