"""Make the bundled MNIST sample from the four published files.

    python tools/make_mnist_sample.py MNIST_FOLDER

Takes 600 training and 100 test images of every class, evenly spaced over the published order, and writes
them, ordered by the SHA-256 of their pixels (a shuffle without a random number generator), to
src/consilience/data/sample/mnist-sample.npz.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np

from consilience.data.sets.arrays import Bytes, Labels, Split
from consilience.data.sets.mnist import MNIST
from consilience.data.storage import Store

TARGET = Path(__file__).parents[1] / "src" / "consilience" / "data" / "sample" / "mnist-sample.npz"


def chosen(images: Bytes, labels: Labels, per_class: int) -> Split:
    """`per_class` evenly spaced rows of every class, in the order of their pixels' digests."""
    rows: list[int] = []
    for label in range(10):
        of_class = np.flatnonzero(labels == label)
        rows.extend(of_class[np.arange(per_class) * len(of_class) // per_class].tolist())
    rows.sort(key=lambda row: hashlib.sha256(images[row].tobytes()).digest())
    return images[rows], labels[rows]


def main() -> None:
    """Read the command line and write the sample."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder with the four gzipped IDX files")
    folder: Path = parser.parse_args().folder
    names = frozenset(path.name for path in folder.iterdir())
    store = Store("mnist", folder, names, lambda name: (folder / name).read_bytes())
    whole, rest = MNIST.splits(store)
    train, test = chosen(*whole, per_class=600), chosen(*rest, per_class=100)
    np.savez_compressed(
        TARGET,
        inputs=train[0],
        targets=train[1].astype(np.uint8),
        test_inputs=test[0],
        test_targets=test[1].astype(np.uint8),
    )
    print(f"{TARGET.name}: {TARGET.stat().st_size} bytes, {len(train[0])} + {len(test[0])} images")


if __name__ == "__main__":
    main()
