"""The data commands; TensorFlow is imported where one needs it."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.train.data.dataset import FILE, load_dataset, made_before, require_room, shard_files
from hpcdl.train.startup import import_tensorflow, this_place

_DIGITS = {"kind": "digits", "seed": 1}


def make(args: argparse.Namespace) -> ExitCode:
    """Make a data set, or keep the same one."""
    folder = Path(args.folder).absolute()
    dataset = existing = made_before(folder, _DIGITS)
    if existing is None:
        require_room(folder)
    if args.dry_run:
        print(f"would {'keep' if existing else 'write'} the {args.kind} in {folder}")
        return ExitCode.OK
    if dataset is None:
        _tensorflow()
        from hpcdl.train.data.shards import make_digits

        dataset = make_digits(folder, _DIGITS)
    counts = {split: dataset.examples(split) for split in dataset.splits}
    if args.json:
        values = {"directory": str(folder), "kind": dataset.kind, "examples": counts}
        print(json.dumps({**values, "made": existing is None}, indent=2))
    else:
        state = "there already" if existing else "made"
        named = ", ".join(f"{count:,} to {split}" for split, count in counts.items())
        print(f"{dataset.kind}: {named}; {state} in {folder}")
    return ExitCode.OK


def inspect(args: argparse.Namespace) -> ExitCode:
    """Print what a directory of records holds; 1 where something is damaged or missing."""
    folder = Path(args.folder).absolute()
    shard_files(folder)
    described = (folder / FILE).exists() and not args.index
    if args.decode and not described:
        raise BadInput(f"{folder} has no {FILE}", hint="`--index` writes it")
    dataset = load_dataset(folder) if described else None
    threads = _tensorflow()
    from hpcdl.train.data import shards
    from hpcdl.train.data.pipeline import fault_of

    judge = partial(fault_of, dataset) if dataset and args.decode else None
    report = shards.inspect(folder, threads, dataset, judge)
    if args.index:
        shards.index(folder, report, *args.classes)
    print(json.dumps(report, indent=2) if args.json else shards.as_text(report))
    return ExitCode.OK if report["sound"] else ExitCode.NO


def _tensorflow() -> int:
    """Import TensorFlow with one thread, for work of threads; returns the CPUs of this process."""
    place = this_place()
    import_tensorflow(replace(place, cpus=1))
    return place.cpus
