"""Drills of the embedded cluster, and what others share: a small one with nodes to break."""

from functools import partial

from hpcdl.cluster import processes
from hpcdl.cluster.state import environment, read_state
from tests.drill.harness import HPCDL, Drill
from tests.integration.conftest import clean_environment
from tests.make import sites
from tests.make.sites import CPU, P100


def site_file(bench):
    """The site of this bench; its commands know it by HPCDL_SITE."""
    p100 = P100.replace("memory_gb: 60", "memory_gb: 60, reference_set: small")
    one = CPU.replace("nodes: 2", "nodes: 1")
    path = sites.site_file(bench.home, p100, one, work=bench.home, private="true")
    bench.extra["HPCDL_SITE"] = str(path)
    return path


def place(bench):
    return bench.home / "cluster" / "small"


def running(bench):
    """The bench's cluster, up; commands of the bench use it from now on."""
    site_file(bench)
    done = bench.hpcdl("cluster", "up")
    assert done.ok, str(done)
    state = read_state(place(bench))
    keys = ("SLURM_CONF", "PATH", "MODULEPATH")
    bench.extra |= {key: environment(state, clean_environment())[key] for key in keys}
    return state


def works(bench, after):
    conf = place(bench) / "etc" / "slurm.conf"
    done = bench.run(
        ["srun", "-p", "p100", "-N2", "true"], seconds=60, env={"SLURM_CONF": str(conf)}
    )
    return bench.must(done.ok, f"no job runs after {after}: {done}")


def _stopped(bench, after):
    """`down` leaves no process and no network link."""
    done = bench.hpcdl("cluster", "down")
    bench.must(done.ok, f"down after {after}: {done}")
    found = [str(one.pid) for one in processes.of_cluster(place(bench))]
    bench.tally.left += [f"process {one} after {after}" for one in found]


def killed(bench):
    """Kill up, down, node kill, node up, node cut and heal at any change; then up or down."""
    site_file(bench)
    for number in bench.times():
        words = _next(bench, number)
        prepare = partial(_prepared, bench, words)
        at = bench.strike(" ".join(words[:3]), number // 6, [*HPCDL, *words], prepare=prepare)
        what = f"{' '.join(words)} killed at {at}"
        if number % 3 == 2:
            _stopped(bench, what)
        again = bench.hpcdl("cluster", "up")
        if bench.must(again.ok, f"up after {what}: {again}"):
            for repair in ("heal", "up") if words[3:] else ():
                bench.hpcdl("cluster", "node", repair, words[3])
            works(bench, what)
    _stopped(bench, "all")


def _next(bench, number):
    node = f"p100-0{bench.chance.randint(1, 2)}"
    acts = ("up", "down", *(f"node {act} {node}" for act in ("kill", "up", "cut", "heal")))
    return ("cluster", *acts[number % 6].split())


def _prepared(bench, words):
    if words[1] == "up":
        bench.hpcdl("cluster", "down")
        return
    done = bench.hpcdl("cluster", "up")
    bench.must(done.ok, f"up: {done}")
    before = {"up": "kill", "heal": "cut"}.get(words[2] if len(words) > 2 else "")
    if before:
        bench.hpcdl("cluster", "node", before, words[3])


def twice(bench):
    """Two ups, two downs, an up and a down at the same moment: then up works."""
    site_file(bench)
    for number in bench.times():
        both = (("up", "up"), ("down", "down"), ("up", "down"))[number % 3]
        for done in bench.together(*([*HPCDL, "cluster", one] for one in both)):
            bench.clear(done)
            bench.must(done.ok, f"{both}: {done}")
        bench.must((done := bench.hpcdl("cluster", "up")).ok, f"up after {both}: {done}")
        works(bench, f"two at once: {both}")
    _stopped(bench, "two at once")


EACH, BACK = "cluster up, down, node kill, up, cut, heal", "down leaves nothing, up brings it back"
DRILLS = (
    Drill("cluster-kill", EACH, "SIGKILL", 200, BACK, 7200, killed),
    Drill("cluster-twice", "cluster up, down", "two at once", 20, "up works", 1800, twice),
)
