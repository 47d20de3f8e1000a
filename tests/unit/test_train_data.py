"""What makers of data sets keep, and take for their own; what a finding looks like."""

import argparse
import io
import json
from contextlib import suppress
from types import SimpleNamespace

import pytest

pytest.importorskip("numpy", reason="numpy comes with the stack")
import numpy as np

from examples.photographs import main, options, parts_of, request_of, stream, stripes
from hpcdl.system.errors import BadInput
from hpcdl.train.data import commands, dataset, opening, shards
from hpcdl.train.data.dataset import FINDINGS, Dataset, Shard, write_dataset

ASKED = ("--count=8", "--test=4", "--shards=1", "--size=64x48", "--bytes=3500", "--classes=10")
OTHERS = "count=9 test=0 classes=11 shards=2 size=48x64 bytes=5000 classes=findings"


def photos(folder):
    """A finished data set as the program with ASKED leaves it; its records are zeros."""
    splits = {}
    for split, count in (("train", 8), ("test", 4)):
        shard = Shard(f"{split}-00000-of-00001.tfrecord", count, count * 3500, "")
        (folder / shard.name).write_bytes(bytes(shard.bytes))
        splits[split] = (shard,)
    asked = request_of(options([str(folder), *ASKED]))
    write_dataset(
        Dataset(folder, "photos", "jpeg", (48, 64, 3), 10, 255.0, splits, "classes", 1, asked)
    )


def test_photos_that_were_asked_for_are_kept_where_that_is_known(tmp_path, capsys):
    photos(tmp_path)
    main([str(tmp_path), *ASKED])
    assert "8 to train, 4 to test" in capsys.readouterr().out
    made = tmp_path / "dataset.json"
    made.write_text(made.read_text().replace('"request"', '"other"'))
    with pytest.raises(BadInput, match="would be lost"):
        main([str(tmp_path), *ASKED])


@pytest.mark.parametrize(
    ("kind", "said"), [("digits", "`hpcdl data make digits "), ("photos", "again as it was made")]
)
def test_shards_that_are_gone_are_made_again_by_a_command_that_there_is(tmp_path, kind, said):
    photos(tmp_path)
    made = tmp_path / "dataset.json"
    made.write_text(made.read_text().replace('"photos"', f'"{kind}"'))
    next(tmp_path.glob("train-*")).unlink()
    with pytest.raises(BadInput, match="not complete") as refused:
        dataset.read_dataset(tmp_path)
    assert said in refused.value.hint


@pytest.mark.parametrize("argument", OTHERS.split())
def test_other_photos_are_never_lost(tmp_path, argument):
    photos(tmp_path)
    with pytest.raises(BadInput, match="would be lost"):
        main([str(tmp_path), *ASKED, f"--{argument}"])


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--size=big", "must be like 500x375"),
        ("--size=500", "must be like 500x375"),
        ("--size=x375", "must be like 500x375"),
        ("--size=9000x8", "at most 8000 pixels"),
        ("--shards=0", "at least 1"),
        ("--classes=cats", "a number or findings"),
    ],
)
def test_photos_that_cannot_be_are_refused_with_what_can(tmp_path, argument, said, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path / "new"), argument])
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "7", "[" * 100_000, '{"schema": 1, "classes": 1e999}'])
def test_what_is_damaged_is_no_data_set_and_no_traceback(tmp_path, text):
    photos(tmp_path)
    whole = json.loads((tmp_path / dataset.FILE).read_text())
    with suppress(ValueError, RecursionError, TypeError):
        text = json.dumps({**whole, **json.loads(text)})
    (tmp_path / dataset.FILE).write_text(text)
    with pytest.raises(BadInput, match=r"dataset\.json"):
        dataset.read_dataset(tmp_path)
    with pytest.raises(BadInput, match="would be lost"):
        dataset.require_room(tmp_path)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (None, "holds no TFRecord files"),
        (b"{", "dataset.json:1:2: not JSON: Expecting property name"),
        (b'{"schema": 99}', "dataset.json: it is of version 99; this hpcdl reads version 1"),
        (b'{"schema": 1}', "dataset.json: the file lacks the key 'kind'"),
        (bytes(range(256)), "dataset.json is not UTF-8 text"),
    ],
)
def test_what_cannot_be_inspected_is_said_before_tensorflow_is_there(tmp_path, written, said):
    asked = argparse.Namespace(folder=str(tmp_path), index=False, decode=False, json=False)
    if written is not None:
        (tmp_path / "x.tfrecord").touch()
        (tmp_path / "dataset.json").write_bytes(written)
    with pytest.raises(BadInput) as refused:
        commands.inspect(asked)
    assert said in refused.value.message
    asked.folder += "/none"
    with pytest.raises(BadInput, match="none is not a directory"):
        commands.inspect(asked)


def test_two_makes_of_one_directory_never_mix(tmp_path, monkeypatch):
    writer = SimpleNamespace(TFRecordWriter=lambda name: io.FileIO(name, "w"))
    errors = SimpleNamespace(OpError=ZeroDivisionError)
    monkeypatch.setattr(shards, "tf", SimpleNamespace(io=writer, errors=errors))
    folder = tmp_path / "set"
    folder.mkdir()
    names = {f"train-0000{number}-of-00002.tfrecord" for number in (0, 1)}

    def make(seed, record):
        asked = {"seed": seed}
        made = Dataset(folder, "photos", "jpeg", (8, 8, 3), 1, 1.0, {}, request=asked)
        return shards.make_dataset(made, {"train": (range(4), 2)}, record, threads=1)

    def meanwhile(number):
        if number == 2:
            make(1, lambda _: b"1")
        return b"2"

    with pytest.raises(BadInput, match="would be lost"):
        make(2, meanwhile)
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert kept.keys() == {"dataset.json", *names}
    assert {kept[name] for name in names} == {b"11"}
    assert make(1, lambda _: b"3").splits == dataset.read_dataset(folder).splits
    assert {path.read_bytes() for path in folder.glob("train-*")} == {b"11"}, "the first is kept"
    assert [*tmp_path.iterdir()] == [folder]


def test_every_finding_looks_different_is_seen_and_is_the_same_when_mirrored():
    pictures = stripes(48, 48)
    assert pictures.shape == (len(FINDINGS), 48, 48, 3)
    alike = np.corrcoef(pictures.reshape(len(FINDINGS), -1)) - np.eye(len(FINDINGS))
    assert alike.max() < 0.9
    assert np.abs(pictures).max(axis=(1, 2, 3)).min() > 30
    mirrored = pictures[:, :, ::-1]
    assert mirrored.mean(axis=(1, 2)) == pytest.approx(pictures.mean(axis=(1, 2)))
    spectra = [np.abs(np.fft.fft2(each, axes=(1, 2))) for each in (pictures, mirrored)]
    assert spectra[0] == pytest.approx(spectra[1], abs=1e-2)


def test_no_image_to_test_with_is_one_that_is_trained_on():
    asked = options(["photos", "--count=40", "--test=24", "--shards=3"])
    numbers = [number for items, _ in parts_of(asked).values() for number in items]
    assert len({stream(number).bytes(16) for number in numbers}) == len(numbers) == 64


def rows(*values):
    return np.array(values)


class Shape(tuple):
    """A shape as TensorFlow's."""

    rank = property(len)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.eye(10, dtype=np.int64), 10),  # one-hot
        (rows([0, 1, 1], [0, 0, 0]), 3),  # several findings
        (rows([0], [1], [4]), 5),  # a column of numbers
        (rows([0, 1], [1, 0], [7, 2]), 8),  # a number for each place
        (rows(0, 3, 1), 4),
        (rows([0.2, 0.3, 0.5]), 3),
    ],
)
def test_arrays_and_a_pipeline_of_the_same_labels_have_as_many_classes(
    labels, classes, monkeypatch
):
    monkeypatch.setattr(opening, "tf", SimpleNamespace(nest=SimpleNamespace(flatten=list)))
    assert opening._classes([labels]) == classes
    dtype = SimpleNamespace(is_integer=labels.dtype.kind == "i")
    spec = SimpleNamespace(shape=Shape(labels.shape[1:]), dtype=dtype)
    part = SimpleNamespace(batch=lambda size: [(None, [half]) for half in (labels[:1], labels[1:])])
    source = SimpleNamespace(label_spec=[spec], _parts={"train": part}, _read=list)
    assert opening.UserPipeline._count(source) == classes
