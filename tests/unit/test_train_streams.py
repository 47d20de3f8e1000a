"""How an epoch's records are shared out to streams, and so to ranks."""

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="numpy comes with hpcdl[test]")
from hpcdl.train.data.pipeline import interleave_shards, stream_count


def streams_of(counts, batch, ranks=1, epoch=0):
    """The records of every stream, as (shard, number)."""
    shards = [(Path(f"s{number}"), count) for number, count in enumerate(counts)]
    streams = stream_count(batch, ranks, len(shards))
    length = sum(counts) // batch * (batch // streams)
    return [
        [(unit.path, unit.skip + k) for unit in stream for k in range(unit.count)]
        for stream in interleave_shards(shards, streams, length, 7, epoch)
    ]


@pytest.mark.parametrize(
    ("counts", "batch"),
    [
        ([20] * 4, 16),
        ([19, 20, 19, 19, 19], 16),
        ([5, 90, 1], 32),
        ([100], 7),
        ([3] * 100, 64),
        ([1, 1, 1, 29], 8),
        ([64], 64),
    ],
)
def test_an_epoch_gives_every_record_once_but_what_fills_no_batch(counts, batch):
    for epoch in range(5):
        streams = streams_of(counts, batch, epoch=epoch)
        assert len({len(stream) for stream in streams}) == 1, "all streams have one length"
        seen = Counter(record for stream in streams for record in stream)
        assert set(seen.values()) == {1}
        assert len(seen) == sum(counts) // batch * batch
        assert all(number < counts[int(shard[1:])] for shard, number in seen)


def test_what_is_left_out_is_not_always_the_same():
    wanted = {("s0", number) for number in range(100)}
    missed = []
    for epoch in range(40):
        missed.append(wanted.difference(*streams_of([100], 32, epoch=epoch)))
    assert all(len(records) == 4 for records in missed)
    assert not set.intersection(*missed)


def test_where_streams_fit_the_shards_each_reads_whole_ones():
    shards = [(Path(f"s{number}"), 50) for number in range(8)]
    units = [unit for stream in interleave_shards(shards, 4, 100, 1, 0) for unit in stream]
    assert [(unit.skip, unit.count) for unit in units] == [(0, 50)] * 8


def test_streams_are_the_same_for_all_numbers_of_ranks_that_divide_them():
    assert streams_of([30] * 9, 48, ranks=1) == streams_of([30] * 9, 48, ranks=4)
    assert stream_count(48, 16, 4) == 16, "each rank has a stream, even where shards are fewer"
    assert streams_of([10] * 8, 8, epoch=0) != streams_of([10] * 8, 8, epoch=1)
