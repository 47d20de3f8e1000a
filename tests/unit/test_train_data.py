"""What `data make` keeps, and what it takes for its own; what a finding looks like."""

import io
import json
from contextlib import suppress
from dataclasses import asdict
from types import SimpleNamespace

import pytest

pytest.importorskip("numpy", reason="numpy comes with the stack")
import numpy as np

from hpcdl.system.errors import BadInput
from hpcdl.train.data import dataset, making
from hpcdl.train.data.__main__ import main
from hpcdl.train.data.dataset import FINDINGS, Dataset, Shard, write_dataset
from hpcdl.train.data.photos import PhotoRequest, parts_of, stream, stripes

ASKED = ("--count=8", "--test=4", "--shards=1", "--size=64x48", "--bytes=3500", "--classes=10")


def photos(folder):
    """A finished data set as `data make photos` with ASKED leaves it; its records are zeros."""
    splits = {}
    for split, count in (("train", 8), ("test", 4)):
        shard = Shard(f"{split}-00000-of-00001.tfrecord", count, count * 3500, "")
        (folder / shard.name).write_bytes(bytes(shard.bytes))
        splits[split] = (shard,)
    asked = asdict(PhotoRequest(8, 4, 64, 48, 3500, 10, 1, 1))
    write_dataset(
        Dataset(folder, "photos", "jpeg", (48, 64, 3), 10, 255.0, splits, "classes", 1, asked)
    )


OTHERS = "count=9 test=0 classes=11 shards=2 size=48x64 bytes=5000 classes=findings"


def would(folder, capsys, *argv):
    code = main(["make", "photos", str(folder), "--dry-run", *ASKED, *argv])
    said = capsys.readouterr()
    assert code == (2 if "which would be lost" in said.err else 0)
    return "refused" if code else said.out.split()[1]


def test_photos_that_were_asked_for_are_kept_where_that_is_known(tmp_path, capsys):
    photos(tmp_path)
    assert json.loads((tmp_path / "dataset.json").read_text())["splits"]["test"]["examples"] == 4
    assert would(tmp_path, capsys) == "keep"
    assert would(tmp_path / "other", capsys) == "write"
    made = tmp_path / "dataset.json"
    made.write_text(made.read_text().replace('"request"', '"other"'))
    assert would(tmp_path, capsys) == "refused"


@pytest.mark.parametrize("argument", OTHERS.split())
def test_other_photos_are_never_lost(tmp_path, argument, capsys):
    photos(tmp_path)
    assert would(tmp_path, capsys, f"--{argument}") == "refused"


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


def test_two_makes_of_one_directory_never_mix(tmp_path, monkeypatch):
    writer = SimpleNamespace(TFRecordWriter=lambda name: io.FileIO(name, "w"))
    errors = SimpleNamespace(OpError=ZeroDivisionError)
    monkeypatch.setattr(making, "tf", SimpleNamespace(io=writer, errors=errors))
    folder = tmp_path / "set"
    folder.mkdir()
    shards = {f"train-0000{number}-of-00002.tfrecord" for number in (0, 1)}

    def make(seed, record):
        asked = {"seed": seed}
        made = Dataset(folder, "photos", "jpeg", (8, 8, 3), 1, 1.0, {}, request=asked)
        return making.make_dataset(made, {"train": (range(4), 2)}, record, threads=1)

    def meanwhile(number):
        if number == 2:
            make(1, lambda _: b"1")
        return b"2"

    with pytest.raises(BadInput, match="would be lost"):
        make(2, meanwhile)
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert kept.keys() == {"dataset.json", *shards}
    assert {kept[name] for name in shards} == {b"11"}
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


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_no_image_to_test_with_is_one_that_is_trained_on(seed):
    request = PhotoRequest(40, 24, 64, 48, 3500, 10, shards=3, seed=seed)
    numbers = [number for items, _ in parts_of(request).values() for number in items]
    assert len({stream(seed, number).bytes(16) for number in numbers}) == len(numbers) == 64
