"""What makes the program fast is still there, seen without a clock."""

import itertools

import pytest

from tests.integration.train_runs import INSIDE, Runs

pytestmark = pytest.mark.stack


def test_steps_in_one_call_end_in_the_bits_of_steps_one_by_one(runs):
    found = runs.script(*INSIDE, "groups")
    assert found["8"]["weights"] == found["1"]["weights"]
    assert found["8"]["losses"] == found["1"]["losses"]
    assert len(set(found["8"]["losses"])) == 8, "each step had a batch of its own"
    assert found["8"]["least"] > 0, "each step has a compute time of its own"


def test_every_rank_and_part_of_a_batch_drops_values_of_its_own(runs):
    first, second, again = runs.script(*INSIDE, "dropout")
    masks = [
        [value % 10 == 1 for value in first],
        [value >= 10 for value in first],
        [value % 10 == 1 for value in second],
        [value >= 10 for value in second],
    ]
    assert again == first, "a resumed run draws the same"
    for one, other in itertools.combinations(masks, 2):
        assert 96 < sum(a == b for a, b in zip(one, other, strict=True)) < 160


def test_normalisation_is_one_operation_and_gives_the_same(runs):
    found = runs.script(*INSIDE, "normalization")
    assert any(name.startswith("FusedBatchNorm") for name in found["operations"])
    # The moving variance is that of a sample: 378 values of each channel, so 1/377 away at most.
    assert found["away"] < 0.02


@pytest.fixture(scope="module")
def pipeline(train_python, tmp_path_factory):
    """What the input pipeline does with 96 photographs of 96 x 72 in 4 shards."""
    folder = tmp_path_factory.mktemp("photos") / "set"
    words = ("--count=96", "--shards=4", "--size=96x72", "--bytes=5000")
    runs = Runs(train_python, folder.parent)
    runs.data("make", "photos", folder, *words)
    return runs.script(*INSIDE, "pipeline", folder)


def test_the_library_and_tensorflow_crop_the_same(pipeline):
    found = pipeline["decoders"]
    if found["decoders"][0] == "TensorFlow":
        pytest.skip("no C compiler, or no libjpeg-turbo with its headers")
    assert found["decoders"] == ["libjpeg-turbo", "TensorFlow"]
    assert found["away"] < 0.5
    assert found["worst"] <= 3


def test_crops_are_drawn_evenly_and_anew_for_every_image(pipeline):
    found = pipeline["crops"]
    assert len({tuple(window) for window in found}) > 2900
    area = [height * width / (375 * 500) for _, _, height, width in found]
    shape = [width / height for _, _, height, width in found]
    assert min(area) > 0.07
    assert 0.33 < sum(area) / len(area) < 0.45, "from 8 to 100 %, as TensorFlow draws them"
    assert 0.7 < min(shape) < 0.8 < 1.25 < max(shape) < 1.4
    for side, place in ((375, 0), (500, 1)):
        free = [w[place] / (side - w[place + 2]) for w in found if side - w[place + 2] > 20]
        assert 0.47 < sum(free) / len(free) < 0.53
        assert min(free) < 0.05
        assert max(free) > 0.95
