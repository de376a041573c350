"""Real federations: the same methods, with messages that leave the process."""
