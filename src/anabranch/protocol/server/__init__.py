"""The server's side of the conversation, without I/O."""
