"""Interactive jobs: a shell on a node, and JupyterLab in a job with the way to reach it.

A shell is `salloc` with the options of a batch job, and in it `srun --interactive`: the step that
Slurm itself starts where LaunchParameters has `use_interactive_step`. It takes none of the job's
CPUs and GPUs, so that `srun` in the shell starts at once. (Under a plain `srun --pty bash` it waits
until that shell ends: the shell's step holds all that the job has.)

JupyterLab is a batch job. It chooses a free port, and writes host, port and token to a file of its
runtime directory that only its owner can read. No command line has the token.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcdl.jobs.script import VALUES, as_shell, default_job_dir, render_script, render_shell
from hpcdl.slurm import client
from hpcdl.system import resources
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite, Stopped
from hpcdl.system.files import read_regular, write_atomic
from hpcdl.system.text import utc_stamp
from hpcdl.system.trust import require_own

if TYPE_CHECKING:
    from hpcdl.jobs.spec import JobSpec, Module
    from hpcdl.site import Site

# Directives that salloc does not take, or that mean nothing for a shell.
_BATCH_ONLY = frozenset({"--output", "--open-mode", "--requeue", "--no-requeue", "--signal"})
_ENDED_BY_SLURM = frozenset({"TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED", "DEADLINE"})
_END_SECONDS = 10.0
_STARTED = "started"
_MOST_BYTES = 100_000
_RUNTIME = "jupyter"


class Shell(NamedTuple):
    """A shell to start: its directory, salloc's options, and the files of the directory by name."""

    folder: Path
    options: tuple[str, ...]
    program: tuple[str, ...]
    files: dict[str, bytes]


def plan_shell(site: Site, spec: JobSpec, module: Module, where: Path) -> Shell:
    """The shell of a request; it begins in the directory `where`.

    `spec.program` runs in place of a prompt; () is a prompt.
    """
    folder = spec.job_dir or default_job_dir(site, spec.name, f"{utc_stamp()}-{os.getpid()}")
    # The program runs once, in the shell: of the script only the directives count.
    placed = replace(spec, job_dir=folder, launcher="plain", preflight=False, program=("bash",))
    directives = render_script(site, placed, module).directives
    options = [shlex.split(line) for line in directives if line.split("=")[0] not in _BATCH_ONLY]
    files = {"shell.sh": render_shell(site, placed, module, spec.chdir or where).encode()}
    if spec.environment:
        files[VALUES] = as_shell(spec.environment)
    return Shell(folder, tuple(word for words in options for word in words), spec.program, files)


def run_shell(shell: Shell, *, terminal: bool) -> int:
    """Wait for the allocation, run the shell in it; return its exit status.

    Raises:
        MissingPrerequisite: there is no salloc, or Slurm gave no allocation.
        Stopped: the job ended while the shell was open.
    """
    if shutil.which("salloc") is None:
        raise MissingPrerequisite("Slurm's command 'salloc' is not on PATH")
    shell.folder.mkdir(mode=0o700, parents=True)
    # Ctrl-C is the shell's: a handler, as an ignored signal would be ignored by it, too.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        require_own(shell.folder)  # what is in it runs on the node, when Slurm has one
        for name, content in shell.files.items():
            write_atomic(shell.folder / name, content, mode=0o600)
        argv, env = _argv(shell, terminal=terminal), client.query_environment()
        return _judged(shell, subprocess.run(argv, env=env, check=False).returncode)
    finally:
        signal.signal(signal.SIGINT, before)
        shutil.rmtree(shell.folder, ignore_errors=True)


def _argv(shell: Shell, *, terminal: bool) -> list[str]:
    step = ["srun", "--interactive", "--preserve-env", "--mpi=none", *(["--pty"] * terminal)]
    rc = str(shell.folder / "shell.sh")
    if shell.program:
        inner = ["bash", "-c", 'source "$0"; exec "$@"', rc, *shell.program]
    else:
        inner = ["bash", "--rcfile", rc, "-i"]
    # The id of the job is kept: after its end, salloc's exit status does not say why it ended.
    begin = f'echo "$SLURM_JOB_ID" >{shlex.quote(str(shell.folder / _STARTED))}; exec "$@"'
    return ["salloc", *shell.options, "bash", "-c", begin, "salloc", *step, *inner]


def _judged(shell: Shell, code: int) -> int:
    """The exit status; the reason where the allocation was refused, or ended before the shell."""
    try:
        job = int((shell.folder / _STARTED).read_text())
    except (OSError, ValueError):
        message = "Slurm gave no allocation; its message is above"
        raise MissingPrerequisite(message, hint="`hpcdl site gpus` shows what is free") from None
    record, late = None, time.monotonic() + _END_SECONDS
    with suppress(HpcdlError):  # Slurm need not tell how it ended
        # A revoked one may end in 0 as well: its program took SIGTERM, or srun waited in vain.
        while (record := client.job(job)) and record.active and time.monotonic() < late:
            time.sleep(0.2)
    if record and record.state in _ENDED_BY_SLURM:
        raise Stopped(
            f"job {job} ended while the shell was open: {record.state}",
            hint="a longer --time gives more, as far as the partition allows",
        )
    return code if shell.program else 0


# ---- JupyterLab ----


class Server(NamedTuple):
    """A JupyterLab that runs: where it listens, and the file that has its token."""

    node: str
    port: int
    token: str
    file: Path

    def tunnel(self, login: str, local: int) -> str:
        """The command for the user's own computer.

        The login node forwards to the address that Slurm itself uses for the node: that of an
        emulated node, or of one in a network of its own, is in no name server.
        """
        address = client.of_nodes("NodeAddr", self.node).get(self.node) or self.node
        return f"ssh -N -L {local}:{address}:{self.port} {login}"


def notebook(spec: JobSpec, where: Path) -> JobSpec:
    """The batch job that serves JupyterLab for the directory `where`.

    `spec.program` are further arguments of jupyter-lab. BadInput: everybody may write there, as to
    /tmp. A kernel is `python -m ipykernel_launcher` in that directory, and Python takes the module
    of that name that somebody has put there.
    """
    root, server = spec.chdir or where, resources.folder("templates") / "sbatch/jupyter.sh"
    if root.is_dir() and root.stat().st_mode & stat.S_IWOTH:
        message = f"everybody may write to {root}, and what is there would run in your kernels"
        raise BadInput(message, hint="begin in a directory of your own")
    return replace(
        spec,
        program=("bash", "-c", server.read_text(), "jupyter", str(root), *spec.program),
        launcher="single",
        requeues=0,
    )


def server_of(job_dir: Path) -> Server | None:
    """The JupyterLab of a job's directory; None where it does not listen yet."""
    runtime = job_dir / _RUNTIME
    for path in sorted(runtime.glob("jpserver-*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, BadInput):
            record = json.loads(read_regular(path, _MOST_BYTES, "file of JupyterLab"))
            node = read_regular(runtime / "node", _MOST_BYTES, "name of the node").decode().strip()
            return Server(node, int(record["port"]), str(record["token"]), path)
    return None
