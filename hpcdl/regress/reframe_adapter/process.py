"""ReFrame from outside: its release, its command line, its process, and what it reports of a run.

hpcdl works with the releases that it was run with (facts/reframe.yaml). ReFrame is a subprocess
with settings rendered for this run, in the run's directory. Its report says how cases went, the
recorder's file what was left out. However the run ends, its jobs do not outlive it: ReFrame ends
with us, and what it leaves is cancelled.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hpcdl import facts
from hpcdl.regress.run_directory import RunDirectory, cancel_left_jobs, json_lines, read_events
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite, Stopped
from hpcdl.system.files import current_umask
from hpcdl.system.resources import folder as resource
from hpcdl.system.resources import to_install
from hpcdl.system.run import module_argv
from hpcdl.system.signals import noted, terminable
from hpcdl.system.text import plain

EVENTS_VARIABLE, PARENT_VARIABLE = "HPCDL_CHECK_EVENTS", "HPCDL_CHECK_PARENT"
RECORD_VARIABLE = "HPCDL_CHECK_RECORD"
"""What the process inside is told: files to write, and whose end is its own."""
RETRY_ALL = "--hpcdl-retry-all"
"""The recorder's own argument: whatever failed is run again, not only what was too slow."""
_RECORDER = "hpcdl.regress.reframe_adapter.recorder"
_FOLLOW_SECONDS = 0.1
_STOP_SECONDS = 20.0
Progress = Callable[[RunDirectory], None]


@dataclass(frozen=True)
class CheckRequest:
    """Which checks to run and how. Empty selections mean all.

    `settings` are options of the training program (`name=value`); `repeat` runs every check so
    often; `retries` runs those that fail again, the last time counts (None: what was too slow, as
    often as the execution profile says); `distribute` runs single-node checks on every node;
    `measuring` needs no references.
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
    passed: tuple[str, ...] = ()
    """Further arguments of ReFrame."""
    config: tuple[Path, ...] = ()
    """Settings of ReFrame beside those that hpcdl writes."""

    @property
    def changed(self) -> tuple[str, ...]:
        """What makes the run unlike a night: settings, and variables passed on to ReFrame."""
        sets = [word for word in self.passed if word.startswith(("-S", "--setvar"))]
        return (*self.settings, *sets)


@dataclass(frozen=True)
class Session:
    """What ReFrame tells of a run: each case as often as it ran, and what it left out.

    `selected` is the number of cases; None when ReFrame did not get so far.
    """

    exit_code: int
    cases: tuple[Sequence[Mapping[str, Any]], ...]
    left_out: tuple[str, ...]
    selected: int | None
    loaded: Mapping[str, Sequence[str]] | None = None
    """The names (`name`) and tags (`tag`) of all checks that there are."""


def supported() -> tuple[str, ...]:
    """The releases, oldest first."""
    return tuple(row["version"] for row in facts.load("reframe")["releases"])


def require_reframe(release: str | None = None) -> None:
    """Refuse a ReFrame that is not there, or that hpcdl was not run with.

    `release` is what it calls itself, by default as the installed package says. Raises
    MissingPrerequisite: it is not there, or not in the supported range.
    """
    if find_spec("reframe") is None:
        raise MissingPrerequisite(
            "ReFrame is not installed for this hpcdl", hint=to_install("checks")
        )
    try:
        found = release or version("reframe-hpc")
    except PackageNotFoundError:  # on PYTHONPATH, or as a module of the site's
        import reframe

        found = str(reframe.VERSION)
    known = supported()
    if found not in known:
        raise MissingPrerequisite(
            f"ReFrame {found} is not supported: hpcdl works with {known[0]} to {known[-1]}",
            hint=to_install("checks"),
        )


def refuse_ours(words: Sequence[str]) -> None:
    """Refuse arguments that would take the run out of hpcdl's hands.

    Raises BadInput: the first of them, with what to use instead.
    """
    ours: dict[str, str | None] = facts.load("reframe")["ours"]
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        # argparse takes the beginning of a long option for it.
        meant = [one for one in ours if one == name or (len(name) > 3 and one.startswith(name))]
        if meant:
            hint = ours[meant[0]] or "it is not for a run of `hpcdl check run`"
            raise BadInput(f"{word[:40]} is not passed on to ReFrame", hint=hint)


def to_argv(run: RunDirectory, request: CheckRequest, usual: int, *, serial: bool) -> list[str]:
    """ReFrame's command line; `usual` is how often a night tries again what was too slow."""
    # Repeated runs measure the spread itself, and a run with settings of its own is a try-out.
    nightly = request.repeat == 1 and not request.measuring and not request.settings
    retries = (usual if nightly else 0) if request.retries is None else request.retries
    paths = request.paths or (resource("reframe_checks"),)
    argv = [*map(str, module_argv(sys.executable, _RECORDER))]
    argv += [RETRY_ALL] if request.retries else []
    argv += [part for one in (run.settings, *request.config) for part in ("-C", str(one))]
    argv += [part for path in paths for part in ("-c", str(path.absolute()))]
    argv += ["-r", "--nocolor", "--report-file", str(run.report)]
    argv += ["--perflogdir", str(run.path / "perflogs")]
    argv += ["--exec-policy", "serial"] if serial else []
    argv += [part for tag in request.tags for part in ("-t", f"^{re.escape(tag)}$")]
    argv += [part for name in request.names for part in ("-n", _name_pattern(name))]
    argv += ["-S", f"settings={','.join(request.settings)}"] if request.settings else []
    argv += ["-S", "measuring=yes"] if request.measuring else []
    argv += ["--repeat", str(request.repeat)] if request.repeat > 1 else []
    argv += ["--max-retries", str(retries)] if retries else []
    # ReFrame would pin checks of several nodes to one as well.
    argv += ["--distribute=all", "-t", "^node$"] if request.distribute else []
    return [*argv, *request.passed]


def _name_pattern(name: str) -> str:
    """ReFrame's pattern for a check, or for one case of it (`check/case`)."""
    check, _, case = name.partition("/")
    # A case that takes all GPUs of a node is known to ReFrame before it knows their number.
    shaped = re.sub(r"(\d+)x(\d+)", r"\1x(\2|all)", re.escape(case))
    named = case not in {"", "default"}
    return rf"^{re.escape(check)}\b" + (f".*={shaped}( |%|$)" if named else "")


def execute(run: RunDirectory, argv: Sequence[str], progress: Progress | None) -> Session:
    """Run ReFrame to its end. Raises Stopped: a signal ended it; its jobs were cancelled."""
    # Settings that a shell has for another ReFrame (RFM_*) would be added to the run's.
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RFM_")},
        "NO_COLOR": "1",
        EVENTS_VARIABLE: str(run.events),
        PARENT_VARIABLE: str(os.getpid()),
        RECORD_VARIABLE: str(run.record),
        "RFM_SAVE_LOG_FILES": "0",
    }
    # In a group's work directory nobody else is to replace a script before Slurm reads it.
    mask = current_umask() | 0o022
    with terminable(), run.log.open("w") as log:
        process = None
        try:
            with noted():
                process = subprocess.Popen(
                    argv,
                    cwd=run.path,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=mask,
                )
            while process.poll() is None:
                if progress:
                    progress(run)
                time.sleep(_FOLLOW_SECONDS)
        except (KeyboardInterrupt, Stopped):
            raise _stopped(run, process) from None
        finally:
            if process is not None and process.poll() is None:
                process.kill()
    run.log.write_text(plain(run.log.read_text(errors="replace")))
    with suppress(HpcdlError):  # the next run tries again
        cancel_left_jobs(run)
    return read_session(run, process.returncode)


def _stopped(run: RunDirectory, process: subprocess.Popen[bytes] | None) -> Stopped:
    if process is not None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    jobs = sorted(read_events(run.events))
    said = f"jobs {', '.join(map(str, jobs))} are cancelled" if jobs else "no job ran"
    try:
        cancel_left_jobs(run)
    except HpcdlError:
        said = "Slurm does not answer; the next run cancels what is left"
    return Stopped(f"stopped; {said}", details=[f"run: {run.path}"])


def read_session(run: RunDirectory, exit_code: int) -> Session:
    """What ReFrame and the recorder left in a run's directory."""
    events = json_lines(run.record)
    found = [
        f"ReFrame left out {event['kind']} {event['name']}: {event['why']}"
        for event in events
        if event["event"] == "left out"
    ]
    if exit_code == 0 and not events:
        found.append(f"nothing recorded what ReFrame left out; see {run.log}")
    selected = [int(event["cases"]) for event in events if event["event"] == "selected"]
    loaded = [event for event in events if event["event"] == "loaded"]
    return Session(
        exit_code=exit_code,
        cases=tuple(_tries(run)),
        left_out=tuple(dict.fromkeys(found)),
        selected=selected[-1] if selected else None,
        loaded=loaded[-1] if loaded else None,
    )


def _tries(run: RunDirectory) -> list[list[Mapping[str, Any]]]:
    """Every case of ReFrame's report, as often as it ran: a retry holds only what failed before."""
    try:
        runs = json.loads(run.report.read_text(encoding="utf-8"))["runs"]
    except (OSError, ValueError, KeyError, TypeError):  # none, half of one, or none of ReFrame's
        return []
    cases: dict[tuple[object, ...], list[Mapping[str, Any]]] = {}
    for each in runs or ():
        for case in each.get("testcases") or ():
            key = tuple(case.get(name) for name in ("hashcode", "partition", "environ", "name"))
            cases.setdefault(key, []).append(case)
    return [*cases.values()]
