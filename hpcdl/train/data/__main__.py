"""`python -m hpcdl.train.data`: the data commands; TensorFlow is imported where one needs it."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hpcdl.system.errors import BadInput, ExitCode, HpcdlError
from hpcdl.train.data.data_options import build_parser
from hpcdl.train.data.dataset import FILE, Dataset, promised, read_dataset
from hpcdl.train.data.inspecting import compared, data_of, index, inspect, shard_files
from hpcdl.train.data.requests import PhotoRequest, guard, was_made
from hpcdl.train.data.table import read_table, request_of
from hpcdl.train.ranks import this_place
from hpcdl.train.startup import import_tensorflow, prepare_environment


def main(argv: list[str] | None = None) -> int:
    """Run one data command and return its exit code."""
    args = build_parser().parse_args(argv)
    try:
        return int({"make": _make, "inspect": _inspect, "bench": _bench}[args.command](args))
    except HpcdlError as error:
        print(error.render(), file=sys.stderr, flush=True)
        return int(error.exit_code)


def _make(args: argparse.Namespace) -> ExitCode:
    folder = Path(args.folder).absolute()
    existing = _same(folder, args)
    guard(folder, args.kind)
    if args.dry_run:
        print(f"would {'keep' if existing else 'write'} the {args.kind} in {folder}")
        return ExitCode.OK
    makers = {"digits": _make_digits, "photos": _make_photos, "folder": _make_from_folder}
    dataset = existing or makers[args.kind](folder, args)
    counts = {split: dataset.examples(split) for split in dataset.splits}
    if args.json:
        values = {"directory": str(folder), "kind": dataset.kind, "examples": counts,
                  "made": existing is None}  # fmt: skip
        print(json.dumps(values, indent=2))
    else:
        state = "there already" if existing else "made"
        named = ", ".join(f"{count:,} to {split}" for split, count in counts.items())
        print(f"{dataset.kind}: {named}; {state} in {folder}")
    return ExitCode.OK


def _same(folder: Path, args: argparse.Namespace) -> Dataset | None:
    """The data set that is there already, where it is whole and the one asked for."""
    if not (folder / FILE).exists():
        return None
    try:
        dataset = read_dataset(folder)
    except HpcdlError:
        return None
    if args.kind == "digits":
        return dataset if (dataset.kind, dataset.seed) == ("digits", args.seed) else None
    request = asdict(_photos(args)) if args.kind == "photos" else _images(args)
    return dataset if was_made(folder, request) else None


def _images(args: argparse.Namespace) -> dict[str, Any]:
    """The request for these images and this table, as they are now."""
    images, table = _images_and_table(args)
    rows = read_table(images, table)
    return request_of(images, table, rows, shards=args.shards, test=args.test, seed=args.seed)


def _images_and_table(args: argparse.Namespace) -> tuple[Path, Path]:
    if not args.images or not args.labels:
        raise BadInput("`data make folder` needs --images DIR and --labels CSV")
    return Path(args.images).absolute(), Path(args.labels).absolute()


def _make_digits(folder: Path, args: argparse.Namespace) -> Dataset:
    _tensorflow(1)
    from hpcdl.train.data.digits import make_digits

    return make_digits(folder, args.seed)


def _photos(args: argparse.Namespace) -> PhotoRequest:
    width, height = args.size
    return PhotoRequest(
        args.count, args.test_count, width, height, args.bytes, args.classes, args.shards,
        args.seed, args.task,
    )  # fmt: skip


def _make_photos(folder: Path, args: argparse.Namespace) -> Dataset:
    _tensorflow(1)
    from hpcdl.train.data.photos import make_photos

    return make_photos(folder, _photos(args), _threads(args))


def _make_from_folder(folder: Path, args: argparse.Namespace) -> Dataset:
    images, table = _images_and_table(args)
    rows = read_table(images, table)
    _tensorflow(1)
    from hpcdl.train.data.folder import make_from_folder

    return make_from_folder(
        folder, images, table, rows, shards=args.shards, test=args.test, seed=args.seed,
        threads=_threads(args),
    )  # fmt: skip


def _inspect(args: argparse.Namespace) -> ExitCode:
    folder = Path(args.folder).absolute()
    shard_files(folder)
    _tensorflow(1)
    from hpcdl.train.data.source import count_records

    report = inspect(folder, count_records, _threads(args))
    if args.index:
        index(folder, report, args.classes, args.task, args.label_offset)
    elif (folder / FILE).exists():
        report = compared(report, promised(folder))
    print(json.dumps(report.as_json(), indent=2) if args.json else report.as_text())
    return ExitCode.OK if report.sound else ExitCode.NO


def _bench(args: argparse.Namespace) -> ExitCode:
    dataset = data_of(Path(args.folder).absolute())
    threads = _threads(args)
    _tensorflow(threads)
    from hpcdl.train.data.bench import bench

    result = bench(
        dataset, pipeline=args.pipeline, crop=args.crop, batch=args.batch,
        seconds=args.seconds, threads=threads,
    )  # fmt: skip
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        print(
            f"{args.pipeline} pipeline, images decoded by {result['decoder']}: "
            f"{result['images_per_second']:,.0f} images/s, "
            f"{result['images_per_cpu_second']:,.0f} per CPU-second, "
            f"{result['cores_used']:.2f} of {threads} cores used"
        )
    return ExitCode.OK


def _threads(args: argparse.Namespace) -> int:
    return int(args.threads or this_place().cpus)


def _tensorflow(threads: int) -> None:
    """Import TensorFlow as these commands want it: modules that use it may be imported then."""
    place = replace(this_place(), cpus=threads)
    prepare_environment(place, onednn=False)
    import_tensorflow(place, keras=False)


if __name__ == "__main__":
    sys.exit(main())
