"""`hpcdl predict`: scaling before submitting, and how accurate the model is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Command, Group, option, show, the_site
from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.system.text import nearest, one_of

if TYPE_CHECKING:
    from hpcdl.predict.forecast import Forecast
    from hpcdl.predict.parallel import Plan
    from hpcdl.predict.request import Request

_FLOW = 4
"""Micro-batches per stage of a pipeline: a fifth of the time is its bubble."""
_MOST_MONEY = 1e9


def _configure_scale(parser: argparse.ArgumentParser) -> None:
    from hpcdl.predict.network import names

    add = parser.add_argument
    add("--partition", help="partition (default: the site's default)")
    add("--gpu-model", metavar="MODEL", help="the GPU, where the partition has several models")
    add("--model", help="the network, such as resnet50")
    add("--batch", type=int, help="images per GPU and step (64)")
    add(
        "--size",
        type=int,
        metavar="PIXELS",
        help="edge of the images, or tokens of a sequence (the network's own)",
    )
    add(
        "--precision",
        help="fp32, tf32, amp, bf16 or fp16 (default: tf32 on A100 and newer, else fp32)",
    )
    add("--data", default="synthetic", help="synthetic (default) or imagenet")
    add("--pipeline", default="new", help="new (default), or old: without prefetching")
    add(
        "--storage",
        dest="storage_gbs",
        type=float,
        metavar="GB/S",
        help="file system read bandwidth",
    )
    add(
        "--form",
        default="horovod",
        help="horovod, ddp, fsdp, replicated, parameter_server, no_overlap",
    )
    add(
        "--calibrate",
        type=Path,
        action="append",
        default=[],
        metavar="RESULT.JSON",
        help="result of a run on this site to start from, of one GPU or several;"
        " repeat for more runs and for results of all-reduce checks",
    )
    add("--one", dest="images_per_second", type=float, metavar="IMAGES/S", help="rate of one GPU")
    add(
        "--link",
        dest="link_gbs",
        type=float,
        metavar="GB/S",
        help="all-reduce bus bandwidth measured within a node",
    )
    add(
        "--network",
        dest="network_gbs",
        type=float,
        metavar="GB/S",
        help="all-reduce bus bandwidth measured between nodes",
    )
    add("--gpus", metavar="COUNTS", help="8, 1,2,4 or 1-64 (default: all)")
    add("--every", action="store_true", help="also counts that fill no node")
    add("--images", type=int, help="images per epoch (1281167, ImageNet)")
    add(
        "--loss",
        type=float,
        default=10.0,
        metavar="PERCENT",
        help="largest loss of efficiency, for `best below` (10)",
    )
    add(
        "--deadline",
        dest="deadline_hours",
        type=float,
        metavar="HOURS",
        help="time limit of an epoch, for `cheapest`",
    )
    add("--price", type=float, metavar="MONEY", help="price of a GPU-hour")
    add(
        "--compare",
        nargs="+",
        metavar="PARTITIONS",
        help="partitions to show in one table, such as p100,v100",
    )
    _configure_plan(parser)
    add("--plot", type=Path, metavar="FILE", help="plot to .png, .svg or .pdf")
    parser.set_defaults(behind=lambda one: "--model" if nearest(one, names()) else "--partition")


def _configure_plan(parser: argparse.ArgumentParser) -> None:
    """How a transformer is split."""
    add = parser.add_argument
    add(
        "--tensor",
        type=int,
        metavar="N",
        help="tensor parallelism: GPUs that share every block of a transformer, such as"
        " --model gpt3_175b --size 2048 --tensor 8 --pipeline-stages 12"
        " --checkpointing full",
    )
    add(
        "--pipeline-stages",
        dest="stages",
        type=int,
        metavar="N",
        help="pipeline parallelism: stages that hold some blocks each",
    )
    add("--interleave", type=int, metavar="N", help="virtual stages of a pipeline per GPU (1)")
    add(
        "--micro-batches",
        type=int,
        metavar="N",
        help="micro-batches of a step, each of --batch (4 per stage, else 1)",
    )
    add(
        "--sequence-parallel",
        dest="sequence",
        action="store_true",
        default=None,
        help="share layer norms and dropout, too",
    )
    add("--zero", type=int, metavar="STAGE", help="ZeRO: 1, 2, or 3 as FSDP (0)")
    add("--checkpointing", help="recompute none (default), selective (attention) or full blocks")
    add(
        "--plain-attention",
        dest="fused",
        action="store_const",
        const=False,
        help="attention that keeps its scores (default: fused, FlashAttention)",
    )


def _request(args: argparse.Namespace) -> Request:
    """What the options ask; most are called as the request's fields.

    The partition is that of the measured runs where this site has it, unless another is asked for.
    """
    from dataclasses import fields

    from hpcdl.predict.request import Request
    from hpcdl.predict.results import is_exchange, place_of, read_sound
    from hpcdl.site.gpu_models import one_group

    files = [(path, read_sound(path)) for path in args.calibrate]
    runs = [path for path, value in files if not is_exchange(value)]
    site, measured = the_site(args), [place_of(value).partition for _, value in files]
    known = [name for name in measured if name in site.partitions]
    place = site.partition(args.partition or next(iter(known), site.default_partition))
    others = [name for name, one in site.partitions.items() if one.gpu]
    if others and not (args.partition or files or args.images_per_second or place.gpu):
        raise BadInput(
            f"no partition is named, and '{place.name}', the default, has no GPUs",
            hint=f"give --partition, such as {one_of(others)}",
        )
    told = {
        "partition": one_group(place, args.gpu_model),
        "loss": args.loss / 100,
        "result": runs[0] if runs else None,
        "repeats": tuple(runs[1:]),
        "exchanges": tuple(path for path, value in files if is_exchange(value)),
        "plan": _plan(args),
    }
    names = {one.name for one in fields(Request)}
    return Request(**{**{key: vars(args)[key] for key in names & vars(args).keys()}, **told})


def _plan(args: argparse.Namespace) -> Plan | None:
    """How a transformer is split; None where no option of it is given."""
    from dataclasses import fields

    from hpcdl.predict.parallel import Plan

    given = {one.name: vars(args)[one.name] for one in fields(Plan)}
    given = {name: value for name, value in given.items() if value is not None}
    flow = {"micro_batches": _FLOW * args.stages if (args.stages or 1) > 1 else 1}
    return Plan(**{**flow, **given}) if given else None


def _asked(args: argparse.Namespace) -> Forecast:
    from dataclasses import replace

    from hpcdl.predict.request import answer

    found = answer(_request(args))
    if args.price is not None and not 0 <= args.price < _MOST_MONEY:
        raise BadInput(f"a GPU-hour cannot cost {args.price:g}")
    return replace(found, price=args.price)


def _compare(args: argparse.Namespace) -> ExitCode:
    from hpcdl.predict.show import compared_text, forecast_data

    if args.calibrate or args.images_per_second is not None:
        raise BadInput(
            "a measured rate is of one partition",
            hint="leave out --compare, or --calibrate and --one",
        )
    wanted = ",".join([args.partition or "", *args.compare]).split(",")
    found = [
        _asked(argparse.Namespace(**{**vars(args), "partition": name}))
        for name in dict.fromkeys(map(str.strip, wanted))
        if name
    ]
    if not found:
        raise BadInput("--compare names no partition", hint="write --compare A,B")
    data = {"schema": 1, "partitions": [forecast_data(one) for one in found]}
    return show(args, data, compared_text(found))


def _scale(args: argparse.Namespace) -> ExitCode:
    from hpcdl.predict.show import forecast_data, forecast_text

    if args.compare:
        return _compare(args)
    found = _asked(args)
    if args.plot:
        from hpcdl.predict.show import write_plot

        write_plot(found, args.plot)
    return show(args, forecast_data(found), forecast_text(found))


def _validate(args: argparse.Namespace) -> ExitCode:
    from hpcdl.predict.records import read_records
    from hpcdl.predict.show import validation_data, validation_text
    from hpcdl.predict.validate import validate

    found = validate(read_records(args.data))
    return show(args, validation_data(found), validation_text(found, verbose=args.verbose))


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
            option(
                "--data",
                type=Path,
                metavar="FILE",
                help="measured rows, instead of the shipped ones",
            ),
            site=False,
        ),
    ),
    default="scale",
)
