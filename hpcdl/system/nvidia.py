"""The NVIDIA driver's view of this node's GPUs: nvidia-smi, and what is wrong with the GPUs.

Standard library only: every rank of a job asks before its program starts. An nvidia-smi that is
there and fails is a fault. It once counted as "no driver here", and jobs ran on dead GPUs.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SECONDS = 20.0
"""How long nvidia-smi may take; on a node with many GPUs and no persistence daemon: 10 s."""
# nvidia-smi(1): 14 is a damaged infoROM, with which GPUs compute as before.
_FINE = (0, 14)
_DEAD = re.compile(
    r"ERR!|\bXid\b|GPU is lost|requires reset|Unknown Error|fallen off the bus|"
    r"Unable to determine the device handle|Failed to initialize NVML"
)
_FIELDS = "index,uuid,driver_version,ecc.errors.uncorrected.volatile.total"
# They hold a context for all users, and no user's memory.
_SERVICES = ("nvidia-cuda-mps-server", "nv-hostengine", "nvidia-persistenced")


class DriverGpu(NamedTuple):
    """A GPU as nvidia-smi lists it; `ecc_errors` are uncorrected ones since the driver's start."""

    number: str
    uuid: str
    driver: str = ""
    ecc_errors: int = 0


@dataclass(frozen=True)
class DriverReport:
    """The GPUs that the driver shows. `installed`: whether there is an nvidia-smi at all.

    `faults` are sentences: why nvidia-smi failed, and what is wrong with which GPU.
    """

    gpus: tuple[DriverGpu, ...] = ()
    faults: tuple[str, ...] = ()
    installed: bool = True

    @property
    def driver(self) -> str:
        """The driver's version, '' if nvidia-smi does not show it."""
        return next((gpu.driver for gpu in self.gpus if gpu.driver), "")


def report() -> DriverReport:
    """Ask nvidia-smi for the GPUs of this node, or of this job where cgroups hide the others."""
    try:
        code, text = _ask([f"--query-gpu={_FIELDS}"])
    except FileNotFoundError:
        return DriverReport(installed=False)
    except subprocess.TimeoutExpired:
        return DriverReport(faults=(f"nvidia-smi did not answer within {SECONDS:g} s",))
    except OSError as fault:
        return DriverReport(faults=(f"nvidia-smi cannot be run: {fault.strerror}",))
    gpus = read_gpus(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    dead = [line[:120] for line in lines if _DEAD.search(line)]
    faults = [f"nvidia-smi shows {line!r}" for line in dead]
    if code not in _FINE:
        # What it says of a fault comes first; of a healthy GPU it says nothing.
        why = next(iter([*dead, *(line[:120] for line in lines if ", GPU-" not in line)]), "")
        faults.insert(0, f"nvidia-smi failed with exit code {code}" + (f": {why}" if why else ""))
    faults += [
        f"GPU {gpu.uuid} has {gpu.ecc_errors} uncorrected ECC errors"
        for gpu in gpus
        if gpu.ecc_errors
    ]
    return DriverReport(gpus, tuple(faults))


def read_gpus(text: str) -> tuple[DriverGpu, ...]:
    """The GPUs in nvidia-smi's table; lines that are none are left out. Pure."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= 2 and cells[0].isdigit() and cells[1].startswith("GPU-"):
            driver, errors = [*cells[2:4], "", ""][:2]
            version = driver if driver[:1].isdigit() else ""
            count = int(errors) if errors.isdigit() else 0
            gpus.append(DriverGpu(cells[0], cells[1], version, count))
    return tuple(gpus)


def foreign_processes(uuids: Sequence[str], is_own: Callable[[int], bool]) -> tuple[str, ...]:
    """A sentence per process of others that computes on one of these GPUs."""
    text = ""
    with suppress(OSError, subprocess.TimeoutExpired):
        text = _ask(["--query-compute-apps=gpu_uuid,pid,process_name"])[1]
    sentences = []
    for line in text.splitlines():
        uuid, pid, name = ([cell.strip() for cell in line.split(",", 2)] + ["", "", ""])[:3]
        service = name.rpartition("/")[2] in _SERVICES
        if uuid in uuids and pid.isdigit() and not service and not is_own(int(pid)):
            sentences.append(f"process {pid} ({name[:60] or 'no name'}) already uses GPU {uuid}")
    return tuple(sentences)


def of_job(pid: int, job: str) -> bool:
    """Whether a process belongs to this Slurm job: ranks that were quicker are no strangers."""
    with suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return bool(job) and os.fsencode(f"SLURM_JOB_ID={job}") in environment
    return False


def _ask(query: list[str]) -> tuple[int, str]:
    """Exit code and output. A process that hangs in the driver is not waited for: kill may fail."""
    process = subprocess.Popen(
        ["nvidia-smi", *query, "--format=csv,noheader,nounits"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        text, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, text
