"""Proves a release through its own module: what a user would load is what is tested.

A gate is any function from a site and a release to a `Proof`. `verify_here` is the one for the
login node: import, an all-reduce and a short training of two ranks where mpirun is there, and
the device code of every shared object against the GPUs that are served. The gate through a
job on a partition comes from above and has the same form. The proof is kept in the release.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcdl.site import Site
from hpcdl.stack.fatbin import runs_on, survey
from hpcdl.stack.release import Release
from hpcdl.system.errors import MachineLacks, Stopped
from hpcdl.system.files import write_json
from hpcdl.system.run import CommandResult, run

_IMPORT = """
import json, sys
import tensorflow, horovod
import horovod.tensorflow as hvd
value = float(tensorflow.reduce_sum(tensorflow.eye(3) @ tensorflow.eye(3)))
print(json.dumps({"tensorflow": tensorflow.__version__, "horovod": horovod.__version__,
    "python": sys.version.split()[0], "mpi": hvd.mpi_built(), "value": value,
    "prefix": sys.prefix}))
"""
_RANKS = """
import json, tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
mean = float(hvd.allreduce(tf.constant([1.0 + hvd.rank()]), op=hvd.Average)[0])
tf.random.set_seed(hvd.rank())
x = tf.random.normal([256, 8])
y = tf.reduce_sum(x, axis=1, keepdims=True)
w = tf.Variable(tf.zeros([8, 1]))
losses = []
for _ in range(20):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w - y) ** 2)
    w.assign_sub(0.1 * hvd.allreduce(tape.gradient(loss, w), op=hvd.Average))
    losses.append(float(loss))
differ = float(tf.reduce_max(tf.abs(hvd.broadcast(w, root_rank=0) - w)))
differ = float(hvd.allreduce(tf.constant(differ), op=hvd.Sum))
if hvd.rank() == 0:
    print(json.dumps({"size": hvd.size(), "mean": mean, "differ": differ,
                      "first": losses[0], "last": losses[-1]}))
hvd.shutdown()
"""
_SECONDS = 300


@dataclass(frozen=True)
class Check:
    """One thing that was tried: whether it held, what was seen, and how long it took."""

    name: str
    ok: bool
    detail: str
    seconds: float
    skipped: bool = False


@dataclass(frozen=True)
class Proof:
    """What a release was tested for; `where` is a host or a partition, `at` in UTC."""

    release: str
    gate: str
    where: str
    at: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether something was tried and nothing failed."""
        return any(not check.skipped for check in self.checks) and all(c.ok for c in self.checks)

    def as_data(self) -> dict[str, Any]:
        """The content of proof.json."""
        return {"schema": 1, "passed": self.passed, **asdict(self)}


Gate = Callable[[Site, Release], Proof]


def read_proof(release: Release) -> Proof | None:
    """The stored proof, or None where there is no readable one of this release."""
    try:
        data = json.loads((release.root / "proof.json").read_text(encoding="utf-8"))
        checks = tuple(Check(**check) for check in data["checks"])
        proof = Proof(data["release"], data["gate"], data["where"], data["at"], checks)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return proof if proof.release == release.id else None


def store_proof(release: Release, proof: Proof) -> None:
    """Keep the proof in the release."""
    write_json(release.root / "proof.json", proof.as_data())


def new_proof(release: Release, gate: str, where: str, checks: Sequence[Check]) -> Proof:
    """A proof of now."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Proof(release.id, gate, where, at, tuple(checks))


def verify_here(site: Site, release: Release) -> Proof:
    """The gate of the login node.

    Raises:
        MachineLacks: Lmod is not where the site says.
    """
    checks = [
        _check_import(site, release),
        *_check_ranks(site, release),
        check_device_code(site, release),
    ]
    return new_proof(release, "login", platform.node(), checks)


def in_module(
    site: Site, release: Release, argv: Sequence[str | Path], *, timeout: float = _SECONDS
) -> CommandResult:
    """Run a command as a user of the release's module would: clean environment, real Lmod.

    Raises:
        MachineLacks: Lmod is not where the site says.
        Stopped: the time limit passed.
    """
    if not site.paths.lmod_init.is_file():
        raise MachineLacks(
            f"there is no Lmod at {site.paths.lmod_init}",
            hint="install Lmod (Debian and Ubuntu: apt install lmod) or set paths.lmod_init",
        )
    script = f'. "$LMOD_INIT" && module load {release.module} && exec "$@"'
    kept = {key: os.environ[key] for key in ("HOME", "USER", "LANG") if key in os.environ}
    env = {
        **kept,
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
        # No folder of the caller's may shadow what is tested.
        directory=Path("/"),
        check=False,
        timeout=timeout,
    )


def _check_import(site: Site, release: Release) -> Check:
    result, fault = _try(site, release, ["python", "-c", _IMPORT])
    if result is None or not result.ok:
        return _failed("import", result, fault)
    seen = json.loads(result.stdout.splitlines()[-1])
    wanted = {"tensorflow": release.versions["tensorflow"], "value": 3.0, "mpi": True,
              "horovod": release.versions["horovod"], "prefix": str(release.prefix)}  # fmt: skip
    wrong = [f"{key} is {seen.get(key)}, not {value}" for key, value in wanted.items()
             if seen.get(key) != value]  # fmt: skip
    detail = "; ".join(wrong) or f"TensorFlow {seen['tensorflow']}, Horovod {seen['horovod']}"
    return Check("import", not wrong, detail, round(result.seconds, 2))


def _check_ranks(site: Site, release: Release) -> list[Check]:
    """Two ranks agree on a mean, and train a small model whose loss falls."""
    names = ("all-reduce of 2 ranks", "training of 2 ranks")
    if shutil.which("mpirun") is None:
        lack = "there is no mpirun on this machine"
        return [Check(name, True, lack, 0.0, skipped=True) for name in names]
    launch = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none",
              "--mca", "pml", "ob1", "--mca", "btl", "self,vader",
              "--mca", "mpi_yield_when_idle", "1"]  # fmt: skip
    result, fault = _try(site, release, [*launch, "python", "-c", _RANKS])
    if result is None or not result.ok:
        return [_failed(name, result, fault) for name in names]
    seen = json.loads(result.stdout.splitlines()[-1])
    agreed = seen["size"] == 2 and abs(seen["mean"] - 1.5) < 1e-6
    learned = seen["last"] < 0.1 * seen["first"] and seen["differ"] == 0
    took = round(result.seconds, 2)
    return [
        Check(names[0], agreed, f"{seen['size']} ranks have the mean {seen['mean']}", took),
        Check(names[1], learned, f"loss from {seen['first']:.2f} to {seen['last']:.2g}, "
              f"weights of the ranks differ by {seen['differ']:.2g}", took),
    ]  # fmt: skip


def check_device_code(site: Site, release: Release) -> Check:
    """Whether every shared object with device code has some for the GPUs that are served."""
    start, name = time.monotonic(), "device code"
    objects = survey(release.prefix)
    if not objects:
        return Check(name, True, "no shared object has any", 0.0, skipped=True)
    faults, notes = [], []
    for partition in site.partitions.values():
        if partition.gpu is None or partition.name not in (release.partitions or site.partitions):
            continue
        where = f"{partition.name} ({partition.gpu.compute})"
        verdicts = [(runs_on(found.codes, partition.gpu.compute), found) for found in objects]
        faults += [f"{where}: {found.path.name} has {', '.join(map(str, found.codes))}"
                   for verdict, found in verdicts if verdict == "no"]  # fmt: skip
        by_driver = [found.path.name for verdict, found in verdicts if verdict == "ptx"]
        note = f"only PTX in {', '.join(by_driver[:3])}" if by_driver else "machine code in all"
        notes.append(f"{where}: {note} of {len(objects)} files")
    detail = "; ".join(faults[:10] or notes) or "no partition that it serves has GPUs"
    return Check(name, not faults, detail, round(time.monotonic() - start, 2))


def _try(site: Site, release: Release, argv: Sequence[str]) -> tuple[CommandResult | None, str]:
    """Run it; a time limit that passed is an answer too."""
    try:
        return in_module(site, release, argv), ""
    except Stopped as stopped:
        return None, stopped.message


def _failed(name: str, result: CommandResult | None, fault: str) -> Check:
    if result is None:
        return Check(name, False, fault, float(_SECONDS))
    said = " | ".join(result.last_lines(6))
    return Check(name, False, f"exit code {result.exit_code}: {said}", round(result.seconds, 2))
