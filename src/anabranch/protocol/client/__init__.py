"""A client's side of the conversation, without I/O."""
