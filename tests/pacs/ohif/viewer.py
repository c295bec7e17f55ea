"""OHIF in front of an Orthanc: its built pages and the archive behind one address, as a hospital's proxy joins them."""

from __future__ import annotations

import contextlib
import json
import mimetypes
from collections.abc import Iterator
from pathlib import Path

from pacs.servers import Handler, Orthanc, Served, passing_on, served

# The wide isolation that OHIF's workers share memory by.
ISOLATED = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
SETTINGS = {
    "routerBasename": "/",
    "extensions": [],
    "modes": [],
    "showStudyList": True,
    "maxNumberOfWebWorkers": 2,
    "investigationalUseDialog": {"option": "never"},
    "defaultDataSourceName": "archive",
    "dataSources": [
        {
            "namespace": "@ohif/extension-default.dataSourcesModule.dicomweb",
            "sourceName": "archive",
            "configuration": {
                "friendlyName": "archive",
                "name": "archive",
                "wadoUriRoot": "/wado",
                "qidoRoot": "/dicom-web",
                "wadoRoot": "/dicom-web",
                "qidoSupportsIncludeField": False,
                "imageRendering": "wadors",
                "thumbnailRendering": "wadors",
                "enableStudyLazyLoad": True,
                "supportsFuzzyMatching": False,
                "supportsWildcard": True,
                "omitQuotationForMultipartRequest": True,
                "bulkDataURI": {"enabled": True},
            },
        }
    ],
}


@contextlib.contextmanager
def viewer(orthanc: Orthanc, pages: Path) -> Iterator[Served]:
    """Serve OHIF's pages, and pass its requests for images on to Orthanc."""

    def page(handler: Handler) -> bool:
        path = handler.path.split("?")[0]
        if path.startswith(("/dicom-web", "/wado")):
            return False
        if path == "/app-config.js":
            handler.answer(200, f"window.config = {json.dumps(SETTINGS)};".encode(), "text/javascript", **ISOLATED)
            return True
        file = (pages / path.lstrip("/")).resolve()
        # Every other address is a view of the one page.
        if not file.is_file() or not file.is_relative_to(pages.resolve()):
            file = pages / "index.html"
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        handler.answer(200, file.read_bytes(), kind, **ISOLATED)
        return True

    with served(passing_on(orthanc, page)) as server:
        yield server
