"""Fashion-MNIST: photographs of clothes."""

from __future__ import annotations

from consilience.data.sets.idx import like_mnist

FASHION_MNIST = like_mnist(
    "fashion-mnist",
    "Photographs of clothes",
    "Zalando; MIT",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    (
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
        ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
        ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
        ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
    ),
)
