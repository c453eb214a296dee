"""The NATS broker: keys, permissions, connections, and a broker of one's own on this machine."""
