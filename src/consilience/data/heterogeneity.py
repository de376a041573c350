"""How unlike the clients' shards are: in labels and in size.

A shard holds the numbers of the training rows that a client learns from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from consilience.data.partitioners.base import Labels, Rows
from consilience.errors import UserError


def class_counts(labels: Labels, shards: Sequence[Rows], classes: int) -> Rows:
    """[clients, classes] how many rows of each class each client holds.

    Args:
        labels: [n] the class of each training row.
        shards: The rows of each client.
        classes: The number of classes.

    >>> class_counts(np.array([0, 1, 1, 2]), [np.array([0, 1]), np.array([2, 3])], 3).tolist()
    [[1, 1, 0], [0, 1, 1]]
    """
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise UserError(f"labels run from {labels.min()} to {labels.max()}, outside the {classes} classes")
    counts = [np.bincount(labels[rows], minlength=classes) for rows in shards]
    return np.array(counts, dtype=np.int64).reshape(len(shards), classes)


def label_distance(labels: Labels, shards: Sequence[Rows], classes: int) -> float:
    """The mean total-variation distance between the clients' label distributions and the global one.

    It is the sum over clients k of (n_k / n) * 1/2 * sum over classes c of |p_kc - p_c|, where client k
    holds n_k of the n rows that anyone holds, p_kc of its rows and p_c of all n are of class c. 0: every
    client has the global mix. With equal classes and one class a client it is 1 - 1/classes.
    """
    counts = class_counts(labels, shards, classes)
    total = counts.sum()
    if total == 0:
        return 0.0
    # n_k |p_kc - p_c| is |count_kc - n_k p_c|: no division by the size of an empty client.
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / total
    return float(np.abs(counts - expected).sum() / (2 * total))


def effective_classes(labels: Labels, shards: Sequence[Rows], classes: int) -> float:
    """The mean over clients with rows of exp(entropy of their labels): 1 for one class, C for C equal."""
    counts = class_counts(labels, shards, classes)
    counts = counts[counts.sum(axis=1) > 0]
    if len(counts) == 0:
        return 0.0
    shares = counts / counts.sum(axis=1, keepdims=True)
    entropies = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=1)
    return float(np.exp(entropies).mean())


def quantity_gini(sizes: Sequence[int] | npt.NDArray[np.int64]) -> float:
    """The Gini coefficient of the clients' sizes: 0 if all are equal, 1 - 1/clients if one holds everything.

    >>> quantity_gini([5, 5, 5]), quantity_gini([0, 0, 0, 8])
    (0.0, 0.75)
    """
    ordered = np.sort(np.asarray(sizes, dtype=np.float64))
    total = ordered.sum()
    if total == 0:
        return 0.0
    ranks = np.arange(1, len(ordered) + 1)
    return float(((2 * ranks - len(ordered) - 1) * ordered).sum() / (len(ordered) * total))
