"""Run by bench_input where simplejpeg is: images per CPU-second of whole, fast decodes."""

import sys
import time
from pathlib import Path

import simplejpeg

from hpcdl.train.data.tfrecord import read, walk

images = []
for shard in sorted(Path(sys.argv[1]).glob("train-*"))[:2]:
    for record in walk(shard, check_data=False):
        data = read(shard, record.offset, record.length)
        images.append(data[data.index(b"\xff\xd8\xff") :])
begun = time.process_time()
for image in images:
    simplejpeg.decode_jpeg(image, fastdct=True)
print(len(images) / (time.process_time() - begun))
