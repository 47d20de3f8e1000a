"""A job's script: as `hpcdl job render` prints it, and taken apart for ReFrame."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hpcdl.jobs.spec import JobSpec, Module
from hpcdl.site import Site
from hpcdl.system.declare import to_argv
from hpcdl.system.run import module_argv, run


def rendered(site: Site, spec: JobSpec, module: Module) -> str:
    """Return the script of `hpcdl job render` for a request. Raises CommandFailed: it refuses."""
    words = request_words(site, spec, module)
    return run([*module_argv(sys.executable, "hpcdl"), "job", "render", *words], timeout=60).stdout


def request_words(site: Site, spec: JobSpec, module: Module) -> list[str]:
    """The request as a person types it."""
    loads = [] if module.names else ["--no-module"]
    return [*to_argv(spec), *loads, f"--site={site.source}", "--", *spec.program]


@dataclass(frozen=True)
class Batch:
    """The parts of a script.

    `directives` are options of sbatch; then come the lines `before` the launch, the `launcher`
    with its options, the `program` as bash reads it, and the lines `after`.
    """

    directives: tuple[str, ...]
    before: tuple[str, ...]
    launcher: str
    program: str
    after: tuple[str, ...]


def take_apart(text: str) -> Batch:
    """The parts of a script, rendered by hpcdl or put together by ReFrame.

    The launch is the last line that starts with `srun`, with its continuation lines; the
    launcher's part is what stands before the first break.
    """
    lines = text.splitlines()
    directives = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    body = [line for line in lines if not line.startswith(("#!", "#SBATCH "))]
    start = max(index for index, line in enumerate(body) if line.startswith("srun "))
    end = start
    while body[end].endswith("\\"):
        end += 1
    launch = [line.rstrip("\\").strip() for line in body[start : end + 1]]
    return Batch(
        tuple(directives),
        tuple(body[:start]),
        launch[0],
        " ".join(launch[1:]),
        tuple(body[end + 1 :]),
    )
