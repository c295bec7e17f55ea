"""Readers of the restricted sets, one module a set. They stream, and name what they cannot use."""
