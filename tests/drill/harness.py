"""What a drill is, and what it finds: lost, wrong, left behind.

A drill gets a `Bench`: a home of its own, a seeded source of chance, a count and a deadline. It
runs commands, with a fault in one of them, and notes each thing that must hold and does not. The
bench itself looks for processes, mounts, bridges and temporary files that are left at the end.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hpcdl.cluster.network import bridges
from hpcdl.cluster.teardown import down
from hpcdl.system.errors import ExitCode
from tests.drill.shim import Fault
from tests.integration.conftest import clean_environment

ROOT = Path(__file__).resolve().parents[2]
HPCDL = (sys.executable, "-m", "hpcdl")
_TEMPORARY = re.compile(r"\..+\.([A-Za-z0-9_]{8}|\d+)$|.*\.partial(-\d+)?$")
"""Names that `write_atomic`, `switch_link` and downloads use until they are done."""


@dataclass(frozen=True)
class Done:
    """How one command ended; `died` where the drill killed it."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def died(self):
        return self.code == -signal.SIGKILL

    @property
    def ok(self):
        return self.code == 0

    def __str__(self):
        said = (self.err.strip() or self.out.strip()).splitlines()[-4:]
        return f"{' '.join(self.argv[-6:])} -> {self.code}: {' / '.join(said)}"[:500]


@dataclass
class Tally:
    """What a drill found: texts, so that a fault can be looked for."""

    count: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    note: str = ""


@dataclass
class Bench:
    home: Path
    numbers: range
    deadline: float
    seed: str
    how: dict[str, object] = field(default_factory=dict)
    """The drill's fault, as `Fault` takes it; SIGKILL where it says nothing."""
    tally: Tally = field(default_factory=Tally)
    extra: dict[str, str] = field(default_factory=dict)
    orders: dict[str, list[int]] = field(default_factory=dict)
    every: bool = False
    """Each moment of each command, however many these are."""

    def __post_init__(self):
        self.chance = random.Random(f"{self.seed}-{self.numbers.start}")

    def times(self):
        for number in self.numbers:
            if time.monotonic() > self.deadline:
                self.tally.note = "out of time"
                return
            yield number
            self.tally.count += 1

    def turns(self, *names):
        """A command's name and its turn: one command after the other has the next of its moments.

        With `every`, each moment of each of them once; `ONLY=gc FROM=40` takes a part of these.
        """
        names = [one for one in names if one in os.environ.get("ONLY", one)]
        if not self.every:
            yield from ((names[one % len(names)], one // len(names)) for one in self.times())
            return
        for name in names:
            turn = int(os.environ.get("FROM", "0"))
            while turn < len(self.orders.get(name, range(turn + 1))):
                if time.monotonic() > self.deadline:
                    break
                yield name, turn
                turn, self.tally.count = turn + 1, self.tally.count + 1
            self.tally.note += f"{name} up to {turn} of {len(self.orders.get(name, []))}; "

    @property
    def goal(self):
        return len(self.numbers)

    @property
    def env(self):
        """The environment of commands: this bench's, and nobody else's."""
        return {
            **clean_environment(),
            "HPCDL_HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            "HPCDL_CACHE": str(self.home / "cache"),
            "TMPDIR": str(self.home / "tmp"),
            "HPCDL_DRILL": str(self.home),
            "PYTHONDONTWRITEBYTECODE": "",
            **self.extra,
        }

    def run(self, argv, *, fault=None, seconds=120, env=None):
        """Run a command to its end, or to the fault's; one that hangs counts as wrong."""
        words = tuple(map(str, argv))
        started = self.start(words, fault=fault, env=env)
        try:
            out, err = started.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            started.kill()
            out, err = started.communicate()
            self.tally.wrong.append(f"hung for {seconds} s: {' '.join(words[-6:])}")
        return Done(words, started.returncode, out, err)

    def start(self, argv, *, fault=None, env=None, **more):
        merged = {**self.env, **(env or {}), **(fault.env(self.home) if fault else {})}
        return subprocess.Popen(
            [str(one) for one in argv],
            env=merged,
            cwd=self.home,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )

    def strike(self, what, turn, argv, below=None, prepare=lambda: None, seconds=120):
        """Run a command with the drill's fault at one of its changes; what was done to it.

        `prepare` makes the state that the command is for.
        """
        prepare()
        at = self.moment(what, turn, argv, below)
        prepare()
        done = self.run(argv, fault=Fault(below or self.home, at, **self.how), seconds=seconds)
        self.ended(done)
        return f"{what}, struck at {at}"

    def ended(self, done):
        """A command that met a fault was killed, is done, or says why it is not."""
        self.must(done.died or done.code in {0, 2, 3, 4}, f"neither stopped nor done: {done}")
        if not done.died:
            self.clear(done)

    def together(self, *commands):
        started = [(tuple(map(str, argv)), self.start(argv)) for argv in commands]
        ended = []
        for argv, one in started:
            out, err = one.communicate(timeout=300)
            ended.append(Done(argv, one.returncode, out, err))
        return ended

    def hpcdl(self, *words, fault=None, seconds=120):
        """Run an hpcdl command; what it says must be clear."""
        done = self.run([*HPCDL, *map(str, words)], fault=fault, seconds=seconds)
        self.clear(done)
        return done

    def clear(self, done):
        """A failure names its cause and the next step, and is no traceback."""
        if "Traceback (most recent call last)" in done.err:
            last = done.err.strip().splitlines()[-1]
            self.tally.wrong.append(f"traceback: {' '.join(done.argv[-6:])}: {last}"[:400])
        elif done.code > 0:
            known = done.code in set(ExitCode) or 20 <= done.code <= 29
            told = "error: " in done.err or done.code in {ExitCode.STOPPED, ExitCode.NO}
            if not (known and told):
                self.tally.wrong.append(f"unclear: {done}")
            elif "error: " in done.err and "help: " not in done.err:
                self.tally.wrong.append(f"no next step: {done}")

    def must(self, holds, what):
        """Note as wrong what does not hold."""
        if not holds:
            self.tally.wrong.append(what[:400])
        return bool(holds)

    def kept(self, holds, what):
        """Note as lost what is not there any more."""
        if not holds:
            self.tally.lost.append(what[:400])
        return bool(holds)

    def moment(self, what, turn, argv, below=None):
        """The `turn`-th change of a command, in an order by chance: each before one comes again.

        The command is run once, to count its changes.
        """
        if what not in self.orders:
            counting = Fault(below or self.home)
            done = self.run(argv, fault=counting, seconds=300)
            self.must(done.ok, f"it fails by itself: {done}")
            numbers = range(1, max(1, counting.count(self.home)) + 1)
            self.orders[what] = random.Random(f"{self.seed}-{what}").sample(numbers, len(numbers))
        return self.orders[what][turn % len(self.orders[what])]


@dataclass(frozen=True)
class Drill:
    """A row of the table: `goal` times, in at most `seconds`."""

    name: str
    command: str
    fault: str
    goal: int
    holds: str
    seconds: float
    act: Callable[[Bench], None]
    how: dict[str, object] = field(default_factory=dict)


def mounts():
    return {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}


def marked(home, seconds=5):
    """The processes that a bench's commands have left, which get some seconds to end."""
    mark, end = f"HPCDL_DRILL={home}".encode(), time.monotonic() + seconds
    while found := [pid for pid in Path("/proc").glob("[0-9]*") if mark in _environ(pid)]:
        if time.monotonic() > end:
            return [f"process {one.name}: {_words(one)}" for one in found]
        time.sleep(0.2)
    return []


def _environ(process):
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def _words(process):
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80]
    except OSError:
        return "gone"


def temporary(home):
    found = [f"tmp/{one.name}" for one in (home / "tmp").glob("*")]
    for where, _, files in os.walk(home):
        if "cache" not in Path(where).relative_to(home).parts[:2]:
            found += [f"{where}/{name}" for name in files if _TEMPORARY.fullmatch(name)]
    return [f"temporary file {one}" for one in found]


def carry_out(drill, numbers, home, seed, most):
    """Run these of a drill, for `most` seconds; clusters are stopped, what is left is told."""
    (home / "tmp").mkdir(parents=True, exist_ok=True)
    before = mounts()
    seconds = drill.seconds * max(0.05, min(1.0, len(numbers) / drill.goal)) + 60
    end = time.monotonic() + min(seconds, most)
    every = os.environ.get("DRILLS") == "every"
    bench = Bench(home, numbers, end, f"{drill.name}-{seed}", drill.how, every=every)
    try:
        drill.act(bench)
    except Exception as fault:  # the other drills are to run, and this one is in the table
        bench.tally.wrong.append(f"the drill ended: {type(fault).__name__}: {fault}"[:400])
    for place in (home / "cluster", *(home / "cluster").glob("*")):
        if place.is_dir():
            down(place, purge=True)
    bench.tally.left += marked(home) + temporary(home)
    bench.tally.left += [f"mount {one}" for one in mounts() - before if str(home) in one]
    bench.tally.left += [f"network link {link.name}" for link in _links(home)]
    shutil.rmtree(home, ignore_errors=True)
    return bench.tally


def _links(home):
    """The bridge and cables of the clusters that a home can have."""
    places = [home / "cluster" / name for name in ("small", "embedded")]
    return [Path("/sys/class/net", name) for place in places for name in bridges(place)]
