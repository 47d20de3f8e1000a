"""Makes what a step consists of, network, task and optimizer, as the options want them."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from hpcdl.train import models, optimizers
from hpcdl.train.augment import make_augment
from hpcdl.train.communicate import Communicator
from hpcdl.train.data.source import Source
from hpcdl.train.fused import synchronize
from hpcdl.train.keras_parts import KerasOptimizer, make_loss, make_metrics, settings_of
from hpcdl.train.options import TrainOptions
from hpcdl.train.step import StepParts
from hpcdl.train.tasks import Task, make_task


def make_parts(
    options: TrainOptions, model: dict[str, Any], source: Source, ranks: Communicator, *,
    keras: bool,
) -> StepParts:  # fmt: skip
    """The parts of a run's step; `keras` makes a Keras model even of the smallest network."""
    settings_of(options.settings, "")  # a typo is refused before the network is built
    network = models.build(
        options.model, source.shape, source.classes, options.seed, precision=options.precision,
        channels_first=channels_first(options), keras=keras, freeze=options.freeze,
        split=options.model_parallel,
        adapt=partial(synchronize, ranks=ranks, wanted=options.sync_bn, xla=options.xla),
    )  # fmt: skip
    return StepParts(
        network=network,
        task=_task(options, str(options.task or model["task"]), source.classes),
        optimizer=_optimizer(options, network),
        ranks=ranks,
        prepare=source.prepare,
        augment=make_augment(options, source, network.random, ranks.rank),
        scale=optimizers.make_loss_scale() if options.precision == "fp16" else None,
        clocked=not options.deterministic,
        accumulate=options.accumulate,
        precision=options.precision,
        xla=options.xla,
        compress=options.compress,
    )


def _task(options: TrainOptions, name: str, classes: int) -> Task:
    task = make_task(name, options.label_smoothing)
    if options.loss:
        arguments = settings_of(options.settings, "loss")
        task = replace(task, loss=make_loss(options.loss, classes, arguments))
    return replace(task, metrics=make_metrics(options.metrics))


def _optimizer(
    options: TrainOptions, network: models.Network
) -> optimizers.Optimizer | KerasOptimizer:
    if options.keras_optimizer:
        arguments = settings_of(options.settings, "optimizer")
        return KerasOptimizer(network, options.optimizer, arguments)
    return optimizers.make_optimizer(
        network, options.optimizer, options.momentum, options.weight_decay
    )


def channels_first(options: TrainOptions) -> bool:
    """Whether images lie channel by channel: pays for fp32 on GPUs without tensor cores."""
    gpus = tf.config.get_visible_devices("GPU")
    if options.layout == "nchw" and not gpus:
        print("no GPU here: --layout nchw is for GPUs, nhwc is used", file=sys.stderr, flush=True)
        return False
    if options.layout != "auto" or not gpus:
        return options.layout == "nchw"
    details = tf.config.experimental.get_device_details(gpus[0])
    capability = details.get("compute_capability", (7, 0))
    return bool(capability < (7, 0)) and options.precision == "fp32"
