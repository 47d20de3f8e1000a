"""TensorFlow as a run starts it; scripts call this before they import modules that use it."""

from hpcdl.train.options import facts_of
from hpcdl.train.startup import import_tensorflow, prepare_environment, this_place


def tensorflow(*, keras, onednn=False):
    """TensorFlow, with Keras or without."""
    place = this_place()
    prepare_environment(place, onednn=onednn)
    return import_tensorflow(place, keras=keras)


def tensorflow_for(model):
    """TensorFlow as a network of facts/models.yaml wants it."""
    row = facts_of(model)
    return tensorflow(keras=row["builder"] != "mlp", onednn=row.get("onednn", True))
