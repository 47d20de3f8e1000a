"""`python -m hpcdl.train.data`: the data commands; TensorFlow is imported where one needs it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcdl.system.errors import BadInput, ExitCode, HpcdlError
from hpcdl.train.data.data_options import build_parser, labels_of
from hpcdl.train.data.dataset import (
    FILE,
    Dataset,
    load_dataset,
    made_before,
    require_room,
    shard_files,
)
from hpcdl.train.data.table import ImageRow, read_table, request_of
from hpcdl.train.startup import import_tensorflow, this_place

_SEED = 1


def main(argv: list[str] | None = None) -> int:
    """Run one data command and return its exit code."""
    args = build_parser().parse_args(argv)
    try:
        return int({"make": _make, "inspect": _inspect}[args.command](args))
    except HpcdlError as error:
        print(error.render(), file=sys.stderr, flush=True)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr, flush=True)
        return int(ExitCode.STOPPED)


def _make(args: argparse.Namespace) -> ExitCode:
    folder = Path(args.folder).absolute()
    request, rows = _asked(args)
    existing = made_before(folder, request)
    if existing is None:
        require_room(folder)
    if args.dry_run:
        print(f"would {'keep' if existing else 'write'} the {args.kind} in {folder}")
        return ExitCode.OK
    dataset = existing or _made(folder, args.kind, request, rows)
    counts = {split: dataset.examples(split) for split in dataset.splits}
    if args.json:
        values = {
            "directory": str(folder),
            "kind": dataset.kind,
            "examples": counts,
            "made": existing is None,
        }
        print(json.dumps(values, indent=2))
    else:
        state = "there already" if existing else "made"
        named = ", ".join(f"{count:,} to {split}" for split, count in counts.items())
        print(f"{dataset.kind}: {named}; {state} in {folder}")
    return ExitCode.OK


def _asked(args: argparse.Namespace) -> tuple[dict[str, Any], list[ImageRow]]:
    """Return the records' inputs, as JSON values, and the rows of a table of labels."""
    if args.kind == "digits":
        return {"kind": "digits", "seed": _SEED}, []
    if args.kind == "photos":
        asked = {name: getattr(args, name) for name in ("count", "bytes", "shards")}
        (width, height), (task, classes, _) = args.size, labels_of(args.classes)
        test = args.test or 0.0
        asked |= {
            "seed": _SEED,
            "test": round(test if test >= 1 else test * args.count),
            "classes": classes,
        }
        return {**asked, "task": task, "width": width, "height": height}, []
    if not args.images or not args.labels:
        raise BadInput("`data make folder` needs --images DIR and --labels CSV")
    images, table = Path(args.images).absolute(), Path(args.labels).absolute()
    rows = read_table(images, table)
    test = 0.1 if args.test is None else args.test
    share = test if test < 1 else test / len(rows)
    asked = request_of(images, table, rows, shards=args.shards, test=share, seed=_SEED)
    return asked, rows


def _made(folder: Path, kind: str, request: dict[str, Any], rows: list[ImageRow]) -> Dataset:
    threads = _tensorflow()
    if kind == "photos":
        from hpcdl.train.data.photos import PhotoRequest, make_photos

        return make_photos(folder, PhotoRequest(**request), threads)
    from hpcdl.train.data.making import make_digits, make_from_folder

    if kind == "digits":
        return make_digits(folder, request, threads)
    return make_from_folder(folder, rows, request, threads)


def _inspect(args: argparse.Namespace) -> ExitCode:
    folder = Path(args.folder).absolute()
    shard_files(folder)
    described = (folder / FILE).exists() and not args.index
    if args.decode and not described:
        raise BadInput(f"{folder} has no {FILE}", hint="`--index` writes it")
    dataset = load_dataset(folder) if described else None
    threads = _tensorflow()
    from hpcdl.train.data.inspecting import compared, index, inspect
    from hpcdl.train.data.pipeline import fault_of

    report = inspect(
        folder, threads, partial(fault_of, dataset) if dataset and args.decode else None
    )
    if dataset:
        report = compared(report, dataset)
    elif args.index:
        index(folder, report, *labels_of(args.classes))
    print(json.dumps(report.as_json(), indent=2) if args.json else report.as_text())
    return ExitCode.OK if report.sound else ExitCode.NO


def _tensorflow() -> int:
    """Import TensorFlow with one thread, for work of threads; returns the CPUs of this process.

    Modules that use it may be imported then.
    """
    place = this_place()
    import_tensorflow(replace(place, cpus=1))
    return place.cpus


if __name__ == "__main__":
    sys.exit(main())
