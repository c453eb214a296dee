"""The conversation over NATS: keys, the broker, connections, and what drives a party."""
