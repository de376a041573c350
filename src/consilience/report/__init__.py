"""What a run found, for people: summaries, tables and plots."""
