"""The training program that jobs run, checks measure and users copy from.

It is launched (`hpcdl train`, `python -m hpcdl.train`), never imported by other rooms. `options`
says what is asked, `ranks` where this process stands, `startup` imports TensorFlow cheaply,
`communicate` joins the ranks, `models` and `data` give the network and its input, `step` is the
compiled step, `loop` drives it, `checkpoint` and `report` keep what it leaves behind. Modules
named here without TensorFlow in their imports: options, ranks, result, records.
"""
