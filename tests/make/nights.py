"""Simulated nights for the report's tests and its benchmark: seeds fixed, all of it made here."""

import random
from datetime import datetime, timedelta, timezone

from hpcdl.regress.gate import ask
from hpcdl.regress.history import open_history
from hpcdl.regress.report import night_page
from tests.make.results import METRIC, result, verdict

END = datetime(2026, 11, 21, 3, 10, tzinfo=timezone.utc)
RELEASES = (
    "tensorflow-2.20.0-gpu-41c0a8e2",
    "tensorflow-2.21.0-gpu-7dc6c03b",
    "tensorflow-2.21.1-gpu-b81f22d9",
)
PARTITIONS = {"p100": (8, 4, 1000.0), "v100": (6, 8, 1700.0)}
MODELS = {"resnet50": 0.22, "inception3": 0.14, "vgg16": 0.16, "mlp": 9.0}
_RATE, _DRIVER = "images_per_second", "580.95.05"


def cases(partition):
    """Case, level in images/s and nodes of a partition's throughput checks."""
    nodes, gpus, speed = PARTITIONS[partition]
    for model, share in MODELS.items():
        for count, ranks in ((1, 1), (1, gpus), (2, gpus), (4, gpus), (nodes, gpus)):
            total = count * ranks
            level = speed * share * total * (1 - 0.012 * (total - 1) ** 0.7)
            yield f"{model}-{count}x{ranks}-synthetic-fp32", level, count


def simulated(nights=365, *, seed=7):
    """The results of nights up to END: 40 throughput series and 10 of single nodes' storage.

    resnet50 on p100 loses 5 % with the last release 12 nights ago; p100-05 is a slow node.
    """
    rng = random.Random(seed)
    for night in range(nights):
        time = END - timedelta(days=nights - 1 - night)
        release = RELEASES[2] if nights - night <= 12 else RELEASES[min(1, night * 2 // nights)]
        common = {
            "run": f"{time:%Y%m%d-%H%M%S}-0000",
            "time": time.isoformat(timespec="seconds"),
            "release": release,
            "driver": _DRIVER,
            "unit": "images/s",
            "status": "PASS",
        }
        for partition in PARTITIONS:
            for case, level, count in cases(partition):
                yield _throughput(rng, partition, case, level, count, nights - night, common)
            yield from _storage(rng, partition, nights - night, common)


def _throughput(rng, partition, case, level, count, left, common):
    slow = 0.95 if partition == "p100" and case.startswith("resnet50-4x") and left <= 12 else 1.0
    value = level * slow * (1 + 0.012 * rng.gauss(0, 1))
    nodes = f"{partition}-01" if count == 1 else f"{partition}-[01-{count:02d}]"
    at = {**common, "case_name": case, "partition": partition, "nodes": nodes, "job": 10_000 - left}
    if partition == "v100" and case.startswith("vgg16-2x") and left == 30:
        lost = {"status": "ERROR", "unit": "", "metric": "", "reason": "node lost: v100-02"}
        return result(**at | lost, value=None)
    more = {"reference": level, "low": 0.9 * level, "queue_wait": 30.0, "restarts": 0}
    return result(**at, value=value, metric=_RATE, **more)


def _storage(rng, partition, left, common):
    nodes, _, speed = PARTITIONS[partition]
    for index, what in enumerate(("read-1m", "read-4k", "records", "decode", "copy")):
        level = speed * (1 + index)
        for node in range(1, nodes + 1):
            slow = 0.9 if (partition, node) == ("p100", 5) and left < 20 else 1.0
            value = level * slow * (1 + 0.015 * rng.gauss(0, 1))
            at = {**common, "case_name": what, "partition": partition, "unit": "MB/s"}
            at |= {"nodes": f"{partition}-{node:02d}", "job": node, "metric": "read_rate"}
            more = {"reference": level, "low": 0.8 * level}
            yield result(**at, value=value, check_name="storage", **more)


def verdicts(folder):
    """A run of the last night as verdicts.json holds it."""
    rng = random.Random(3)
    found = []
    for partition in PARTITIONS:
        for case, level, count in cases(partition):
            found.append(_verdict(rng, folder, partition, case, level, count))
    stale = next(v for v in found if v["case"].startswith("vgg16-2x") and v["partition"] == "v100")
    stale |= {
        "status": "STALE",
        "ok": False,
        "reason": "the reference of images_per_second was "
        f"measured with release '{RELEASES[1]}', this is '{RELEASES[2]}'",
    }
    return {
        "schema": 2,
        "run": str(folder / f"{END:%Y%m%d-%H%M%S}-0000"),
        "seconds": 2710.0,
        "ok": False,
        "verdicts": found,
    }


def _verdict(rng, folder, partition, case, level, count):
    slow = partition == "p100" and case.startswith("resnet50-4x")
    value = level * (0.87 if slow else 1 + 0.012 * rng.gauss(0, 1))
    metric = METRIC | {"name": _RATE, "value": value, "reference": level, "low": 0.9 * level}
    metric |= {"source": "measured on 'three-generations'", "proof": "run"}
    reason = f"{_RATE} {value:.0f} images/s is 13% below its reference {level:.0f}" if slow else ""
    job = {"id": 48121, "state": "COMPLETED", "exit_code": 0, "restarts": 0}
    job |= {"nodes": f"{partition}-[01-{count:02d}]", "queue_wait_seconds": 31.0}
    return verdict(
        "FAIL" if slow else "PASS",
        reason,
        case=case,
        partition=partition,
        metrics=[metric],
        release=RELEASES[2],
        driver=_DRIVER,
        job={**job, "run_seconds": 55.0},
        script=str(folder / f"{partition}-{case}.script"),
        log=str(folder / f"{partition}-{case}.log"),
    )


def page(folder, nights=80, site="x"):
    """The page of such nights, as `check report` wrote it the morning after; its file."""
    run = verdicts(folder)
    with open_history(folder / "history.sqlite", site) as history:
        history.add(simulated(nights))
        answer = ask(history, now=END)
        text = night_page(run, history, site=site, now=END, answer=answer)
    (folder / "night.html").write_text(text)
    return folder / "night.html"
