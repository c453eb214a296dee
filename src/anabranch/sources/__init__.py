"""Where a party's events, features and labels come from: files, databases, messages and functions."""
