"""A federation inside Flower: its SuperLink and SuperNodes carry the messages."""
