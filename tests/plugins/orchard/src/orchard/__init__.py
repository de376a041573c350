"""A small package that adds one part of each kind to Consilience."""
