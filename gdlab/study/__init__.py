"""A written graph and everything made from it: it is the value that a `%%graph` cell binds."""
