"""Write scripts and errors anew: `make golden`, or `python -m tests.golden.regenerate`."""

import tempfile
from pathlib import Path

from tests.golden import errors, variants
from tests.golden.matrix import HERE, INDEX, wanted


def main() -> None:
    files, index = wanted()
    for path in HERE.glob("*.sh"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (HERE / name).write_text(text)
    INDEX.write_text(index)
    print(f"{len(files)} scripts for {index.count('.sh')} cells in {HERE}")
    print(f"{variants.write()} variants in {variants.HERE}")
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        print(f"{errors.write(Path(made).resolve())} errors in {errors.KEPT}")


if __name__ == "__main__":
    main()
