"""TensorFlow as a run starts it; scripts call this before they import modules that use it."""

from hpcdl.train.startup import import_tensorflow, this_place


def tensorflow():
    """Return TensorFlow with the threads of this process."""
    return import_tensorflow(this_place())
