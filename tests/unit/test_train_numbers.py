"""Groups of gradients, and the pieces of a run that `fit` gets."""

import itertools
import random

import pytest

pytest.importorskip("numpy", reason="numpy comes with the stack")

from hpcdl.train.fitting import group_of, pieces_of
from hpcdl.train.ranks import buckets


def test_gradients_are_grouped_from_the_last_to_the_first_each_in_one_group():
    assert buckets([10, 10, 10, 10], limit=20) == [[3, 2], [1, 0]]
    assert buckets([100, 1, 1], limit=20) == [[2, 1], [0]]
    assert buckets([], limit=20) == []
    draw = random.Random(1)
    for _ in range(200):
        sizes = [draw.randrange(40) for _ in range(draw.randrange(1, 30))]
        groups = buckets(sizes, limit=50)
        assert list(itertools.chain(*groups)) == list(reversed(range(len(sizes))))
        assert all(sum(sizes[i] for i in group) <= 50 for group in groups)


@pytest.mark.parametrize(
    ("first", "last", "per_epoch", "pieces"),
    [
        (0, 44, 22, [(0, 44, 0, 2, 22)]),
        (0, 50, 22, [(0, 44, 0, 2, 22), (44, 50, 2, 3, 6)]),
        (5, 50, 22, [(5, 22, 0, 1, 17), (22, 44, 1, 2, 22), (44, 50, 2, 3, 6)]),
        (5, 9, 22, [(5, 9, 0, 1, 4)]),
        (44, 44, 22, []),
        (3, 10, 0, [(3, 10, 0, 1, 7)]),
    ],
    ids=["whole", "part at the end", "resumed", "inside an epoch", "done", "synthetic"],
)
def test_a_run_is_fitted_in_whole_epochs_and_the_parts_beside_them(first, last, per_epoch, pieces):
    found = [
        (p.first, p.last, p.epoch, p.epochs, p.steps) for p in pieces_of(first, last, per_epoch)
    ]
    assert found == pieces


@pytest.mark.parametrize(
    ("first", "last", "per_epoch", "every", "steps"),
    [
        (0, 440, 22, 22, 22),
        (0, 44000, 2200, 2200, 55),
        (0, 60, 22, 7, 1),
        (0, 66, 22, 11, 11),
        (11, 66, 22, 11, 11),
        (0, 4096, 0, 0, 64),
        (5, 45, 0, 20, 5),
        (0, 97, 0, 0, 1),
    ],
)
def test_a_call_runs_no_step_beyond_a_checkpoint_an_epoch_or_the_end(
    first, last, per_epoch, every, steps
):
    pieces = list(pieces_of(first, last, per_epoch))
    assert group_of(pieces, every, 64) == steps
