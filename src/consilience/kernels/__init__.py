"""Convolutions, pooling, dense layers, losses and updates of many clients at once."""
