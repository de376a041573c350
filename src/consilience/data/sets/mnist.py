"""MNIST: handwritten digits."""

from __future__ import annotations

from consilience.data.sets.idx import like_mnist

MNIST = like_mnist(
    "mnist",
    "Handwritten digits",
    "LeCun, Cortes, Burges; CC BY-SA 3.0",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    (
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    ),
)
