"""A written graph and everything made from it: what a `%%graph` cell binds."""
