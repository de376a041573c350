"""Convolutions and pooling of many clients at once."""
