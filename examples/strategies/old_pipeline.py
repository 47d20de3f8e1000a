"""`hpcdl train` fed as TensorFlow programs used to be: image after image, nothing made ahead.

    hpcdl job submit --gpus 4 -- python old_pipeline.py --model chexnet --data DIR

It takes all options of `hpcdl train`. Whole images are decoded before the crop, by one thread, and
a step waits for its batch: beside `hpcdl train`, result.json shows what that costs (`input`).
"""

import sys

from hpcdl.train.startup import import_tensorflow, this_place

tf = import_tensorflow(this_place())

from hpcdl.train.__main__ import main  # noqa: E402
from hpcdl.train.data import opening  # noqa: E402
from hpcdl.train.data.pipeline import RecordSource, parse, random_crop  # noqa: E402


class OldPipeline(RecordSource):
    """Every rank reads all records, keeps its own, and decodes them one by one."""

    def steps(self, first: int, last: int) -> tf.data.Dataset:
        """Return the batches of the steps."""
        share = self._share
        files = [str(path) for path in self._dataset.files("train")]
        records = tf.data.TFRecordDataset(files).shard(share.ranks, share.rank).repeat()
        images = records.skip(first * share.per_rank).map(self.image)
        options = tf.data.Options()
        options.autotune.enabled = False
        # Of its own accord TensorFlow would read ahead, whatever its single options are.
        options.experimental_optimization.apply_default_optimizations = False
        return images.batch(share.per_rank).take(last - first).with_options(options)

    def image(self, serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return a random crop of an image, as bytes, and its label."""
        encoded, label = parse(self._dataset, serialized)
        whole = tf.io.decode_jpeg(encoded, channels=3)
        seed = tf.random.uniform((2,), maxval=2**31 - 1, dtype=tf.int32)
        top, left, height, width = tf.unstack(random_crop(tf.shape(whole), tf.cast(seed, tf.int64)))
        part = tf.image.resize(whole[top : top + height, left : left + width], self._size)
        return tf.image.random_flip_left_right(tf.cast(part, tf.uint8)), label


if __name__ == "__main__":
    opening.RecordSource = OldPipeline
    sys.exit(main())
