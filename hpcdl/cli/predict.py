"""`hpcdl predict`: scaling before submitting."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.cli.framework import Group, command, show, the_site
from hpcdl.system.errors import BadInput, ExitCode
from hpcdl.system.text import one_of

if TYPE_CHECKING:
    from hpcdl.predict.request import ScalingRequest
    from hpcdl.site import Partition, Site

_MOST_MONEY = 1e9
_NONE = "none"


def _configure(parser: argparse.ArgumentParser) -> None:
    from hpcdl.predict.request import ScalingRequest
    from hpcdl.system.declare import configure

    add = parser.add_argument
    add("--partition", help="partition (default: the site's default)")
    add("--gpu-model", metavar="MODEL", help="the GPU, where the partition has several models")
    add(
        "--calibrate",
        metavar="RESULT.JSON",
        help="result of a run on this site to start from, of one GPU or several; none: published"
        " rows (default: this site's last run like it)",
    )
    add(
        "--price",
        action="append",
        default=[],
        metavar="[PARTITION=]MONEY",
        help="price of a GPU-hour; repeat for the partitions of --compare",
    )
    add(
        "--compare",
        nargs="+",
        metavar="PARTITIONS",
        help="partitions to show in one table, such as p100,v100",
    )
    add("--plot", type=Path, metavar="FILE", help="plot to FILE.svg")
    configure(parser, ScalingRequest)


def _request(args: argparse.Namespace) -> tuple[ScalingRequest, tuple[str, ...]]:
    """Return the options' request, and the defaults that are used.

    The partition is that of the measured run where this site has it, unless another is asked for.
    """
    from hpcdl.predict.request import ScalingRequest
    from hpcdl.predict.start import read_result
    from hpcdl.system.declare import typed, values_of

    values = values_of(ScalingRequest, typed(ScalingRequest, args))
    run = Path(args.calibrate) if args.calibrate not in (None, _NONE) else None
    site, measured = the_site(args), read_result(run).partition if run else ""
    known = measured if measured in site.partitions else ""
    place = _place(site, args, args.partition or known, stated=bool(run))
    request = ScalingRequest(place, **values, result=run)
    if run:
        from hpcdl.workflows.expectation import on_shared_cores

        return on_shared_cores(request), ()
    if args.calibrate:
        return request, ()
    return _from_last_run(site, place, request)


def _place(site: Site, args: argparse.Namespace, name: str, *, stated: bool) -> Partition:
    from hpcdl.results.gpus import one_group

    place = site.partition(name or site.default_partition)
    others = [name for name, one in site.partitions.items() if one.gpu]
    if others and not (name or stated or place.gpu):
        raise BadInput(
            f"no partition is named, and '{place.name}', the default, has no GPUs",
            hint=f"give --partition, such as {one_of(others)}",
        )
    return one_group(place, args.gpu_model)


def _from_last_run(
    site: Site, place: Partition, request: ScalingRequest
) -> tuple[ScalingRequest, tuple[str, ...]]:
    """The request with the site's last run like it and its all-reduce checks."""
    kept = (site.paths.work, site.paths.prefix / "references")
    if not any(path.is_dir() for path in kept):
        return request, ()  # nothing ran here: nothing need be imported to look for it
    from hpcdl.workflows.expectation import from_site

    request = from_site(site, place, request)
    run = request.result
    used = [f"the site's last run like it, job {run.parent.name}"] if run else []
    used += ["the site's all-reduce check"] if request.exchanges else []
    return request, tuple(used)


def _prices(args: argparse.Namespace, partitions: list[str]) -> dict[str, float]:
    """Prices of a GPU-hour by partition; that of all under ''."""
    prices: dict[str, float] = {}
    for text in args.price:
        name, _, money = text.rpartition("=")
        try:
            prices[name] = float(money)
        except ValueError:
            prices[name] = -1.0
        if not 0 <= prices[name] < _MOST_MONEY:
            raise BadInput(f"a GPU-hour cannot cost '{money}'", hint="write --price 2.5")
        if name and name not in partitions:
            raise BadInput(
                f"--price {text}: '{name}' is not among the predicted partitions",
                hint=f"they are {one_of(partitions)}",
            )
    missing = [name for name in partitions if name not in prices]
    if prices and "" not in prices and missing:
        raise BadInput(
            f"the partition '{missing[0]}' has no price", hint=f"give --price {missing[0]}=MONEY"
        )
    return prices


@command("hpcdl predict --partition p100 --model resnet50 --gpus 1-16", _configure)
def _scale(args: argparse.Namespace) -> ExitCode:
    """Predict step time, images/s, efficiency and cost by number of GPUs."""
    from dataclasses import replace

    from hpcdl.predict.request import answer
    from hpcdl.predict.show import forecast_data, forecast_text, write_plot

    names = _compared(args)
    prices = _prices(args, names or [args.partition or the_site(args).default_partition])
    forecasts = []
    for name in names or [args.partition]:
        request, used = _request(argparse.Namespace(**{**vars(args), "partition": name}))
        price = prices.get(request.partition.name, prices.get(""))
        forecasts.append(replace(answer(request), price=price, found=used))
    if args.plot:
        write_plot(forecasts, args.plot)
    ok = any(point.fits for forecast in forecasts for point in forecast.points)
    return show(args, forecast_data(forecasts), forecast_text(forecasts), ok=ok)


def _compared(args: argparse.Namespace) -> list[str]:
    """The partitions to compare; none where `--compare` is not given."""
    if not args.compare:
        return []
    if args.calibrate not in (None, _NONE):
        raise BadInput("a run is of one partition", hint="leave out --compare, or --calibrate")
    wanted = ",".join([args.partition or "", *args.compare]).split(",")
    names = [name for name in dict.fromkeys(map(str.strip, wanted)) if name]
    if not names:
        raise BadInput("--compare names no partition", hint="write --compare A,B")
    return names


GROUP = Group("predict", (_scale,), default="scale")
