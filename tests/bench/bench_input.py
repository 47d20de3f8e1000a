"""The input pipeline: new beside old, and beside the bound that decoding alone sets."""

from __future__ import annotations

import json
import statistics

from tests.bench import report
from tests.bench.training import runs, script


def main() -> None:
    with runs() as made:
        folder = made.folder / "photos"
        assert made.data("make", "photos", str(folder), "--count=1280").code == 0
        found: dict[str, list[dict[str, float]]] = {"new": [], "old": []}
        bounds, lack = [], ""
        for _ in range(3):
            for pipeline, kept in found.items():
                words = ("bench", str(folder), f"--pipeline={pipeline}", "--seconds=6", "--json")
                kept.append(json.loads(made.data(*words).out))
            try:
                bounds.append(float(script(made.python, "train_decode", folder)))
            except RuntimeError as fault:
                lack = str(fault)
        new, old = (
            statistics.median(one["images_per_second"] for one in found[p]) for p in ("new", "old")
        )
        per_cpu = statistics.median(one["images_per_cpu_second"] for one in found["new"])
        report("input: new over old", new / old, "x", goal=">= 2.4", met=new / old >= 2.4,
               yardstick=f"old: {old:.0f} images/s", note=f"new: {new:.0f} images/s")  # fmt: skip
        if lack:
            report("input: share of the decode bound", None, "", goal=">= 0.8",
                   yardstick="simplejpeg", note=f"skipped: {lack}")  # fmt: skip
            return
        bound = statistics.median(bounds)
        report("input: share of the decode bound", per_cpu / bound, "", goal=">= 0.8",
               met=per_cpu / bound >= 0.8, yardstick=f"simplejpeg: {bound:.0f} per CPU-second",
               note=f"{per_cpu:.0f} per CPU-second")  # fmt: skip


if __name__ == "__main__":
    main()
