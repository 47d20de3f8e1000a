"""Feed the GPUs, bind them right: CheXNet with the old and with the new input pipeline."""

from hpcdl.api import study

DELL = 'Dell EMC "Deep Learning Performance Scale-Out" guide (TF 1.10 vs 1.14)'
RESNET = "ResNet-50, same kind of machine (Dell EMC 2019)"
PUBLISHED = [study.Published(RESNET, DELL, speedups={4: 3.9, 8: 6.9})]
SMALL = "--model=chexnet --image-size=32 --batch-per-rank=8"
TWENTY = f"{SMALL} --steps=20 --warmup-steps=4 --checkpoint-every=0"
FINDINGS = "--classes=findings --shards=8"
CHESTS = f"--count=640 --test=32 --size=384x384 --bytes=80000 {FINDINGS}"
GLIMPSES = f"--count=512 --test=128 --size=96x96 --bytes=7000 {FINDINGS}"
SLOW = ["python", study.example("strategies/slow_storage.py"), "10"]
OLD = ["python", study.example("strategies/old_pipeline.py")]
LEARN = f"{SMALL} --steps=300 --lr=0.05 --checkpoint-every=0"
BINDING = {"bound": {}, "unbound": {"environment": {"SLURM_CPU_BIND": "none"}}}
FULL = "--model=chexnet --batch-per-rank=64"


def judge_small(results: study.Results) -> None:
    results.judge_runs("exactly one process per GPU")
    with results.rule("faster", "the new pipeline is faster"):
        assert results.ratio("pipeline", "new", "old") >= 1.15
    with results.rule("input-share", "ranks wait for the old pipeline"):
        assert results.where(pipeline="old").share("input") >= 0.1
    with results.rule("input-share", "they hardly wait for the new one"):
        assert results.where(run="training", pipeline="new").share("input") <= 0.1
    with results.rule("metric", "findings are learnt: AUROC over all ranks is above chance"):
        assert results.where(run="learning").metric("auroc") >= 0.6


def judge_full(results: study.Results) -> None:
    results.judge_runs("exactly one process per GPU")
    new = results.where(run="training", pipeline="new")
    with results.rule("efficiency", "the new pipeline scales near-linearly"):
        assert new.efficiency(8, 16) >= 0.85
    with results.rule("faster", "the new pipeline is at least twice as fast"):
        assert results.ratio("pipeline", "new", "old") >= 2.0
    with results.rule("metric", "AUROC as in arXiv 1711.05225 less 0.04"):
        assert new.metric("auroc") >= 0.80


def report(results: study.Results) -> study.Parts:
    training = results.where(run="training")
    yield study.rate(training, "Throughput")
    yield study.speedup(training, "Speed-up", PUBLISHED)
    yield study.phases(training, "Where a step's time goes")
    title = "Images per second, ranks bound to cores and not"
    yield study.table(results.where(run="binding"), title, "environment")


STUDY = study.Study(
    title="CheXNet with the old and the new input pipeline",
    question="How much faster is CheXNet (DenseNet-121, 14 findings per image) when records are "
    "read interleaved, decoded in parallel and fetched ahead, on 1 to 16 GPUs with one process "
    "each?",
    origin="Dell EMC, Training an AI radiologist with distributed deep learning (October 2019): "
    "PowerEdge C4140, 4 V100-SXM2 per node, Horovod.",
    found="The old pipeline leaves GPUs at 0 %; the new one scales near-linearly. Exactly one "
    "process per GPU: TensorFlow 1.13.1 opened every GPU in every process.",
    series=["pipeline"],
    report=report,
    published=PUBLISHED,
    small=study.Scale(
        shows="The same two pipelines, fed with the same JPEGs of 14 findings and scored by AUROC "
        "over all ranks. The images come from storage of 10 MB/s for all ranks of a job, since CPU "
        "ranks compute so slowly that they would wait for nothing else: what is shown is which "
        "pipeline waits for it, and that every rank has one GPU of Slurm's. Findings are stripes "
        "that lie over the images, so that a longer run on small ones can learn to see them; "
        "nothing is shown about chests.",
        takes="4 min on 2 cores of an AMD EPYC, 2026-11-24",
        single_node=True,
        minutes=20,
        cpus_per_rank=1,
        judge=judge_small,
        data={"chests": study.photographs(CHESTS), "glimpses": study.photographs(GLIMPSES)},
        jobs=[
            *study.Jobs("training", "gpus=1,2,4", TWENTY, data="chests").each(
                "pipeline",
                {
                    "new": {"program": SLOW},
                    "old": {"program": [*SLOW, "old"], "exclude": ["gpus=4"]},
                },
            ),
            study.Jobs("learning", "gpus=2", LEARN, data="glimpses"),
            *study.Jobs("binding", "gpus=4", TWENTY, data="chests").each("environment", BINDING),
        ],
    ),
    full=study.Scale(
        shows="The original, 1 to 16 GPUs on 4 nodes.",
        minutes=1440,
        judge=judge_full,
        data={"chests": study.DataSet(path="chestxray14")},
        jobs=[
            *study.Jobs(
                "training", "gpus=1,2,4,8,16 partition=v100", f"{FULL} --epochs=10", data="chests"
            ).each("pipeline", {"new": {"predict": [32]}, "old": {"program": OLD}}),
            *study.Jobs(
                "binding",
                "gpus=4,16 partition=v100",
                f"{FULL} --steps=600 --warmup-steps=100 --checkpoint-every=0",
                data="chests",
                minutes=240,
            ).each("environment", BINDING),
        ],
    ),
)
