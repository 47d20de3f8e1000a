"""Resolutions in words and as data: versions, evidence levels, and the chain behind each limit.

Rules become sentences (`K80 (sm_37) needs CUDA <= 11.8: ...`); their sources are numbered and
listed once at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hpcdl.stack.resolve_answer import Answer, Resolution
from hpcdl.stack.resolve_facts import computes, known
from hpcdl.stack.resolve_problem import OTHER_DRIVER, OTHER_GPU
from hpcdl.stack.resolve_solution import Choice
from hpcdl.stack.resolve_solver import Condition, Rule
from hpcdl.stack.resolve_versions import sort_key
from hpcdl.system.text import paint

_SCHEMA = 1
_WIDTH = 116
_BACKENDS = {"venv": "wheels", "spack": "Spack"}


class Sources:
    """Numbers for sources, in the order in which they are first named."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, source: str) -> str:
        """`[3]` for a source, nothing for none."""
        return f"[{self._numbers.setdefault(source, len(self._numbers) + 1)}]" if source else ""

    def lines(self) -> list[str]:
        """The list for the foot of a page."""
        return [f"[{number}] {source}" for source, number in self._numbers.items()]


def as_text(resolutions: Sequence[Resolution]) -> str:
    """All resolutions as a page: the wanted ones in full, the other backend in one line."""
    sources = Sources()
    blocks: list[str] = []
    mixed = {one.partition for one in resolutions
             if any(one.partition == other.partition and one.gpu != other.gpu
                    for other in resolutions)}  # fmt: skip
    for names, resolution in _grouped(resolutions):
        full = resolution.wanted or len(resolutions) == 1
        if not full and resolution.partition in mixed:
            names = f"{names} ({resolution.gpu})"
        lines = _full(names, resolution, sources) if full else _brief(names, resolution)
        blocks.append("\n".join(lines))
    return "\n".join(["\n\n".join(blocks), *_foot(sources)])


def as_data(resolutions: Sequence[Resolution]) -> dict[str, Any]:
    """All resolutions for machines."""
    return {"schema": _SCHEMA, "resolutions": [_data(resolution) for resolution in resolutions]}


def answers_text(answers: Sequence[Answer]) -> str:
    """Answers to `--why-not` as a page."""
    sources = Sources()
    blocks = []
    for answer in answers:
        where = f"{answer.partition} ({answer.backend})"
        if answer.fits:
            rest = ", ".join(f"{_title(name)} {v}" for name, v in answer.versions.items())
            newer = f"; {answer.newest} is newer and fits too" if answer.newest else ""
            blocks.append(f"{where}: {answer.question} fits{newer}\n  {rest}")
        else:
            lines = chain_lines(answer.chain, answer.gpu, sources)
            blocks.append("\n".join([f"{where}: no {answer.question}", *(f"  {x}" for x in lines)]))
    return "\n".join(["\n".join(blocks), *_foot(sources)])


def answers_data(answers: Sequence[Answer]) -> dict[str, Any]:
    """Answers to `--why-not` for machines."""
    return {
        "schema": _SCHEMA,
        "answers": [
            {
                **{
                    name: getattr(answer, name)
                    for name in ("question", "partition", "backend", "fits")
                },
                "versions": dict(answer.versions),
                "chain": _chain_data(answer.chain, answer.gpu),
            }
            for answer in answers
        ],
    }


def chain_lines(
    chain: Iterable[Rule], gpu: str | None = None, sources: Sources | None = None
) -> list[str]:
    """A chain of rules as sentences, one per line, with the numbers of their sources."""
    return [
        f"{sentence(rule, gpu)}{' ' + sources.number(rule.source) if sources else ''}".rstrip()
        for rule in chain
        if rule.origin != "choice"
    ]


def sentence(rule: Rule, gpu: str | None = None) -> str:
    """A rule in words: `TensorFlow 2.15 needs CUDA 12.2 to 12.x (built by upstream with 12.2)`.

    `gpu` is the model to name where a rule speaks of GPUs.
    """
    need = f"{_title(rule.need.variable)} {_range(rule.need)}"
    doubt = ", doubtful" if rule.proof == "doubtful" else ""
    why = f"({rule.why}{doubt})"
    subject = " by ".join(_subject(condition, gpu) for condition in rule.when)
    if rule.origin == "offer":
        return rule.why
    if not rule.when:
        return f"{need} {why}"
    return f"{subject} needs {need} {why}"


def _grouped(resolutions: Sequence[Resolution]) -> list[tuple[str, Resolution]]:
    """Partitions with one and the same answer share a block; their names are joined."""
    groups: dict[tuple[object, ...], list[Resolution]] = {}
    for one in resolutions:
        same = (one.stack, one.backend, one.gpu, one.driver, one.choices, one.problems, one.tried)
        groups.setdefault(same, []).append(one)
    return [(", ".join(one.partition for one in group), group[0]) for group in groups.values()]


def _full(names: str, resolution: Resolution, sources: Sources) -> list[str]:
    lines = [paint(_head(names, resolution), "bold")]
    if resolution.tried is not None:
        lines += _wrapped("  tried as a whole: ", [resolution.tried.source])
    elif resolution.backend == "venv" and resolution.choices:
        lines.append("  resolved only: no build of these versions for these GPUs was tried")
    for chain in resolution.problems:
        lines += [f"  does not fit: {line}" for line in chain_lines(chain, resolution.gpu, sources)]
    if resolution.problems and resolution.choices:
        lines.append("  without that:")
    if not resolution.choices:
        lines.append("  no set of versions fits")
    widths = [max(map(len, column)) for column in zip(*_cells(resolution), strict=True)]
    for choice, cells in zip(resolution.choices, _cells(resolution), strict=True):
        left = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines += _wrapped(f"  {left}  ", _why(choice, resolution, sources))
    for note in resolution.notes:
        lines += _wrapped("  note: ", [note])
    return lines


def _cells(resolution: Resolution) -> list[tuple[str, str, str]]:
    return [(choice.title, choice.version, choice.proof) for choice in resolution.choices]


def _why(choice: Choice, resolution: Resolution, sources: Sources) -> list[str]:
    """What holds a choice back, a sentence per entry."""
    pinned = ["pinned"] if choice.component in resolution.pins else []
    if choice.limit is None:
        return [*pinned, "the newest known"]
    first, *rest = chain_lines(choice.limit.chain, resolution.gpu, sources)
    return [*pinned, f"not {choice.limit.newer}: {first}", *rest]


def _wrapped(left: str, entries: Iterable[str]) -> list[str]:
    """Entries beside a left column, each on its own lines."""
    from textwrap import wrap

    lines = [part for entry in entries for part in wrap(entry, max(40, _WIDTH - len(left)))]
    indent = " " * len(left)
    return [(indent if number else left) + line for number, line in enumerate(lines)]


def _brief(names: str, resolution: Resolution) -> list[str]:
    versions = resolution.versions
    shown = [name for name in ("tensorflow", "cuda", "cudnn", "nccl", "python") if name in versions]
    text = ", ".join(f"{_title(name)} {versions[name]}" for name in shown)
    against = [chain[-1].why for chain in resolution.problems]
    return [f"{names} by {_BACKENDS[resolution.backend]} instead: {'; '.join(against) or text}"]


def _foot(sources: Sources) -> list[str]:
    return ["", "sources", *sources.lines()] if sources.lines() else []


def _head(names: str, resolution: Resolution) -> str:
    gpu = "CPU"
    if resolution.gpu and resolution.compute:
        gpu = f"{resolution.gpu} (sm_{resolution.compute.replace('.', '')})"
        gpu += f", driver {resolution.driver}" if resolution.driver else ", driver not given"
    stack = f"stack {resolution.stack}, " if resolution.stack else ""
    return f"{names}: {gpu}; {stack}{resolution.backend}; evidence: {resolution.proof}"


def _data(resolution: Resolution) -> dict[str, Any]:
    told = ("partition", "stack", "backend", "wanted", "gpu", "compute", "driver", "proof")
    return {
        **{name: getattr(resolution, name) for name in told},
        "tried": resolution.tried.source if resolution.tried else None,
        "pins": dict(resolution.pins),
        "versions": resolution.versions,
        "components": [
            {
                **{
                    name: getattr(choice, name)
                    for name in ("component", "version", "proof", "source")
                },
                "limit": choice.limit
                and {
                    "not": choice.limit.newer,
                    "because": _chain_data(choice.limit.chain, resolution.gpu),
                },
            }
            for choice in resolution.choices
        ],
        "problems": [
            [_rule_data(rule, resolution.gpu) for rule in chain] for chain in resolution.problems
        ],
        "notes": list(resolution.notes),
    }


def _chain_data(chain: Iterable[Rule], gpu: str | None) -> list[dict[str, Any]]:
    return [_rule_data(rule, gpu) for rule in chain if rule.origin != "choice"]


def _rule_data(rule: Rule, gpu: str | None) -> dict[str, Any]:
    return {
        "text": sentence(rule, gpu),
        "component": rule.need.variable,
        "allowed": rule.need.range.text,
        "source": rule.source,
        "proof": rule.proof,
        "origin": rule.origin,
    }


def _subject(condition: Condition, gpu: str | None) -> str:
    if condition.variable == "gpu":
        return gpu or f"sm_{condition.range.text.replace('.', '').replace(':', ' to sm_')}"
    if condition.variable.startswith(OTHER_GPU):
        return f"{_title(condition.variable)}, which the same build serves,"
    if condition.variable == "backend":
        return _BACKENDS[condition.range.text]
    return f"{_title(condition.variable)} {_range(condition)}"


def _range(condition: Condition) -> str:
    if condition.variable.partition("@")[0] == "gpu":
        return _gpus(condition.range.text.split(","))
    return condition.range.describe()


def _gpus(named: Sequence[str]) -> str:
    """Compute capabilities, those beside each other as one: `sm_35 or sm_50 to sm_90`."""
    runs: list[list[str]] = []
    for one in sorted({*computes(), *named}, key=sort_key):
        if one not in named:
            runs.append([])
        else:
            runs = runs or [[]]
            runs[-1].append(f"sm_{one.replace('.', '')}")
    found = (run[:1] if len(run) == 1 else [f"{run[0]} to {run[-1]}"] for run in runs if run)
    return " or ".join(part for parts in found for part in parts)


def _title(name: str) -> str:
    if name.startswith(OTHER_GPU):
        return f"sm_{name.removeprefix(OTHER_GPU).replace('.', '')}"
    if name.startswith(OTHER_DRIVER):
        return "driver"
    component = known().components.get(name)
    return component.title if component else {"gpu": "GPU", "backend": "backend"}.get(name, name)
