"""The input pipeline: new beside old, and beside the bound that decoding alone sets."""

import json
import statistics
import sys
from pathlib import Path

from tests.bench import report
from tests.bench.training import runs, script


def main():
    with runs() as made:
        folder = made.folder / "photos"
        assert made.data("make", "photos", str(folder), "--count=1280").code == 0
        found = {"new": [], "old": []}
        bounds, good, lack = [], [], ""
        for _ in range(3):
            for pipeline, kept in found.items():
                words = ("bench", str(folder), f"--pipeline={pipeline}", "--seconds=6", "--json")
                kept.append(json.loads(made.data(*words).out))
            good.append(script(made.python, "train_tfdata", folder, 6))
            try:
                bounds.append(float(script(Path(sys.executable), "train_decode", folder)))
            except RuntimeError as fault:
                lack = str(fault)
    _against_old(found)
    _against_good(found["new"], good)
    _against_bound(found["new"], bounds, lack)


def _median(runs, key):
    return statistics.median(one[key] for one in runs)


def _against_old(found):
    new, old = (_median(found[pipeline], "images_per_second") for pipeline in ("new", "old"))
    ratio, cores = new / old, _median(found["new"], "cores_used")
    report(
        "input: new over old",
        ratio,
        "x",
        least=2.4,
        yardstick=f"old: {old:.0f} images/s",
        note=f"new: {new:.0f} images/s on {cores:.2f} cores",
    )


def _against_good(new, good):
    key = "images_per_cpu_second"
    ours, theirs = _median(new, key), _median(good, key)
    clock = _median(new, "images_per_second") / _median(good, "images_per_second")
    report(
        "input: beside a good pipeline of tf.data",
        ours / theirs,
        "x",
        least=1.3,
        yardstick=f"tf.data: {theirs:.0f} images per CPU-second",
        note=f"ours: {ours:.0f}; by the clock {clock:.2f} x; medians of 3",
    )


def _against_bound(new, bounds, lack):
    name = "input: share of the decode bound"
    if lack:
        report(name, None, "", least=0.8, yardstick="simplejpeg", note=f"skipped: {lack}")
        return
    ours, bound = _median(new, "images_per_cpu_second"), statistics.median(bounds)
    report(
        name,
        ours / bound,
        "x",
        least=0.8,
        yardstick=f"simplejpeg: {1000 / bound:.2f} ms an image",
        note=f"{1000 / ours:.2f} ms by CPU time",
    )
