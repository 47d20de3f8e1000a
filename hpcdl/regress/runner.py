"""Runs checks in a directory of their own and turns what ReFrame reports into verdicts.

What is suspicious is measured again, the same night: a single spike disappears among more runs, and
a real drop is sure. Suspicious is a metric beyond its bound, a node slower than the others, and
what the history finds doubtful. The runs alternate between the nodes of the first one and others,
so that a slow node is told from a slow release. All runs of the night are one verdict, by their
median; the budget is the site's.

Of a check in ReFrame's own way it reports its own name (`bw_0`), and of the job little. The
parameters are in the name that it displays, what became of the job is in the run's events, and the
release is that of the partition, where the environment loads it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, NamedTuple

from hpcdl.regress.job_state import JUDGED, exit_fault
from hpcdl.regress.nodes import as_run, name_slow_nodes
from hpcdl.regress.references import fingerprint, load_references
from hpcdl.regress.reframe_adapter import process
from hpcdl.regress.reframe_adapter.process import CheckRequest, Progress, Session
from hpcdl.regress.reframe_adapter.settings import Modules, reframe_name, render_settings
from hpcdl.regress.run_directory import RunDirectory, new_run, read_events, sweep
from hpcdl.regress.training import ALL, ranks_on
from hpcdl.regress.verdict import WHOLE_RUN, MetricVerdict, Verdict, judge, number, waive
from hpcdl.results.faults import FaultKind, JobFault, Status, describe, status_of
from hpcdl.results.records import VERDICTS
from hpcdl.site import Site
from hpcdl.slurm import client
from hpcdl.slurm.execution import ExecutionProfile, current
from hpcdl.slurm.hostlist import expand_hostlist
from hpcdl.system.errors import BadInput, HpcdlError, Stopped
from hpcdl.system.files import last_text, write_atomic
from hpcdl.system.text import did_you_mean
from hpcdl.system.trust import require_known_owners

_SLOW = frozenset({FaultKind.BOUND, FaultKind.SLOW_NODE})
_GENERATED = {"repeat_no", "part", "nid"}
"""ReFrame's own parameters: of --repeat and --distribute."""


class Key(NamedTuple):
    """The key of a case of a night; `planned` is the node where each node has its own."""

    check: str
    case: str
    partition: str
    environment: str
    planned: str = ""


Doubts = Callable[[Sequence[Verdict]], set[Key]]
"""The cases of which the history says that tonight's values may be a drop."""


@dataclass(frozen=True)
class CheckOutcome:
    """The result of a run of checks.

    `machine` is the fingerprint of the machine of a single-node emulation, None on a real cluster;
    `settings` are options that the run set itself, which makes it no night like the others; `ended`
    is in seconds since 1970; `notes` are ReFrame's messages beside its results.
    """

    directory: RunDirectory
    verdicts: tuple[Verdict, ...]
    seconds: float
    machine: str | None = None
    settings: tuple[str, ...] = ()
    site: str = ""
    ended: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether there are verdicts and every one passes or is waived."""
        return bool(self.verdicts) and all(verdict.ok for verdict in self.verdicts)


def run_checks(
    site: Site,
    modules: Modules,
    request: CheckRequest,
    progress: Progress | None = None,
    doubts: Doubts | None = None,
) -> CheckOutcome:
    """Run checks, measure again what is suspicious, and judge them.

    `modules` are of the release that the checks must use; `progress` is called about ten times a
    second while ReFrame runs; `doubts` is what the history says of tonight's values. Raises
    MissingPrerequisite: no ReFrame, or Slurm is away. Raises BadInput: an unknown partition, a
    setting that cannot be passed on, bad references. Raises Stopped: a signal ended it; its jobs
    were cancelled.
    """
    process.require_reframe()
    _check_request(site, request)
    client.version()
    sweep(site)
    start = time.monotonic()
    with new_run(site) as run:
        execution = current()
        machine = fingerprint() if execution.machine_references else None
        night = _Night(site, modules, request, execution, machine, progress)
        session = night.session(run, request)
        _refuse_mistyped(run, request, session)
        verdicts = _verdicts(night, run, session)
        if not request.measuring:
            verdicts = joined(verdicts)
        verdicts, notes = _measured_again(night, run, verdicts, doubts)
        outcome = CheckOutcome(
            run,
            tuple(waive(verdicts, request.waived)),
            time.monotonic() - start,
            machine,
            request.changed,
            site.name,
            time.time(),
            (*session.notes, *notes),
        )
        VERDICTS.write(run.verdicts, as_data(outcome))
    return outcome


@dataclass(frozen=True)
class _Night:
    """What all sessions of ReFrame in one run have in common."""

    site: Site
    modules: Modules
    request: CheckRequest
    execution: ExecutionProfile
    machine: str | None
    progress: Progress | None

    def session(
        self,
        run: RunDirectory,
        request: CheckRequest,
        until: float | None = None,
        places: Mapping[str, Sequence[str]] | None = None,
    ) -> Session:
        """Run ReFrame in a directory, to its end or until a time."""
        write_atomic(
            run.settings,
            render_settings(
                self.site,
                self.modules,
                partitions=request.partitions,
                prefix=run.path,
                execution=self.execution,
            ),
        )
        more = process.own_settings(self.site)
        argv = process.to_argv(run, request, more, serial=self.execution.serial)
        return process.execute(run, argv, self.progress, until=until, places=places)

    def again(
        self, run: RunDirectory, count: int, chosen: Sequence[Verdict], until: float
    ) -> list[Verdict]:
        """Run the cases of some verdicts once more, each partition's in a session of its own."""
        verdicts: list[Verdict] = []
        placed = any("exclude" in word or "nodelist" in word for word in self.request.passed)
        events = read_events(run.events)
        for label in dict.fromkeys(verdict.partition for verdict in chosen):
            here = [verdict for verdict in chosen if verdict.partition == label]
            places = {
                event.name: place_for(self.site, verdict, count)
                for verdict in here
                if not placed and (event := events.get(int(verdict.job.get("id") or 0)))
            }
            request = replace(
                self.request,
                partitions=(label,),
                hashes=tuple(dict.fromkeys(verdict.hashcode for verdict in here)),
            )
            directory = run.again(len([*run.path.glob("again-*")]) + 1)
            session = self.session(directory, request, until, places)
            wanted = {key_of(verdict) for verdict in here}
            verdicts += [one for one in self.judged(directory, session) if key_of(one) in wanted]
        return verdicts

    def judged(self, run: RunDirectory, session: Session) -> list[Verdict]:
        """The verdicts on the cases of a session."""
        site, labels = self.site, [part.label for part in self.site.by_groups()]
        evidence = Plain(
            jobs={str(job): event.record for job, event in read_events(run.events).items()},
            partitions={reframe_name(label): label for label in labels},
            releases={
                (label, "tensorflow"): self.modules[label].release or ""
                for label in labels
                if label in self.modules
            },
        )
        cases = (with_evidence(case, evidence) for case in session.cases)
        return [_counted(site, judge(case, self.machine)) for case in cases]


def _measured_again(
    night: _Night, run: RunDirectory, verdicts: list[Verdict], doubts: Doubts | None
) -> tuple[list[Verdict], list[str]]:
    """The verdicts after what is suspicious was measured again, and what could not be."""
    request, budget = night.request, night.site.remeasure
    verdicts = name_slow_nodes(verdicts, night.execution)
    if request.measuring or request.settings:
        return verdicts, []
    until, notes = time.monotonic() + 60 * budget.minutes, list[str]()
    for count in range(1, budget.runs + 1):
        chosen = suspicious(verdicts, doubts)
        if not chosen:
            break
        if time.monotonic() > until:
            notes.append(
                f"not measured again, {budget.minutes:g} minutes are over: {_named(chosen)}"
            )
            break
        try:
            more = night.again(run, count, chosen, until)
        except HpcdlError as fault:
            if isinstance(fault, Stopped):
                raise
            notes.append(f"not measured again, {fault.message}: {_named(chosen)}")
            break
        there = {key_of(verdict) for verdict in more if verdict.status is not Status.ERROR}
        if missing := [verdict for verdict in chosen if key_of(verdict) not in there]:
            notes.append(f"run {count + 1} gave no result of {_named(missing)}")
        verdicts = name_slow_nodes(joined([*verdicts, *more]), night.execution)
        if not there:
            break
    return verdicts, notes


def _named(verdicts: Sequence[Verdict]) -> str:
    names = [f"{one.name} on {one.place}" for one in verdicts]
    return ", ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])


def as_data(outcome: CheckOutcome) -> dict[str, Any]:
    """An outcome as verdicts.json has it."""
    return VERDICTS.data(
        {
            "run": str(outcome.directory.path),
            "site": outcome.site,
            "ok": outcome.ok,
            "machine": outcome.machine,
            "settings": list(outcome.settings),
            "notes": list(outcome.notes),
            "seconds": round(outcome.seconds, 2),
            "time": outcome.ended,
            "verdicts": [
                asdict(verdict) | {"status": verdict.status.value, "ok": verdict.ok}
                for verdict in outcome.verdicts
            ],
        }
    )


def _check_request(site: Site, request: CheckRequest) -> None:
    """Refuse what cannot be run, and references with faults."""
    load_references(site, request.partitions)
    for setting in request.settings:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*(=[^,\x00-\x1f]*)?", setting):
            raise BadInput(
                f"--set {setting!r} cannot be passed on",
                hint="write NAME=VALUE, an option of `hpcdl train`, without a comma",
            )
    process.refuse_ours(request.passed)
    for path in request.paths:
        if not path.exists():
            raise BadInput(f"there are no checks at {path}", hint="name a file or a directory")
    for path in request.paths:
        require_known_owners(path)
    process.own_settings(site)


def _refuse_mistyped(run: RunDirectory, request: CheckRequest, session: Session) -> None:
    """Refuse what was typed where nothing at all is selected and no check has that tag or name.

    What selects nothing for another reason is a night that went wrong.
    """
    names = [name.partition("/")[0] for name in request.names]
    if session.exit_code or session.cases or session.left_out:
        return
    if not (request.paths or request.tags or names):
        return
    checks = process.described(run.settings, request.paths, "--skip-system-check")
    if request.paths and not checks:
        message = f"there is no check in {', '.join(map(str, request.paths))}"
        raise BadInput(message, hint="name a file or a directory of ReFrame checks")
    tags = sorted({tag for check in checks for tag in check["tags"]})
    classes = sorted({check["@class"] for check in checks})
    for what, typed, offered in (("tag", request.tags, tags), ("name", names, classes)):
        for word in typed:
            if offered and word not in offered:
                guess = did_you_mean(word, offered)
                there = "" if guess.startswith("use") else f" There are: {', '.join(offered)}"
                raise BadInput(f"no check has the {what} {word}", hint=guess + there)


def _verdicts(night: _Night, run: RunDirectory, session: Session) -> list[Verdict]:
    request, verdicts = night.request, night.judged(run, session)
    broken = [_problem(reason) for reason in session.left_out]
    if verdicts and session.exit_code != 0 and all(verdict.ok for verdict in verdicts):
        broken.append(_problem(f"ReFrame exited with status {session.exit_code}; see {run.log}"))
    if broken or verdicts:
        return [
            *verdicts,
            *broken,
            *_partitions_without(night.site, request, verdicts),
            *_names_without(request, verdicts),
        ]
    kind = FaultKind.SELECTION if request.names and not session.exit_code else FaultKind.RUN
    return [_problem(_why_nothing(run, request, session), kind=kind)]


def _problem(reason: str, partition: str = "", kind: FaultKind = FaultKind.RUN) -> Verdict:
    return Verdict(WHOLE_RUN, "", partition, Status.ERROR, reason, (JobFault(kind, reason),))


def _partitions_without(
    site: Site, request: CheckRequest, verdicts: Sequence[Verdict]
) -> list[Verdict]:
    """A partition that was asked for by name, or a group of its nodes, on which nothing ran."""
    seen = {verdict.partition for verdict in verdicts}
    asked = site.by_groups(request.partitions) if request.partitions else ()
    return [
        _problem("no check fits this partition", part.label)
        for part in asked
        if part.label not in seen
    ]


def _names_without(request: CheckRequest, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """A check that was asked for by name and did not run: ReFrame is content with any other."""

    def means(name: str, verdict: Verdict) -> bool:
        check, _, case = name.partition("/")
        named = re.match(rf"{re.escape(check)}\b", verdict.check) is not None
        return named and (not case or verdict.case in {"", case})

    return [
        _problem(f"no check was selected by name {name}", kind=FaultKind.SELECTION)
        for name in request.names
        if not any(means(name, verdict) for verdict in verdicts)
    ]


def _counted(site: Site, verdict: Verdict) -> Verdict:
    """A case that takes all GPUs of a node, with their number; one that never started lacks it."""
    known = {part.label: part for part in site.by_groups()}
    if "xall" not in verdict.case or verdict.partition not in known:
        return verdict
    count = ranks_on(known[verdict.partition], ALL)
    return replace(verdict, case=verdict.case.replace("xall", f"x{count}"))


def _why_nothing(run: RunDirectory, request: CheckRequest, session: Session) -> str:
    if session.exit_code:
        last = [line for line in last_text(run.log).splitlines() if line.strip()][-3:]
        return f"ReFrame exited with status {session.exit_code}: {' / '.join(last)[-400:]}"
    wanted = [*(f"tag {tag}" for tag in request.tags), *(f"name {n}" for n in request.names)]
    return "no check was selected" + (f" by {', '.join(wanted)}" if wanted else "")


@dataclass(frozen=True)
class Plain:
    """What a run knows about plain checks.

    `jobs` is what became of each job, by id; `partitions` are the site's names by ReFrame's;
    `releases` is what is loaded, by partition and environment.
    """

    jobs: Mapping[str, Mapping[str, Any]]
    partitions: Mapping[str, str]
    releases: Mapping[tuple[str, str], str]


def with_evidence(case: Mapping[str, Any], plain: Plain) -> Mapping[str, Any]:
    """A case of the report; one of a plain check with the evidence of its name and its job."""
    job = plain.jobs.get(str(case.get("jobid") or ""), {})
    own = case.get("evidence") or {}
    check, parameters, added = _names(str(case.get("display_name") or case.get("name") or ""))
    if own.get("check"):
        # One that was given up never came to the point where it notes its job.
        more: dict[str, object] = {} if own.get("job") or not job else {"job": job}
        more |= {"case": f"{own['case']},{added}"} if added and own.get("case") else {}
        return {**case, "evidence": {**own, **more}} if more else case
    partition = str(case.get("partition") or "")
    label = plain.partitions.get(partition, partition)
    environment = str(case.get("environ") or "")
    code, judged = job.get("exit_code"), job.get("state") in JUDGED
    evidence = {
        "check": check,
        "case": ",".join(part for part in (parameters, added) if part),
        "partition": label,
        # That of hpcdl's own checks is no part of a name.
        "environment": "" if environment == "hpcdl" else environment,
        "release": plain.releases.get((label, environment)),
        "job": dict(job) or _job_of(case),
        "faults": [exit_fault(int(code)).as_data()] if code and judged else [],
    }
    return {**case, "evidence": evidence}


def _job_of(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a job that only ReFrame watched, from its report."""
    nodes = case.get("job_nodelist")
    named = ",".join(map(str, nodes)) if isinstance(nodes, list) else ""
    return {"id": case.get("jobid"), "nodes": named}


def _names(displayed: str) -> tuple[str, str, str]:
    """A check's name, its parameters as `size=1,mode=read`, and those that -P gave it.

    Those by which ReFrame repeats a check or distributes it are left out.
    """
    check, *rest = displayed.split(" %")
    named = [text.partition("~")[0].strip() for text in rest]
    own = [text for text in named if text.partition("=")[0].isidentifier()]
    given = [
        text[1:] for text in named if text[:1] == "." and text[1:].partition("=")[0].isidentifier()
    ]
    added = [text for text in given if text.partition("=")[0] not in _GENERATED]
    return check.partition("~")[0].strip(), ",".join(own), ",".join(added)


def key_of(verdict: Verdict) -> Key:
    """The case that a verdict is about."""
    return Key(verdict.check, verdict.case, verdict.partition, verdict.environment, verdict.planned)


def suspicious(verdicts: Sequence[Verdict], doubts: Doubts | None) -> list[Verdict]:
    """The verdicts whose cases should be measured again; errors stay, whatever a retry gives."""
    doubtful = doubts(verdicts) if doubts else set[Key]()
    return [
        one
        for one in verdicts
        if one.hashcode
        and one.status is not Status.ERROR
        and any(metric.value is not None for metric in one.metrics)
        and (key_of(one) in doubtful or (one.faults and {f.kind for f in one.faults} <= _SLOW))
    ]


def place_for(site: Site, verdict: Verdict, number_of_run: int) -> tuple[str, ...]:
    """Slurm's options that place a further run: first on the same nodes, then on others."""
    nodes = expand_hostlist(str(verdict.job.get("nodes") or ""))
    if verdict.planned or not nodes:
        return ()
    if number_of_run % 2:
        return (f"--nodelist={','.join(nodes)}",)
    has = {part.label: part.nodes for part in site.by_groups()}
    spare = has.get(verdict.partition, 0) >= 2 * len(nodes)
    return (f"--exclude={','.join(nodes)}",) if spare else ()


def joined(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """One verdict per case, in the order of their first runs; each counts all runs of its case."""
    groups: dict[Key, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(key_of(verdict), []).append(verdict)
    return [_joined(group) if len(group) > 1 else group[0] for group in groups.values()]


def _joined(group: Sequence[Verdict]) -> Verdict:
    first, *others = group
    if first.status is Status.ERROR:
        return first
    measured = [verdict for verdict in group if verdict.status is not Status.ERROR]
    runs = tuple(run for verdict in group for run in (verdict.runs or (as_run(verdict),)))
    metrics = tuple(_median(metric, runs) for metric in first.metrics)
    beyond = tuple(metric.fault for metric in metrics if metric.judged and not metric.holds)
    # A value beyond its bound hides what else is to be said, such as that its reference is stale.
    plain = next((verdict for verdict in measured if not _slow(verdict)), first)
    faults = beyond or tuple(fault for fault in plain.faults if fault.kind not in _SLOW)
    failed = [verdict.reason for verdict in others if verdict.status is Status.ERROR]
    reasons = [
        describe(faults),
        *_runs_text(metrics, runs),
        *(f"a further run: {why}" for why in failed),
    ]
    return replace(
        first,
        metrics=metrics,
        runs=runs,
        faults=faults,
        status=status_of(faults),
        reason="; ".join(part for part in reasons if part),
    )


def _slow(verdict: Verdict) -> bool:
    return any(one.kind in _SLOW for one in verdict.faults)


def _median(metric: MetricVerdict, runs: Sequence[Mapping[str, Any]]) -> MetricVerdict:
    values = _values(metric, runs)
    return replace(metric, value=median(values)) if values else metric


def _values(metric: MetricVerdict, runs: Sequence[Mapping[str, Any]]) -> list[float]:
    found = (run["values"].get(metric.name) for run in runs)
    return [value for value in found if value is not None]


def _runs_text(metrics: Sequence[MetricVerdict], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The values of all runs of the first metric that is judged."""
    metric = next((one for one in metrics if one.wanted), None)
    values = [number(value) for value in _values(metric, runs)] if metric else []
    return [f"median of {len(values)} runs: {', '.join(values)}"] if len(values) > 1 else []
