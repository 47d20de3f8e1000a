"""Train with Keras' own loop in one process: `python keras_digits.py`.

The shortest of the four: compile, fit, save. `keras.models.load_model` loads what it writes.
"""

import sys
from pathlib import Path

import keras
from sklearn.datasets import load_digits


def main(folder: str = ".") -> None:
    """Train the digits, keep the best weights, save the model, print its accuracy."""
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, "relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.AdamW(0.003),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    checkpoints = Path(folder) / "checkpoints"
    model.fit(
        images[:1500],
        labels[:1500],
        batch_size=64,
        epochs=20,
        verbose=2,
        validation_data=(images[1500:], labels[1500:]),
        callbacks=[
            # A run that was killed resumes from here when it is started again.
            keras.callbacks.BackupAndRestore(str(checkpoints)),
            keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True),
        ],
    )
    model.save(Path(folder) / "digits.keras")
    _, accuracy = model.evaluate(images[1500:], labels[1500:], verbose=0)
    print(f"accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
