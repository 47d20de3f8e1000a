"""The model of scaling against real things: Keras models and a real training run."""

import subprocess

import pytest
import yaml

from hpcdl.predict.network import Layer, network, parse_layer
from tests.integration.train_runs import ROOT, environment

pytestmark = pytest.mark.stack
NETWORKS = ("alexnet", "googlenet", "resnet50", "mlp")


def sizes(layers: tuple[Layer, ...]) -> list[tuple[float, ...]]:
    """Layers without their names, which differ between releases of Keras."""
    return [(row.tensors, row.parameters, row.macs, row.moved) for row in layers]


def test_the_layers_of_the_facts_are_those_of_the_real_keras_models(train_python):
    done = subprocess.run(
        [train_python, "-m", "tools.layers", *NETWORKS],
        env=environment() | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for name, row in yaml.safe_load(done.stdout).items():
        layers = tuple(parse_layer(line) for line in row["layers"].splitlines())
        assert sizes(layers) == sizes(network(name).layers)
