"""Which layers are fused, checked without TensorFlow; that they give the same is tested with it."""

from types import SimpleNamespace
from typing import Any

import pytest

from hpcdl.train import fused as fusing


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
def test_a_plain_layer_of_every_keras_3_is_fused(
    own: dict[str, Any], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusing, "tf", TF)
    layer = BatchNormalization()
    vars(layer).update(own)
    assert fusing._can(layer) is fused
