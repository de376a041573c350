"""What a hub does with the merged result: one idea a file."""
