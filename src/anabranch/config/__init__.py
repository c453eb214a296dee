"""TOML files of a run and of a party, checked; a section builds what it names."""
