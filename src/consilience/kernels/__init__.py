"""Convolutions, pooling, dense layers and updates of many clients at once."""
