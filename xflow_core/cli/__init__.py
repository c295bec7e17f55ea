"""The ``xflow`` command."""
