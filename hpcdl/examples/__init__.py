"""Programs, networks and data to copy: they use nothing of hpcdl.

`keras_digits`, `distribute_digits` and `horovod_digits` are whole training programs, one for each
way; `transformers` and `text` are what `hpcdl train --model` and `--dataset` take.
"""
