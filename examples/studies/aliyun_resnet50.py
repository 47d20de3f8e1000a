"""One command, no roles: speed-up of ResNet-50 from 1 GPU to 32."""

from collections.abc import Iterator

from hpcdl.api import study

ALIYUN = "Alibaba Cloud one-click TensorFlow (li shanshan / you liang)"
TWO, EIGHT = "2 P100 per node", "8 P100 per node, real ImageNet"
GAINS = {1: 1.0, 4: 3.7, 8: 7.3}
PUBLISHED = [
    study.Published(f"{TWO} (Alibaba Cloud 2018)", ALIYUN, {1: 221.4, 2: 442.37}, GAINS),
    study.Published(f"{EIGHT} (Alibaba Cloud 2018)", ALIYUN, speedups={16: 14.9, 32: 28.9}),
]
SERVER = study.example("strategies/parameter_server.py")
LAYERS = study.example("strategies/model_parallel.py")
PROGRAMS = {
    "synchronous": study.Program("horovod"),
    "asynchronous": study.Program("multiworker", ["python", SERVER]),
    "model-parallel": study.Program("single", ["python", LAYERS]),
}
MLP = "--model=mlp --global-batch=64 --checkpoint-every=0"
LEARNING = f"{MLP} --epochs=12 --lr=0.02 --callback=terminateonnan"


def jobs(
    resnet: str, steps: str, more: str, data: str, gpus: list[str], where: str
) -> list[study.Jobs]:
    """Return a scale's jobs; `gpus` of training, in a container, and of the ways to go parallel."""
    small, (training, contained, ways) = not where, gpus
    too_many = [f"data={data} gpus=8"] if small else []
    alone = [f"framework=model-parallel gpus={n}" for n in ways.split(",") if n != "2"]
    synthetic, options = f"data=synthetic {where}", f"{resnet} {steps} --checkpoint-every=0"
    ahead = [16, 32] if small else [64]
    both = f"data=synthetic,{data} gpus={training} {where}"
    return [
        study.Jobs("training", both, options, too_many, predict=ahead),
        study.Jobs("xla", f"{synthetic} gpus=1", f"{options} --xla"),
        study.Jobs(
            "container", f"environment=module,container {synthetic} gpus={contained}", options
        ),
        study.Jobs(
            "exchange",
            f"framework=synchronous,asynchronous,model-parallel {synthetic} gpus={ways}",
            f"{resnet} {more} --checkpoint-every=0",
            alone,
        ),
        study.Jobs(
            "learning", f"framework=synchronous,asynchronous data=digits gpus=1,4 {where}", LEARNING
        ),
        study.Jobs("digits", f"data=digits gpus=1,2 {where}", f"{MLP} --epochs=40"),
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


def report(results: study.Results) -> Iterator[study.Part]:
    training, learning, exchange, container = (
        results.where(run=run) for run in ("training", "learning", "exchange", "container")
    )
    yield study.rate(training, "Throughput")
    yield study.speedup(training, "Speed-up", PUBLISHED)
    yield study.efficiency(training, "Efficiency", PUBLISHED)
    yield study.rate(exchange, "Ways to go parallel")
    yield study.learning(learning, "Accuracy by time")
    yield study.table(exchange, "Images per second, by the way to go parallel", "framework")
    yield study.table(learning, "Accuracy, synchronous and asynchronous", "framework", "accuracy")
    yield study.table(learning, "Updates of late gradients, in the mean", "framework", "staleness")
    yield study.table(container, "Images per second, with a module and an image", "environment")


STUDY = study.Study(
    title="ResNet-50 from one GPU to thirty-two",
    question="How far does ResNet-50 speed up from 1 to 32 GPUs, with synthetic and with real "
    "data, when the user gives one command and no roles, task indices or host files?",
    origin="Alibaba Cloud, one-click high-performance TensorFlow (2018): 2 P100 per node, and 8 "
    "per node with real ImageNet.",
    found="221.4 images/s on one P100, 442.37 on two; 3.7 times on 4 GPUs (92.5 %), 7.3 on 8 "
    "(91.2 %); with real data 14.9 on 16 (93.1 %) and 28.9 on 32 (90.3 %).",
    series=["data", "framework"],
    frameworks=PROGRAMS,
    environments={"module": study.Surroundings(), "container": study.Surroundings(container=True)},
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
        exchange_from="data=synthetic run=training",
        judge=judge_small,
        data={
            "photos": study.made("photos", "count=192 size=96x96 bytes=6000 classes=10 shards=8"),
            "digits": study.made("digits"),
        },
        jobs=jobs(
            "--model=resnet50 --image-size=64 --batch-per-rank=8",
            "--steps=10 --warmup-steps=2",
            "--steps=20 --warmup-steps=4",
            "photos",
            ["1,2,4,8", "1,4", "1,2,4"],
            "",
        ),
    ),
    full=study.Scale(
        shows="The original, 1 to 32 GPUs, on a partition with 8 GPUs per node.",
        minutes=60,
        judge=judge_full,
        data={"imagenet": study.given("imagenet", 147.5, 1281167), "digits": study.made("digits")},
        jobs=jobs(
            "--model=resnet50 --batch-per-rank=64",
            "--steps=600 --warmup-steps=100",
            "--steps=600 --warmup-steps=100",
            "imagenet",
            ["1,2,4,8,16,32", "1,8,16", "1,2,4,8,16"],
            "partition=v100",
        ),
    ),
)
