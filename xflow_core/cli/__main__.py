"""``python -m xflow_core.cli`` is the ``xflow`` command."""

from .app import main

if __name__ == "__main__":
    main()
