"""What no GPU can compute, beside everything that was published."""

import pytest

from hpcdl.predict.hardware import of_host, of_partition
from hpcdl.predict.network import names, network
from hpcdl.predict.records import read_records
from hpcdl.regress.scaling import most, most_images_per_second
from hpcdl.regress.training import TrainingCase

RESNET = TrainingCase("resnet50", 2, 4, steps=100, batch=64, data="synthetic", real=True)


def test_nothing_that_was_published_is_too_fast_and_some_of_it_is_near():
    parts = []
    for row in read_records():
        machine = of_host(row.gpu, row.hardware, 1)
        if machine and row.model in names() and row.rate and row.gpus:
            net = network(row.model, row.size)
            bound = most_images_per_second(machine, net, row.precision, row.gpus)
            parts += [row.rate / bound] if bound else []
    assert len(parts) > 500
    assert max(parts) < 1
    assert max(parts) > 0.1, "a bound that far away would find nothing"


def test_the_bound_is_that_of_all_gpus_of_a_case(three_generations):
    partition = three_generations.partition("p100")
    one = most_images_per_second(of_partition(partition), network("resnet50"), "fp32", 1)
    assert most(RESNET, partition) == pytest.approx(8 * one)
    assert 219 < one < 219 * 15, "219 is what one of them really does"


@pytest.mark.parametrize("case", [
    TrainingCase("mlp", 1, 1, steps=10, batch=8),
    TrainingCase("resnet50", 1, 1, steps=10, batch=8, data="imagenet", real=True),
])  # fmt: skip
def test_nothing_is_said_of_images_whose_size_is_not_known(three_generations, case):
    assert most(case, three_generations.partition("p100")) is None
