"""Networks of the published benchmarks that Keras does not ship, as Keras models.

Only `tools.networks` runs this, and only under TensorFlow: the sums come from real models.
 Those that `hpcdl train` knows are the same here (a test holds the sizes together); the
rest are as the benchmarks build them: tf_cnn_benchmarks (Inception-v4) and NVIDIA
DeepLearningExamples (ResNeXt-101 32x4d, with and without squeeze-and-excitation; ResNet-50
v1.5).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

CLASSES = 1000


def _layers() -> Any:
    from tensorflow.keras import layers

    return layers


def _conv(
    x: Any,
    filters: int,
    size: int | tuple[int, int],
    stride: int = 1,
    *,
    padding: str = "same",
    norm: bool = False,
    relu: bool = True,
    groups: int = 1,
) -> Any:
    """Convolution, with batch normalisation where `norm`, and ReLU where `relu`."""
    keras = _layers()
    x = keras.Conv2D(filters, size, stride, padding, use_bias=not norm, groups=groups)(x)
    x = keras.BatchNormalization()(x) if norm else x
    return keras.ReLU()(x) if relu else x


def _pool(x: Any, size: int = 3, stride: int = 2, padding: str = "valid") -> Any:
    return _layers().MaxPooling2D(size, stride, padding)(x)


def _model(inputs: Any, outputs: Any) -> Any:
    import tensorflow as tf

    return tf.keras.Model(inputs, outputs)


def _head(x: Any) -> Any:
    keras = _layers()
    return keras.Dense(CLASSES)(keras.GlobalAveragePooling2D()(x))


def alexnet() -> Any:
    """The one-tower AlexNet of "One weird trick" (Krizhevsky 2014), 224 x 224."""
    keras = _layers()
    inputs = keras.Input((224, 224, 3))
    x = _conv(keras.ZeroPadding2D(2)(inputs), 64, 11, 4, padding="valid")
    x = _pool(_conv(_pool(x), 192, 5))
    x = _pool(_conv(_conv(_conv(x, 384, 3), 256, 3), 256, 3))
    x = keras.Flatten()(x)
    for _ in range(2):
        x = keras.Dropout(0.5)(keras.Dense(4096, activation="relu")(x))
    return _model(inputs, keras.Dense(CLASSES)(x))


def googlenet() -> Any:
    """As `hpcdl train` builds it; of its AlexNet the activations would not be counted."""
    from examples.frameworks.keras_networks import googlenet

    return googlenet((224, 224, 3), CLASSES)


def _v4_stem(x: Any) -> Any:
    conv, join = partial(_conv, norm=True), _layers().Concatenate()
    x = conv(conv(conv(x, 32, 3, 2, padding="valid"), 32, 3, padding="valid"), 64, 3)
    x = join([_pool(x), conv(x, 96, 3, 2, padding="valid")])
    left = conv(conv(x, 64, 1), 96, 3, padding="valid")
    right = conv(conv(conv(x, 64, 1), 64, (1, 7)), 64, (7, 1))
    x = _layers().Concatenate()([left, conv(right, 96, 3, padding="valid")])
    return _layers().Concatenate()([conv(x, 192, 3, 2, padding="valid"), _pool(x)])


def _v4_a(x: Any) -> Any:
    conv = partial(_conv, norm=True)
    pooled = _layers().AveragePooling2D(3, 1, "same")(x)
    return _layers().Concatenate()(
        [
            conv(pooled, 96, 1),
            conv(x, 96, 1),
            conv(conv(x, 64, 1), 96, 3),
            conv(conv(conv(x, 64, 1), 96, 3), 96, 3),
        ]
    )


def _v4_b(x: Any) -> Any:
    conv = partial(_conv, norm=True)
    pooled = _layers().AveragePooling2D(3, 1, "same")(x)
    deep = conv(conv(conv(x, 192, 1), 192, (1, 7)), 224, (7, 1))
    return _layers().Concatenate()(
        [
            conv(pooled, 128, 1),
            conv(x, 384, 1),
            conv(conv(conv(x, 192, 1), 224, (1, 7)), 256, (7, 1)),
            conv(conv(deep, 224, (1, 7)), 256, (7, 1)),
        ]
    )


def _v4_c(x: Any) -> Any:
    conv = partial(_conv, norm=True)
    pooled = _layers().AveragePooling2D(3, 1, "same")(x)
    short = conv(x, 384, 1)
    deep = conv(conv(conv(x, 384, 1), 448, (1, 3)), 512, (3, 1))
    return _layers().Concatenate()(
        [
            conv(pooled, 256, 1),
            conv(x, 256, 1),
            conv(short, 256, (1, 3)),
            conv(short, 256, (3, 1)),
            conv(deep, 256, (1, 3)),
            conv(deep, 256, (3, 1)),
        ]
    )


def _v4_reduce_a(x: Any) -> Any:
    conv = partial(_conv, norm=True)
    deep = conv(conv(conv(x, 192, 1), 224, 3), 256, 3, 2, padding="valid")
    return _layers().Concatenate()([_pool(x), conv(x, 384, 3, 2, padding="valid"), deep])


def _v4_reduce_b(x: Any) -> Any:
    conv = partial(_conv, norm=True)
    left = conv(conv(x, 192, 1), 192, 3, 2, padding="valid")
    deep = conv(conv(conv(x, 256, 1), 256, (1, 7)), 320, (7, 1))
    return _layers().Concatenate()([_pool(x), left, conv(deep, 320, 3, 2, padding="valid")])


def inception_v4() -> Any:
    """Inception-v4 (Szegedy 2016), 299 x 299."""
    inputs = _layers().Input((299, 299, 3))
    x = _v4_stem(inputs)
    for _ in range(4):
        x = _v4_a(x)
    x = _v4_reduce_a(x)
    for _ in range(7):
        x = _v4_b(x)
    x = _v4_reduce_b(x)
    for _ in range(3):
        x = _v4_c(x)
    return _model(inputs, _head(x))


def _excite(x: Any, channels: int) -> Any:
    """Squeeze-and-excitation with a reduction of 16 (Hu 2018)."""
    keras = _layers()
    weights = keras.Dense(channels // 16, activation="relu")(keras.GlobalAveragePooling2D()(x))
    weights = keras.Dense(channels, activation="sigmoid")(weights)
    return keras.Multiply()([x, keras.Reshape((1, 1, channels))(weights)])


def _bottleneck(
    x: Any, width: int, out: int, stride: int, *, groups: int, excite: bool, project: bool
) -> Any:
    """A residual bottleneck with its stride on the 3x3 convolution ("v1.5")."""
    conv, keras = partial(_conv, norm=True), _layers()
    y = conv(conv(x, width, 1), width, 3, stride, groups=groups)
    y = conv(y, out, 1, relu=False)
    y = _excite(y, out) if excite else y
    shortcut = conv(x, out, 1, stride, relu=False) if project else x
    return keras.ReLU()(keras.Add()([y, shortcut]))


def _residual(blocks: tuple[int, ...], base: int, *, groups: int = 1, excite: bool = False) -> Any:
    inputs = _layers().Input((224, 224, 3))
    x = _pool(_conv(inputs, 64, 7, 2, norm=True), padding="same")
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            x = _bottleneck(
                x,
                base << stage,
                256 << stage,
                stride,
                groups=groups,
                excite=excite,
                project=not block,
            )
    return _model(inputs, _head(x))


def mlp() -> Any:
    """Two hidden ReLU layers of 128 and 32 and linear logits (TensorFlow's MNIST tutorial)."""
    keras = _layers()
    inputs = keras.Input((28, 28, 1))
    x = keras.Flatten()(inputs)
    for units in (128, 32):
        x = keras.Dense(units, activation="relu")(x)
    return _model(inputs, keras.Dense(10)(x))


def _shipped(name: str, classes: int = CLASSES) -> Any:
    """One of keras.applications, in its own input size, without weights."""
    import tensorflow as tf

    return getattr(tf.keras.applications, name)(weights=None, classes=classes)


NETWORKS: dict[str, Callable[[], Any]] = {
    "alexnet": alexnet,
    "googlenet": googlenet,
    "inception_v3": partial(_shipped, "InceptionV3"),
    "inception_v4": inception_v4,
    "resnet50": partial(_shipped, "ResNet50"),
    "resnet50_v1.5": partial(_residual, (3, 4, 6, 3), 64),
    "resnet101": partial(_shipped, "ResNet101"),
    "resnet152": partial(_shipped, "ResNet152"),
    "resnext101_32x4d": partial(_residual, (3, 4, 23, 3), 128, groups=32),
    "se_resnext101_32x4d": partial(_residual, (3, 4, 23, 3), 128, groups=32, excite=True),
    "vgg16": partial(_shipped, "VGG16"),
    "vgg19": partial(_shipped, "VGG19"),
    "densenet121": partial(_shipped, "DenseNet121"),
    "chexnet": partial(_shipped, "DenseNet121", classes=14),
    "efficientnet_v1_b0": partial(_shipped, "EfficientNetB0"),
    "efficientnet_v1_b4": partial(_shipped, "EfficientNetB4"),
    "mobilenet_v2": partial(_shipped, "MobileNetV2"),
    "convnext_tiny": partial(_shipped, "ConvNeXtTiny"),
    "convnext_small": partial(_shipped, "ConvNeXtSmall"),
    "convnext_base": partial(_shipped, "ConvNeXtBase"),
    "mlp": mlp,
}
