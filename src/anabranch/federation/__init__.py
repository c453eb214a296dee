"""What drives a party's conversation over NATS, and keeps what it must not lose."""
