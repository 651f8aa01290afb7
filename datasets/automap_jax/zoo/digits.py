"""python -m automap_jax.zoo.digits: writes scikit-learn's digits as datasets/digits/train.npz and
test.npz, arrays x [examples, 64] of f32 in [0, 1] and y [examples] of int32.

The split is fixed: one permutation, 1408 examples (22 batches of 64) to train and 384 to test; the
last five of the 1797 are left out, so that both numbers divide by 2, 4 and 8 devices.
"""

import numpy as np
from sklearn.datasets import load_digits

from .mlp import DIGITS

TRAIN, TEST = 1408, 384


def main():
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = (images[order] / 16).astype(np.float32), labels[order].astype(np.int32)
    DIGITS.mkdir(exist_ok=True)
    for name, part in (("train", slice(0, TRAIN)), ("test", slice(TRAIN, TRAIN + TEST))):
        np.savez_compressed(DIGITS / f"{name}.npz", x=x[part], y=y[part])


if __name__ == "__main__":
    main()
