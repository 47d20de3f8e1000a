"""The scaling model: how long 1 to 4,096 GPUs take, how near the simulation is, how good it is."""

import subprocess
import sys
import time
from functools import partial

from hpcdl.predict.records import read_records
from hpcdl.predict.request import Request, answer, prepare
from hpcdl.predict.step import constants, profile
from hpcdl.predict.validate import errors, validate
from hpcdl.site import find_site_file, load_site
from tests.bench import children, middle, report
from tests.exchange_oracle import both

RUNS = 7
NETWORKS = ("alexnet", "vgg16", "resnet50", "inception_v3", "densenet121", "efficientnet_v1_b4")


def main():
    site = load_site(find_site_file("p100-v100-k80"))
    request = Request(site.partition("p100"), "resnet50", gpus="1-4096", every=True)
    words = "predict --site p100-v100-k80 --partition p100 --model resnet50 --gpus 1-4096 --every"
    command = [sys.executable, "-m", "hpcdl", *words.split(), "--json"]
    answer(request)
    ours = 1000 * middle(RUNS, lambda: answer(request), time.process_time)
    run = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    whole = 1000 * middle(RUNS, run, children)
    points = len(answer(request).points)
    note = f"CPU time; {points} counts that fill nodes; a command of its own: {whole:.0f} ms"
    report("predict: 1 to 4,096 GPUs", ours, "ms", most=100, note=note)
    worst = max(
        _difference(site.partition("p100"), model, gpus)
        for model in NETWORKS
        for gpus in ("4", "16", "64")
    )
    note = f"equal ranks and links, {len(NETWORKS)} networks, 4 to 64 GPUs"
    report("predict: closed form off the simulation", 100 * worst, "%", most=2, note=note)
    found = errors([row.error for row in validate(read_records()).judged])
    rows = (("median", found.median, 4), ("90th percentile", found.ninetieth, 15))
    for name, value, goal in rows:
        note = f"{found.rows} published rows, source left out"
        report(f"predict validate: {name} of the errors", 100 * value, "%", most=goal, note=note)


def _difference(partition, model, gpus):
    """|closed form / simulation - 1| with equal ranks and links."""
    request = Request(partition, model, gpus=gpus)
    machine, training, base = prepare(request)
    one = profile(machine, training, base.seconds, constants())
    closed, simulated = both(machine, training, one, int(gpus), constants())
    return abs(closed / simulated - 1)
