"""Proves a release through its own module: what a user would load is what is tested.

A gate is any function from a site and a release to a `Proof`. `verify_here` is the one for a
machine without Slurm, hpcdl.workflows.gate the one through jobs on the partitions. Both run the
same program (probe) in two ranks and judge what it saw with `judge`; both read the device code of
every shared object. The evidence is kept in the release.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcdl.site import Partition, Site
from hpcdl.site.sections import BACKENDS
from hpcdl.stack import linked
from hpcdl.stack.modules import has_code_for
from hpcdl.stack.release import Release, seal
from hpcdl.stack.tree import check_integrity, shortened
from hpcdl.system.errors import CheckFailed, MissingPrerequisite, Stopped
from hpcdl.system.files import write_json
from hpcdl.system.resources import scratch_directory
from hpcdl.system.run import CommandResult, run
from hpcdl.system.text import utc_now

PROOF_FILE = "proof.json"
PROBE = Path(__file__).with_name("probe.py")
PYTHON = ("python", "-B")
"""The interpreter as the gate starts it: it writes no bytecode, also where root runs it."""
RANKS = 2
_SECONDS = 600
_PRECISION = 1e-3
_LOADED = ("lib", "lib64", "targets")
"""Where a release has the libraries that programs load; profilers have their own rules."""


@dataclass(frozen=True)
class Check:
    """One thing that was tried: whether it held, what was seen, and how long it took."""

    name: str
    ok: bool
    detail: str
    seconds: float
    skipped: bool = False
    partition: str = ""

    def describe(self) -> str:
        """Return the test as text: where, what, and its result."""
        where = f"{self.partition}: " if self.partition else ""
        return f"{where}{self.name}: {self.detail}"


@dataclass(frozen=True)
class GateRun:
    """Where a gate ran: the job and its nodes, when (UTC), its log, and what was measured.

    `samples` are the losses and the seconds of each step of the short training.
    """

    partition: str
    job: int | None
    nodes: str
    at: str
    log: str
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Proof:
    """The result of a release's tests.

    `gate` is `job` or `login`; `where` the partitions or the host; `at` in UTC; `level` one of
    `hpcdl.facts.PROOFS`: a stack for GPUs that was only loaded on a login node is `compiled`.
    `build` is what was tested: versions, GPUs, and of what was compiled hashes, compilers, flags.
    """

    release: str
    gate: str
    where: str
    at: str
    checks: tuple[Check, ...]
    level: str = "run"
    runs: tuple[GateRun, ...] = ()
    build: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Return whether something was tried and nothing failed."""
        return any(not check.skipped for check in self.checks) and all(c.ok for c in self.checks)

    @property
    def partitions(self) -> frozenset[str]:
        """The partitions on which it ran."""
        return frozenset(one.partition for one in self.runs)

    def is_wider(self, other: Proof) -> bool:
        """Return whether it passed by jobs on all partitions that the other ran on, and on more."""
        more = other.gate != "job" or other.partitions < self.partitions
        return self.passed and self.gate == "job" and more

    def describe(self) -> str:
        """How it was tested: `run in jobs on p100, v100`."""
        how = "in jobs on" if self.gate == "job" else "on"
        return f"{self.level} {how} {self.where}"

    def as_data(self) -> dict[str, Any]:
        """The content of proof.json, sealed: another site may take it as evidence."""
        record = {"schema": 1, "passed": self.passed, **asdict(self)}
        return {**record, "seal": seal(record)}


Gate = Callable[[Site, Release], Proof]


def read_proof(release: Release) -> Proof | None:
    """The stored evidence, or None where there is no readable one of this release."""
    try:
        data = json.loads((release.root / PROOF_FILE).read_text(encoding="utf-8"))
        checks = tuple(Check(**check) for check in data["checks"])
        runs = tuple(GateRun(**one) for one in data["runs"])
        plain = {key: data[key] for key in ("release", "gate", "where", "at", "level")}
        proof = Proof(**plain, checks=checks, runs=runs, build=data.get("build", {}))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return proof if proof.release == release.id else None


def store_proof(release: Release, proof: Proof) -> None:
    """Keep the evidence in the release."""
    write_json(release.root / PROOF_FILE, proof.as_data())


def new_proof(
    release: Release, gate: str, where: str, checks: Sequence[Check], runs: Sequence[GateRun] = ()
) -> Proof:
    """The evidence of now."""
    level = "compiled" if gate == "login" and "cuda" in release.versions else "run"
    build = {
        "backend": release.backend,
        "versions": dict(release.versions),
        "compute": list(release.needs.get("compute", ())),
        "content": release.content,
        "compiled": sorted(
            (dict(row) for row in release.lock if "compilers" in row),
            key=lambda row: not any(name in row["name"] for name in ("tensorflow", "horovod")),
        ),
    }
    return Proof(release.id, gate, where, utc_now(), tuple(checks), level, tuple(runs), build)


def verify_here(site: Site, release: Release) -> Proof:
    """The gate of this machine, outside any job; without mpirun nothing is tried with two ranks."""
    with scratch_directory() as folder:
        out, program = folder / "gate.json", folder / PROBE.name
        # Alone in a directory: Python looks for modules beside the program first.
        shutil.copyfile(PROBE, program)
        start = time.monotonic()
        try:
            done = in_module(site, release, [*_launcher(), *program_argv(release, program, out)])
            failed = f"exit code {done.exit_code}: {' | '.join(done.last_lines(6))}"
        except Stopped as stopped:  # the time limit passed
            failed = stopped.message
        seen = read_seen(out)
        took = round(time.monotonic() - start, 2)
    checks, runs = [Check("import", False, failed, took)], []
    if seen is not None:
        checks = judge(release, seen, None, RANKS if _launcher() else 1)
        runs = [GateRun("", None, platform.node(), utc_now(), "", samples_of(seen))]
    checks += [*check_files(site, release), check_content(release)]
    return new_proof(release, "login", platform.node(), checks, runs)


def program_argv(release: Release, program: str | Path, out: str | Path) -> list[str]:
    """The command that runs the gate's program, which writes to `out`."""
    return [*PYTHON, str(program), str(out), *linked.opened_by_name(release)]


def _launcher() -> list[str]:
    """Return the command that starts two ranks here; empty without mpirun."""
    if shutil.which("mpirun") is None:
        return []
    alone = "--bind-to none --mca pml ob1 --mca btl self,vader --mca mpi_yield_when_idle 1"
    return ["mpirun", "-np", str(RANKS), "--oversubscribe", *alone.split()]


def read_seen(path: Path) -> dict[str, Any] | None:
    """Return the output of the gate's program; None if there is none."""
    with suppress(OSError, ValueError, RecursionError):
        seen = json.loads(path.read_text(encoding="utf-8"))
        return seen if isinstance(seen, dict) else None
    return None


def samples_of(seen: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the measurements, for the evidence."""
    ranks = seen.get("ranks") or {}
    return {key: list(ranks[key]) for key in ("losses", "seconds") if key in ranks}


def judge(
    release: Release, seen: Mapping[str, Any], partition: Partition | None, ranks: int = RANKS
) -> list[Check]:
    """Compare what the gate's program saw, on a partition or outside any, with the release."""
    return [
        _judge_import(release, seen["import"]),
        _judge_kernel(release, seen, partition),
        *_judge_ranks(release, seen.get("ranks"), ranks),
        _judge_libraries(release, seen["libraries"]),
    ]


def _judge_import(release: Release, seen: Mapping[str, Any]) -> Check:
    wanted = {name: release.versions.get(name) for name in ("tensorflow", "horovod")}
    wrong = [
        f"{name} is {seen[name]}, not {version}"
        for name, version in wanted.items()
        if version is not None and seen[name] != version
    ]
    if seen["release"] != release.id:
        wrong.append(f"the module loaded is of release {seen['release']}")
    if seen["horovod"] and not seen["mpi"]:
        wrong.append("Horovod is built without MPI")
    detail = "; ".join(wrong) or f"TensorFlow {seen['tensorflow']}, Horovod {seen['horovod']}"
    return Check("import", not wrong, detail, seen["took"])


def _judge_kernel(release: Release, seen: Mapping[str, Any], partition: Partition | None) -> Check:
    """A build for GPUs must be one, and find one where it runs on a partition that has some."""
    kernel, on_gpu = seen["kernel"], bool(seen["import"]["gpus"])
    built, meant = bool(seen["import"]["cuda"]), "cuda" in release.versions
    wants_gpu = built and partition is not None and partition.gpu is not None
    device = kernel["model"] or kernel["device"]
    detail = f"matrix product and convolution on {device}, off by {kernel['wrong']:.1g}"
    if meant and not built:
        detail = f"TensorFlow is built without CUDA, not for {release.versions['cuda']}"
    elif wants_gpu and not on_gpu:
        detail = "TensorFlow is built for GPUs and finds none"
    elif partition is not None and partition.gpu is not None and not on_gpu:
        detail += "; this build has no code for GPUs"
    ok = kernel["wrong"] < _PRECISION and (on_gpu or not wants_gpu) and (built or not meant)
    return Check("device kernel", ok, detail, kernel["took"])


def _judge_ranks(release: Release, seen: Mapping[str, Any] | None, started: int) -> list[Check]:
    """Two ranks agree on a mean, and train a small model whose loss falls."""
    names = (f"all-reduce of {RANKS} ranks", f"training of {RANKS} ranks")
    if seen is None:
        ok, lack = "horovod" not in release.versions, "the release has no Horovod"
        return [Check(name, ok, lack, 0.0, skipped=ok) for name in names]
    if started == 1:
        lack = "one rank was started: there is no mpirun here, or no space left for a second one"
        return [Check(name, True, lack, 0.0, skipped=True) for name in names]
    if seen["size"] != started:
        lack = (
            f"{started} ranks were started, and Horovod sees {seen['size']}: its MPI does not "
            "find the launcher's PMIx"
        )
        return [Check(name, False, lack, seen["took"]) for name in names]
    agreed = abs(seen["mean"] - 1.5) < _PRECISION
    first, last = seen["losses"][0], seen["losses"][-1]
    learned = last < 0.1 * first and seen["differ"] == 0
    return [
        Check(names[0], agreed, f"{seen['size']} ranks have the mean {seen['mean']}", seen["took"]),
        Check(
            names[1],
            learned,
            f"loss from {first:.2f} to {last:.2g}, weights of the ranks "
            f"differ by {seen['differ']:.2g}",
            seen["took"],
        ),
    ]


def _judge_libraries(release: Release, seen: Mapping[str, Any]) -> Check:
    faults = linked.library_faults(release, seen)
    sound = f"of {len(seen['mapped'])} that are loaded, all that the release has are its own"
    return Check("libraries", not faults, "; ".join(faults[:10]) or sound, seen["took"])


def in_module(site: Site, release: Release, argv: Sequence[str | Path]) -> CommandResult:
    """Run a command as a user of the release's module would: clean environment, real Lmod.

    Raises Stopped where the time limit passes.
    """
    if not site.paths.lmod_init.is_file():
        raise MissingPrerequisite(
            f"there is no Lmod at {site.paths.lmod_init}",
            hint="install Lmod (Debian and Ubuntu: apt install lmod) or set paths.lmod_init",
        )
    script = f'. "$LMOD_INIT" && module load {release.module} && exec "$@"'
    env = {
        **{key: os.environ[key] for key in ("HOME", "USER", "LANG") if key in os.environ},
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LMOD_INIT": str(site.paths.lmod_init),
        "MODULEPATH": str(release.modules),
    }
    if os.geteuid() == 0:
        # Open MPI refuses root unless told twice.
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    pairs = [f"{key}={value}" for key, value in env.items()]
    return run(
        ["env", "-i", *pairs, "bash", "--noprofile", "--norc", "-c", script, "bash", *argv],
        # No directory of the caller's may shadow what is tested.
        directory=Path("/"),
        check=False,
        timeout=_SECONDS,
    )


def check_files(
    site: Site, release: Release, names: Collection[str] = (), *, run_there: bool = False
) -> list[Check]:
    """Check a release's files without GPU or job: what they load, their device code.

    `names` are the partitions that count; `run_there` says that jobs try kernels on their GPUs.
    """
    checks = [check_device_code(site, release, names, run_there=run_there)]
    if BACKENDS[release.backend].own_python:
        start = time.monotonic()
        faults = linked.taken_from_elsewhere(release, lambda argv: in_module(site, release, argv))
        sound = "the release's libraries are found before those of other modules"
        checks.append(_of_faults("LD_LIBRARY_PATH", faults, sound, start))
    if "compute" in release.needs and "horovod" in release.versions:
        start = time.monotonic()
        checks.append(_of_faults("device code of Horovod", *linked.code_faults(release), start))
    return checks


def _of_faults(name: str, faults: Sequence[str], sound: str, start: float) -> Check:
    """Return a check of files: its faults, or the text for none."""
    detail = "; ".join(faults[:10]) or sound
    return Check(name, not faults, detail, round(time.monotonic() - start, 2))


def check_device_code(
    site: Site, release: Release, names: Collection[str] = (), *, run_there: bool = False
) -> Check:
    """Return whether every shared object with device code has some for the GPUs that are served.

    `names` are the partitions that count. PTX of an older generation is a fault unless jobs try
    kernels on these GPUs (`run_there`).
    """
    start, name = time.monotonic(), "device code"
    objects = linked.survey(*(release.prefix / folder for folder in _LOADED))
    if not objects:
        meant = "cuda" in release.versions
        but = f", but it is for CUDA {release.versions['cuda']}" if meant else ""
        return Check(name, not meant, f"no shared object has any{but}", 0.0, skipped=not meant)
    faults, notes = [], []
    served = names or release.partitions or site.partitions
    with_gpus = [one for one in site.partitions.values() if one.gpu and one.name in served]
    for partition in with_gpus:
        gpus = [(group.label, group.gpu) for group in partition.gpu_groups if group.gpu]
        coded = [one for one in gpus if has_code_for(release, one[1])]
        # All, if it is for none of them and does not name the partition.
        gpus = coded if coded or partition.name in release.partitions else gpus
        faults += [] if gpus else [f"{partition.name}: the release is for none of its GPUs"]
        for label, gpu in gpus:
            where = f"{label} ({gpu.compute})"
            verdicts = [
                (linked.runs_on(codes, gpu.compute), path) for path, codes in objects.items()
            ]
            faults += [
                f"{where}: {path.name} has {', '.join(objects[path])}"
                for verdict, path in verdicts
                if verdict == "no"
            ]
            foreign = [path.name for verdict, path in verdicts if verdict == "foreign"]
            if foreign and not run_there:
                faults.append(
                    f"{where}: {', '.join(foreign[:3])} has only PTX of an older generation, which "
                    "proves nothing; a job of the gate on that partition does"
                )
            by_driver = [path.name for verdict, path in verdicts if verdict in {"ptx", "foreign"}]
            note = f"only PTX in {', '.join(by_driver[:3])}" if by_driver else "machine code in all"
            notes.append(f"{where}: {note} of {len(objects)} files")
    sound = "; ".join(notes) or "no partition that it serves has GPUs"
    return _of_faults(name, faults, sound, start)


def check_content(release: Release) -> Check:
    """Check that no file has changed since the build; runs last, to see what the gate wrote."""
    try:
        found = check_integrity(release)
    except CheckFailed as fault:
        return Check("content", False, fault.message, 0.0)
    detail = "; ".join([found.describe(), *shortened(found.faults)])
    return Check("content", found.ok, detail, round(found.seconds, 2))
