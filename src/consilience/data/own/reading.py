"""Constructors of data sets from what people have; each says here what it takes, and works elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset as TorchDataset

from consilience.data.arrays import Array, Channels
from consilience.problems import Problem

if TYPE_CHECKING:
    from consilience.data.dataset import Dataset
    from consilience.data.own.sequences import Tokens
    from consilience.data.own.tables import Table


class FromOwn:
    """What makes data sets of a user's own data."""

    @staticmethod
    def from_clients(
        clients: Mapping[str, Sequence[Array]],
        name: str = "own data",
        *,
        holdout: float = 0.0,
        classes: int | None = None,
        problem: Problem | None = None,
        channels: Channels = "auto",
    ) -> Dataset:
        """A data set that comes from clients, who keep their rows and their names.

        A global test set is not needed: models are evaluated on the test rows of all clients together, and
        for each client on its own.

        Args:
            clients: For each client's name `(inputs, targets)` or `(inputs, targets, test_inputs,
                test_targets)`, arrays as in `from_arrays`.
            name: What reports call it.
            holdout: The fraction of its rows that a client without test rows keeps back as such.
            classes: The number of classes or tokens; by default one more than the largest seen.
            problem: What is to be learned; by default what targets look like.
            channels: Where images have their channels.
        """
        from consilience.data.own.clients import of_clients

        return of_clients(clients, name, holdout, classes, problem, channels)

    @staticmethod
    def from_folder(
        folder: str | Path,
        name: str | None = None,
        *,
        holdout: float = 0.0,
        classes: int | None = None,
        problem: Problem | None = None,
        channels: Channels = "auto",
    ) -> Dataset:
        """A data set of a folder of NumPy's `.npz` files, one a client, which is called as its file.

        Args:
            folder: Where files are that hold `inputs` and `targets` (or `x` and `y`) and, where the client
                has test rows, `test_inputs` and `test_targets` (or `x_test` and `y_test`).
            name: What reports call it; by default as the folder.
            holdout: The fraction of its rows that a client without test rows keeps back as such.
            classes: The number of classes or tokens; by default one more than the largest seen.
            problem: What is to be learned; by default what targets look like.
            channels: Where images have their channels.
        """
        from consilience.data.own.clients import of_clients, of_files

        return of_clients(of_files(folder), name or Path(folder).name, holdout, classes, problem, channels)

    @staticmethod
    def from_torch(
        train: TorchDataset[Any],
        test: TorchDataset[Any],
        name: str = "own data",
        classes: int | None = None,
        problem: Problem | None = None,
    ) -> Dataset:
        """A data set of any two map-style torch data sets of (input, target) pairs, read once and stacked.

        Args:
            train: Training pairs.
            test: Test pairs.
            name: What reports call it.
            classes: The number of classes or tokens; by default one more than the largest seen.
            problem: What is to be learned; by default what targets look like.
        """
        from consilience.data.dataset import Dataset
        from consilience.data.own.torch_sets import stacked

        inputs, targets = stacked(name, "training", train)
        test_inputs, test_targets = stacked(name, "test", test)
        return Dataset.from_arrays(
            name, inputs, targets, test_inputs, test_targets, classes=classes, problem=problem
        )

    @staticmethod
    def from_table(
        table: Table,
        target: str | Sequence[str],
        *,
        test: Table | None = None,
        client: str | None = None,
        holdout: float = 0.2,
        categorical: Sequence[str] = (),
        drop: Sequence[str] = (),
        standardise: bool = True,
        name: str | None = None,
        problem: Problem | str | None = None,
    ) -> Dataset:
        """A data set of a table: a CSV or Parquet file, a data frame, or columns by name.

        Numbers are standardised, by what training rows say; texts are categories, and each of their values
        becomes a column of 0 and 1. A column that lacks values, or has too many categories, is refused.

        Args:
            table: Training rows. The first line of a CSV file names its columns.
            target: The column to predict, or several columns of numbers. Texts and whole numbers are classes.
            test: Test rows; by default some of the table's rows.
            client: The column that names who holds a row; by default a partition deals the rows.
            holdout: The fraction of the rows (of each client's) that become test rows where there are none.
            categorical: Columns of numbers that are categories.
            drop: Columns to leave out, such as identifiers.
            standardise: Whether columns of numbers get mean 0 and standard deviation 1.
            name: What reports call it; by default as the file.
            problem: What is to be learned, or its name; by default what the target looks like.
        """
        from consilience.data.own.tables import of_table

        return of_table(table, target, test, client, holdout, categorical, drop, standardise, name, problem)

    @staticmethod
    def from_huggingface(
        data: Any,
        test: Any = None,
        *,
        inputs: str | Sequence[str] | None = None,
        target: str = "label",
        client: str | None = None,
        holdout: float = 0.2,
        name: str = "own data",
        classes: int | None = None,
        problem: Problem | str | None = None,
        channels: Channels = "auto",
    ) -> Dataset:
        """A data set of HuggingFace's library `datasets`, read whole.

        Args:
            data: Training rows, or a dictionary of splits with `train` and perhaps `test`.
            test: Test rows; by default some of the training rows.
            inputs: The column of images, vectors or tokens, or several columns of numbers; by default all
                others than the target and the client. Tokens may be of unequal length.
            target: The column to predict.
            client: The column that names who holds a row; by default a partition deals the rows.
            holdout: The fraction of the rows (of each client's) that become test rows where there are none.
            name: What reports call it.
            classes: The number of classes; by default as the data say.
            problem: What is to be learned, or its name; by default what the target looks like.
            channels: Where images have their channels.
        """
        from consilience.data.own.huggingface import of_huggingface

        return of_huggingface(data, test, inputs, target, client, holdout, name, classes, problem, channels)

    @staticmethod
    def from_images(
        folder: str | Path,
        test: str | Path | None = None,
        *,
        by_client: bool = False,
        holdout: float = 0.2,
        size: Sequence[int] | None = None,
        name: str | None = None,
    ) -> Dataset:
        """A data set of image files in `CLASS/IMAGE`, or in `CLIENT/CLASS/IMAGE`.

        They are read as batches need them, where they would take more than half of the memory.

        Args:
            folder: Training images.
            test: A folder of test images, laid out alike; by default some of the training images.
            by_client: Whether folders of clients are above those of classes.
            holdout: The fraction of the rows (of each client's) that become test rows where there are none.
            size: The height and width to which images are scaled; by default all must have the same.
            name: What reports call it; by default as the folder.
        """
        from consilience.data.own.images import of_images

        return of_images(folder, test, by_client, holdout, size, name)

    @staticmethod
    def from_sequences(
        sequences: Tokens,
        targets: Sequence[Any] | None = None,
        test_sequences: Tokens | None = None,
        test_targets: Sequence[Any] | None = None,
        *,
        clients: Sequence[str] | None = None,
        test_clients: Sequence[str] | None = None,
        holdout: float = 0.2,
        padding: int | None = None,
        length: int | None = None,
        name: str = "own data",
        classes: int | None = None,
        problem: Problem | str | None = None,
    ) -> Dataset:
        """A data set of token sequences of unequal length, which are padded to the longest.

        Places of padding count neither for the loss nor for scores where every place has a target. Where a
        row has one target, a model whose `forward` takes `attention_mask` (1 where a token is) or `mask`
        (the same as truth values) is told which places are padding.

        Args:
            sequences: Tokens, a sequence a row.
            targets: What is to be learned of each sequence, or of each of its places; by default the token
                that comes next.
            test_sequences: Test rows; by default some of the sequences.
            test_targets: What is to be learned of them.
            clients: Who holds each sequence; by default a partition deals them.
            test_clients: Who holds each test sequence.
            holdout: The fraction of the rows (of each client's) that become test rows where there are none.
            padding: The token that fills up. By default a new one where a row has one target (there is then
                a token more than are seen), else 0, at places that do not count.
            length: How many tokens a row has; longer ones are cut off. By default as many as the longest.
            name: What reports call it.
            classes: The number of classes or tokens; by default as many as are seen.
            problem: What is to be learned, or its name; by default what the targets look like.
        """
        from consilience.data.own.sequences import of_sequences

        return of_sequences(
            sequences, targets, test_sequences, test_targets, clients, test_clients, holdout, padding, length,
            name, classes, problem,
        )  # fmt: skip
