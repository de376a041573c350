"""What people have as data: clients' arrays, torch and HuggingFace data sets, files, tables, sequences."""
