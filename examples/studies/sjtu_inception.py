"""One module, any partition. Two generations of nodes that differ in how their GPUs talk."""

from hpcdl.api import study

BOTH = "partition=p100,v100"
OVER = f"gpus=1,2,4 {BOTH}"
SMALL = "--model=inception_v3 --image-size=75 --batch-per-rank=4 --warmup-steps=4"
SMALL += " --checkpoint-every=0"
PUBLISHED = (
    study.Published(
        "DGX-1, 8 P100-SXM2, real data (TensorFlow 2017)",
        "TensorFlow official benchmarks page (2017)",
        rates={1: 142.0, 2: 278.0, 4: 551.0},
    ),
    study.Published(
        "C4130, 4 P100-PCIe (Dell 2016)",
        'Dell "Deep Learning Performance with P100 GPUs" (Xu & Dandapanthu, Oct 2016)',
        speedups={4: 3.0},
    ),
)


def judge_small(results: study.Results) -> None:
    results.judge_runs("as many ranks as GPUs")
    says = "the partitions are within 12 % of each other on 1 and 2 ranks, as on pi and Minsky"
    with results.rule("agree", says):
        assert results.where(gpus=(1, 2)).gap("partition") <= 0.12
    says = (
        "throughput follows the cores: what ranks on shared cores can show of linear scaling "
        "(58 to 74 % when it was measured)"
    )
    with results.rule("efficiency", says):
        assert results.efficiency(2, 4) >= 0.35


def judge_full(results: study.Results) -> None:
    results.judge_runs("one process per GPU")
    says = (
        "2 GPUs of either partition keep 94 % of one GPU's rate each, so that links make a "
        "difference below the original's 12 %"
    )
    with results.rule("efficiency", says):
        assert results.efficiency(2) >= 0.94
    with results.rule("efficiency", "linear to 4 GPUs"):
        assert results.efficiency(4) >= 0.95


def report(results: study.Results) -> study.Parts:
    yield study.rate(results, "Throughput")
    yield study.speedup(results, "Speed-up", PUBLISHED)


STUDY = study.Study(
    title="One module on two partitions",
    question="Does Inception-v3 at 64 images per GPU run equally fast on two partitions whose GPUs "
    "are the same kind but differently linked, from the same module and the same script?",
    origin="Wang and Wei, TensorFlow on the supercomputer pi of Shanghai Jiao Tong University "
    "(December 2017): pi, 2 P100-PCIe per node, against IBM Minsky, 4 P100-SXM2 with NVLink.",
    found="On 1 and 2 GPUs the two are within 12 % of each other; Minsky is linear to 4 GPUs.",
    series=["partition"],
    report=report,
    published=PUBLISHED,
    small=study.Scale(
        shows="Ranks of both partitions run on the cores of one machine, so the two must agree: "
        "what is shown is that one module and one script serve both, and how well a difference of "
        "12 % can be told from noise here. Nothing is shown about links or GPUs.",
        takes="3 min on 2 cores of an AMD EPYC, 2026-11-24",
        single_node=True,
        minutes=15,
        cpus_per_rank=1,
        judge=judge_small,
        jobs=[
            study.Jobs("training", f"gpus=1,2 {BOTH}", f"{SMALL} --steps=150", predict=[8]),
            study.Jobs("training", f"gpus=4 {BOTH}", f"{SMALL} --steps=40"),
        ],
    ),
    full=study.Scale(
        shows="The original, on two partitions whose GPUs are of one kind and linked differently. "
        "Where they are of two kinds, as by default here, rates do not compare: what each keeps of "
        "its own single GPU does.",
        minutes=60,
        judge=judge_full,
        data={"imagenet": study.DataSet(path="imagenet")},
        jobs=[
            study.Jobs(
                "training",
                OVER,
                "--model=inception_v3 --batch-per-rank=64 --steps=600 --warmup-steps=100 "
                "--checkpoint-every=0",
                data="imagenet",
                predict=[8, 16],
            )
        ],
    ),
)
