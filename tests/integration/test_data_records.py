"""Records: made in parallel, whole or absent, looked into, damaged, and fed to training."""

import json
import shutil
import signal
import subprocess
from array import array
from pathlib import Path

import pytest

from tests.integration.conftest import small_disk
from tests.integration.train_runs import ROOT, Runs, environment

pytest.importorskip("numpy", reason="numpy comes with the stack")
pytest.importorskip("PIL", reason="pillow comes with hpcdl[test]")
from tests.make.records import example, masked_crc32c, picture, walk, write

pytestmark = pytest.mark.stack
PHOTOS = ("--count=96", "--test=32", "--shards=3", "--size=128x96", "--bytes=8000", "--classes=10")
SMALL = """
import tensorflow as tf
def network(shape, classes):
    layers = tf.keras.layers
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Conv2D(8, 3, 4, activation="relu"),
        layers.GlobalAveragePooling2D(), layers.Dense(classes)])
"""
SHAPE = "--model=small:network --image-size=32 --global-batch=16 --lr=0.01"
TRAIN = [*SHAPE.split(), "--deterministic"]


@pytest.fixture(scope="module")
def photos(train_python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos") / "set"
    Runs(train_python, folder.parent).photos(folder, *PHOTOS)
    return folder


@pytest.fixture
def copied(photos, runs):
    return Path(shutil.copytree(photos, runs.folder / "set"))


@pytest.fixture
def fed(runs):
    """Trains the small network on records: those of `copied`, or of --data."""
    runs.write("small.py", SMALL)
    data = f"--data={runs.folder}/set"
    return lambda *words, **more: runs.train(data, *TRAIN, *words, **more)


def damage(shard, record):
    """Turn over a byte in the middle of a record; returns where its frame starts."""
    offset, length = list(walk(shard))[record]
    data = bytearray(shard.read_bytes())
    data[offset + 12 + length // 2] ^= 0xFF
    shard.write_bytes(data)
    return offset


def spoil_image(shard, record):
    """Overwrite an image with zeros and mend the checksum; returns where its frame starts."""
    offset, length = list(walk(shard))[record]
    data = bytearray(shard.read_bytes())
    start, end = offset + 12, offset + 12 + length
    image = data.index(b"\xff\xd8\xff", start, end)
    data[image : image + 400] = bytes(400)
    data[end : end + 4] = masked_crc32c(bytes(data[start:end])).to_bytes(4, "little")
    shard.write_bytes(data)
    return offset


def same_shards(photos, other):
    return all(
        (other / one.name).read_bytes() == one.read_bytes() for one in photos.glob("*.tfrecord")
    )


def test_photos_have_the_wanted_number_and_bytes(runs, photos):
    report = json.loads(runs.data("inspect", photos, "--json").out)
    assert (report["sound"], report["records"]) == (True, 128)
    assert report["bytes"] / 128 == pytest.approx(8000, rel=0.06)


def test_inspect_names_the_first_fault_of_each_shard(runs, photos, copied):
    test, damaged, torn, gone = sorted(copied.glob("*.tfrecord"))
    offset, _ = [damage(damaged, record) for record in (5, 9)]
    torn.write_bytes(torn.read_bytes()[:-100])
    gone.unlink()
    test.write_bytes(b"")
    says = (
        f"{damaged.name}: after 5 records: corrupted record at {offset + 12}",
        f"{torn.name}: after 31 records: truncated record at",
        f"{gone.name}: missing",
        f"{test.name}: the file is empty",
    )
    runs.data("inspect", copied, code=1, says=(*says, "4 faults"))
    shutil.copy(photos / damaged.name, damaged)
    last, _ = list(walk(damaged))[-1]
    damaged.write_bytes(damaged.read_bytes()[:last])
    says = f"{damaged.name}: the file ends after 31 records"
    runs.data("inspect", copied, code=1, says=says)


def test_a_killed_make_leaves_nothing_and_again_it_ends_the_same(runs, photos):
    argv = [runs.python, ROOT / "examples/photographs.py", "again", *PHOTOS, "--count=9000"]
    env = environment() | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(argv, cwd=runs.folder, env=env)
    runs.wait_for(".hpcdl-scratch-*/again/train-00000*.tfrecord", ".")
    process.send_signal(signal.SIGKILL)
    process.wait()
    runs.photos("again", *PHOTOS)
    assert same_shards(photos, runs.folder / "again")
    assert [one.name for one in runs.folder.iterdir()] == ["again"]
    left = {one.name for one in (runs.folder / "again").iterdir() if one.suffix != ".tfrecord"}
    assert left == {"dataset.json"}


def test_batches_are_the_same_on_any_number_of_ranks(fed, copied):
    one, two = (fed("--steps=9", ranks=ranks, job=f"of-{ranks}") for ranks in (1, 2))
    assert one.losses == pytest.approx(two.losses, rel=1e-4)


def test_a_run_resumes_inside_an_epoch_bitwise(fed, copied):
    whole = fed("--steps=10", job="whole")
    fed("--steps=4", job="parts")
    rest = fed("--steps=10", job="parts", says="resumed after step 4")
    assert array("f", rest.weights) == array("f", whole.weights)


def test_profile_and_scalars_are_written_for_the_usual_viewers(runs, copied):
    runs.write("small.py", SMALL)
    board = (
        "--callback=tensorboard --set=callback.log_dir=board --set=callback.profile_batch=[3,10]"
    )
    runs.train("--data=set", *TRAIN[:-1], "--steps=14", *board.split(), ranks=2)
    assert len(list(runs.folder.glob("board/train/plugins/profile/*/*.xplane.pb"))) == 1
    written = next((runs.folder / "board").rglob("events.out.tfevents.*")).read_bytes()
    assert b"epoch_loss" in written


@pytest.mark.parametrize(
    ("spoil", "ranks", "said"),
    [
        (damage, 1, "corrupted record"),
        (spoil_image, 2, "cannot be read: Unknown image file format"),
    ],
)
def test_a_damaged_record_ends_the_run_and_is_named(fed, runs, copied, spoil, ranks, said):
    shards = [min(copied.glob("train-*")), min(copied.glob("test-*"))]
    for shard, number in zip(shards, (3, 8), strict=True):
        spoil(shard, number)
    hint = "`hpcdl data inspect --decode DIR` names damaged records"
    fed("--steps=6", "--fresh", ranks=ranks, code=2, says=("the data cannot be read", said, hint))
    words = ("after {} records", "record {}:")[spoil is spoil_image]
    numbers = (3 + (spoil is spoil_image), 8 + (spoil is spoil_image))
    names = [f"{s.name}: {words.format(n)}" for s, n in zip(shards, numbers, strict=True)]
    runs.data("inspect", "--decode", copied, code=1, says=(*names, "2 faults"))


def test_raw_images_are_looked_into(runs):
    runs.data("inspect", "--decode", runs.digits, says="1,797 records")
    path = runs.folder / "copied"
    shutil.copytree(runs.digits, path)
    described = json.loads((path / "dataset.json").read_text())
    for other, said in (
        ({"classes": 5}, "a label is none of 5 classes"),
        ({"shape": [8, 9, 1]}, "cannot reshape array"),
    ):
        (path / "dataset.json").write_text(json.dumps({**described, **other}))
        runs.data("inspect", "--decode", path, code=1, says="faults")
        runs.train("--data", str(path), "--steps=1", code=2, says=said)


def test_shards_with_fewer_records_than_promised_end_the_run_on_all_ranks(fed, copied):
    """Found last session: one rank ended its epoch early, and the others waited for it."""
    text = (copied / "dataset.json").read_text()
    (copied / "dataset.json").write_text(text.replace('"examples": 32', '"examples": 40'))
    fed("--steps=9", ranks=2, code=2, says="expected to contain")


def test_the_old_pipeline_trains_on_the_same_records(fed, runs, copied):
    program = ROOT / "examples/strategies/old_pipeline.py"
    done = subprocess.run(
        [runs.python, program, "--data=set", *TRAIN, "--steps=8", "--job-dir=old"],
        cwd=runs.folder,
        env=environment() | {"PYTHONPATH": f"{ROOT}:{runs.folder}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((runs.folder / "old/result.json").read_text())
    assert (result["steps"]["done"], len(result["samples"]["loss"])) == (8, 8)


def test_a_data_set_without_room_says_so_and_goes_on_with_more(runs, photos):
    disk = runs.folder / "small"
    with small_disk(disk, "size=400k"):
        runs.photos(disk / "set", *PHOTOS, code=3, says="cannot write")
        assert not (disk / "set").exists()
        subprocess.run(["mount", "-o", "remount,size=9m", disk], check=True)
        runs.photos(disk / "set", *PHOTOS)
        assert same_shards(photos, disk / "set")


def test_records_that_do_not_do_are_refused_before_training(fed, copied):
    fed("--global-batch=97", code=2, says="96 training examples, fewer than one global batch of 97")
    shard = min(copied.glob("train-*"))
    shard.unlink()
    fed(code=2, says=f"{shard.name} (train): missing")


def test_a_folder_in_imagenets_layout_is_indexed_and_trained_on(runs, fed, copied):
    (copied / "dataset.json").unlink()
    for shard in copied.glob("*.tfrecord"):
        shard.rename(copied / shard.stem.replace("test", "validation"))
    fed(code=2, says="`hpcdl data inspect --index DIR`")
    runs.data("inspect", "--index", "--classes=10", copied, says="128 records")
    assert fed("--steps=3").metrics["test_images"] == 32
    runs.data("inspect", "--index", "--classes=3", copied)
    fed("--steps=3", "--fresh", code=2, says="a label is none of 3 classes")


ODD = [
    picture(70, 80, "PNG"),
    picture(60, 60, mode="L"),
    picture(50, 90, mode="CMYK"),
    picture(40, 50, "PNG", "LA"),
    picture(33, 44, "GIF"),
    picture(1, 1),
    picture(1, 1, "PNG"),
    picture(2000, 3000),
    picture(300, 8),
]
BAD = [b"", b"hello", b"\xff\xd8\xff" + bytes(99), picture(90, 90)[:500]]


def folder_of(runs, images, label=1):
    """Two shards in ImageNet's layout, and no dataset.json."""
    folder = runs.folder / "set"
    folder.mkdir()
    for number in range(2):
        shard = [example(image, label) for image in images[number::2]]
        write(folder / f"train-{number:05d}-of-00002", shard)
    return folder


def test_images_that_cannot_be_read_are_named(runs, fed):
    folder = folder_of(runs, [picture(100, 120)] * 4 + BAD)
    fed("--steps=3", code=2, says="it has no dataset.json")
    runs.data("inspect", "--index", folder)
    done = runs.data("inspect", "--decode", folder, code=1, says="4 faults")
    assert "Unknown image file format" in done.out


def test_images_of_any_kind_are_trained_on(runs, fed):
    runs.data("inspect", "--index", "--classes=10", folder_of(runs, [picture(100, 120)] * 7 + ODD))
    fed("--steps=3")


def test_records_that_another_made_are_not_lost(runs, copied):
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    says = "holds other records or files, which would be lost"
    runs.data("make", "digits", copied, code=2, says=says)
    (copied / "dataset.json").unlink()
    runs.photos(copied, *PHOTOS, code=2, says=says)
    assert {path.name for path in copied.iterdir()} == before.keys() - {"dataset.json"}


def test_images_with_a_table_become_records_by_the_example(runs, fed):
    images, table = runs.folder / "images", runs.folder / "labels.csv"
    images.mkdir()
    for number in range(12):
        form = ("JPEG", "PNG")[number % 2]
        (images / f"{number}.jpg").write_bytes(picture(64, 60 + number, form))
    rows = [f"{n}.jpg,{('cat', 'dog')[n % 2]}" for n in range(12)]
    table.write_text("\n".join(["file,class", *rows]))
    program = [runs.python, ROOT / "examples/records_of_images.py"]

    def made(*words):
        argv = [*program, *words]
        env = environment() | {"PYTHONPATH": str(ROOT)}
        return subprocess.run(
            argv, cwd=runs.folder, env=env, capture_output=True, text=True, check=False
        )

    done = made("set", "images", "labels.csv", "0.25")
    assert done.stdout == "0 cat, 1 dog\nhpcdl data inspect --index set --classes 0-1\n"
    runs.data("inspect", "--index", "set", "--classes=0-1", says="12 records")
    assert fed("--steps=2", "--global-batch=8").metrics["test_images"] == 3
    table.write_text("file,class\n../own.jpg,cat\n")
    (runs.folder / "own.jpg").write_bytes(picture(64, 60))  # a stranger's table may name it
    said = made("other", "images", "labels.csv").stderr
    assert "line 2: there is no image images/own.jpg" in said
