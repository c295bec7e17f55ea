"""Reading radiographs: one grey image from any usual file, what a viewer shows of it, and the guards before an engine.

A file goes one way: :mod:`.reading` tells its format by its bytes; :mod:`.dicom` (with :mod:`.codecs`, :mod:`.display`
and :mod:`.spacing`), :mod:`.pictures` or :mod:`.volumes` make its :class:`~.content.Content`; that becomes a
:class:`~.reading.Radiograph`. :mod:`.guards` judges it, :mod:`.encoded` carries it to an engine's parts.
"""
