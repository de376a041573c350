"""One page about runs: what they hold, as plain values (`collecting`), and what shows it (`rendering`)."""
