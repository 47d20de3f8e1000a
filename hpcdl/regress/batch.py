"""A job's script taken apart for ReFrame, which puts it together again around the launch."""

from __future__ import annotations

from dataclasses import dataclass

_DIRECTIVE = "#SBATCH "


@dataclass(frozen=True)
class Batch:
    """The parts of a script.

    `directives` are options of sbatch; then come the lines `before` the launch, the `launcher`
    with its options, the `program` as bash reads it, and the lines `after`.
    """

    directives: tuple[str, ...]
    before: tuple[str, ...]
    launcher: str
    program: str
    after: tuple[str, ...]


def take_apart(text: str) -> Batch:
    """The parts of a script, rendered by hpcdl or put together by ReFrame.

    The launch is the last line that starts with `srun`, with its continuation lines; the
    launcher's part is what stands before the first break.
    """
    lines = text.splitlines()
    directives = [line.removeprefix(_DIRECTIVE) for line in lines if line.startswith(_DIRECTIVE)]
    body = [line for line in lines if not line.startswith(("#!", _DIRECTIVE))]
    start = max(index for index, line in enumerate(body) if line.startswith("srun "))
    end = start
    while body[end].endswith("\\"):
        end += 1
    launch = [line.rstrip("\\").strip() for line in body[start : end + 1]]
    return Batch(
        directives=tuple(directives),
        before=tuple(body[:start]),
        launcher=launch[0],
        program=" ".join(launch[1:]),
        after=tuple(body[end + 1 :]),
    )
