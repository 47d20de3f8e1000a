"""Prove whether storage is the limit: time of an epoch over the size of the data."""

from hpcdl.api import study

TENSORFLOW = "TensorFlow official benchmarks page (2017)"
DGX1 = {"AlexNet": (2890, 7105), "VGG-16": (154, 534), "ResNet-50": (218, 853)}
PUBLISHED = [
    study.Published(
        f"{name}, DGX-1, local disk, 4 P100 (TensorFlow 2017)", TENSORFLOW, {1: one, 4: four}
    )
    for name, (one, four) in {**DGX1, "Inception-v3": (142, 551)}.items()
]
EPOCHS = "--batch-per-rank={} --epochs={} --warmup-steps={} --checkpoint-every=0"
SHALLOW = f"--image-size=75 {EPOCHS.format(8, 4, 6)}"
DEEP = f"--image-size=32 {EPOCHS.format(8, 4, 6)}"  # they compute long: smaller images
NETWORKS = "alexnet,vgg16,resnet50,inception_v3"
SMALL = {"quarter": 96, "half": 192, "whole": 384}
FULL = {"half": 640583, "imagenet": 1281167, "imagenet-2x": 2562334, "imagenet-4x": 5124668}
PHOTOS = "--size=96x72 --bytes=5000 --classes=10 --shards=4"
OWN = {"storage": "own"}
SLOW = ["python", study.example("strategies/slow_storage.py")]


def judge_small(results: study.Results) -> None:
    results.judge_runs("as many ranks as GPUs")
    says = "an epoch takes no longer than in proportion to its data, within 30 %"
    with results.rule("linear", says):
        assert results.where(storage="own").ratio("data", "whole", "quarter") >= 0.77
    with results.rule("input-share", "ranks hardly wait: not storage-bound"):
        assert results.where(storage="own").share("input") <= 0.3
    with results.rule("input-share", "the slowed storage is told apart: storage-bound"):
        assert results.where(storage="slow").share("input") >= 0.5
    with results.rule("faster", "the slowed storage costs time"):
        assert results.ratio("storage", "own", "slow") >= 1.5


def judge_full(results: study.Results) -> None:
    results.judge_runs("one process per GPU")
    says = "beyond memory an epoch takes no longer than in proportion to its data, within 10 %"
    with results.rule("linear", f"{says}: no knee"):
        assert results.where(storage="own").ratio("data", "imagenet-4x", "half") >= 0.91
    with results.rule("input-share", "ranks hardly wait: not storage-bound"):
        assert results.where(storage="own").share("input") <= 0.15
    with results.rule("input-share", "the slowed storage is told apart: storage-bound"):
        assert results.where(storage="slow").share("input") >= 0.15


def report(results: study.Results) -> study.Parts:
    images = {**FULL, **SMALL} if results.plan.name == "small" else FULL
    curves = []
    for number, (name, series) in enumerate(results.where(storage="own").series().items()):
        sizes = sorted((images[one.data], one.mean_rate) for one in series)
        points = [(size / 1e3, size / rate) for size, rate in sizes]
        curves.append(study.Curve(name, points, colour=number))
    title = "An epoch over the size of its data"
    yield study.Panel(title, "images of the data set (1,000)", "seconds per epoch", curves)
    yield study.phases(results.where(model="alexnet"), "AlexNet, where a step's time goes")


STUDY = study.Study(
    title="Does storage limit training when data outgrow memory?",
    question="Does the time of an epoch grow faster than the data set once that no longer fits "
    "into memory, for AlexNet, VGG-16, ResNet-50 and Inception-v3?",
    origin="Miwa (UEC), a study on TSUBAME3.0 (2019): 4 P100 of one node, TensorFlow 1.12, "
    "ILSVRC2012 at 147.5 GB, 295.1 GB and more, on Lustre.",
    found="Time grows linearly with the size of the data, without a knee where memory ends: "
    "transfers hide behind computing, as a profiler's timeline shows.",
    series=["model"],
    report=report,
    published=PUBLISHED,
    small=study.Scale(
        shows="Epochs over three sizes of data, and in one case more a storage slowed to 0.15 "
        "MB/s, which is what a storage-bound job looks like. Data of megabytes stay in memory: "
        "nothing is shown about what lies beyond it. Ranks compute on CPUs, so input hides more "
        "easily than behind GPUs.",
        takes="6 min on 2 cores of an AMD EPYC, 2026-11-24",
        single_node=True,
        minutes=15,
        cpus_per_rank=1,
        judge=judge_small,
        data={
            name: study.photographs(f"--count={count} {PHOTOS}") for name, count in SMALL.items()
        },
        jobs=[
            study.Jobs(
                "training",
                f"model=alexnet,inception_v3 data={','.join(SMALL)} gpus=2",
                SHALLOW,
                named=OWN,
            ),
            study.Jobs("deep", "model=vgg16,resnet50 data=quarter,whole gpus=2", DEEP, named=OWN),
            *study.Jobs("training", "model=alexnet data=whole gpus=2", SHALLOW).each(
                "storage", {"slow": {"program": [*SLOW, "0.15"]}}
            ),
        ],
    ),
    full=study.Scale(
        shows="The original: 4 GPUs of one node, data of half to four times ILSVRC2012, below and "
        "above a node's memory, ten epochs each. Slow storage is made by reading at 200 MB/s.",
        minutes=1440,
        judge=judge_full,
        data={
            name: study.DataSet(path=name if name != "half" else "imagenet-half") for name in FULL
        },
        jobs=[
            study.Jobs(
                "training",
                f"model={NETWORKS} data={','.join(FULL)} gpus=4 partition=p100",
                EPOCHS.format(64, 10, 2502),
                named=OWN,
            ),
            *study.Jobs(
                "training",
                "model=alexnet data=imagenet-2x gpus=4 partition=p100",
                EPOCHS.format(64, 3, 2502),
            ).each("storage", {"slow": {"program": [*SLOW, "200"]}}),
        ],
    ),
)
