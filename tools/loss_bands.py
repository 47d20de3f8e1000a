"""Measures the band that a healthy loss curve lies in, for hpcdl/facts/loss_curves.yaml.

    python -m tools.loss_bands PYTHON DATA_DIRECTORY

runs the training of the check `convergence` on one rank with twenty seeds and prints the row:
the mean loss over windows of steps, its median over seeds, and a band around it.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

from hpcdl import facts

SEEDS = 20
_CURVE = facts.load("loss_curves")["curves"]["mlp-digits-95"]
WINDOWS = [(row["first"], row["last"]) for row in _CURVE["windows"]]
_SPREADS, _LEAST = 6.0, 0.25


def curve(python: Path, data: Path, seed: int) -> list[float]:
    """The mean losses over the windows, of one seed."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"--data={data}", f"--seed={seed}", f"--job-dir={folder}"]
        command = [str(python), "-m", "hpcdl.train", "--model=mlp", *_CURVE["options"], *words]
        subprocess.run(command, check=True, capture_output=True)
        losses = json.loads((Path(folder) / "result.json").read_text())["samples"]["loss"]
    return [mean(losses[first:last]) for first, last in WINDOWS]


def band(values: list[float]) -> tuple[float, float, float]:
    """Median, lower and upper bound; symmetric in the logarithm."""
    logs = [math.log(value) for value in values]
    middle = median(logs)
    spread = 1.4826 * median(abs(value - middle) for value in logs)
    width = max(_LEAST, _SPREADS * spread)
    return math.exp(middle), math.exp(middle - width), math.exp(middle + width)


def main() -> None:
    """Print the rows of the windows."""
    python, data = (Path(name).absolute() for name in sys.argv[1:3])
    curves = [curve(python, data, seed) for seed in range(1, SEEDS + 1)]
    for (first, last), values in zip(WINDOWS, zip(*curves, strict=True), strict=True):
        middle, low, high = band(list(values))
        print(
            f"      - {{first: {first}, last: {last}, median: {middle:.4g}, "
            f"low: {low:.4g}, high: {high:.4g}}}"
        )


if __name__ == "__main__":
    main()
