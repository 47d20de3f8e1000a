"""Keras' callbacks in our loop: `--callback csvlogger --set callback.filename=log.csv`.

They are told on rank 0 of training, epochs and steps: the loss; at an epoch's end the learning rate
and the latest validation, too. One that sets `stop_training` ends the run with the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hpcdl.system.errors import BadInput
from hpcdl.train.keras_parts import make, settings_of
from hpcdl.train.models import Network, origin, user_function


def make_callbacks(names: str, settings: Sequence[str], network: Network) -> Any:
    """A list of Keras that tells all of them: of Keras by name, or `package.module:Class`.

    Raises:
        BadInput: there is no such callback, or it refuses its arguments.
    """
    given, module, made = settings_of(settings, "callback"), tf.keras.callbacks, []
    for name in filter(None, names.split(",")):
        if ":" not in name:
            made.append(make(module, module.Callback, "--callback", name, given))
            continue
        kind = user_function("--callback", name)
        try:
            made.append(kind(**given))
        except Exception as fault:  # it is the user's: anything may go wrong in it
            raise BadInput(f"--callback {name} cannot be made", details=origin(fault)) from fault
    network.model.compile("sgd")  # some look at an optimizer; rates are the run's own
    network.model.stop_training = False
    return module.CallbackList(made, model=network.model)
