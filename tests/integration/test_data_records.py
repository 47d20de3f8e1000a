"""Records: made in parallel, taken up after a kill, looked into, damaged, and fed to training."""

import json
import shutil
import signal
import subprocess
from array import array
from pathlib import Path

import pytest

from tests.integration.train_runs import Done, Runs, environment
from tests.trace_format import faults

pytest.importorskip("numpy", reason="numpy comes with the stack")
pytest.importorskip("PIL", reason="pillow comes with the plots' matplotlib")
from hpcdl.system.crc32c import crc32c
from hpcdl.train.data.tfrecord import masked_crc32c, walk
from tests.records import example, picture, write

pytestmark = pytest.mark.stack
PHOTOS = ("--count=96", "--test-count=32", "--shards=3", "--size=128x96", "--bytes=8000",
          "--classes=10")  # fmt: skip
SMALL = """
import tensorflow as tf
def network(shape, classes):
    layers = tf.keras.layers
    return tf.keras.Sequential([tf.keras.Input(shape), layers.Conv2D(8, 3, 4, activation="relu"),
        layers.GlobalAveragePooling2D(), layers.Dense(classes)])
"""
TRAIN = ("--model=small:network", "--image-size=32", "--global-batch=16", "--lr=0.01",
         "--deterministic")  # fmt: skip


@pytest.fixture(scope="module")
def photos(train_python, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos") / "set"
    done = Runs(train_python, folder.parent).data("make", "photos", str(folder), *PHOTOS)
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def copied(photos, runs) -> Path:
    (runs.folder / "small.py").write_text(SMALL)
    return Path(shutil.copytree(photos, runs.folder / "set"))


def damage(shard: Path, record: int) -> int:
    """Turn over a byte in the middle of a record; returns where its frame starts."""
    place = list(walk(shard, check_data=False))[record]
    data = bytearray(shard.read_bytes())
    data[place.offset + 12 + place.length // 2] ^= 0xFF
    shard.write_bytes(data)
    return place.offset


def test_the_checksum_is_that_of_rfc_3720():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes(range(256)) * 5) == crc32c(bytearray(range(256)) * 5)


def test_photos_have_the_wanted_number_and_bytes(runs, photos):
    done = runs.data("inspect", str(photos), "--json")
    report = json.loads(done.out)
    assert (done.code, report["sound"], report["records"]) == (0, True, 128)
    assert report["bytes"] / 128 == pytest.approx(8000, rel=0.06)
    records = [r for path in photos.glob("*.tfrecord") for r in walk(path, check_data=True)]
    assert len(records) == 128
    assert not any(record.fault for record in records)


def test_inspect_names_every_fault_by_file_and_offset(runs, copied):
    shards = sorted(copied.glob("train-*"))
    first = damage(shards[0], 5)
    second = damage(shards[0], 9)
    shards[1].write_bytes(shards[1].read_bytes()[:-100])
    shards[2].unlink()
    done = runs.data("inspect", str(copied))
    assert done.code == 1
    assert f"{shards[0].name}: at byte {first:,}: its checksum is wrong" in done.out
    assert f"{shards[0].name}: at byte {second:,}: its checksum is wrong" in done.out
    assert f"{shards[1].name}: at byte" in done.out
    assert "the file is truncated: 100 bytes are missing" in done.out
    assert f"{shards[2].name}: missing" in done.out
    assert "4 faults" in done.out


def test_a_killed_make_is_taken_up_and_ends_the_same(runs, train_python, photos):
    command = [str(train_python), "-m", "hpcdl.train.data", "make", "photos", "again", *PHOTOS,
               "--threads=1"]  # fmt: skip
    process = subprocess.Popen(command, cwd=runs.folder, env=environment())
    runs.wait_for("train-00000*.tfrecord", "again")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (runs.folder / "again/dataset.json").exists()
    kept = (runs.folder / "again/train-00000-of-00003.tfrecord").stat().st_mtime_ns
    # What a kill in the middle of a small file leaves.
    (runs.folder / "again/..making.json.a1b2c3d4").touch()
    (runs.folder / "again/.dataset.json.a1b2c3d4").touch()
    assert subprocess.run(command, cwd=runs.folder, env=environment(), check=False).returncode == 0
    assert (runs.folder / "again/train-00000-of-00003.tfrecord").stat().st_mtime_ns == kept
    for shard in photos.glob("*.tfrecord"):
        assert (runs.folder / "again" / shard.name).read_bytes() == shard.read_bytes()
    left = {one.name for one in (runs.folder / "again").iterdir() if one.suffix != ".tfrecord"}
    assert left == {"dataset.json", ".made.json"}


def test_batches_are_the_same_on_any_number_of_ranks(runs, copied):
    words = ("--data", str(copied), *TRAIN, "--steps=9")
    one = runs.train(*words, job="one")
    two = runs.train(*words, ranks=2, job="two")
    assert (one.code, two.code) == (0, 0), one.err + two.err
    ours, theirs = (done.result["samples"]["loss"] for done in (one, two))
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_a_run_resumes_inside_an_epoch_bitwise(runs, copied):
    words = ("--data", str(copied), *TRAIN)
    whole = runs.train(*words, "--steps=10", job="whole")
    runs.train(*words, "--steps=4", job="parts")
    rest = runs.train(*words, "--steps=10", job="parts")
    assert "resumed after step 4" in rest.out
    assert array("f", rest.weights) == array("f", whole.weights)


def test_a_profile_shows_the_threads_of_the_input_pipeline(runs, copied):
    words = ("--data", str(copied), *TRAIN[:-1], "--steps=14", "--profile")
    done = runs.train(*words, ranks=2)
    assert done.code == 0, done.err
    drawn = json.loads((done.folder / "timeline.json").read_text())
    assert faults(drawn) == []
    events = drawn["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    busy = {(e["pid"], rows[e["pid"], e["tid"]]) for e in events if e["ph"] == "X"}
    for rank in (0, 1):
        assert (rank, "compute") in busy
        assert any(pid == rank and name.startswith("tf_data") for pid, name in busy)
    assert len(list(done.folder.glob("profile/rank-*/plugins/profile/*/*.xplane.pb"))) == 2


def test_damaged_records_are_skipped_up_to_a_limit(runs, copied):
    shard = min(copied.glob("train-*"))
    offsets = [damage(shard, record) for record in (3, 8)]
    words = ("--data", str(copied), *TRAIN, "--steps=6")
    done = runs.train(*words, job="skips")
    assert done.code == 0, done.err
    for offset in offsets:
        assert f"skipped a damaged record: {shard} at byte {offset}" in done.err
    assert done.result["damaged_records"] == 2
    refused = runs.train(*words, "--max-damaged=1", job="refuses")
    assert refused.code == 2
    assert "more than 1 records are damaged" in refused.err
    assert "Traceback" not in refused.err


def test_ranks_that_decode_differently_refuse_to_start(runs, copied):
    (runs.folder / "mixed.py").write_text(
        "import os, runpy\n"
        "rank = os.environ.get('OMPI_COMM_WORLD_RANK')\n"
        "os.environ['HPCDL_JPEG'] = 'tensorflow' if rank == '1' else ''\n"
        "runpy.run_module('hpcdl.train', run_name='__main__')\n"
    )
    words = ("--data", str(copied), *TRAIN, "--steps=2")
    one = runs.train(*words, job="one")
    assert one.result["decoder"] == "libjpeg-turbo", one.err
    mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "2", str(runs.python)]
    done = subprocess.run([*mpirun, "mixed.py", *words], cwd=runs.folder, env=environment(),
                          text=True, capture_output=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "ranks decode images with different libraries" in done.stderr
    assert "Traceback" not in done.stderr


def spoil_image(shard: Path, record: int) -> int:
    """Overwrite an image with zeros and mend the checksum; returns where its frame starts."""
    place = list(walk(shard, check_data=False))[record]
    data = bytearray(shard.read_bytes())
    start, end = place.offset + 12, place.offset + 12 + place.length
    image = data.index(b"\xff\xd8\xff", start, end)
    data[image : image + 400] = bytes(400)
    data[end : end + 4] = masked_crc32c(bytes(data[start:end])).to_bytes(4, "little")
    shard.write_bytes(data)
    return place.offset


def test_images_that_cannot_be_decoded_are_named_and_left_out(runs, copied):
    shard = min(copied.glob("train-*"))
    offsets = [spoil_image(shard, record) for record in (3, 8)]
    words = ("--data", str(copied), *TRAIN, "--steps=6")
    done = runs.train(*words, ranks=2, job="skips")
    assert done.code == 0, done.err
    for offset in offsets:
        assert f"skipped a damaged record: {shard} at byte {offset}: " in done.err
    refused = runs.train(*words, "--max-damaged=1", job="refuses")
    assert (refused.code, "more than 1 records are damaged" in refused.err) == (2, True)
    assert "Traceback" not in done.err + refused.err


def test_damaged_test_records_are_left_out_of_the_scores(runs, copied):
    shard = min(copied.glob("test-*"))
    offsets = [damage(shard, 4), spoil_image(shard, 7)]
    done = runs.train("--data", str(copied), *TRAIN, "--steps=1", ranks=2)
    assert done.code == 0, done.err
    for offset in offsets:
        assert f"skipped a damaged record: {shard} at byte {offset}: " in done.err
    assert done.result["summary"]["metrics"]["test_images"] == 30


def test_a_data_set_without_room_says_so_and_goes_on_with_more(runs, photos):
    disk = runs.folder / "small"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        full = runs.data("make", "photos", str(disk / "set"), *PHOTOS, "--threads=1")
        assert full.code == 3
        assert "cannot write" in full.err
        assert "Traceback" not in full.err
        assert not (disk / "set" / "dataset.json").exists()
        subprocess.run([*mount[:4], "remount,size=9m", *mount[5:]], check=True)
        more = runs.data("make", "photos", str(disk / "set"), *PHOTOS, "--threads=1")
        assert more.code == 0, more.err
        for shard in photos.glob("*.tfrecord"):
            assert (disk / "set" / shard.name).read_bytes() == shard.read_bytes()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_fewer_records_than_a_batch_are_refused(runs, copied):
    done = runs.train("--data", str(copied), *TRAIN[:2], "--global-batch=97")
    assert (done.code, "96 training examples, fewer than one global batch of 97" in done.err) == (
        2, True,
    )  # fmt: skip


def test_a_missing_shard_is_named_before_training(runs, copied):
    shard = min(copied.glob("train-*"))
    shard.unlink()
    done = runs.train("--data", str(copied), *TRAIN)
    assert (done.code, f"{shard.name} (train): missing" in done.err) == (2, True)


def test_findings_are_scored_by_their_areas(runs, copied):
    made = runs.data("make", "photos", "chest", "--count=64", "--test-count=64", "--shards=2",
                     "--size=64x64", "--bytes=3500", "--task=findings")  # fmt: skip
    assert made.code == 0, made.err
    words = ("--data", "chest", *TRAIN, "--task=findings", "--steps=3")
    one = runs.train(*words, job="one").result["summary"]["metrics"]
    two = runs.train(*words, ranks=2, job="two").result["summary"]["metrics"]
    assert {"auroc", "auroc/Hernia", "auroc/Pneumonia", "test_loss"} <= one.keys()
    assert 0.2 < one["auroc"] < 0.8, "labels are random"
    assert two == pytest.approx(one, abs=0.02)
    wrong = runs.train("--data", "chest", *TRAIN)
    assert (wrong.code, "the data set's labels are findings" in wrong.err) == (2, True)


def test_images_with_a_table_become_records_and_its_faults_show_at_once(runs):
    runs.data("make", "photos", "origin", "--count=12", "--shards=1", "--size=64x64",
              "--bytes=3500")  # fmt: skip
    images = runs.folder / "images"
    images.mkdir()
    shard = next((runs.folder / "origin").glob("*.tfrecord")).read_bytes()
    parts = shard.split(b"\xff\xd8\xff")[1:]
    for number, part in enumerate(parts):
        (images / f"{number}.jpg").write_bytes(b"\xff\xd8\xff" + part)
    table = runs.folder / "labels.csv"
    rows = [f"{n}.jpg,{('cat', 'dog')[n % 2]}" for n in range(12)]
    table.write_text("\n".join(["file,class", *rows]))
    words = ("make", "folder", "mine", "--images=images", "--labels=labels.csv", "--shards=2")
    done = runs.data(*words, "--test=0.25")
    assert (done.code, "9 to train, 3 to test" in done.out) == (0, True), done.err
    table.write_text("\n".join(["file,class", "no.jpg,cat", "1.jpg", *rows]))
    refused = runs.data(*words)
    assert refused.code == 2
    assert "labels.csv:2: there is no image" in refused.err
    assert "labels.csv:3: no label" in refused.err


def test_bench_says_what_a_pipeline_gives(runs, photos):
    for pipeline in ("new", "old"):
        words = ("bench", str(photos), "--seconds=0.5", "--batch=8", "--crop=32", "--json")
        done = runs.data(*words, f"--pipeline={pipeline}")
        assert done.code == 0, done.err
        result = json.loads(done.out)
        assert result["pipeline"] == pipeline
        assert result["images_per_second"] > 10
        assert result["images_per_cpu_second"] > 10


def test_a_folder_in_imagenets_layout_is_indexed_and_trained_on(runs, copied):
    (copied / "dataset.json").unlink()
    for shard in copied.glob("*.tfrecord"):
        shard.rename(copied / shard.stem.replace("test", "validation"))
    refused = runs.train("--data", str(copied), *TRAIN)
    assert (refused.code, "`hpcdl data inspect --index DIR`" in refused.err) == (2, True)
    done = runs.data("inspect", "--index", "--classes=10", str(copied))
    assert (done.code, "128 records" in done.out) == (0, True), done.err
    trained = runs.train("--data", str(copied), *TRAIN, "--steps=3")
    assert trained.code == 0, trained.err
    assert trained.result["summary"]["metrics"]["test_images"] == 32
    runs.data("inspect", "--index", "--classes=3", str(copied))
    wrong = runs.train("--data", str(copied), *TRAIN, "--steps=3", "--fresh")
    assert (wrong.code, "is none of 3 classes" in wrong.err) == (2, True)
    assert "Traceback" not in wrong.err


ODD = [
    picture(70, 80, "PNG"), picture(60, 60, mode="L"), picture(50, 90, mode="CMYK"),
    picture(40, 50, "PNG", "LA"), picture(33, 44, "GIF"), picture(1, 1), picture(1, 1, "PNG"),
    picture(2000, 3000), picture(300, 8),
]  # fmt: skip
BAD = [b"", b"hello", b"\xff\xd8\xff" + bytes(99), picture(90, 90)[:500]]


def folder_of(runs: Runs, images: list[bytes], label: int | None = 1) -> Path:
    """Two shards in ImageNet's layout, and no dataset.json."""
    folder = runs.folder / "records"
    folder.mkdir()
    for number in range(2):
        shard = [example(image, label) for image in images[number::2]]
        write(folder / f"train-{number:05d}-of-00002", shard)
    return folder


def bench(runs: Runs, folder: Path, *words: str) -> Done:
    return runs.data("bench", str(folder), "--seconds=0.2", "--batch=8", "--crop=32", *words)


@pytest.mark.parametrize("pipeline", ["new", "old"])
def test_bench_takes_any_folder_of_records_with_images_of_any_kind(runs, pipeline):
    folder = folder_of(runs, [picture(100, 120)] * 12 + ODD, label=None)
    done = bench(runs, folder, f"--pipeline={pipeline}", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["records"], found["damaged_records"]) == (21, 0)
    assert not list(folder.glob("dataset.json")), "nothing is written"


def test_bench_names_what_cannot_be_read_and_goes_on(runs, tmp_path, monkeypatch):
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setenv("TMPDIR", str(copies))
    folder = folder_of(runs, [picture(100, 120)] * 12 + BAD)
    shards = sorted(folder.glob("train-*"))
    shards[1].write_bytes(shards[1].read_bytes()[:-10])
    (folder / "train-00002-of-00003").write_bytes(b"no records")
    done = bench(runs, folder, "--json")
    assert done.code == 0, done.err
    assert f"skipped a damaged record: {shards[1]} at byte" in done.err
    assert "the file is truncated: 10 bytes are missing" in done.err
    assert "Unknown image file format" in done.err
    assert "train-00002-of-00003 gives no records" in done.err
    assert json.loads(done.out)["damaged_records"] == 4
    assert "Traceback" not in done.err
    assert not list(copies.glob("hpcdl-repaired-*"))


@pytest.mark.parametrize(
    ("images", "words"),
    [(BAD[:1] * 9, "too few sound records"), ([], "no record can be read")],
    ids=["no images", "no records"],
)
def test_bench_of_nothing_is_refused(runs, images, words):
    done = bench(runs, folder_of(runs, images))
    assert (done.code, words in done.err, "Traceback" in done.err) == (2, True, False)


def test_images_of_any_kind_are_trained_on(runs):
    (runs.folder / "small.py").write_text(SMALL)
    folder = folder_of(runs, [picture(100, 120)] * 7 + ODD)
    indexed = runs.data("inspect", "--index", "--classes=10", str(folder))
    assert indexed.code == 0, indexed.err
    done = runs.train("--data", str(folder), *TRAIN, "--steps=3")
    assert (done.code, done.result["damaged_records"]) == (0, 0), done.err


def test_inspect_knows_how_many_records_there_were(runs, copied):
    empty, shard = sorted(copied.glob("*.tfrecord"))[:2]
    empty.write_bytes(b"")
    last = list(walk(shard, check_data=False))[-1]
    shard.write_bytes(shard.read_bytes()[: last.offset])
    done = runs.data("inspect", str(copied))
    assert done.code == 1
    assert f"{shard.name}: at byte {last.offset:,}: the file ends after 31 records" in done.out
    assert f"{empty.name}: at byte 0: the file is empty" in done.out


def test_records_that_another_made_are_not_lost(runs, copied):
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    refused = runs.data("make", "digits", str(copied))
    assert (refused.code, "holds photos records, which would be lost" in refused.err) == (2, True)
    (copied / "dataset.json").unlink()
    assert runs.data("make", "photos", str(copied), *PHOTOS).code == 2
    assert {path.name for path in copied.iterdir()} == before.keys() - {"dataset.json"}


def test_images_that_cannot_be_read_and_rows_without_labels_are_named(runs):
    images = runs.folder / "images"
    images.mkdir()
    for name, data in (("good.jpg", picture(40, 40)), ("cut.jpg", BAD[3]), ("text.jpg", BAD[1])):
        (images / name).write_bytes(data)
    table = runs.folder / "labels.csv"
    words = ("make", "folder", "mine", "--images=images", "--labels=labels.csv")
    table.write_text("good.jpg,cat\ncut.jpg,dog\n")
    refused = runs.data(*words)
    assert (refused.code, "cut.jpg cannot be read" in refused.err) == (2, True), refused.err
    assert "take line 2 out of the CSV" in refused.err
    table.write_text("good.jpg,cat\ngood.jpg,dog\ntext.jpg,\n")
    assert "labels.csv:2: the image of line 1 again" in runs.data(*words).err
    table.write_text("good.jpg,cat\ntext.jpg,\n")
    assert "labels.csv:2: no label" in runs.data(*words).err
    table.write_text("good.jpg,cat\n")
    assert "1 to train" in runs.data(*words, "--test=0.9").out, "one image is always left to train"
