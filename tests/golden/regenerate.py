"""Write scripts and errors anew: `make golden`, or `python -m tests.golden.regenerate`."""

import tempfile
from pathlib import Path

from tests.golden import errors
from tests.golden.matrix import HERE, kept, wanted
from tests.golden.variants import all_scripts


def main():
    texts = all_scripts()
    for name in kept():
        (HERE / name).unlink()
    for name, text in wanted(texts).items():
        (HERE / name).write_text(text)
    print(f"{len(texts)} scripts in {HERE}")
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        print(f"{errors.write(Path(made).resolve())} errors in {errors.KEPT}")


if __name__ == "__main__":
    main()
