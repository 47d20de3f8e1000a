"""The same networks on the same batches in several frameworks, and where their time goes."""

from hpcdl.api import study

VIT = "hpcdl.examples.transformers:vit_s16"
THREE = "alexnet,googlenet,resnet50"
TF = ["python", study.example("strategies/multiworker.py")]


def written(name: str, launcher: str) -> dict[str, object]:
    program = study.example(f"frameworks/{name}_training.py")
    return {"launcher": launcher, "program": [study.PYTHON, program]}


PAIRS = {"torch": "torch", "jax": "jax", "mxnet": "multiworker"}
SOME = {"horovod": {}, **{name: written(name, launcher) for name, launcher in PAIRS.items()}}
EVERY = {**SOME, "tf.distribute": {"launcher": "multiworker", "program": TF}}
WIDE = {**EVERY, "mxnet-horovod": written("mxnet", "horovod")}
# Caffe-MPI's own speed-ups on the paper's 16 P40; CNTK's stand in nothing that could be read.
README = "github.com/Caffe-MPI/Caffe-MPI.github.io, README: Caffe-MPI 2.0, 4 nodes of 4 P40"
GAINS = {"alexnet": 14.65, "googlenet": 14.25, "resnet50": 15.34}
PUBLISHED = [study.Published(f"Caffe-MPI, {k}", README, speedups={16: v}) for k, v in GAINS.items()]
GONE = [{"network": k, "Caffe-MPI": str(v), "CNTK": "-"} for k, v in GAINS.items()]
DEFAULT = "TF_CUDNN_USE_AUTOTUNE TF_ENABLE_ONEDNN_OPTS MXNET_CUDNN_AUTOTUNE_DEFAULT HPCDL_AUTOTUNE"
OFF = {**dict.fromkeys(DEFAULT.split(), "0"), "XLA_FLAGS": "--xla_gpu_autotune_level=0"}
PICTURES = "--dataset=hpcdl.examples.frameworks.pictures"


def jobs(options: str, batches: str, gpus: str, across: str, own: str) -> list[study.Jobs]:
    """Return a scale's jobs: all frameworks side by side, and what some of them can vary."""
    one = f"{options} --batch-per-rank={'8' if 'small' in options else '64'}"
    excluded = ["model=googlenet gpus=2", "model=resnet50 gpus=2"] if "small" in options else []
    untuned = study.Jobs("autotune", own, one, environment=OFF)  # tuned ones are among `speed`
    layout = study.Jobs("layout", f"layout=nchw,nhwc {own}", one)
    return [
        *study.Jobs("speed", f"model={THREE},{VIT} {gpus}", one, excluded).each("framework", EVERY),
        *study.Jobs("across", across, one).each("framework", WIDE),
        *study.Jobs("batch", f"batch-per-rank={batches} {own}", options).each("framework", SOME),
        *layout.each("framework", {"torch": SOME["torch"]}),
        *untuned.each("framework", SOME),
        *study.Jobs("xla", own, f"{one} --xla").each("framework", {"horovod": {}}),
    ]


def judge(results: study.Results) -> None:
    results.judge_runs("as many ranks as GPUs, each a process")
    with results.rule("equal", "a network has as many weights in every framework"):
        assert results.equal("parameters", over="framework")


def report(results: study.Results) -> study.Parts:
    speed, across = results.where(run="speed"), results.where(run="across")
    alexnet, one = speed.where(model="alexnet"), speed.where(gpus=1)
    yield study.rate(alexnet, "AlexNet: throughput")
    yield study.speedup(alexnet, "AlexNet: speed-up", PUBLISHED[:1])
    yield study.phases(one, "A step on one GPU")
    yield study.table(speed, "Images per second of all", "framework")
    for part, name in (("compute", "Computing"), ("input", "Input"), ("update", "Update")):
        yield study.table(one, f"{name} on one GPU (ms)", "framework", study.milliseconds(part))
    exposed = study.milliseconds("communication")
    for where, chosen in (("in a node", speed.where(gpus=2)), ("between nodes", across)):
        yield study.table(chosen, f"Communication not hidden {where} (ms)", "framework", exposed)
        yield study.table(chosen, f"Exchange hidden {where} (%)", "framework", study.hidden)
    yield study.ResultTable("Published speed-up on 16 P40", GONE)
    for run, title in (("batch", "batch"), ("layout", "data layout")):
        yield study.table(results.where(run=run), f"Images per second by {title}", "framework")
    both = results.where(run=("speed", "autotune"), gpus=1, framework=tuple(SOME))
    yield study.table(both, "Images per second by autotuning", "run")


STUDY = study.Study(
    title="One training in four frameworks",
    question="How fast do TensorFlow (Horovod and tf.distribute), PyTorch "
    "(DistributedDataParallel), JAX and MXNet (its key-value store) train the same networks on the "
    "same batches, which parts of a step make the difference, and which of them hide the exchange "
    "behind the backward pass, on one GPU, within a node and between nodes?",
    origin="Shi and Chu, Performance modeling and evaluation of distributed deep learning "
    "frameworks on GPUs (arXiv 1711.05979): Caffe-MPI, CNTK, MXNet and TensorFlow on 4 nodes of 4 "
    "P40, 56 Gb/s InfiniBand.",
    found="The frameworks differ in how they read data, in cuDNN's autotuning and data layout, and "
    "in whether the exchange of gradients hides behind back-propagation; none scales well over 4 "
    "nodes.",
    series=["framework", "model"],
    report=report,
    published=PUBLISHED,
    small=study.Scale(
        shows="The programs of all frameworks run in one harness, on the same batches and with as "
        "many weights; the parts of a step are those of CPU ranks that share the cores of one "
        "machine, where each framework computes with a library of its own. Nothing is shown about "
        "GPUs, and ranks together are no faster than the cores. GoogLeNet runs on one rank only, "
        "for XLA needs a minute to compile it.",
        takes="9 min on 2 cores of an AMD EPYC, 2026-11-24",
        single_node=True,
        minutes=15,
        cpus_per_rank=1,
        judge=judge,
        jobs=jobs(
            f"{PICTURES}:small --steps=10 --warmup-steps=3 --checkpoint-every=0",
            batches="4,16",
            gpus="gpus=1,2",
            across="model=alexnet nodes=2 gpus=2,4",
            own="model=alexnet gpus=1",
        ),
    ),
    full=study.Scale(
        shows="The original's networks and a transformer on 1 to 16 GPUs of one partition, 4 to a "
        "node, in today's frameworks. tf.distribute and MXNet are left out where the site does not "
        "say that it trusts its network.",
        minutes=45,
        judge=judge,
        jobs=jobs(
            f"{PICTURES}:large --steps=200 --warmup-steps=50 --checkpoint-every=0",
            batches="16,64,256",
            gpus="gpus=1,2,4 partition=p100",
            across=f"model={THREE},{VIT} gpus=8,16 partition=p100",
            own=f"model={THREE} gpus=1 partition=p100",
        ),
    ),
)
