"""The model of scaling against real things: Keras models and a real training run."""

import subprocess

import pytest
import yaml

from hpcdl.predict.network import Layer, network, parse_layer
from hpcdl.predict.request import Request, answer
from hpcdl.site import find_site_file, load_site
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


def test_a_real_run_calibrates_the_model(runs, digits):
    done = runs.train("--data", str(digits), "--global-batch=64", "--epochs=20", job="one")
    assert done.code == 0, done.err
    measured = done.result["summary"]
    cpu = load_site(find_site_file("embedded")).partition("cpu")
    found = answer(Request(cpu, result=done.folder / "result.json", gpus="1-4"))
    assert found.training.net.name == done.result["model"] == "mlp"
    own = sum(measured["phases"][part] for part in ("compute", "update", "other"))
    assert found.points[0].images_per_second == pytest.approx(measured["images_per_second"] / own)
    assert [point.gpus for point in found.points] == [1, 2, 4]
    assert found.calibration.proof == "run"
