"""`hpcdl predict`: scaling before submitting, and how far the model can be trusted."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdl.cli.framework import Command, Group, print_json, the_site
from hpcdl.system.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from hpcdl.predict.request import Request
    from hpcdl.site import Partition, Site

_PERCENT = 100.0


def _question(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partition", help="partition of the site; its default one by default")
    parser.add_argument("--model", help="the network, such as resnet50")
    parser.add_argument("--batch", type=int, help="images per GPU and step (64)")
    parser.add_argument("--precision",
                        help="fp32, tf32, amp or fp16; tf32 by default from the A100 on,"
                        " else fp32")  # fmt: skip
    parser.add_argument("--data", default="synthetic", help="synthetic (default) or imagenet")
    parser.add_argument("--pipeline", default="new",
                        help="new (default), or old: no image is made ahead")  # fmt: skip
    parser.add_argument("--storage", type=float, metavar="GB/S", help="what all nodes may read")
    parser.add_argument("--form", default="horovod",
                        help="horovod, replicated, parameter_server, no_overlap")  # fmt: skip
    parser.add_argument("--calibrate", type=Path, action="append", default=[],
                        metavar="RESULT.JSON",
                        help="start from a run of this site: its partition, model, batch and"
                        " precision; once more for each all-reduce check of its links")  # fmt: skip
    parser.add_argument("--one", type=float, metavar="IMAGES/S", help="what one GPU makes")
    parser.add_argument("--cycle-ms", type=float, metavar="MS", help="HOROVOD_CYCLE_TIME (1)")
    parser.add_argument("--fusion-mb", type=float, metavar="MB",
                        help="HOROVOD_FUSION_THRESHOLD in MB (134)")  # fmt: skip
    parser.add_argument("--link", type=float, metavar="GB/S",
                        help="all-reduce bus bandwidth measured within a node")  # fmt: skip
    parser.add_argument("--network", type=float, metavar="GB/S",
                        help="all-reduce bus bandwidth measured between nodes")  # fmt: skip


def _configure_scale(parser: argparse.ArgumentParser) -> None:
    _question(parser)
    parser.add_argument("--gpus", metavar="COUNTS", help="8, 1,2,4 or 1-64; all by default")
    parser.add_argument("--every", action="store_true", help="every count of a range")
    parser.add_argument("--images", type=int, help="images of an epoch (ImageNet's 1281167)")
    parser.add_argument("--loss", type=float, default=10.0, metavar="PERCENT",
                        help="the largest loss of efficiency for `best below` (10)")  # fmt: skip
    parser.add_argument("--deadline", type=float, metavar="HOURS",
                        help="an epoch must be done by then, for `cheapest`")  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it: .png, .svg or .pdf")


def _configure_simulate(parser: argparse.ArgumentParser) -> None:
    _question(parser)
    parser.add_argument("--gpus", type=int, default=8, help="how many, 64 at most (8)")


def _configure_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, metavar="FILE",
                        help="rows to judge by, instead of those that hpcdl brings")  # fmt: skip


def _request(args: argparse.Namespace) -> Request:
    from hpcdl.predict.exchange import is_exchange
    from hpcdl.predict.request import Request
    from hpcdl.predict.results import read_sound

    files = [(path, read_sound(path)) for path in args.calibrate]
    runs = [path for path, value in files if not is_exchange(value)]
    if len(runs) > 1:
        raise BadInput("two runs to start from", hint="give one run, and checks of all-reduce")
    return Request(
        partition=_partition(args.partition, [value for _, value in files], the_site(args)),
        model=args.model,
        batch=args.batch,
        precision=args.precision,
        data=args.data,
        pipeline=args.pipeline,
        storage_gbs=args.storage,
        form=args.form,
        result=runs[0] if runs else None,
        images_per_second=args.one,
        exchanges=tuple(path for path, value in files if is_exchange(value)),
        link_gbs=args.link,
        network_gbs=args.network,
        cycle_ms=args.cycle_ms,
        fusion_mb=args.fusion_mb,
    )


def _partition(asked: str | None, results: list[dict[str, Any]], site: Site) -> Partition:
    """As asked, else that of the results where this site has it, else the usual."""
    from hpcdl.predict.results import place_of

    measured = [place_of(value).partition for value in results]
    known = [name for name in measured if name in site.partitions]
    return site.partition(asked or next(iter(known), site.default_partition))


def _scale(args: argparse.Namespace) -> ExitCode:
    from dataclasses import replace

    from hpcdl.predict.request import answer
    from hpcdl.predict.show import forecast_data, forecast_text

    found = answer(
        replace(
            _request(args), gpus=args.gpus, every=args.every, images=args.images,
            loss=args.loss / _PERCENT, deadline_hours=args.deadline,
        )
    )  # fmt: skip
    if args.plot:
        from hpcdl.predict.plot import write_plot

        write_plot(found, args.plot)
    if args.json:
        print_json(forecast_data(found))
    else:
        print(forecast_text(found))
    return ExitCode.OK


def _simulate(args: argparse.Namespace) -> ExitCode:
    from hpcdl.predict.compare import scenes
    from hpcdl.predict.forecast import expand
    from hpcdl.predict.request import prepare
    from hpcdl.predict.show import scenes_data, scenes_text
    from hpcdl.predict.step import profile

    request = _request(args)
    machine, training, base = prepare(request)
    (gpus,) = expand(str(args.gpus), machine.per_node)
    one = profile(machine, training, base.seconds, request.constants)
    found = scenes(machine, training, one, gpus, request.constants)
    if args.json:
        print_json(scenes_data(found))
    else:
        print(scenes_text(found))
    return ExitCode.OK


def _validate(args: argparse.Namespace) -> ExitCode:
    from hpcdl.predict.records import read_records
    from hpcdl.predict.show import validation_data, validation_text
    from hpcdl.predict.traces import judge_traces
    from hpcdl.predict.validate import validate

    found = validate(read_records(args.data))
    traced = () if args.data else judge_traces()
    if args.json:
        print_json(validation_data(found, traced))
    else:
        print(validation_text(found, traced, verbose=args.verbose))
    return ExitCode.OK


GROUP = Group(
    "predict",
    "how training will scale: time, cost and limits of 1 to thousands of GPUs",
    (
        Command(
            "scale",
            "Predict step time, images/s, efficiency and cost over GPU counts (the default).",
            "hpcdl predict --partition p100 --model resnet50 --gpus 1-16",
            _scale,
            _configure_scale,
        ),
        Command(
            "validate",
            "Judge the model by published rows: error per row, source and model.",
            "hpcdl predict validate",
            _validate,
            _configure_validate,
            site=False,
        ),
        Command(
            "simulate",
            "Play one step event by event beside the closed form, with uneven ranks and links.",
            "hpcdl predict simulate --partition p100 --model resnet50 --gpus 8",
            _simulate,
            _configure_simulate,
        ),
    ),
    default="scale",
)
