"""Data sets: known ones by name, your own from arrays or torch data sets."""

from __future__ import annotations

from consilience.data.dataset import Dataset
from consilience.data.download import get
from consilience.data.loading import Listing, describe, load
from consilience.data.normalising import Normalisation, normalisation
from consilience.data.sets import SOURCES, PublishedFile, Source, data_directory

__all__ = [
    "SOURCES",
    "Dataset",
    "Listing",
    "Normalisation",
    "PublishedFile",
    "Source",
    "data_directory",
    "describe",
    "get",
    "load",
    "normalisation",
]
