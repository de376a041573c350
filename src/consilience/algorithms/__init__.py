"""The papers' methods, one file each: a named composition of parts, or a full algorithm."""
