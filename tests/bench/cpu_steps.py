"""What both sides of bench_train run: a clock of steps, and a text without a test set."""

import statistics
import time

import keras

from examples.transformers import corpus


class CpuSteps(keras.callbacks.Callback):
    """Times steps by the CPU time of the process; the first two compile."""

    def __init__(self):
        super().__init__()
        self.marks = []

    def on_train_batch_end(self, batch, logs=None):
        self.marks.append(time.process_time())

    def on_train_end(self, logs=None):
        spent = [b - a for a, b in zip(self.marks[1:], self.marks[2:], strict=False)]
        print("CPU", statistics.median(spent), flush=True)


def text(split):
    return corpus(split) if split == "train" else None
