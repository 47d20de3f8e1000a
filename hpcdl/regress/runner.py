"""Runs ReFrame in a folder of its own, follows it, and turns what it reports into verdicts.

ReFrame is a subprocess with settings rendered for this run. Its back end appends the states of
its jobs to events.jsonl, which is what `progress` shows. However the run ends, its jobs do not
outlive it: ReFrame ends with us, and what it leaves is cancelled.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpcdl.regress.backend_names import EVENTS_VARIABLE, PARENT_VARIABLE
from hpcdl.regress.nodes import name_slow_nodes
from hpcdl.regress.references import fingerprint, load_references
from hpcdl.regress.runfolder import RunFolder, cancel_left_jobs, new_run, read_events, sweep
from hpcdl.regress.settings import Modules, render_settings
from hpcdl.regress.training import ALL, ranks_on
from hpcdl.regress.verdict import WHOLE_RUN, Verdict, judge_tries, waive
from hpcdl.results.faults import Fault, FaultKind, Status
from hpcdl.results.records import VERDICTS
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.slurm.execution import current
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite, Stopped
from hpcdl.system.files import write_atomic
from hpcdl.system.resources import folder as resource
from hpcdl.system.signals import terminable
from hpcdl.system.text import plain

# ReFrame's log of its own, which a killed one leaves, lies in the run's folder; a TMPDIR would
# go on into the jobs.
_START = (
    "import os, tempfile; tempfile.tempdir = os.getcwd(); "
    "from reframe.frontend.cli import main; main()"
)
_FOLLOW_SECONDS = 0.1
_STOP_SECONDS = 20.0
_SKIPPED = re.compile(
    r"WARNING: (skipping test (?:file )?'.*|check path '.*' does not exist.*"
    r"|skipping evaluation of performance variable .*|.* is not copyable;.*"
    r"|skipping all dependent test cases(?:\n  - .*)*)",
    re.MULTILINE,
)
_RAN = re.compile(r"\[-+\] start processing checks|Running (\d+) check")


@dataclass(frozen=True)
class CheckRequest:
    """Which checks to run and how. Empty selections mean all.

    `settings` are options of the training program (`name=value`); `repeat` runs every check so
    often; `retries` runs those that fail again, the last time counts (None: once more what was
    too slow on a machine that emulates all nodes, where neighbours on its CPUs come and go);
    `distribute` runs single-node checks on every node; `measuring` needs no references.
    """

    partitions: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    repeat: int = 1
    retries: int | None = None
    distribute: bool = False
    measuring: bool = False


@dataclass(frozen=True)
class CheckOutcome:
    """What a run found.

    `machine` is the fingerprint of the machine of a single-node emulation, None on a real cluster.
    """

    folder: RunFolder
    verdicts: tuple[Verdict, ...]
    seconds: float
    machine: str | None = None
    settings: tuple[str, ...] = ()
    """Options that the run set itself; such a run is no night like the others."""

    @property
    def ok(self) -> bool:
        """Whether there are verdicts and every one passes or is waived."""
        return bool(self.verdicts) and all(verdict.ok for verdict in self.verdicts)


Progress = Callable[[RunFolder], None]


def require_reframe() -> None:
    """Raise MissingPrerequisite unless ReFrame is installed beside hpcdl."""
    if importlib.util.find_spec("reframe") is None:
        raise MissingPrerequisite(
            "ReFrame is not installed for this hpcdl",
            hint="pip install 'hpcdl[checks]' into the same environment",
        )


def run_checks(
    site: Site, modules: Modules, request: CheckRequest, progress: Progress | None = None
) -> CheckOutcome:
    """Run checks and judge them.

    Args:
        site: where.
        modules: of the release that the checks must use, the same everywhere or by partition.
        request: which.
        progress: called about ten times a second while ReFrame runs.

    Raises:
        MissingPrerequisite: no ReFrame, or Slurm is away.
        BadInput: an unknown partition, a setting that cannot be passed on, bad references.
        Stopped: a signal ended it; its jobs were cancelled.
    """
    require_reframe()
    referenced = _check_request(site, request)
    client.version()
    sweep(site)
    start = time.monotonic()
    with new_run(site) as folder:
        execution = current()
        machine = fingerprint() if execution.machine_references else None
        text = render_settings(
            site,
            modules,
            partitions=request.partitions,
            prefix=folder.path,
            execution=execution,
        )
        write_atomic(folder.settings, text)
        retries = _retries(request, execution.retries if referenced else 0)
        words = _command(folder, request, retries, serial=execution.serial)
        exit_code = _execute(folder, words, progress)
        found = name_slow_nodes(_verdicts(site, folder, request, exit_code, machine), execution)
        verdicts = tuple(waive(found, request.waived))
        seconds = time.monotonic() - start
        outcome = CheckOutcome(folder, verdicts, seconds, machine, request.settings)
        VERDICTS.write(folder.verdicts, _values(outcome))
    return outcome


def as_data(outcome: CheckOutcome) -> dict[str, Any]:
    """An outcome as verdicts.json has it."""
    return VERDICTS.data(_values(outcome))


def _values(outcome: CheckOutcome) -> dict[str, Any]:
    return {
        "run": str(outcome.folder.path),
        "ok": outcome.ok,
        "machine": outcome.machine,
        "settings": list(outcome.settings),
        "seconds": round(outcome.seconds, 2),
        "verdicts": [
            asdict(verdict) | {"status": verdict.status.value, "ok": verdict.ok}
            for verdict in outcome.verdicts
        ],
    }


def _check_request(site: Site, request: CheckRequest) -> bool:
    """Refuse what cannot be run; give whether there are references that a rate may fall below."""
    chosen = [site.partition(name) for name in request.partitions or site.partitions]
    sets = {partition.reference_set for partition in chosen}
    known = [load_references(site, reference_set) for reference_set in sets]
    for setting in request.settings:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*(=[^,\x00-\x1f]*)?", setting):
            raise BadInput(
                f"--set {setting!r} cannot be passed on",
                hint="write NAME=VALUE, an option of `hpcdl train`, without a comma",
            )
    for path in request.paths:
        if not path.exists():
            raise BadInput(f"there are no checks at {path}", hint="name a file or a folder")
    return any(known)


def _command(folder: RunFolder, request: CheckRequest, retries: int, *, serial: bool) -> list[str]:
    """ReFrame's command line."""
    paths = request.paths or (resource("reframe_checks"),)
    words = [sys.executable, "-c", _START, "-C", str(folder.settings)]
    words += [word for path in paths for word in ("-c", str(path.absolute()))]
    words += ["-r", "--nocolor", "--report-file", str(folder.report)]
    words += ["--perflogdir", str(folder.path / "perflogs")]
    words += ["--exec-policy", "serial"] if serial else []
    words += [word for tag in request.tags for word in ("-t", f"^{re.escape(tag)}$")]
    words += [word for name in request.names for word in ("-n", _name_pattern(name))]
    words += ["-S", f"settings={','.join(request.settings)}"] if request.settings else []
    words += ["-S", "measuring=yes"] if request.measuring else []
    words += ["--repeat", str(request.repeat)] if request.repeat > 1 else []
    words += ["--max-retries", str(retries)] if retries else []
    # ReFrame would pin checks of several nodes to one as well.
    words += ["--distribute=all", "-t", "^node$"] if request.distribute else []
    return words


def _retries(request: CheckRequest, usual: int) -> int:
    if request.retries is not None:
        return request.retries
    # Repeated runs measure the spread itself, and a run with settings of its own is a try-out.
    nightly = request.repeat == 1 and not request.measuring and not request.settings
    return usual if nightly else 0


def _name_pattern(name: str) -> str:
    """ReFrame's pattern for a check, or for one case of it (`check/case`)."""
    check, _, case = name.partition("/")
    # A case that takes all GPUs of a node is known to ReFrame before it knows their number.
    shaped = re.sub(r"(\d+)x(\d+)", r"\1x(\2|all)", re.escape(case))
    named = case not in {"", "default"}
    return rf"^{re.escape(check)}\b" + (f".*={shaped}( |%|$)" if named else "")


def _execute(folder: RunFolder, words: Sequence[str], progress: Progress | None) -> int:
    env = {
        **os.environ,
        "NO_COLOR": "1",
        EVENTS_VARIABLE: str(folder.events),
        PARENT_VARIABLE: str(os.getpid()),
        "RFM_SAVE_LOG_FILES": "0",
    }
    with terminable(), folder.log.open("w") as log:
        process = subprocess.Popen(
            words, cwd=folder.path, env=env, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            while process.poll() is None:
                if progress:
                    progress(folder)
                time.sleep(_FOLLOW_SECONDS)
        except (KeyboardInterrupt, Stopped):
            raise _stopped(folder, process) from None
        finally:
            if process.poll() is None:
                process.kill()
    folder.log.write_text(plain(folder.log.read_text(errors="replace")))
    with suppress(HpcdlError):  # the next run tries again
        cancel_left_jobs(folder)
    return process.returncode


def _stopped(folder: RunFolder, process: subprocess.Popen[bytes]) -> Stopped:
    """End ReFrame and its jobs after a signal."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
    jobs = sorted(read_events(folder.events))
    words = f"jobs {', '.join(map(str, jobs))} are cancelled" if jobs else "no job ran"
    try:
        cancel_left_jobs(folder)
    except HpcdlError:
        words = "Slurm does not answer; the next run cancels what is left"
    return Stopped(f"stopped; {words}", details=[f"run: {folder.path}"])


def _verdicts(
    site: Site, folder: RunFolder, request: CheckRequest, exit_code: int, machine: str | None
) -> list[Verdict]:
    """Verdicts on every case, on every file that was skipped, and on what did not run."""
    report = _report(folder)
    asked = request.retries is not None
    found = [
        _counted(site, judge_tries(tries, machine, any_fault=asked)) for tries in _tries(report)
    ]
    skipped = _SKIPPED.findall(folder.log.read_text(errors="replace"))
    broken = [_problem(" ".join(words.split())) for words in skipped]
    if found and exit_code != 0 and all(verdict.ok for verdict in found):
        broken.append(_problem(f"ReFrame ended with exit code {exit_code}; see {folder.log}"))
    if broken or found:
        missing = [*_partitions_without(request, found), *_names_without(request, found)]
        return [*found, *broken, *missing]
    return [_problem(_why_nothing(folder, request, exit_code, bool(report)))]


def _tries(report: Mapping[str, Any]) -> list[list[Mapping[str, Any]]]:
    """Every case, as often as it ran: a retry holds only those that failed before."""
    cases: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for run in report.get("runs") or ():
        for case in run.get("testcases") or ():
            key = tuple(case.get(name) for name in ("hashcode", "partition", "environ", "name"))
            cases.setdefault(key, []).append(case)
    return [*cases.values()]


def _report(folder: RunFolder) -> dict[str, Any]:
    try:
        value = json.loads(folder.report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _problem(reason: str, partition: str = "") -> Verdict:
    return Verdict(WHOLE_RUN, "", partition, Status.ERROR, reason, (Fault(FaultKind.RUN, reason),))


def _partitions_without(request: CheckRequest, found: Sequence[Verdict]) -> list[Verdict]:
    """A partition that was asked for by name and on which nothing ran."""
    seen = {verdict.partition for verdict in found}
    return [
        _problem("no check fits this partition", name)
        for name in request.partitions
        if name not in seen
    ]


def _names_without(request: CheckRequest, found: Sequence[Verdict]) -> list[Verdict]:
    """A check that was asked for by name and did not run: ReFrame is content with any other."""
    return [
        _problem(f"no check was selected by name {name}")
        for name in request.names
        if not any(_means(name, verdict) for verdict in found)
    ]


def _means(name: str, verdict: Verdict) -> bool:
    check, _, case = name.partition("/")
    named = re.match(rf"{re.escape(check)}\b", verdict.check) is not None
    return named and (not case or not verdict.case or case == verdict.case)


def _counted(site: Site, verdict: Verdict) -> Verdict:
    """A case that takes all GPUs of a node, with their number; one that never started lacks it."""
    if "xall" not in verdict.case or verdict.partition not in site.partitions:
        return verdict
    count = ranks_on(site.partition(verdict.partition), ALL)
    return replace(verdict, case=verdict.case.replace("xall", f"x{count}"))


def _why_nothing(folder: RunFolder, request: CheckRequest, exit_code: int, reported: bool) -> str:
    text = folder.log.read_text(errors="replace")
    if exit_code != 0 or not (_RAN.search(text) or reported):
        last = [line for line in text.splitlines() if line.strip()][-3:]
        return f"ReFrame ended with exit code {exit_code}: {' / '.join(last)[-400:]}"
    wanted = [*(f"tag {tag}" for tag in request.tags), *(f"name {n}" for n in request.names)]
    return "no check was selected" + (f" by {', '.join(wanted)}" if wanted else "")
