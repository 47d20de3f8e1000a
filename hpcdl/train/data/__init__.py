"""Data sets: making them, looking into them, and feeding them to the step.

A data set is a directory of TFRecord shards and a `dataset.json` that says what they hold
(`dataset`). `shards` writes and inspects them. `source` gives a rank its part of a batch.
"""
