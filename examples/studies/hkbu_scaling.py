"""Where the time of a step goes, and whether a model of it predicts how training scales."""

from hpcdl.api import study

NETWORKS = "model=alexnet,googlenet,resnet50"
SMALL = "--image-size=64 --batch-per-rank=8 --warmup-steps=3 --checkpoint-every=0"
B_CAFFE = (
    "B-Caffe, github.com/hclhkbu/B-Caffe @fdb55951 (the same authors, arXiv 1811.11141); a GPU "
    "here is a board of two, a node each"
)
PUBLISHED = (
    study.Published(
        "GoogLeNet, K80 boards, 10 GbE, overlapped",
        B_CAFFE,
        rates={1: 163.36, 2: 299.32, 4: 599.28, 8: 1006.4},
    ),
    study.Published(
        "ResNet-50, K80 boards, 10 GbE, overlapped",
        B_CAFFE,
        rates={1: 76.85, 2: 151.1, 4: 294.72, 8: 465.6},
    ),
)


def judge_small(results: study.Results) -> None:
    with results.rule("complete", "every cell has a result"):
        assert results.complete()
    with results.rule("share", "computing is seen as a phase of its own"):
        assert results.where(gpus=1).share("compute") >= 0.8
    says = "the model predicts 4 ranks on shared cores from 2, within 30 % in the median"
    with results.rule("model", says):
        assert results.prediction_error() <= 0.3


def judge_full(results: study.Results) -> None:
    results.judge_runs("one process per GPU")
    with results.rule("share", "computing is seen as a phase of its own"):
        assert results.where(gpus=1).share("compute") >= 0.5
    says = "the model predicts 2 to 16 GPUs within 4 % in the median, as it does published rows"
    with results.rule("model", says):
        assert results.prediction_error() <= 0.04


def report(results: study.Results) -> study.Parts:
    yield study.phases(results, "Phases of a step")
    yield study.speedup(results, "Measured against the model", PUBLISHED)


STUDY = study.Study(
    title="Where a step's time goes, and what that says of scaling",
    question="How long do the phases of a training step take on one GPU for AlexNet, GoogLeNet and "
    "ResNet-50, and does a model of the step, given that one GPU, predict 2 to 16 GPUs?",
    origin="Shi and Chu, Performance modeling and evaluation of distributed deep learning "
    "frameworks on GPUs (arXiv 1711.05979): up to 4 nodes of 4 P40 each, 56 Gb/s InfiniBand.",
    found="TensorFlow overlaps the exchange of gradients with back-propagation; loading data is "
    "the bottleneck of shallow networks with large batches; between nodes communication is far "
    "slower than inside one, and none of the frameworks scales well over 4 nodes.",
    series=["model"],
    report=report,
    published=PUBLISHED,
    small=study.Scale(
        shows="The phases are those of CPU ranks. The model is asked about ranks that share the "
        "cores of one machine: from a step of two ranks, it must say what four give; "
        "nothing hides there, for the cores that exchange are those that compute. Links between "
        "GPUs and their overlap with computing are not to be seen; for that the model is judged by "
        "published rows (docs/predict.md).",
        takes="6 min on 2 cores of an AMD EPYC, 2026-11-24",
        single_node=True,
        minutes=15,
        cpus_per_rank=1,
        judge=judge_small,
        jobs=[
            study.Jobs("phases", f"{NETWORKS} gpus=1,2", f"{SMALL} --steps=23", predict=[8, 16]),
            study.Jobs("phases", f"{NETWORKS} gpus=4", f"{SMALL} --steps=13"),
        ],
    ),
    full=study.Scale(
        shows="The original's networks on 1 to 16 GPUs of one partition, 4 to a node.",
        minutes=45,
        judge=judge_full,
        jobs=[
            study.Jobs(
                "phases",
                f"{NETWORKS} gpus=1,2,4,8,16 partition=p100",
                "--batch-per-rank=64 --steps=400 --warmup-steps=50 --checkpoint-every=0",
                predict=[32, 64],
            )
        ],
    ),
)
