"""Rounds of a simulation: exchanges, what is heard, evaluation, memories."""
