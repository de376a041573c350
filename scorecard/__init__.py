"""The reliability scorecard: attacks on this library, and what they measure (`python -m scorecard`)."""
