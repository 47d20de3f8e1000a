"""Run the drills: `python -m tests.drill [NAME...]`, `DRILLS=0.1` for a tenth of each count.

`DRILLS=every` strikes at each moment of each command, not at some of them.

What ran is a row of the table in docs/evidence/reliability.md: the counts are those that ran, and a
drill that never ran is not in it. `MINUTES=9` ends each drill after so long.
"""

import os
import sys
import time

from tests.drill import clusters, disks, faults, fuzz, jobs, spack, stacks
from tests.drill.harness import ROOT, carry_out
from tests.homes import short_home

DRILLS = [
    drill for one in (clusters, stacks, spack, jobs, disks, faults, fuzz) for drill in one.DRILLS
]
PAGE = ROOT / "docs" / "evidence" / "reliability.md"
BEGIN, END = "<!-- drills: begin -->", "<!-- drills: end -->"
_SHOWN = 5


def main(names):
    """Run the drills of these names, or all; 1 where anything was lost, wrong or left."""
    scale, seed = os.environ.get("DRILLS", "1"), int(os.environ.get("SEED", "1"))
    scale = 1 if scale == "every" else float(scale)
    unknown = set(names) - {drill.name for drill in DRILLS}
    if unknown:
        print(f"no such drill: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    sound = True
    for drill in DRILLS:
        if names and drill.name not in names:
            continue
        sound &= _one(drill, max(1, round(drill.goal * scale)), seed)
    return 0 if sound else 1


def _one(drill, goal, seed):
    start = time.monotonic()
    minutes = float(os.environ.get("MINUTES", "inf"))
    with short_home() as home:
        tally = carry_out(drill, range(goal), home / "d", seed, 60 * minutes)
    found = [f"{key}: {one}" for key in ("lost", "wrong", "left") for one in getattr(tally, key)]
    print(
        f"{drill.name}: {tally.count} of {goal}, {len(tally.lost)} lost, {len(tally.wrong)} "
        f"wrong, {len(tally.left)} left, {time.monotonic() - start:.0f} s {tally.note}",
        flush=True,
    )
    for line in found[:_SHOWN]:
        print(f"  {line}", flush=True)
    _keep(drill, tally)
    return not found


def _keep(drill, tally):
    text, counts = PAGE.read_text(), (len(tally.lost), len(tally.wrong), len(tally.left))
    row = [str(number) for number in (tally.count, *counts)]
    ran = {**results(text), drill.name: [*row, time.strftime("%Y-%m-%d", time.gmtime())]}
    head, _, rest = text.partition(BEGIN)
    PAGE.write_text(head + BEGIN + "\n" + table(ran) + END + rest.partition(END)[2])


def results(text):
    """What the page tells of each drill: count, lost, wrong, left behind, date."""
    rows = text.partition(BEGIN)[2].partition(END)[0].splitlines()[3:]
    cells = [row.strip("| ").split(" | ") for row in rows]
    return {name.strip("`"): counts for name, _, _, *counts in cells}


def table(ran):
    head = ["drill", "command", "fault", "count", "lost", "wrong", "left behind", "date"]
    rows = [[f"`{d.name}`", d.command, d.fault, *ran[d.name]] for d in DRILLS if d.name in ran]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
