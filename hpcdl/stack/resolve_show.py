"""Resolutions as a page and as data: versions, evidence levels, and the chain behind each limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hpcdl.stack.resolve_facts import BACKEND_WORDS, Sources, chain_lines, sentence, title_of
from hpcdl.stack.resolve_solution import Choice, Resolution
from hpcdl.stack.resolve_solver import Rule
from hpcdl.system.text import paint

_WIDTH = 116


def as_text(resolutions: Sequence[Resolution]) -> str:
    """All resolutions as a page: the wanted ones in full, the other backend in one line."""
    sources, blocks = Sources(), []
    models = {(resolution.partition, resolution.gpu) for resolution in resolutions}
    named = [partition for partition, _ in models]
    for names, resolution in _grouped(resolutions):
        if resolution.wanted or len(resolutions) == 1:
            blocks.append("\n".join(_full(names, resolution, sources)))
        else:
            mixed = named.count(resolution.partition) > 1
            blocks.append(_brief(f"{names} ({resolution.gpu})" if mixed else names, resolution))
    return sources.page("\n\n".join(blocks))


def as_data(resolutions: Sequence[Resolution]) -> dict[str, Any]:
    """All resolutions for machines."""
    return {"schema": 1, "resolutions": [_data(resolution) for resolution in resolutions]}


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
    elif resolution.backend != "spack" and resolution.choices:
        lines.append("  resolved only: no build of these versions for these GPUs was tried")
    for chain in resolution.problems:
        lines += [f"  does not fit: {line}" for line in chain_lines(chain, resolution.gpu, sources)]
    if resolution.problems and resolution.choices:
        lines.append("  without that:")
    if not resolution.choices:
        lines.append("  no set of versions fits")
    rows = [(choice.title, choice.version, choice.proof) for choice in resolution.choices]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for choice, row in zip(resolution.choices, rows, strict=True):
        left = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines += _wrapped(f"  {left}  ", _why(choice, resolution, sources))
    for note in resolution.notes:
        lines += _wrapped("  note: ", [note])
    return lines


def _why(choice: Choice, resolution: Resolution, sources: Sources) -> list[str]:
    """Return the reasons for a choice, a sentence each."""
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


def _brief(names: str, resolution: Resolution) -> str:
    versions = resolution.versions
    shown = [name for name in ("tensorflow", "cuda", "cudnn", "nccl", "python") if name in versions]
    text = ", ".join(f"{title_of(name)} {versions[name]}" for name in shown)
    against = "; ".join(chain[-1].why for chain in resolution.problems)
    return f"{names} by {BACKEND_WORDS[resolution.backend]} instead: {against or text}"


def _head(names: str, resolution: Resolution) -> str:
    gpu = "CPU"
    if resolution.gpu and resolution.compute:
        gpu = f"{resolution.gpu} (sm_{resolution.compute.replace('.', '')})"
        gpu += f", driver {resolution.driver}" if resolution.driver else ", driver not given"
    stack = f"stack {resolution.stack}, " if resolution.stack else ""
    return f"{names}: {gpu}; {stack}{resolution.backend}; evidence: {resolution.proof}"


def _data(resolution: Resolution) -> dict[str, Any]:
    fields = ("partition", "stack", "backend", "wanted", "gpu", "compute", "driver", "proof")
    rows = []
    for choice in resolution.choices:
        limit = choice.limit
        because = (
            {"not": limit.newer, "because": _chain_data(limit.chain, resolution.gpu)}
            if limit
            else None
        )
        rows.append(
            {
                "component": choice.component,
                "version": choice.version,
                "proof": choice.proof,
                "source": choice.source,
                "limit": because,
            }
        )
    return {
        **{name: getattr(resolution, name) for name in fields},
        "tried": resolution.tried.source if resolution.tried else None,
        "pins": dict(resolution.pins),
        "versions": resolution.versions,
        "components": rows,
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
