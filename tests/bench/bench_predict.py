"""The scaling model: how long 1 to 4,096 GPUs take."""

import subprocess
import sys
import time
from functools import partial

from hpcdl.predict.request import ScalingRequest, answer
from hpcdl.site import find_site_file, load_site
from tests.bench import children, middle, report

RUNS = 7


def main():
    site = load_site(find_site_file("p100-v100-k80"))
    request = ScalingRequest(site.partition("p100"), "resnet50", gpus="1-4096", every=True)
    words = "predict --site p100-v100-k80 --partition p100 --model resnet50 --gpus 1-4096 --every"
    command = [sys.executable, "-m", "hpcdl", *words.split(), "--json"]
    answer(request)
    ours = 1000 * middle(RUNS, lambda: answer(request), time.process_time)
    run = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    whole = 1000 * middle(RUNS, run, children)
    points = len(answer(request).points)
    note = f"CPU time; {points} counts that fill nodes; a command of its own: {whole:.0f} ms"
    report("predict: 1 to 4,096 GPUs", ours, "ms", most=100, note=note)
