"""One command, no roles: speed-up of ResNet-50 from 1 GPU to 32."""

from hpcdl.api import study

ALIYUN = "Alibaba Cloud one-click TensorFlow (li shanshan / you liang)"
TWO, EIGHT = "2 P100 per node", "8 P100 per node, real ImageNet"
GAINS = {1: 1.0, 4: 3.7, 8: 7.3}
PUBLISHED = [
    study.Published(f"{TWO} (Alibaba Cloud 2018)", ALIYUN, {1: 221.4, 2: 442.37}, GAINS),
    study.Published(f"{EIGHT} (Alibaba Cloud 2018)", ALIYUN, speedups={16: 14.9, 32: 28.9}),
]
SGD = {
    "synchronous": {},
    "asynchronous": {
        "launcher": "multiworker",
        "program": ["python", study.example("strategies/parameter_server.py")],
    },
}
DIGITS = study.DataSet(["hpcdl", "data", "make", "digits"])
LAYERS = ["python", study.example("strategies/model_parallel.py")]
SPLIT = {"model-parallel": {"launcher": "single", "program": LAYERS}}
MANY, V100 = "--steps=600 --warmup-steps=100", "partition=v100"
MLP = "--model=mlp --global-batch=64 --checkpoint-every=0"
PHOTOS = "--size=96x96 --bytes=6000 --classes=10 --shards=8"
LEARNING = f"{MLP} --epochs=12 --lr=0.02 --callback=terminateonnan"


def jobs(small: bool) -> list[study.Jobs]:
    """Return the jobs of a scale; beyond two GPUs a model's two stages do not go parallel."""
    where, size = (
        ("", "--image-size=64 --batch-per-rank=8") if small else (V100, "--batch-per-rank=64")
    )
    more = "--steps=20 --warmup-steps=4" if small else MANY
    gpus, many = ("1,2,4,8", "1,2,4") if small else ("1,2,4,8,16,32", "1,2,4,8,16")
    data = "photos" if small else "imagenet"
    resnet = f"--model=resnet50 {size} --checkpoint-every=0"
    options = f"{resnet} --steps=10 --warmup-steps=2" if small else f"{resnet} {MANY}"
    synthetic, digits = f"data=synthetic {where}", f"data=digits {where}"
    left = [f"data={data} gpus=8"] if small else []
    both = f"data=synthetic,{data} gpus={gpus} {where}"
    return [
        study.Jobs("training", both, options, left, predict=[16, 32] if small else [64]),
        study.Jobs("xla", f"{synthetic} gpus=1", f"{options} --xla"),
        *study.Jobs("exchange", f"{synthetic} gpus={many}", f"{resnet} {more}").each("way", SGD),
        *study.Jobs("exchange", f"{synthetic} gpus=2", f"{resnet} {more}").each("way", SPLIT),
        *study.Jobs("learning", f"{digits} gpus=1,4", LEARNING).each("way", SGD),
        study.Jobs("digits", f"{digits} gpus=1,2", f"{MLP} --epochs=40"),
    ]


def judge_small(results: study.Results) -> None:
    results.judge_runs("as many ranks as GPUs, evenly spread, also on two nodes")
    says = "ranks together keep 30 % of what the cores give (63 to 90 % when it was measured)"
    with results.rule("efficiency", says):
        assert results.where(run="training").efficiency(2, 4, 8) >= 0.3
    with results.rule("metric", "the digits are learnt, by one rank and by two"):
        assert results.where(run="digits").metric("accuracy") >= 0.9
    with results.rule("metric", "synchronous and asynchronous SGD learn them, too"):
        assert results.where(run="learning").metric("accuracy") >= 0.85


def judge_full(results: study.Results) -> None:
    results.judge_runs("one process per GPU")
    training = results.where(run="training")
    for gpus, least in ((4, 0.925), (8, 0.912)):
        with results.rule("efficiency", f"{100 * least:g} % on {gpus} GPUs or better"):
            assert training.efficiency(gpus) >= least
    for gpus, least in ((16, 0.881), (32, 0.853)):
        says = f"real data: {100 * least + 5:g} % on {gpus} GPUs, less at most 5 points"
        with results.rule("efficiency", says):
            assert training.where(data="imagenet").efficiency(gpus) >= least
    with results.rule("metric", "the digits are learnt, by one GPU and by two"):
        assert results.where(run="digits").metric("accuracy") >= 0.9


def report(results: study.Results) -> study.Parts:
    training, learning, exchange = (
        results.where(run=run) for run in ("training", "learning", "exchange")
    )
    yield study.rate(training, "Throughput")
    yield study.speedup(training, "Speed-up", PUBLISHED)
    title = "Images per second, by the way to go parallel"  # servers hand out steps ahead
    yield study.table(exchange, title, "way", lambda one: one.mean_rate)
    title = "Accuracy, synchronous and asynchronous"
    yield study.table(learning, title, "way", lambda one: one.metrics.get("accuracy"))


STUDY = study.Study(
    title="ResNet-50 from one GPU to thirty-two",
    question="How far does ResNet-50 speed up from 1 to 32 GPUs, with synthetic and with real "
    "data, when the user gives one command and no roles, task indices or host files?",
    origin="Alibaba Cloud, one-click high-performance TensorFlow (2018): 2 P100 per node, and 8 "
    "per node with real ImageNet.",
    found="221.4 images/s on one P100, 442.37 on two; 3.7 times on 4 GPUs (92.5 %), 7.3 on 8 "
    "(91.2 %); with real data 14.9 on 16 (93.1 %) and 28.9 on 32 (90.3 %).",
    series=["data"],
    report=report,
    published=PUBLISHED,
    small=study.Scale(
        shows="One command starts 1 to 8 ranks on one node and on two, with synthetic and with "
        "real data. The ranks share the cores of one machine, so their throughput together stays "
        "what the cores give; 16 and 32 are predicted. Speed-up over GPUs is not to be seen.",
        takes="8 min on 2 cores of an AMD EPYC, 2026-11-24",
        single_node=True,
        minutes=20,
        cpus_per_rank=1,
        judge=judge_small,
        data={"photos": study.photographs(f"--count=192 {PHOTOS}"), "digits": DIGITS},
        jobs=jobs(small=True),
    ),
    full=study.Scale(
        shows="The original, 1 to 32 GPUs, on a partition with 8 GPUs per node.",
        minutes=60,
        judge=judge_full,
        data={"imagenet": study.DataSet(path="imagenet"), "digits": DIGITS},
        jobs=jobs(small=False),
    ),
)
