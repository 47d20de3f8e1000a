"""Programs, networks and data to copy: they use nothing of hpcdl.

`keras_digits`, `distribute_digits`, `horovod_digits` and `parameter_server_digits` are whole
training programs, one for each way; `transformers` and `text` are what `hpcdl train --model` and
`--dataset` take.
"""
