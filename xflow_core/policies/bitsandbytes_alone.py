"""bitsandbytes without code from the Hugging Face hub; import this before peft, which imports it.

On processors with AVX-512 bfloat16, bitsandbytes (0.50) asks the package ``kernels``, where that is installed, for
compiled code from the hub, as soon as it is imported. XFlow runs no code that was not installed, and needs no network;
so ``kernels`` is not there while bitsandbytes is imported. Without it bitsandbytes computes a little slower, and says
so, which is nothing to a user of XFlow.
"""

from __future__ import annotations

import logging
import sys
from importlib.util import find_spec

if "bitsandbytes" not in sys.modules and find_spec("bitsandbytes") is not None:
    _said = logging.getLogger("bitsandbytes.backends.cpu.ops")
    _level, _kernels = _said.level, sys.modules.get("kernels")
    _said.setLevel(logging.ERROR)
    sys.modules["kernels"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        import bitsandbytes  # noqa: F401
    # Where its own libraries are not for this machine; four bits are not to be had then.
    except (ImportError, OSError, RuntimeError) as problem:
        logging.getLogger(__name__).info("bitsandbytes cannot be used: %s", problem)
    finally:
        del sys.modules["kernels"]
        if _kernels is not None:
            sys.modules["kernels"] = _kernels
        _said.setLevel(_level)
