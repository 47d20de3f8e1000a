"""What your own scripts may import; stable as docs/python.md promises.

    from hpcdl import api

    site = api.load_site("site.yaml")
    job = api.JobSpec("p100", nodes=2, gpus_per_node=4, program=("python", "train.py"))
    print(api.render(site, job).text)
    print(api.submit(site, job).job_id)

Every function raises `Fault` with `message` and `hint` where it cannot answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdl.api.typed import checked, fields_of
from hpcdl.jobs.spec import JobSpec
from hpcdl.site import Site, find_site_file
from hpcdl.system.errors import HpcdlError as Fault
from hpcdl.system.files import careful_umask

if TYPE_CHECKING:
    from hpcdl.jobs import Module, Script
    from hpcdl.jobs.lint import Finding
    from hpcdl.jobs.submission import Submission
    from hpcdl.predict.forecast import Forecast
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


@checked
def load_site(name: str | Path | None = None) -> Site:
    """A site from its file, or by the name of one that hpcdl brings, such as `pi`.

    By default the one of HPCDL_SITE.
    """
    from hpcdl.site import load_site

    return load_site(find_site_file(str(name) if name else None))


@checked
def render(site: Site, job: JobSpec, modules: tuple[str, ...] | None = None) -> Script:
    """The batch script of a job: `text`, `layout`, and `lines`, each with its reason.

    It loads the site's published release, and names the module to come where there is none.
    `modules` are loaded instead; `()` loads none, as a job with a container does.
    """
    from hpcdl.jobs import render_script

    return render_script(site, job, _module(site, job, modules, published=False))


@checked
@careful_umask()
def submit(site: Site, job: JobSpec, modules: tuple[str, ...] | None = None) -> Submission:
    """Queue a job, once: `job_id`, and the paths `script`, `log` and `result`.

    The same call after one that was stopped half-way finds the job of that one. `modules` are
    loaded instead of the published release's; `()` loads none.
    """
    from hpcdl.jobs.submission import submit

    return submit(site, job, _module(site, job, modules, published=True))


def _module(site: Site, job: JobSpec, named: tuple[str, ...] | None, *, published: bool) -> Module:
    from hpcdl.workflows.modules import modules_of_job

    found = modules_of_job(site, (job.partition,), named, gpu_model=job.gpu_model,
                           container=job.container is not None, published=published)  # fmt: skip
    return found[job.partition]


@checked
def lint(script: str | Path, site: Site, name: str = "job.sh") -> tuple[Finding, ...]:
    """What is wrong with a batch script, its text or its `Path`, on the site's release of Slurm."""
    from hpcdl.jobs.lint import lint
    from hpcdl.jobs.lint.lint_report import read_script, require_script

    if isinstance(script, Path):
        script, name = read_script(script), str(script)
    else:
        require_script(script, f"the text {script!r:.60}", "to lint a file, pass its Path")
    return lint(script, name=name, version=site.slurm.version)


@checked
def resolve(site: Site, partition: str | None = None) -> tuple[Resolution, ...]:
    """The newest versions that work together, per partition and kind of build."""
    from hpcdl.stack.resolve import resolve

    return resolve(site, partition)


@checked
def predict(site: Site, partition: str, model: str, **more: Any) -> Forecast:
    """Images/s of a training on more and more GPUs of a partition, and what limits it.

    `more` are fields of `hpcdl.predict.request.Request`: gpus (4, or such as "1-64" or "4,8"),
    batch, precision, size, data, result.
    """
    from hpcdl.predict.request import Request, answer

    if type(more.get("gpus")) is int:
        more["gpus"] = str(more["gpus"])
    return answer(Request(site.partition(partition), model, **fields_of(Request, more)))


@checked
def references(site: Site, partition: str) -> tuple[Reference, ...]:
    """What the nightly checks of a partition are compared with, in images/s and GB/s."""
    from hpcdl.regress.references import load_references

    named = site.partition(partition)
    rows = load_references(site, named.reference_set).values()
    return tuple(row for row in rows if row.partition == named.label)


@checked
def gate(site: Site) -> GateAnswer:
    """Whether last night lets a change through: `open`, `headline`, and each finding."""
    from hpcdl.regress.accept import answer_now

    return answer_now(site)
