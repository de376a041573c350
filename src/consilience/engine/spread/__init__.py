"""Clients' work on several workers: processes here or on a cluster, each with a world of its own."""
