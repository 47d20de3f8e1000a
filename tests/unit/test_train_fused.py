"""Which layers are fused, checked without TensorFlow; that they give the same is tested with it."""

from types import SimpleNamespace
from typing import Any

import pytest

from hpcdl.train.fused import _can


class BatchNormalization:
    """The layer as Keras 3.0 to 3.13 have it: they know no `renorm`."""

    built = True
    axis = -1
    synchronized = False
    input_spec = SimpleNamespace(ndim=4)


TF: Any = SimpleNamespace(
    keras=SimpleNamespace(layers=SimpleNamespace(BatchNormalization=BatchNormalization))
)


@pytest.mark.parametrize(
    ("own", "fused"),
    [
        ({}, True),
        ({"renorm": False}, True),
        ({"renorm": True}, False),
        ({"synchronized": True}, False),
        ({"fused": True}, False),
        ({"axis": 2}, False),
    ],
)
def test_a_plain_layer_of_every_keras_3_is_fused(own: dict[str, Any], fused: bool) -> None:
    layer = BatchNormalization()
    vars(layer).update(own)
    assert _can(TF, layer) is fused
