"""`hpcdl predict`: scaling before submitting, and how accurate the model is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdl.cli.framework import Command, Group, print_json, the_site
from hpcdl.system.errors import BadInput, ExitCode

if TYPE_CHECKING:
    from hpcdl.predict.forecast import Forecast
    from hpcdl.predict.request import Request
    from hpcdl.site import Partition, Site

_PERCENT = 100.0
_MOST_MONEY = 1e9


def _question(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--partition", help="partition (default: the site's default)")
    parser.add_argument("--gpu-model", metavar="MODEL",
                        help="the GPU, where the partition has several models")  # fmt: skip
    parser.add_argument("--model", help="the network, such as resnet50")
    parser.add_argument("--batch", type=int, help="images per GPU and step (64)")
    parser.add_argument(
        "--size",
        type=int,
        metavar="PIXELS",
        help="edge of the images, or tokens of a sequence (the network's own)",
    )
    parser.add_argument("--precision",
                        help="fp32, tf32, amp, bf16 or fp16"
                        " (default: tf32 on A100 and newer, else fp32)")  # fmt: skip
    parser.add_argument("--data", default="synthetic", help="synthetic (default) or imagenet")
    parser.add_argument("--pipeline", default="new",
                        help="new (default), or old: without prefetching")  # fmt: skip
    parser.add_argument("--storage", type=float, metavar="GB/S", help="file system read bandwidth")
    parser.add_argument("--form", default="horovod",
                        help="horovod, ddp, fsdp, replicated, parameter_server,"
                        " no_overlap")  # fmt: skip
    parser.add_argument("--calibrate", type=Path, action="append", default=[],
                        metavar="RESULT.JSON",
                        help="result of a run on this site to start from, of one GPU or several;"
                        " repeat for more runs and for results of all-reduce checks")  # fmt: skip
    parser.add_argument("--one", type=float, metavar="IMAGES/S", help="rate of one GPU")
    parser.add_argument("--cycle-ms", type=float, metavar="MS", help="HOROVOD_CYCLE_TIME (1)")
    parser.add_argument("--fusion-mb", type=float, metavar="MB",
                        help="HOROVOD_FUSION_THRESHOLD in MB (134)")  # fmt: skip
    parser.add_argument("--link", type=float, metavar="GB/S",
                        help="all-reduce bus bandwidth measured within a node")  # fmt: skip
    parser.add_argument("--network", type=float, metavar="GB/S",
                        help="all-reduce bus bandwidth measured between nodes")  # fmt: skip


def _configure_scale(parser: argparse.ArgumentParser) -> None:
    _question(parser)
    parser.add_argument("--gpus", metavar="COUNTS", help="8, 1,2,4 or 1-64 (default: all)")
    parser.add_argument("--every", action="store_true", help="also counts that fill no node")
    parser.add_argument("--images", type=int, help="images per epoch (1281167, ImageNet)")
    parser.add_argument("--loss", type=float, default=10.0, metavar="PERCENT",
                        help="largest loss of efficiency, for `best below` (10)")  # fmt: skip
    parser.add_argument("--deadline", type=float, metavar="HOURS",
                        help="time limit of an epoch, for `cheapest`")  # fmt: skip
    parser.add_argument("--price", type=float, metavar="MONEY", help="price of a GPU-hour")
    parser.add_argument("--compare", metavar="PARTITIONS",
                        help="partitions to show in one table, such as p100,v100")  # fmt: skip
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot to .png, .svg or .pdf")


def _configure_simulate(parser: argparse.ArgumentParser) -> None:
    _question(parser)
    parser.add_argument("--gpus", type=int, default=8, help="number of GPUs, 64 at most (8)")


def _configure_validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, metavar="FILE",
                        help="measured rows, instead of the shipped ones")  # fmt: skip


def _request(args: argparse.Namespace) -> Request:
    from hpcdl.predict.exchange import is_exchange
    from hpcdl.predict.request import Request
    from hpcdl.predict.results import read_sound
    from hpcdl.site.gpu_models import one_group

    files = [(path, read_sound(path)) for path in args.calibrate]
    runs = [path for path, value in files if not is_exchange(value)]
    return Request(
        partition=one_group(
            _partition(args.partition, [value for _, value in files], the_site(args)),
            args.gpu_model,
        ),
        model=args.model,
        batch=args.batch,
        size=args.size,
        precision=args.precision,
        data=args.data,
        pipeline=args.pipeline,
        storage_gbs=args.storage,
        form=args.form,
        result=runs[0] if runs else None,
        repeats=tuple(runs[1:]),
        images_per_second=args.one,
        exchanges=tuple(path for path, value in files if is_exchange(value)),
        link_gbs=args.link,
        network_gbs=args.network,
        cycle_ms=args.cycle_ms,
        fusion_mb=args.fusion_mb,
    )


def _partition(asked: str | None, results: list[dict[str, Any]], site: Site) -> Partition:
    """As asked, else that of the results where this site has it, else the default."""
    from hpcdl.predict.results import place_of

    measured = [place_of(value).partition for value in results]
    known = [name for name in measured if name in site.partitions]
    return site.partition(asked or next(iter(known), site.default_partition))


def _asked(args: argparse.Namespace) -> Forecast:
    from dataclasses import replace

    from hpcdl.predict.request import answer

    found = answer(
        replace(
            _request(args), gpus=args.gpus, every=args.every, images=args.images,
            loss=args.loss / _PERCENT, deadline_hours=args.deadline,
        )
    )  # fmt: skip
    if args.price is not None and not 0 <= args.price < _MOST_MONEY:
        raise BadInput(f"a GPU-hour cannot cost {args.price:g}")
    return replace(found, price=args.price)


def _compare(args: argparse.Namespace) -> ExitCode:
    from hpcdl.predict.show import compared_text, forecast_data

    if args.calibrate or args.one is not None:
        raise BadInput(
            "a measured rate is of one partition",
            hint="leave out --compare, or --calibrate and --one",
        )
    wanted = [*([args.partition] if args.partition else []), *args.compare.split(",")]
    found = [
        _asked(argparse.Namespace(**{**vars(args), "partition": name.strip()}))
        for name in dict.fromkeys(wanted)
    ]
    if args.json:
        print_json({"schema": 1, "partitions": [forecast_data(one) for one in found]})
    else:
        print(compared_text(found))
    return ExitCode.OK


def _scale(args: argparse.Namespace) -> ExitCode:
    from hpcdl.predict.show import forecast_data, forecast_text

    if args.compare:
        return _compare(args)
    found = _asked(args)
    if args.plot:
        from hpcdl.predict.plot import write_plot

        write_plot(found, args.plot)
    if args.json:
        print_json(forecast_data(found))
    else:
        print(forecast_text(found))
    return ExitCode.OK


def _simulate(args: argparse.Namespace) -> ExitCode:
    from hpcdl.predict.forecast import expand
    from hpcdl.predict.request import prepare
    from hpcdl.predict.show import scenes_data, scenes_text
    from hpcdl.predict.simulate import scenes
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
    "how training will scale: time, cost and bottleneck from 1 to thousands of GPUs",
    (
        Command(
            "scale",
            "Predict step time, images/s, efficiency and cost by number of GPUs (the default).",
            "hpcdl predict --partition p100 --model resnet50 --gpus 1-16",
            _scale,
            _configure_scale,
        ),
        Command(
            "validate",
            "Compare the model with published measurements: error by row, source and network.",
            "hpcdl predict validate",
            _validate,
            _configure_validate,
            site=False,
        ),
        Command(
            "simulate",
            "Simulate one step event by event, also with slow ranks and links.",
            "hpcdl predict simulate --partition p100 --model resnet50 --gpus 8",
            _simulate,
            _configure_simulate,
        ),
    ),
    default="scale",
)
