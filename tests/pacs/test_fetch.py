"""Choosing and fetching a study's radiographs, and every way in which that can go wrong: one line each."""

from __future__ import annotations

import io

import pydicom
import pytest
from pacs.conftest import IDENTITY, radiograph
from pacs.servers import Handler, Orthanc, passing_on, served
from pydicom.uid import (
    CTImageStorage,
    DigitalXRayImageStorageForProcessing,
    GrayscaleSoftcopyPresentationStateStorage,
    generate_uid,
)

from xflow_core.domain.errors import CallError, PacsError, RadiographRefused
from xflow_core.pacs.images import choose_images
from xflow_core.pacs.service import DicomWeb, Instance

SOMEWHERE = Instance("1.2.3", "1.2.3.4", "1.2.3.4.5")


def put(orthanc: Orthanc, study: str, **attributes: object) -> str:
    """Put a radiograph into the PACS; its SOP Instance UID."""
    instance = generate_uid()
    orthanc.put(radiograph(study, SOPInstanceUID=instance, **attributes))
    return instance


def chosen(orthanc: Orthanc, study: str, series: str | None = None, **options: bool) -> list[str]:
    choice = choose_images(DicomWeb(orthanc.url), study, series, **options)
    return [image.sop_instance_uid for image in choice.chosen]


def test_the_frontal_radiographs_are_taken_and_the_others_named_with_a_reason(orthanc: Orthanc) -> None:
    study = generate_uid()
    frontal = {put(orthanc, study, ViewPosition="PA"), put(orthanc, study, ViewPosition="AP", Modality="CR")}
    lateral = put(orthanc, study, ViewPosition="LL")
    unnamed = put(orthanc, study, ViewPosition=None)
    hand = put(orthanc, study, BodyPartExamined="HAND")
    frames = put(orthanc, study, NumberOfFrames="2")
    put(orthanc, study, Modality="CT", SOPClassUID=CTImageStorage)
    put(orthanc, study, Modality="PR", SOPClassUID=GrayscaleSoftcopyPresentationStateStorage)
    choice = choose_images(DicomWeb(orthanc.url), study)
    assert {image.sop_instance_uid for image in choice.chosen} == frontal
    reasons = {image.sop_instance_uid: reason for image, reason in choice.left_out}
    assert reasons.keys() == {lateral, unnamed, hand, frames}
    assert "lateral" in reasons[lateral]
    assert "names no frontal view" in reasons[unnamed]
    assert "HAND" in reasons[hand]
    assert "2 frames" in reasons[frames]


def test_an_unnamed_view_is_taken_when_no_image_is_said_to_be_frontal(orthanc: Orthanc) -> None:
    study = generate_uid()
    unnamed = put(orthanc, study, ViewPosition=None)
    put(orthanc, study, ViewPosition="LATERAL")
    assert chosen(orthanc, study) == [unnamed]


def test_of_a_raw_and_a_prepared_image_the_prepared_one_is_taken(orthanc: Orthanc) -> None:
    study, raw = generate_uid(), {"SOPClassUID": DigitalXRayImageStorageForProcessing}
    prepared = put(orthanc, study, PresentationIntentType="FOR PRESENTATION")
    put(orthanc, study, PresentationIntentType="FOR PROCESSING", **raw)
    assert chosen(orthanc, study) == [prepared]
    alone = generate_uid()
    only = put(orthanc, alone, PresentationIntentType="FOR PROCESSING", **raw)
    assert chosen(orthanc, alone) == [only]


def test_one_series_may_be_named(orthanc: Orthanc) -> None:
    study, series = generate_uid(), generate_uid()
    put(orthanc, study)
    wanted = put(orthanc, study, SeriesInstanceUID=series, ViewPosition=None)
    assert chosen(orthanc, study, series) == [wanted]


def test_accepted_images_are_taken_against_the_guards(orthanc: Orthanc) -> None:
    study = generate_uid()
    lateral = put(orthanc, study, ViewPosition="LL")
    with pytest.raises(RadiographRefused, match="lateral"):
        chosen(orthanc, study)
    assert chosen(orthanc, study, accept_image=True) == [lateral]


def test_a_study_that_is_not_there_or_has_no_radiographs_is_refused_with_the_reason(orthanc: Orthanc) -> None:
    with pytest.raises(PacsError, match="knows no study with this UID"):
        chosen(orthanc, "1.2.3")
    with pytest.raises(PacsError, match="holds no images there"):
        chosen(orthanc, "1.2.3", "1.2.3.4")
    study = generate_uid()
    put(orthanc, study, Modality="CT", SOPClassUID=CTImageStorage)
    with pytest.raises(RadiographRefused, match="no CR or DX series"):
        chosen(orthanc, study)


@pytest.mark.parametrize("uid", ["", "..", "1/2", "1.2.3/../..", "1." * 40 + "1", "1.2.3?x=y"])
def test_what_is_no_uid_never_becomes_part_of_a_request(uid: str) -> None:
    with served(lambda handler: handler.answer(200, b"[]", "application/dicom+json")) as server:
        for study, series in ((uid, None), ("1.2.3", uid)):
            with pytest.raises(CallError, match="instance UIDs"):
                choose_images(DicomWeb(server.url), study, series)
    assert server.seen == []


def test_an_image_comes_as_it_is_stored_in_its_own_transfer_syntax(orthanc: Orthanc, rg1) -> None:
    orthanc.put(rg1.read_bytes())
    study = str(pydicom.dcmread(rg1, stop_before_pixels=True).StudyInstanceUID)
    pacs = DicomWeb(orthanc.url)
    fetched = pydicom.dcmread(io.BytesIO(pacs.fetch(choose_images(pacs, study).chosen[0])))
    original = pydicom.dcmread(rg1)
    assert fetched.file_meta.TransferSyntaxUID == original.file_meta.TransferSyntaxUID
    assert fetched.PixelData == original.PixelData
    assert fetched == original


# --- what is no PACS, or one in trouble ------------------------------------------------------------------------------


def hang(handler: Handler) -> None:
    handler.server.ended.wait(60)


def hang_in_the_middle(handler: Handler) -> None:
    stop_in_the_middle(handler)
    handler.wfile.flush()
    hang(handler)


def stop_in_the_middle(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/dicom+json\r\nContent-Length: 9999\r\n\r\n[{")


def stop_without_a_length(handler: Handler) -> None:
    head = b'HTTP/1.0 200 OK\r\nContent-Type: multipart/related; type="application/dicom"; boundary=b\r\n\r\n'
    handler.wfile.write(head + b"--b\r\nContent-Type: application/dicom\r\n\r\n" + radiograph("1.2.3")[:3000])


def page(handler: Handler) -> None:
    handler.answer(200, b"<html>Sign in</html>", "text/html")


def garbage(handler: Handler) -> None:
    body = b"--b\r\nContent-Type: application/dicom\r\n\r\n" + b"Quartz" * 99 + b"\r\n--b--"
    handler.answer(200, body, 'multipart/related; type="application/dicom"; boundary=b')


def another_image(handler: Handler) -> None:
    body = b"--b\r\nContent-Type: application/dicom\r\n\r\n" + radiograph("1.2.3") + b"\r\n--b--"
    handler.answer(200, body, 'multipart/related; type="application/dicom"; boundary=b')


def no_parts(handler: Handler) -> None:
    handler.answer(200, b"--b--", 'multipart/related; type="application/dicom"; boundary=b')


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (stop_in_the_middle, "stopped in the middle of its answer|broke the connection"),
        (stop_without_a_length, "stopped in the middle of its answer"),
        (lambda handler: None, "cannot be reached, or broke the connection"),
        (page, "did not answer as a DICOMweb service"),
        (garbage, "did not answer as a DICOMweb service"),
        (no_parts, "did not answer as a DICOMweb service"),
        (another_image, "sent another image"),
        (lambda handler: handler.answer(401), "wants credentials"),
        (lambda handler: handler.answer(403), "does not allow this user"),
        (lambda handler: handler.answer(404), r"nothing there \(404\)"),
        (lambda handler: handler.answer(500, b"Quartz"), r"failed \(500\)"),
        (lambda handler: handler.answer(503), r"failed \(503\)"),
        (lambda handler: handler.answer(418, b"Quartz"), r"refused the request \(418\)"),
    ],
)
def test_every_failure_to_fetch_is_one_sentence_without_the_servers_words(rule, said: str) -> None:
    with served(rule) as server, pytest.raises(PacsError, match=said) as failed:
        DicomWeb(server.url).fetch(SOMEWHERE)
    assert failed.value.exit_status == 3
    assert str(failed.value).startswith(f"The PACS at 127.0.0.1:{server.server_address[1]} ")
    assert "\n" not in str(failed.value)
    assert not any(word in str(failed.value) for word in IDENTITY)


@pytest.mark.parametrize("rule", [hang, hang_in_the_middle])
def test_a_service_that_does_not_answer_is_given_up_after_the_time_out(rule) -> None:
    with (
        served(rule) as server,
        pytest.raises(PacsError, match=r"within 0\.3 s while fetching the image"),
    ):
        DicomWeb(server.url, timeout=0.3).fetch(SOMEWHERE)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'["6b34d082"]',
        b'[{"error": "no"}]',
        b'{"error": "no"}',
        b'[{"0020000D": []}]',
        b"null",
        b"<html>",
        b"7",
    ],
)
def test_an_answer_that_is_no_dicom_json_is_said_to_be_none(body: bytes) -> None:
    with served(lambda handler: handler.answer(200, body, "application/json")) as server:
        pacs = DicomWeb(server.url)
        if not body:  # "nothing found" to some services
            assert pacs.search_studies({}, 1, 0) == []
            return
        with pytest.raises(PacsError, match="did not answer as a DICOMweb service"):
            pacs.search_studies({}, 1, 0)


def test_a_wrong_address_is_said_in_one_line_with_status_3(
    orthanc: Orthanc, xflow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    for url in (orthanc.rest, f"{orthanc.rest}/nothing-here", "http://127.0.0.1:1/dicom-web", "http://name.invalid/rs"):
        ended = xflow("pacs", "find", "--dicomweb", url, "--patient", "PID-90210")
        assert ended.status == 3
        assert ended.one_line
        assert "PID-90210" not in ended.err + caplog.text


def test_a_busy_service_is_asked_again_and_a_failed_one_is_not(orthanc: Orthanc) -> None:
    study = generate_uid()
    put(orthanc, study)
    for status, asked in ((503, 2), (500, 1)):

        def fail_once(handler: Handler, status: int = status) -> bool:
            if len(handler.server.seen) == 1:
                handler.answer(status)
                return True
            return False

        with served(passing_on(orthanc, fail_once)) as gate:
            try:
                DicomWeb(gate.url).search_studies({}, 1, 0)
            except PacsError:
                assert status == 500
            assert len(gate.seen) == asked


def test_a_time_out_is_a_time() -> None:
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(CallError, match="time-out"):
            DicomWeb("http://127.0.0.1/", timeout=seconds)
