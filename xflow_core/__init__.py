"""XFlow: instruction-guided lesion segmentation in chest radiographs. Not for clinical use.

Importing this package, :mod:`xflow_core.domain` or :mod:`xflow_core.export` loads no torch.
"""

__version__ = "0.2.0"

NOT_FOR_CLINICAL_USE = "not for clinical use"
