"""Crops of JPEG images by jpeg.c: what full decoding and plain resizing give."""

import io

import pytest

pytest.importorskip("numpy", reason="numpy comes with the plots' matplotlib")
pytest.importorskip("PIL", reason="pillow comes with the plots' matplotlib")
import numpy as np
from PIL import Image

from hpcdl.train.data import images

HEIGHT, WIDTH = 150, 200


@pytest.fixture(scope="module")
def cropper(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCDL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv(images.SWITCH, raising=False)
        made = images.load_cropper()
    if made is None:
        pytest.skip("no C compiler, or no libjpeg-turbo with its headers")
    return made


def picture(height=HEIGHT, width=WIDTH):
    """Waves of light and colour, finer to the right, with a little noise."""
    y, x = np.mgrid[:height, :width] / np.array([height, width]).reshape(2, 1, 1)
    waves = [np.sin(20 * x * x + 9 * y + phase) for phase in (0.0, 1.0, 2.0)]
    noise = np.random.RandomState(1).normal(0, 3, (height, width, 1))
    values = 128 + 90 * np.stack(waves, -1) + noise
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def encoded(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": 92, **options})
    return file.getvalue()


def crop(cropper, data, area, size):
    out = np.zeros((*size, 3), np.uint8)
    assert cropper.crop(data, np.array(area, np.int32), out)
    return out


def resized(image, size):
    """Bilinear, between the centres of pixels, in floating point."""
    for axis, wanted in enumerate(size):
        have = image.shape[axis]
        place = np.clip((np.arange(wanted) + 0.5) * have / wanted - 0.5, 0, have - 1)
        first = place.astype(int)
        share = (place - first).reshape([-1 if k == axis else 1 for k in range(3)])
        low, high = image.take(first, axis), image.take(np.minimum(first + 1, have - 1), axis)
        image = low * (1 - share) + high * share
    return image


WINDOWS = [
    (0, 0, HEIGHT, WIDTH),
    (37, 51, 60, 81),
    (0, 99, 149, 101),
    (149, 199, 1, 1),
    (5, 0, 1, 200),
    (61, 33, 88, 16),
]


@pytest.mark.parametrize("area", WINDOWS)
@pytest.mark.parametrize("form", ["4:2:0", "4:4:4", "progressive", "grey"])
def test_a_window_is_what_decoding_the_whole_gives(cropper, area, form):
    options = {"4:2:0": {"subsampling": 2}, "4:4:4": {"subsampling": 0}}
    image = picture().convert("L") if form == "grey" else picture()
    data = encoded(image, **options.get(form, {"progressive": form == "progressive"}))
    top, left, height, width = area
    whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), np.float64)
    for size in ((48, 40), (90, 130)):
        wanted = resized(whole[top : top + height, left : left + width], size)
        away = crop(cropper, data, area, size) + 0.5 - wanted
        # The fast transform rounds coarser, and colours at the area's edge know no neighbours.
        assert np.abs(away).mean() < 2.2, "a pixel aside it would be 9"
        assert abs(away.mean()) < 1


def test_what_lies_below_the_crop_is_not_decoded(cropper):
    data = encoded(picture())
    area = (10, 20, 30, 90)
    half = data[: len(data) * 6 // 10]
    assert (crop(cropper, half, area, (32, 32)) == crop(cropper, data, area, (32, 32))).all()
    with pytest.raises(ValueError, match="Premature end of JPEG file"):
        crop(cropper, half, (10, 20, 140, 90), (32, 32))


@pytest.mark.parametrize("area", [(0, 0, 1200, 1600), (203, 415, 801, 903), (7, 9, 520, 515)])
def test_a_large_window_is_decoded_at_a_smaller_scale_and_lies_at_the_same_place(cropper, area):
    large = picture(1200, 1600)
    data = encoded(large)
    top, left, height, width = area
    part = large.crop((left, top, left + width, top + height))
    smooth = np.asarray(part.resize((64, 64), Image.Resampling.BOX), np.float64)
    away = crop(cropper, data, area, (64, 64)) + 0.5 - smooth
    assert np.abs(away).mean() < 4, "the finest waves differ, their place does not"
    moved = np.roll(smooth, 1, axis=1)
    assert np.abs(away).mean() < 0.5 * np.abs(crop(cropper, data, area, (64, 64)) - moved).mean()


def test_damage_and_other_formats_are_distinguished(cropper):
    data, area = encoded(picture()), np.array((0, 0, HEIGHT, WIDTH), np.int32)
    out, png = np.zeros((32, 32, 3), np.uint8), io.BytesIO()
    picture().save(png, "PNG")
    for other in (png.getvalue(), encoded(picture().convert("CMYK")), b""):
        assert not cropper.crop(other, area, out)
    for damaged, message in (
        (data[:3] + bytes(1000), "JPEG"),
        (data[:3], "Premature end"),
        (data[: len(data) // 2], "Premature end"),
    ):
        with pytest.raises(ValueError, match=message):
            cropper.crop(damaged, area, out)
    for outside in ((0, 0, HEIGHT + 1, 5), (-1, 0, 5, 5), (0, WIDTH, 5, 1), (0, 0, 0, 5)):
        with pytest.raises(ValueError, match="outside of the image"):
            cropper.crop(data, np.array(outside, np.int32), out)


def test_no_damage_does_more_than_fail(cropper):
    random = np.random.RandomState(7)
    forms = [encoded(picture(), progressive=p, subsampling=s) for p in (0, 1) for s in (0, 2)]
    area, out = np.array((31, 40, 90, 100), np.int32), np.zeros((32, 32, 3), np.uint8)
    failed = 0
    for number in range(300):
        data = bytearray(forms[number % len(forms)])
        for place in random.randint(0, len(data) if number % 3 else 700, 3):
            data[place] = random.randint(256)
        try:
            cropper.crop(bytes(data), area, out)
        except ValueError:
            failed += 1
    assert 10 < failed < 290


def test_without_a_compiler_or_when_switched_off_there_is_no_library(tmp_path, monkeypatch):
    monkeypatch.setenv("HPCDL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HPCDL_HOME", str(tmp_path / "home"))
    for compiler in ("false", "/no/compiler"):
        monkeypatch.setenv("CC", compiler)
        assert images.load_cropper() is None
    assert not list((tmp_path / "cache").rglob("*.*"))
    monkeypatch.delenv("CC")
    monkeypatch.setenv(images.SWITCH, "tensorflow")
    assert images.load_cropper() is None
