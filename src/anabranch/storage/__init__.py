"""A party's files: each is there whole or not at all, and outlives the party."""
