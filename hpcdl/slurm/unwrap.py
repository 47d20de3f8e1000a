"""Finds the program of a command line behind wrappers, launchers and containers. Pure.

`env A=b timeout 5m srun -n4 apptainer exec --nv x.sif python a.py` has five programs: env, timeout,
srun, apptainer and python. Whoever asks what a job runs, or how its ranks start, asks here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from hpcdl.slurm.options import known_options, letters

MPIRUN = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun")
SHELLS = frozenset({"bash", "sh", "dash", "ksh", "zsh", "ash"})
AGENTS = ("torchrun", "deepspeed", "accelerate")
"""What starts the ranks of a node itself."""
_AGENT_MODULE = re.compile(r"torch\.distributed\.(?:run|launch)\Z|(?:accelerate|deepspeed)\.", re.A)


_ASSIGNED = re.compile(r"[A-Za-z_]\w*=", re.A)


class _Wrapper(NamedTuple):
    """How the program behind a wrapper is found.

    `valued` are the options that take the next word, `words` how many words come before the
    program, `verbs` the subcommands that run one (of any other nothing is run).
    """

    valued: frozenset[str] = frozenset()
    words: int = 0
    verbs: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()


def _wrapper(valued: str = "", words: int = 0, verbs: str = "", pairs: str = "") -> _Wrapper:
    split = (frozenset(part.split()) for part in (valued, verbs, pairs))
    first, second, third = split
    return _Wrapper(first, words, second, third)


_IMAGE = (
    "-B --bind -H --home -W --workdir --pwd --env --env-file -o --overlay -S --scratch --mount "
    "--app --hostname -c --contain-dir --security --network -e -v --volume -w --name -u --user "
    "--gpus --shm-size --ipc --ulimit --device --entrypoint -b --set-env -m --rc"
)
CONDA = ("conda", "mamba", "micromamba")
PROJECTS = ("poetry", "pipenv", "pdm", "rye")
"""What runs a program in the environment of a project's own file, as uv and pixi do."""
_OF_UV = (
    "--with --with-editable --with-requirements --from -p --python --project --directory --extra "
    "--group --only-group --env-file --index --index-url --package"
)
_OF_MPIRUN = (
    "-n -np --np --n -c -N -H -host --host -hostfile --hostfile -machinefile --machinefile "
    "-f -x -map-by --map-by -bind-to --bind-to -rank-by --rank-by -ppn -perhost -npernode "
    "--npernode -npersocket -wdir -wd --wdir --prefix -am -iface -envlist -genvlist -hosts "
    "--mca-file --tune --report-events -configfile -p -num-proc --start-timeout"
)
_ROWS = {
    **dict.fromkeys(("time", "command", "builtin", "setsid", "catchsegv"), _wrapper("-f -o")),
    **dict.fromkeys(("nohup", "unbuffer", "dumb-init", "tini"), _wrapper()),
    "env": _wrapper("-u -C -S --unset --chdir"),
    "exec": _wrapper("-a"),
    "nice": _wrapper("-n"),
    "ionice": _wrapper("-c -n -p"),
    "stdbuf": _wrapper("-i -o -e"),
    "timeout": _wrapper("-s -k --signal --kill-after", 1),
    "numactl": _wrapper("-N -m -C -i -p -P"),
    "taskset": _wrapper("", 1),
    "likwid-pin": _wrapper("-c -s"),
    "strace": _wrapper("-o -e -p -s"),
    "perf": _wrapper("-o -e -F", verbs="stat record"),
    "nsys": _wrapper("-o -t -c -s -w -f", verbs="profile launch"),
    "ncu": _wrapper("-o -k -c -s --set --section --metrics"),
    "valgrind": _wrapper(),
    "xvfb-run": _wrapper("-n --server-num -s --server-args -e --error-file -f --auth-file -w -p"),
    "compute-sanitizer": _wrapper("--tool --log-file --target-processes"),
    # Environments of Python and others: what they run is as if it had been called itself.
    "uv": _wrapper(_OF_UV, verbs="run"),
    "uvx": _wrapper(_OF_UV),
    **dict.fromkeys(PROJECTS, _wrapper("-p --project -e", verbs="run")),
    "pixi": _wrapper("-e --environment --manifest-path -m", verbs="run"),
    **dict.fromkeys(CONDA, _wrapper("-n --name -p --prefix --cwd -r", verbs="run")),
    "xargs": _wrapper("-I -n -P -L -a -d -s"),
    **dict.fromkeys(("apptainer", "singularity"), _wrapper(_IMAGE, 1, "exec run")),
    **dict.fromkeys(("docker", "podman"), _wrapper(_IMAGE, 1, "run exec")),
    "enroot": _wrapper(_IMAGE, 1, "start"),
    "shifter": _wrapper("--image -i --module -m --volume -V --env -e --workdir -w"),
    "ch-run": _wrapper(_IMAGE, 1),
    **dict.fromkeys(
        MPIRUN, _wrapper(_OF_MPIRUN, pairs="-mca --mca -gmca --gmca -genv -env --pmca")
    ),
    "horovodrun": _wrapper("-np --num-proc -H --hosts -hostfile --hostfile -p --ssh-port"),
}


@cache
def _of_srun() -> _Wrapper:
    """How srun's program is found: every option that needs an argument takes the next word."""
    long = {
        f"--{name}" for name, fact in known_options("srun").items() if fact.argument == "required"
    }
    short = {
        f"-{letter}" for letter, fact in letters("srun").items() if fact.argument == "required"
    }
    return _Wrapper(frozenset(long | short))


def unwrap(words: Sequence[str]) -> tuple[int, ...]:
    """Return the index in `words` of each program, the outermost first; the last wraps nothing."""
    starts: list[int] = []
    at = 0
    while at < len(words):
        starts.append(at)
        name = words[at].rpartition("/")[2]
        row = _of_srun() if name == "srun" else _ROWS.get(name)
        if row is None:
            break
        at = _behind(words, at + 1, row, assigns=name == "env")
    return tuple(starts)


def program_of(words: Sequence[str]) -> int:
    """Return the index of the innermost program, behind all wrappers."""
    return max(unwrap(words), default=0)


def rank_starter(words: Sequence[str]) -> str:
    """The program among these that starts ranks itself: `torchrun`, `mpirun`, `srun`; '' for none.

    `bash -c 'cd x && torchrun y.py'` starts them as well as `torchrun y.py` does.
    """
    for at in unwrap(words):
        own = words[at:]
        name = own[0].rpartition("/")[2]
        if name in {*MPIRUN, "mpiexecjl", "srun", "horovodrun", "sbatch", "salloc"}:
            return name
        if is_agent(own):
            module = next((one for one in own if _AGENT_MODULE.match(one)), "")
            return name if name in AGENTS else module.partition(".")[0].replace("torch", "torchrun")
        if name in SHELLS and "-c" in own[:-1]:
            for line in re.split(r"[;&|\n(){}]+", own[own.index("-c") + 1]):
                with suppress(ValueError):
                    inner = [one for one in shlex.split(line) if not _ASSIGNED.match(one)]
                    if starter := rank_starter(inner):
                        return starter
    return ""


def _behind(words: Sequence[str], at: int, row: _Wrapper, *, assigns: bool) -> int:
    """Return the index of a wrapper's program; the end if it runs none."""
    if row.verbs:
        while at < len(words) and words[at].startswith("-"):
            at += 1
        if at >= len(words) or words[at] not in row.verbs:
            return len(words)
        at += 1
    left = row.words
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
        elif word.startswith("-") and len(word) > 1:
            at += 3 if word in row.pairs else 2 if word in row.valued else 1
        elif assigns and _ASSIGNED.match(word):
            at += 1
        elif left:
            left, at = left - 1, at + 1
        else:
            return at
    return len(words)


def is_agent(words: Sequence[str]) -> bool:
    """Whether these words start the ranks of a node: torchrun, python -m torch.distributed.run."""
    name = words[0].rpartition("/")[2] if words else ""
    if name == "accelerate":
        return "launch" in words[1:2]
    if name in AGENTS:
        return True
    if not name.startswith("python"):
        return False
    for before, word in pairwise(words):
        if before == "-m":
            return bool(_AGENT_MODULE.match(word))
        if not word.startswith("-") and before not in {"-W", "-X"}:
            return False  # the script: what follows is its own
    return False
