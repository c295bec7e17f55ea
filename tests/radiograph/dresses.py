"""The same picture in many dresses: DICOM of every kind, and the other formats, made by other people's writers."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import ComputedRadiographyImageStorage, ExplicitVRLittleEndian, JPEGBaseline8Bit

EXPLICIT, IMPLICIT = "1.2.840.10008.1.2.1", "1.2.840.10008.1.2"
DEFLATED, BIG_ENDIAN = "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.2"
RLE, JPEG = "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4."


def dataset(stored: np.ndarray, **attributes: Any) -> Dataset:
    """A CR of ``stored`` samples, 12 bits in 16 or 8 in 8, or of colour ``[H, W, 3]``; None leaves an attribute out."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = ComputedRadiographyImageStorage
    meta.MediaStorageSOPInstanceUID = "2.25.1234567"
    made = Dataset()
    made.file_meta, made.preamble = meta, bytes(128)
    fields: dict[str, Any] = {
        "SOPClassUID": ComputedRadiographyImageStorage,
        "SOPInstanceUID": "2.25.1234567",
        "Modality": "CR",
        "PatientName": "Doe^Jane",
        "PatientID": "SECRET-17",
        "BodyPartExamined": "CHEST",
        "ViewPosition": "PA",
        "SamplesPerPixel": 1 if stored.ndim == 2 else 3,
        "PhotometricInterpretation": "MONOCHROME2" if stored.ndim == 2 else "RGB",
        "PlanarConfiguration": None if stored.ndim == 2 else 0,
        "Rows": stored.shape[0],
        "Columns": stored.shape[1],
        "BitsAllocated": 8 * stored.dtype.itemsize,
        "BitsStored": 8 if stored.dtype.itemsize == 1 else 12,
        "PixelRepresentation": int(stored.dtype.kind == "i"),
    } | attributes
    fields.setdefault("HighBit", fields["BitsStored"] - 1 if fields["BitsStored"] is not None else None)
    for keyword, value in fields.items():
        if value is not None:
            setattr(made, keyword, value)
    made.PixelData = stored.tobytes() + bytes(stored.nbytes % 2)
    made["PixelData"].VR = "OB" if stored.dtype.itemsize == 1 else "OW"
    return made


def written(made: Dataset, syntax: str = EXPLICIT) -> bytes:
    """The bytes of the file, in an uncompressed or deflated syntax."""
    made.file_meta.TransferSyntaxUID = syntax
    if syntax == BIG_ENDIAN and made.BitsAllocated == 16:
        made.PixelData = np.frombuffer(made.PixelData, np.uint16).byteswap().tobytes()
    stream = io.BytesIO()
    made.save_as(stream, implicit_vr=syntax == IMPLICIT, little_endian=syntax != BIG_ENDIAN, enforce_file_format=False)
    return stream.getvalue()


def compressed_by_gdcm(made: Dataset, syntax: str) -> bytes:
    """The bytes of the file after GDCM's encoder: RLE, JPEG lossless, JPEG-LS, JPEG 2000."""
    import gdcm

    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.dcm", Path(folder) / "after.dcm"
        before.write_bytes(written(made))
        reader = gdcm.ImageReader()
        reader.SetFileName(str(before))
        assert reader.Read()
        change = gdcm.ImageChangeTransferSyntax()
        change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.GetTSType(syntax)))
        change.SetInput(reader.GetImage())
        assert change.Change(), f"GDCM has no encoder for {syntax}"
        writer = gdcm.ImageWriter()
        writer.SetFile(reader.GetFile())
        writer.SetImage(change.GetOutput())
        writer.SetFileName(str(after))
        assert writer.Write()
        return after.read_bytes()


def compressed_by_pydicom(made: Dataset, syntax: str, **options: Any) -> bytes:
    """The bytes of the file after pydicom's encoder for ``syntax``: RLE, or JPEG 2000 through OpenJPEG."""
    plugin = "pydicom" if syntax == RLE else "pylibjpeg"
    made.compress(syntax, generate_instance_uid=False, encoding_plugin=plugin, **options)
    stream = io.BytesIO()
    made.save_as(stream)
    return stream.getvalue()


def with_codestream(made: Dataset, syntax: str, codestream: bytes) -> bytes:
    """The bytes of the file whose pixels are a ready-made codestream."""
    made.file_meta.TransferSyntaxUID = syntax
    made.PixelData = encapsulate([codestream])
    made["PixelData"].VR = "OB"
    made["PixelData"].is_undefined_length = True
    stream = io.BytesIO()
    made.save_as(stream, implicit_vr=False, little_endian=True)
    return stream.getvalue()


def jpeg_baseline(picture: np.ndarray, quality: int = 100, **attributes: Any) -> bytes:
    """A DICOM whose 8-bit pixels went through Pillow's JPEG encoder."""
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "JPEG", quality=quality, subsampling=0)
    return with_codestream(dataset(picture, **attributes), JPEGBaseline8Bit, stream.getvalue())


def pillow(picture: np.ndarray, fmt: str, mode: str | None = None, **options: Any) -> bytes:
    """The bytes of a file written by Pillow."""
    image = Image.fromarray(picture)
    stream = io.BytesIO()
    (image if mode is None else image.convert(mode)).save(stream, fmt, **options)
    return stream.getvalue()


def itk(picture: np.ndarray, suffix: str, compress: bool = False, spacing: tuple[float, ...] | None = None) -> bytes:
    """The bytes of a file written by SimpleITK; an ``[H, W, 3]`` picture has three values a pixel."""
    import SimpleITK as sitk

    image = sitk.GetImageFromArray(picture, isVector=picture.ndim == 3 and picture.shape[2] == 3)
    if spacing is not None:
        image.SetSpacing(spacing)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"image{suffix}"
        sitk.WriteImage(image, str(path), useCompression=compress)
        return path.read_bytes()
