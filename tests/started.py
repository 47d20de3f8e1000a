"""TensorFlow as a run starts it; scripts call this before they import modules that use it."""

from hpcdl.train.options import facts_of
from hpcdl.train.startup import import_tensorflow, this_place


def tensorflow(*, keras, onednn=False):
    """TensorFlow, with Keras or without."""
    return import_tensorflow(this_place(), keras=keras, onednn=onednn)


def tensorflow_for(model):
    """TensorFlow as a network of facts/models.yaml wants it."""
    row = facts_of(model)
    return tensorflow(keras=row["builder"] != "mlp", onednn=row.get("onednn", True))
