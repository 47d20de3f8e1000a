"""What earlier starts of a run have measured: appended with every checkpoint, never overwritten.

`history.jsonl` lies beside the checkpoints. A line is a piece: the steps since the one before, all
their columns, and the start that measured them. A resumed run keeps what lies before its step;
what was done after the checkpoint is done again. A line that a crash has cut is left out.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcdl.system.files import explain_os_errors, write_atomic
from hpcdl.train.result import COLUMNS, Samples, finite, summarize

FILE = "history.jsonl"
_POINTS = 1000


class History:
    """The pieces of all starts of a run, the present one's last. For rank 0.

    `start` is of the present start: when it began, and how many ranks it has.
    """

    def __init__(self, folder: Path, start: dict[str, Any]) -> None:
        self._path = folder / FILE
        self._start = start
        self._written = 0
        self._pieces: list[dict[str, Any]] = []

    def load(self, step: int) -> None:
        """Take over what was measured up to `step`, and forget what is done again."""
        lines: list[str] = []
        with suppress(FileNotFoundError):
            lines = self._path.read_text(encoding="utf-8").splitlines()
        for line in lines:
            with suppress(ValueError, KeyError, TypeError):
                piece = json.loads(line)
                count = min(len(piece["loss"]), step - piece["first_step"])
                kept = {name: piece[name][:count] for name in ("images", "loss", *COLUMNS)}
                self._pieces += [{**piece, **kept}] if count > 0 else []
        text = "".join(json.dumps(piece) + "\n" for piece in self._pieces)
        if lines:
            write_atomic(self._path, text)

    def append(self, samples: Samples) -> None:
        """Write the steps since the last call."""
        if len(samples) == self._written:
            return
        piece = {**self._start, **samples.since(self._written).as_json()}
        self._pieces.append(piece)
        self._written = len(samples)
        with explain_os_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(piece) + "\n")

    def latest(self) -> Samples:
        """What the last start measured that did any step."""
        samples = Samples()
        if self._pieces:
            same = [p for p in self._pieces if p["started"] == self._pieces[-1]["started"]]
            samples.first_step = same[0]["first_step"]
            for piece in same:
                samples.take(piece)
        return samples

    def segments(self, warmup: int) -> list[dict[str, Any]]:
        """What each start did: its first step, its number of them, its ranks and its rate."""
        found: dict[float, tuple[dict[str, Any], Samples]] = {}
        for piece in self._pieces:
            _, samples = found.setdefault(piece["started"], (piece, Samples()))
            samples.take(piece)
        return [
            {
                "started": started,
                "ranks": piece["ranks"],
                "first_step": piece["first_step"],
                "steps": len(samples),
                "images_per_second": summarize(samples, warmup)["images_per_second"],
            }
            for started, (piece, samples) in found.items()
        ]

    def curve(self) -> dict[str, list[Any]]:
        """The loss of the whole run, as means over equal parts, by the last step of each."""
        steps: list[int] = []
        losses: list[Any] = []
        for piece in self._pieces:
            steps += range(piece["first_step"] + 1, piece["first_step"] + 1 + len(piece["loss"]))
            losses += piece["loss"]
        width = -(-len(steps) // _POINTS) or 1
        parts = [losses[at : at + width] for at in range(0, len(losses), width)]
        means = [None if None in part else finite(sum(part) / len(part)) for part in parts]
        return {"step": [steps[min(at + width, len(steps)) - 1]
                         for at in range(0, len(steps), width)], "loss": means}  # fmt: skip
