"""The training program that jobs run, checks measure and users copy from.

It is launched (`hpcdl train`, `python -m hpcdl.train`); of the other layers only cli/train and
cli/data import it, and only the declarations of options. `options` says what is asked, `startup`
where this process stands among the ranks; it prepares TensorFlow, which what computes imports at
its top: `communicate` joins the ranks, `models` and `data` give the network and its input, `step`
is the compiled step, `loop` drives it, `program` is one rank from its arguments to its exit code.
"""
