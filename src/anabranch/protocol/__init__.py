"""The conversation of a server and its clients, without any I/O: messages, their bytes, and what each side does."""
