"""Other ways to go parallel than `hpcdl train`, as programs to copy.

They take the options of `hpcdl train` that make sense for them, and leave its result.json.
"""
