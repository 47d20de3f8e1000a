"""The functions that your own scripts may import; stable as docs/python.md promises.

    from hpcdl import api

    site = api.load_site("site.yaml")
    job = api.JobSpec("p100", nodes=2, gpus_per_node=4, program=("python", "train.py"))
    print(api.render(site, job).text)
    print(api.submit(site, job).job_id)

Every function raises `Fault` with `message` and `hint` where it cannot answer. The types of what is
passed are checked: of `program="python x.py"` each letter would become an argument.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hpcdl.jobs.spec import JobSpec
from hpcdl.site import Site, find_site_file
from hpcdl.system.errors import BadInput, of_the_system
from hpcdl.system.errors import HpcdlError as Fault
from hpcdl.system.files import careful_umask

if TYPE_CHECKING:
    from hpcdl.jobs import JobScript, Module
    from hpcdl.jobs.lint import LintFinding
    from hpcdl.jobs.submission import Submission
    from hpcdl.predict.request import Forecast
    from hpcdl.regress.answer import GateAnswer
    from hpcdl.regress.references import Reference
    from hpcdl.stack.resolve_solution import Resolution

__all__ = [
    "Fault",
    "JobSpec",
    "Site",
    "gate",
    "lint",
    "load_site",
    "predict",
    "references",
    "render",
    "resolve",
    "submit",
]
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "JobSpec": JobSpec,
    "None": type(None),
    "Path": Path,
    "Site": Site,
    "str": str,
    "tuple[str, ...]": (tuple, list),
}
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _checked(function: _Function) -> _Function:
    """The same function, which raises `Fault` only, also for arguments of other types."""
    kinds = dict(function.__annotations__)

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        asked = signature(function).bind(*given, **named)
        try:
            for name, value in asked.arguments.items():
                kind = kinds[name]
                types = tuple(_TYPES.get(word, object) for word in kind.split(" | "))
                if not isinstance(value, types):
                    message = f"{function.__name__}: {name} cannot be {value!r:.60}"
                    raise BadInput(message, hint=f"it is of the type {kind}")
            return function(*asked.args, **asked.kwargs)
        except OSError as fault:
            raise of_the_system(fault) from fault
        except Fault as fault:
            if fault.hint and sys.version_info >= (3, 11):
                fault.add_note(f"help: {fault.hint}")
            raise

    return cast("_Function", call)


@_checked
def load_site(name: str | Path | None = None) -> Site:
    """A site from its file, or by the name of one that hpcdl brings, such as `pi`.

    By default the one of HPCDL_SITE.
    """
    from hpcdl.site import load_site

    # A name is what is shipped, a Path always a file: `Path("pi")` is the one in this directory.
    given = f"./{name}" if isinstance(name, Path) and not name.is_absolute() else str(name or "")
    return load_site(find_site_file(given or None))


@_checked
def render(site: Site, job: JobSpec, modules: tuple[str, ...] | None = None) -> JobScript:
    """The batch script of a job: `text`, `layout`, and `lines`, each with its reason.

    It loads the site's published release, and names the module to come where there is none.
    `modules` are loaded instead; `()` loads none, as a job with a container does.
    """
    from hpcdl.jobs import render_script

    job = _seen(job)
    return render_script(site, job, _module(site, job, modules, published=False))


@_checked
@careful_umask()
def submit(site: Site, job: JobSpec, modules: tuple[str, ...] | None = None) -> Submission:
    """Queue a job, once: `job_id`, and the paths `script`, `log` and `result`.

    The same call after one that was stopped half-way finds the job of that one. `modules` are
    loaded instead of the published release's; `()` loads none.
    """
    from hpcdl.jobs.program import check_program
    from hpcdl.jobs.submission import submit

    job = _seen(job)
    module = _module(site, job, modules, published=True)
    check_program(Path.cwd(), job, module)
    return submit(site, job, module)


def _seen(job: JobSpec) -> JobSpec:
    """The job as the command line has it: what it names is seen from the current directory."""
    from hpcdl.jobs.program import seen_from
    from hpcdl.jobs.spec import check_spec

    return seen_from(Path.cwd(), check_spec(job))


def _module(site: Site, job: JobSpec, named: tuple[str, ...] | None, *, published: bool) -> Module:
    from hpcdl.workflows.modules import modules_of_job

    job = job if named is None else replace(job, modules=tuple(named))
    return modules_of_job(site, job, published=published)[job.partition]


@_checked
def lint(script: str | Path, site: Site, name: str = "job.sh") -> tuple[LintFinding, ...]:
    """Return what is wrong with a batch script (text or `Path`) on the site's release of Slurm."""
    from hpcdl.jobs.layout import cluster_of
    from hpcdl.jobs.lint import lint
    from hpcdl.jobs.lint.lint_report import read_script, require_script

    if isinstance(script, Path):
        script, name = read_script(script), str(script)
    else:
        require_script(script, f"the text {script!r:.60}", "to lint a file, pass its Path")
    version, cluster = site.slurm.version, cluster_of(site)
    return lint(script, name=name, version=version, cluster=cluster)


@_checked
def resolve(site: Site, partition: str | None = None) -> tuple[Resolution, ...]:
    """The newest versions that work together, per partition and kind of build."""
    from hpcdl.stack.resolve import Resolver

    return Resolver(site).resolve(partition)


@_checked
def predict(site: Site, partition: str, model: str, **more: Any) -> Forecast:
    """Images/s of a training on more and more GPUs of a partition, and what limits it.

    `more` are fields of `hpcdl.predict.request.ScalingRequest`: gpus (4, or such as "1-64" or
    "4,8"), batch, precision, size, real, result; `split` is text as that of `--split`.
    """
    from hpcdl.predict.request import ScalingRequest, answer
    from hpcdl.predict.step import split_of

    if type(more.get("gpus")) is int:
        more["gpus"] = str(more["gpus"])
    try:
        if "result" in more:
            more["result"] = Path(more["result"])
        if (split := more.pop("split", None)) is not None:
            more["plan"] = split_of([split])
        request = ScalingRequest(site.partition(partition), model, **more)
    except TypeError as fault:
        hint = "docs/python.md has an example; the fields are those of ScalingRequest"
        raise BadInput(f"predict: {fault}", hint=hint) from fault
    return answer(request)


@_checked
def references(site: Site, partition: str) -> tuple[Reference, ...]:
    """Return the references of a partition's nightly checks, in images/s and GB/s."""
    from hpcdl.regress.references import load_references

    return tuple(load_references(site, [partition]).values())


@_checked
def gate(site: Site) -> GateAnswer:
    """Return if last night lets a change through: `open`, `headline`, and each finding."""
    from hpcdl.regress.gate import answer_now

    return answer_now(site)
