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
from hpcdl.site import Site
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite, Stopped
from hpcdl.system.files import current_umask
from hpcdl.system.resources import folder as resource
from hpcdl.system.resources import to_install
from hpcdl.system.run import module_argv
from hpcdl.system.signals import noted, terminable
from hpcdl.system.text import plain
from hpcdl.system.trust import require_known_owners

EVENTS_VARIABLE, PARENT_VARIABLE = "HPCDL_CHECK_EVENTS", "HPCDL_CHECK_PARENT"
RECORD_VARIABLE, PLACES_VARIABLE = "HPCDL_CHECK_RECORD", "HPCDL_CHECK_PLACES"
"""What the process inside is told: files to write, whose end is its own, where jobs are to run."""
PROBE = "--probe"
"""The recorder's own argument: only look whether this ReFrame has what it wraps."""
_RECORDER = "hpcdl.regress.reframe_adapter.recorder"
_FOLLOW_SECONDS = 0.1
_STOP_SECONDS = 20.0
Progress = Callable[[RunDirectory], None]


@dataclass(frozen=True)
class CheckRequest:
    """Which checks to run and how. Empty selections mean all.

    `settings` are options of the training program (`name=value`); `repeat` runs every check so
    often, and all runs count; `distribute` runs single-node checks on every node; `measuring` needs
    no references.
    """

    partitions: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    repeat: int = 1
    distribute: bool = False
    measuring: bool = False
    passed: tuple[str, ...] = ()
    """Further arguments of ReFrame."""
    hashes: tuple[str, ...] = ()
    """ReFrame's names of the only checks to run."""

    @property
    def changed(self) -> tuple[str, ...]:
        """Return what makes the run unlike a night: settings, and variables for ReFrame."""
        sets = [word for word in self.passed if word.startswith(("-S", "--setvar"))]
        return (*self.settings, *sets)


@dataclass(frozen=True)
class Session:
    """What ReFrame reports of a run: its cases, and what it left out.

    `left_out` are faults of the run, `notes` what is only told.
    """

    exit_code: int
    cases: tuple[Mapping[str, Any], ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...] = ()


def supported() -> tuple[str, ...]:
    """The releases that hpcdl was run with, oldest first."""
    return tuple(row["version"] for row in facts.load("reframe")["releases"])


def require_reframe(release: str | None = None) -> None:
    """Refuse a ReFrame that is not there, that is too old, or that lacks what hpcdl needs of it.

    `release` is what it calls itself, by default as the installed package says. Raises
    MissingPrerequisite.
    """
    if find_spec("reframe") is None:
        raise MissingPrerequisite(
            "ReFrame is not installed for this hpcdl", hint=to_install("checks")
        )
    try:
        installed = release or version("reframe-hpc")
    except PackageNotFoundError:  # on PYTHONPATH, or as a module of the site's
        import reframe

        installed = str(reframe.VERSION)
    versions = supported()
    if installed in versions or (
        _numbers(installed) >= _numbers(versions[0]) and (release or _answers())
    ):
        return
    raise MissingPrerequisite(
        f"ReFrame {installed} is not supported: hpcdl works with {versions[0]} and newer "
        f"that have what {versions[-1]} has",
        hint=to_install("checks"),
    )


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)[:2]))


def _answers() -> bool:
    """Return whether an untested ReFrame has the functions that the recorder wraps."""
    argv = [*map(str, module_argv(sys.executable, _RECORDER)), PROBE]
    return subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode == 0


def refuse_ours(words: Sequence[str]) -> None:
    """Refuse arguments that hpcdl does not know to be harmless.

    Raises BadInput: the first of them, with what to use instead.
    """
    rules = facts.load("reframe")
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if not word.startswith("-") or name in rules["passed"]:
            continue
        # argparse takes the beginning of a long option for it.
        meant = (option for option in rules["instead"] if option == name or _begins(option, name))
        hint = rules["instead"].get(next(meant, ""))
        near = [option for option in rules["passed"] if _begins(option, name)]
        hint = hint or (f"write {near[0]}" if near else "it is not for a run of `hpcdl check run`")
        raise BadInput(f"{word[:40]} is not passed on to ReFrame", hint=hint)


def _begins(option: str, name: str) -> bool:
    return len(name) > 3 and option.startswith(name)


def own_settings(site: Site) -> tuple[Path, ...]:
    """The site's own settings of ReFrame beside those that hpcdl writes, where it has any.

    They are asked for their owner whenever they are: one may be planted while a run begins.
    """
    path = site.paths.prefix / "reframe.py"
    if not path.is_file():
        return ()
    require_known_owners(path)
    return (path,)


def to_argv(
    run: RunDirectory, request: CheckRequest, more: Sequence[Path] = (), *, serial: bool
) -> list[str]:
    """ReFrame's command line; `more` are settings beside the run's."""
    paths = request.paths or (resource("reframe_checks"),)
    argv = [*map(str, module_argv(sys.executable, _RECORDER))]
    argv += [part for one in (run.settings, *more) for part in ("-C", str(one))]
    argv += [part for path in paths for part in ("-c", str(path.absolute()))]
    argv += ["-r", "--nocolor", "--report-file", str(run.report)]
    argv += ["--perflogdir", str(run.path / "perflogs")]
    argv += ["--exec-policy", "serial"] if serial else []
    names = [f"/{one}" for one in request.hashes] or [*map(_name_pattern, request.names)]
    tags = () if request.hashes else request.tags
    argv += [part for tag in tags for part in ("-t", f"^{re.escape(tag)}$")]
    argv += [part for name in names for part in ("-n", name)]
    argv += ["-S", f"settings={','.join(request.settings)}"] if request.settings else []
    argv += ["-S", "measuring=yes"] if request.measuring else []
    argv += ["--repeat", str(request.repeat)] if request.repeat > 1 else []
    # ReFrame would pin checks of several nodes to one as well.
    argv += ["--distribute=all", "-t", "^node$"] if request.distribute else []
    return [*argv, *request.passed]


def described(settings: Path, paths: Sequence[Path], *more: str) -> list[Mapping[str, Any]]:
    """Return ReFrame's descriptions of the checks, by its --describe; with further options.

    Raises BadInput: a check file cannot be read. Raises MissingPrerequisite: it is another user's.
    """
    for path in paths:
        require_known_owners(path)
    argv = [*map(str, module_argv(sys.executable, _RECORDER)), "-C", str(settings)]
    argv += ["--describe", *more]
    argv += [
        part
        for path in paths or (resource("reframe_checks"),)
        for part in ("-c", str(path.absolute()))
    ]
    run = RunDirectory(settings.parent)
    done = subprocess.run(
        argv, cwd=run.path, env=_environment(run, {}), capture_output=True, text=True, check=False
    )
    # ReFrame leaves out a file that cannot be loaded, and is content with the others.
    if left_out := read_session(run, done.returncode).left_out:
        raise BadInput("ReFrame cannot load every check", details=left_out)
    try:
        return list(json.loads(done.stdout or ("" if done.returncode else "[]")))
    except ValueError as fault:
        last = plain(done.stderr or done.stdout).strip().splitlines()[-1:]
        raise BadInput(f"ReFrame cannot describe the checks: {' '.join(last)[:300]}") from fault


def _name_pattern(name: str) -> str:
    """ReFrame's pattern for a check, or for one case of it (`check/case`)."""
    check, _, case = name.partition("/")
    # A case that takes all GPUs of a node is known to ReFrame before it knows their number.
    shaped = re.sub(r"(\d+)x(\d+)", r"\1x(\2|all)", re.escape(case))
    named = case not in {"", "default"}
    return rf"^{re.escape(check)}\b" + (f".*={shaped}( |%|$)" if named else "")


def execute(
    run: RunDirectory,
    argv: Sequence[str],
    progress: Progress | None,
    *,
    until: float | None = None,
    places: Mapping[str, Sequence[str]] | None = None,
) -> Session:
    """Run ReFrame to its end, or until a time (of `time.monotonic`); then its jobs are cancelled.

    `places` are further options of Slurm, by a job's name. Raises Stopped: a signal ended it; its
    jobs were cancelled.
    """
    # In a group's work directory no other user may replace a script before Slurm reads it.
    mask = current_umask() | 0o022
    with terminable(), run.log.open("w") as log:
        process = None
        try:
            with noted():
                process = subprocess.Popen(
                    argv,
                    cwd=run.path,
                    env=_environment(run, places or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=mask,
                )
            while process.poll() is None:
                if progress:
                    progress(run)
                if until and time.monotonic() > until:
                    _terminate(process)
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


def _environment(run: RunDirectory, places: Mapping[str, Sequence[str]]) -> dict[str, str]:
    # Settings that a shell has for another ReFrame (RFM_*) would be added to the run's.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RFM_")}
    return {
        **kept,
        "NO_COLOR": "1",
        EVENTS_VARIABLE: str(run.events),
        PARENT_VARIABLE: str(os.getpid()),
        RECORD_VARIABLE: str(run.record),
        PLACES_VARIABLE: json.dumps(places),
        "RFM_SAVE_LOG_FILES": "0",
    }


def _terminate(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stopped(run: RunDirectory, process: subprocess.Popen[bytes] | None) -> Stopped:
    if process is not None:
        _terminate(process)
    jobs = sorted(read_events(run.events))
    outcome = f"jobs {', '.join(map(str, jobs))} are cancelled" if jobs else "no job ran"
    try:
        cancel_left_jobs(run)
    except HpcdlError:
        outcome = "Slurm does not answer; the next run cancels what is left"
    return Stopped(f"stopped; {outcome}", details=[f"run: {run.path}"])


def read_session(run: RunDirectory, exit_code: int) -> Session:
    """Read the files of ReFrame and the recorder from a run's directory."""
    each: dict[str, list[dict[str, Any]]] = {}
    for event in json_lines(run.record):
        each.setdefault(str(event.get("event")), []).append(event)
    harmless = tuple(f"ReFrame warns: {text}" for text in facts.load("reframe")["harmless"])
    left_out, notes = list[str](), [str(entry["text"]) for entry in each.get("note", ())]
    for event in (entry for entry in each.get("warning", ()) if not entry["check"]):
        section = notes if event["text"].startswith(harmless) else left_out
        section.append(event["text"])
    if exit_code == 0 and not each:
        left_out.append(f"nothing recorded what ReFrame left out; see {run.log}")
    return Session(
        exit_code=exit_code,
        cases=tuple(_cases(run, each, harmless)),
        left_out=tuple(dict.fromkeys(left_out)),
        notes=tuple(dict.fromkeys(notes)),
    )


def _cases(
    run: RunDirectory, events: Mapping[str, Sequence[Mapping[str, Any]]], harmless: tuple[str, ...]
) -> list[Mapping[str, Any]]:
    """Every case of ReFrame's report, with its `warnings` and why it is `neutral`."""
    try:
        runs = json.loads(run.report.read_text(encoding="utf-8"))["runs"]
    except (OSError, ValueError, KeyError, TypeError):  # none, half of one, or none of ReFrame's
        return []
    each = (case for one in runs or () for case in one.get("testcases") or ())
    return [{**case, **_noted(case, events, harmless)} for case in each]


def _noted(
    case: Mapping[str, Any],
    events: Mapping[str, Sequence[Mapping[str, Any]]],
    harmless: tuple[str, ...],
) -> dict[str, Any]:
    name, where = case.get("unique_name"), (case.get("partition"), case.get("environ"))
    why = (
        event["why"]
        for event in events.get("neutral", ())
        if (event["check"], event["partition"], event["environ"]) == (name, *where)
    )
    warned = [
        event["text"] for event in events.get("warning", ()) if name and event["check"] == name
    ]
    return {
        "neutral": next(why, ""),
        "warnings": [text for text in dict.fromkeys(warned) if not text.startswith(harmless)],
    }
