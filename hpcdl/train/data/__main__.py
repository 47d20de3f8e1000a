"""`python -m hpcdl.train.data`: the data commands; TensorFlow is imported where one needs it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hpcdl.system.errors import ExitCode, HpcdlError
from hpcdl.train.data.dataset import FILE, Dataset, read_dataset
from hpcdl.train.data.options import configure_make, configure_shared


def main(words: list[str] | None = None) -> int:
    """Run one data command and return its exit code."""
    parser = argparse.ArgumentParser(prog="hpcdl data", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make")
    configure_make(make)
    configure_shared(make)
    args = parser.parse_args(words)
    try:
        return int(_make(args))
    except HpcdlError as error:
        print(error.render(), file=sys.stderr, flush=True)
        return int(error.exit_code)


def _make(args: argparse.Namespace) -> ExitCode:
    folder = Path(args.folder).absolute()
    existing = _same(folder, args)
    if args.dry_run:
        print(f"would {'keep' if existing else 'write'} the {args.kind} in {folder}")
        return ExitCode.OK
    dataset = existing or _make_digits(folder, args.seed)
    counts = {split: dataset.examples(split) for split in dataset.splits}
    if args.json:
        values = {"folder": str(folder), "kind": dataset.kind, "examples": counts,
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
    return dataset if (dataset.kind, dataset.seed) == (args.kind, args.seed) else None


def _make_digits(folder: Path, seed: int) -> Dataset:
    from hpcdl.train.data.digits import make_digits
    from hpcdl.train.ranks import this_place
    from hpcdl.train.startup import import_tensorflow, prepare_environment

    place = this_place()
    prepare_environment(place, onednn=False)
    return make_digits(import_tensorflow(place, keras=False), folder, seed)


if __name__ == "__main__":
    sys.exit(main())
