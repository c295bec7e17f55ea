"""The engine as a service: the wire protocol, the server and a client without torch."""
