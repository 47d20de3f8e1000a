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
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcdl.jobs import environment
from hpcdl.jobs.script import default_job_dir, render_script, render_shell
from hpcdl.slurm import client
from hpcdl.system.errors import BadInput, HpcdlError, MissingPrerequisite, Stopped
from hpcdl.system.files import read_regular, write_atomic
from hpcdl.system.text import utc_stamp
from hpcdl.system.trust import require_own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcdl.jobs.spec import JobSpec, Module
    from hpcdl.site import Site

# Directives that salloc does not take, or that mean nothing for a shell.
_BATCH_ONLY = frozenset({"--output", "--open-mode", "--requeue", "--no-requeue", "--signal"})
_ENDED_BY_SLURM = frozenset({"TIMEOUT", "CANCELLED", "NODE_FAIL", "PREEMPTED", "DEADLINE"})
_END_SECONDS = 10.0
_STARTED = "started"
_MOST_BYTES = 100_000
_RUNTIME = "jupyter"

# Host names of nodes may be unknown to the node itself: then JupyterLab listens on all interfaces.
_SERVER = """\
command -v jupyter-lab >/dev/null || {
  echo "hpcdl: there is no jupyter-lab on PATH. Add jupyterlab to the stack's packages," >&2
  echo "hpcdl: or name a module that has it: --module NAME" >&2
  exit 127
}
umask 077
export JUPYTER_RUNTIME_DIR=$HPCDL_JOB_DIR/jupyter
rm -rf "$JUPYTER_RUNTIME_DIR"; mkdir "$JUPYTER_RUNTIME_DIR" || exit 3
echo "$SLURMD_NODENAME" >"$JUPYTER_RUNTIME_DIR/node"
JUPYTER_TOKEN=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \\n')
export JUPYTER_TOKEN
listen=$SLURMD_NODENAME
getent hosts "$listen" >/dev/null || listen=0.0.0.0
root=$1; shift
cd "$root" || exit 3
exec jupyter-lab --no-browser --ServerApp.ip="$listen" --ServerApp.port=0 \\
  --ServerApp.root_dir="$root" "$@"
"""


class Shell(NamedTuple):
    """A shell to start: its directory, salloc's options, and the files of the directory by name."""

    folder: Path
    options: tuple[str, ...]
    program: tuple[str, ...]
    files: dict[str, bytes]


def plan_shell(site: Site, spec: JobSpec, module: Module, where: Path) -> Shell:
    """The shell of a request; it begins in the directory `where`.

    `spec.program` runs in place of a prompt; () is a prompt.

    Raises BadInput: the request is impossible; says what would fit.
    """
    folder = spec.job_dir or default_job_dir(site, spec.name, f"{utc_stamp()}-{os.getpid()}")
    # The program runs once, in the shell: of the script only the directives count.
    placed = replace(spec, job_dir=folder, launcher="plain", preflight=False, program=("bash",))
    directives = render_script(site, placed, module).directives
    options = [shlex.split(line) for line in directives if line.split("=")[0] not in _BATCH_ONLY]
    files = {"shell.sh": render_shell(site, placed, module, spec.chdir or where).encode()}
    if spec.environment:
        files[environment.NAME] = environment.as_shell(spec.environment)
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
    try:
        require_own(shell.folder)  # what is in it runs on the node, when Slurm has one
        for name, content in shell.files.items():
            write_atomic(shell.folder / name, content, mode=0o600)
        with _left_to_the_child():
            code = subprocess.run(
                _argv(shell, terminal=terminal), env=client.query_environment(), check=False
            ).returncode
        return _judged(shell, code)
    finally:
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


@contextmanager
def _left_to_the_child() -> Iterator[None]:
    """Ctrl-C is the shell's: a handler, as an ignored signal would be ignored by it, too."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _judged(shell: Shell, code: int) -> int:
    """The exit status; the reason where the allocation was refused, or ended before the shell."""
    try:
        job = int((shell.folder / _STARTED).read_text())
    except (OSError, ValueError):
        message = "Slurm gave no allocation; its message is above"
        raise MissingPrerequisite(message, hint="`hpcdl site gpus` shows what is free") from None
    if code and (state := _end_of(job)) in _ENDED_BY_SLURM:
        raise Stopped(
            f"job {job} ended while the shell was open: {state}",
            hint="a longer --time gives more, as far as the partition allows",
        )
    return code if shell.program else 0


def _end_of(job: int) -> str:
    """Return the state in which a job ended; '' if Slurm does not report it."""
    late = time.monotonic() + _END_SECONDS
    with suppress(HpcdlError):
        while (record := client.job(job)) and record.active and time.monotonic() < late:
            time.sleep(0.2)
        return record.state if record else ""
    return ""


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

    def url(self, local: int) -> str:
        """The URL for the user's browser, through the tunnel, without the token."""
        return f"http://localhost:{local}/lab"


def notebook(spec: JobSpec, where: Path) -> JobSpec:
    """The batch job that serves JupyterLab for the directory `where`.

    `spec.program` are further arguments of jupyter-lab. BadInput: everybody may write there, as to
    /tmp. A kernel is `python -m ipykernel_launcher` in that directory, and Python takes the module
    of that name that somebody has put there.
    """
    root = spec.chdir or where
    if root.is_dir() and root.stat().st_mode & stat.S_IWOTH:
        message = f"everybody may write to {root}, and what is there would run in your kernels"
        raise BadInput(message, hint="begin in a directory of your own")
    return replace(
        spec,
        program=("bash", "-c", _SERVER, "jupyter", str(root), *spec.program),
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
