"""A PACS over DICOMweb: find chest radiographs, fetch them, store results beside them.

:mod:`.access` checks the URL and finds the credentials, :mod:`.service` speaks the three services of PS3.18 (QIDO-RS,
WADO-RS, STOW-RS) through dicomweb-client, :mod:`.studies` and :mod:`.images` ask what a study is and which of its
images can be answered. Nothing here is written to disk, and no message holds patient data or credentials.
"""
