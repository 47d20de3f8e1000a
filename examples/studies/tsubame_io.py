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
EPOCHS = "--batch-per-rank={} --epochs={} --warmup-steps=0 --checkpoint-every=0 --profile"
SHALLOW = f"--image-size=75 {EPOCHS.format(8, 4)}"
DEEP = f"--image-size=32 {EPOCHS.format(8, 3)}"  # they compute long: smaller images
SLOW = f"--image-size=75 {EPOCHS.format(8, 3)}"
TWO, FOUR = "gpus=2", "gpus=4 partition=p100"
NETWORKS = "alexnet,vgg16,resnet50,inception_v3"
SIZES = "half,imagenet,imagenet-2x,imagenet-4x"


def judge_small(results: study.Results) -> None:
    with results.rule("complete", "every cell has a result"):
        assert results.complete()
    says = "above memory an epoch takes no longer than those below it foretell, within 30 %"
    with results.rule("linear", says):
        assert results.growth_above_memory() <= 0.3
    with results.rule("input-share", "above memory, ranks hardly wait: not storage-bound"):
        assert results.where(run="above").share("input") <= 0.3
    with results.rule("input-share", "ranks of the deep networks wait less still"):
        assert results.where(run="above-deep").share("input") <= 0.15
    with results.rule("input-share", "the slowed storage is told apart: storage-bound"):
        assert results.where(run="slow").share("input") >= 0.5
    with results.rule("faster", "the slowed storage costs time"):
        assert results.ratio("run", "above", "slow") >= 1.5


def judge_full(results: study.Results) -> None:
    results.judge_runs("one process per GPU")
    says = "above memory an epoch takes no longer than those below it foretell, within 10 %"
    with results.rule("linear", f"{says}: no knee"):
        assert results.growth_above_memory() <= 0.1
    with results.rule("input-share", "ranks hardly wait: not storage-bound"):
        assert results.where(run="training").share("input") <= 0.15
    with results.rule("input-share", "the slowed storage is told apart: storage-bound"):
        assert results.where(run="slow").share("input") >= 0.15


def report(results: study.Results) -> study.Parts:
    yield study.time_by_size(results, "An epoch over the size of its data")
    yield study.timeline(results.where(model="alexnet"), "AlexNet's timeline")


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
        shows="The largest data set is read as if it were larger than memory: its pages leave "
        "memory as soon as they are read. In one case more the storage is slowed to 0.15 MB/s, "
        "which is what a storage-bound job looks like. Ranks compute on CPUs, so input hides more "
        "easily than behind GPUs.",
        takes="6 min on 2 cores of an AMD EPYC, 2026-11-24",
        single_node=True,
        minutes=15,
        cpus_per_rank=1,
        memory_gigabytes=0.0015,
        judge=judge_small,
        data={
            name: study.made("photos", f"count={count} size=96x72 bytes=5000 classes=10 shards=4")
            for name, count in {"quarter": 96, "half": 192, "whole": 384}.items()
        },
        jobs=[
            study.Jobs("below", f"model=alexnet,inception_v3 data=quarter,half {TWO}", SHALLOW),
            study.Jobs("below-deep", f"model=vgg16,resnet50 data=quarter,half {TWO}", DEEP),
            study.Jobs(
                "above",
                f"model=alexnet,inception_v3 data=whole {TWO}",
                SHALLOW,
                reads=study.Reads(),
            ),
            study.Jobs(
                "above-deep", f"model=vgg16,resnet50 data=whole {TWO}", DEEP, reads=study.Reads()
            ),
            study.Jobs("slow", f"model=alexnet data=whole {TWO}", SLOW, reads=study.Reads(0.15)),
        ],
    ),
    full=study.Scale(
        shows="The original: 4 GPUs of one node, data of half to four times ILSVRC2012, below and "
        "above a node's memory, ten epochs each. Slow storage is made by reading at 200 MB/s.",
        minutes=1440,
        judge=judge_full,
        data={
            "half": study.given("imagenet-half", gigabytes=73.8, images=640583),
            "imagenet": study.given("imagenet", gigabytes=147.5, images=1281167),
            "imagenet-2x": study.given("imagenet-2x", gigabytes=295.1, images=2562334),
            "imagenet-4x": study.given("imagenet-4x", gigabytes=590.2, images=5124668),
        },
        jobs=[
            study.Jobs("training", f"model={NETWORKS} data={SIZES} {FOUR}", EPOCHS.format(64, 10)),
            study.Jobs(
                "slow",
                f"model=alexnet data=imagenet-2x {FOUR}",
                EPOCHS.format(64, 3),
                reads=study.Reads(200),
            ),
        ],
    ),
)
