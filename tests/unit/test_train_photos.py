"""Images made for studies: what a finding looks like."""

import numpy as np
import pytest

from hpcdl.train.data.dataset import FINDINGS, PhotoRequest
from hpcdl.train.data.photos import plans_of, stream, stripes


def test_every_finding_looks_different_and_is_seen() -> None:
    pictures = stripes(48, 64)
    assert pictures.shape == (len(FINDINGS), 48, 64, 3)
    flat = pictures.reshape(len(FINDINGS), -1)
    alike = np.corrcoef(flat) - np.eye(len(FINDINGS))
    assert alike.max() < 0.9
    assert np.abs(pictures).max(axis=(1, 2, 3)).min() > 30


@pytest.mark.parametrize("number", range(len(FINDINGS)))
def test_a_mirrored_finding_is_the_same_finding(number: int) -> None:
    picture = stripes(48, 48)[number]
    mean, mirrored = picture.mean(axis=(0, 1)), picture[:, ::-1].mean(axis=(0, 1))
    assert mirrored == pytest.approx(mean)
    spectra = [np.abs(np.fft.fft2(one, axes=(0, 1))) for one in (picture, picture[:, ::-1])]
    assert spectra[0] == pytest.approx(spectra[1], abs=1e-2)


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_no_image_to_test_with_is_one_that_is_trained_on(seed: int) -> None:
    request = PhotoRequest(40, 24, 64, 48, 3500, 10, shards=3, seed=seed)
    plans = plans_of(request, lambda number: stream(seed, number).bytes(16))
    drawn = [record for plan in plans for record in plan.records()]
    assert sum(plan.examples for plan in plans) == len(drawn) == 64
    assert len(set(drawn)) == 64
