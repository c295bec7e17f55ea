"""``xflow segment`` from and to a PACS: a study is found, fetched, answered and stored back, and nothing is lost."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pacs.conftest import IDENTITY, phantom_radiograph, radiograph
from pacs.servers import Handler, Orthanc, passing_on, served
from PIL import Image
from pydicom.uid import generate_uid

from xflow_core.domain.errors import StoreError
from xflow_core.pacs.answers import uid, word
from xflow_core.pacs.service import DicomWeb, Instance

ASK = ("-i", "Segment the opacity")


def on_disk(tmp_path: Path, count: int) -> list[Path]:
    """DICOM files of one study; any DICOM is stored alike."""
    files = [tmp_path / f"{name}.dcm" for name in ("seg", "sr", "pr")[:count]]
    for file in files:
        file.write_bytes(radiograph("1.2.3"))
    return files


def test_files_are_stored_as_they_are(orthanc: Orthanc, tmp_path: Path) -> None:
    files = on_disk(tmp_path, 3)
    DicomWeb(orthanc.url).store(files)
    stored = {orthanc.file(tags["id"]) for tags in orthanc.tags()}
    assert stored == {file.read_bytes() for file in files}


def test_what_a_pacs_did_not_take_is_sent_again_later(orthanc: Orthanc, tmp_path: Path, xflow) -> None:
    files = on_disk(tmp_path, 2)
    ended = xflow("pacs", "store", *files, "--dicomweb", orthanc.url)
    assert (ended.status, ended.err) == (0, "")
    assert len(orthanc.tags()) == 2


def test_a_second_answer_is_stored_beside_the_first_and_the_same_files_are_stored_once(
    orthanc: Orthanc, phantom_bundle: None, tmp_path: Path, xflow
) -> None:
    study, image = generate_uid(), generate_uid()
    orthanc.put(phantom_radiograph(study, SOPInstanceUID=image))
    asked = ("--dicomweb", orthanc.url, "--study", study, *ASK, "--store", "-o", tmp_path)
    kinds = ["DX"]
    for _ in range(2):
        assert xflow("segment", *asked).status == 0
        kinds += ["PR", "SEG", "SR"]
        assert sorted(tags["Modality"] for tags in orthanc.tags()) == sorted(kinds)
    ended = xflow("pacs", "store", *(tmp_path / image).glob("*.dcm"), "--dicomweb", orthanc.url)
    assert (ended.status, ended.err) == (0, "")
    assert len(orthanc.tags()) == len(kinds)


def stores(answers: list[tuple[int, bytes]]):
    """A gate whose n-th store is answered so; None passes it on."""

    def first(handler: Handler) -> bool:
        if handler.command != "POST":
            return False
        answer = answers.pop(0)
        if answer is not None:
            handler.answer(*answer, "application/dicom+json; charset=utf-8")
        return answer is not None

    return first


def failed(reason: int) -> bytes:
    item = {"00081197": {"vr": "US", "Value": [reason]}}
    return json.dumps({"00081198": {"vr": "SQ", "Value": [item]}}).encode()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((409, failed(0x0122)), r"it does not take this class of object, code 0122"),
        ((202, failed(0xA701)), r"it is out of resources, code A701"),
        ((400, b""), "it answered 400"),
        ((200, b""), "it did not confirm it"),
        ((200, b"{}"), "it did not confirm it"),
    ],
)
def test_a_refused_object_is_named_with_the_reason_and_the_others_are_stored(
    answer: tuple[int, bytes], said: str, orthanc: Orthanc, tmp_path: Path
) -> None:
    files = on_disk(tmp_path, 3)
    with served(passing_on(orthanc, stores([None, answer, None]))) as gate, pytest.raises(StoreError) as refused:
        DicomWeb(gate.url).store(files)
    sentence = str(refused.value)
    assert refused.value.exit_status == 4
    assert f"Not stored: {files[1]} ({said}); stored: seg.dcm, pr.dcm." in sentence
    assert "xflow pacs store" in sentence
    assert len(orthanc.tags()) == 2


def test_a_study_sent_by_half_says_what_was_stored_and_what_was_not(orthanc: Orthanc, tmp_path: Path, xflow) -> None:
    files = on_disk(tmp_path, 3)
    with served(passing_on(orthanc, stores([None, (500, b"")]))) as gate:
        ended = xflow("pacs", "store", *files, "--dicomweb", gate.url)
    assert ended.status == 4
    assert ended.one_line
    assert "failed (500) while storing the results" in ended.err
    assert f"{files[1]} (not confirmed), {files[2]} (not sent); stored: seg.dcm." in ended.err
    assert all(file.is_file() for file in files)


def test_a_store_to_a_web_page_or_over_a_redirect_is_no_success(tmp_path: Path) -> None:
    files = on_disk(tmp_path, 1)
    for rule in (
        lambda handler: handler.answer(200, b"<html>Sign in</html>", "text/html"),
        lambda handler: handler.answer(302, Location="/login"),
    ):
        with served(rule) as server, pytest.raises(StoreError, match="seg"):
            DicomWeb(server.url).store(files)


def test_what_cannot_be_read_is_said_and_does_not_stop_the_rest(orthanc: Orthanc, tmp_path: Path) -> None:
    (file,) = on_disk(tmp_path, 1)
    text = tmp_path / "text.dcm"
    text.write_text("no DICOM")
    with pytest.raises(StoreError, match=r"missing.dcm \(it cannot be read: No such file.*it is no DICOM file") as said:
        DicomWeb(orthanc.url).store([tmp_path / "missing.dcm", text, file])
    assert "stored: seg.dcm" in str(said.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a.dcm", "--dicomweb", "http://127.0.0.1:1/rs", "--study", "1.2"), "not both"),
        (("--dicomweb", "http://127.0.0.1:1/rs"), "needs --study"),
        (("a.dcm", "--study", "1.2"), "--dicomweb URL"),
        (("a.dcm", "--store"), "--dicomweb URL"),
        ((), "Give image files, or a study"),
        (("--dicomweb", "http://127.0.0.1:1/rs", "--study", "1.2", "--timeout", "0"), "time-out"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_with_status_2(
    arguments: tuple[str, ...], said: str, tmp_path: Path, xflow
) -> None:
    ended = xflow("segment", *arguments, *ASK, "-o", tmp_path / "out")
    assert ended.status == 2
    assert ended.one_line
    assert said in ended.err


def test_a_study_is_answered_and_its_results_are_stored_beside_it(
    orthanc: Orthanc, phantom_bundle: None, tmp_path: Path, xflow
) -> None:
    study, image = generate_uid(), generate_uid()
    orthanc.put(phantom_radiograph(study, SOPInstanceUID=image))
    orthanc.put(radiograph(study, ViewPosition="LL"))
    out = tmp_path / "out"
    ended = xflow("segment", "--dicomweb", orthanc.url, "--study", study, *ASK, "--store", "-o", out)
    assert (ended.status, ended.err) == (0, "")
    assert "left out. Its header says that it is a lateral view" in ended.out
    assert not any(part in ended.out for part in IDENTITY)
    assert [entry.name for entry in out.iterdir()] == [image]

    files = [file for file in out.rglob("*") if file.is_file() and file.suffix != ".dcm"]
    assert files
    assert not any(part.encode() in file.read_bytes() for file in files for part in IDENTITY)

    pacs = DicomWeb(orthanc.url)
    stored = {word(item, "Modality"): uid(item, "SeriesInstanceUID") for item in pacs.search_series(study)}
    assert stored.keys() == {"DX", "SEG", "SR", "PR"}
    for kind in ("SEG", "SR", "PR"):
        (header,) = pacs.series_headers(study, stored[kind])
        back = pacs.fetch(Instance(study, stored[kind], uid(header, "SOPInstanceUID")))
        written = pydicom.dcmread(out / image / f"{kind.lower()}.dcm")
        assert pydicom.dcmread(io.BytesIO(back)) == written
        if kind == "SEG":
            mask = np.asarray(Image.open(out / image / "opacity" / "mask.png")) > 0
            assert np.array_equal(pydicom.dcmread(io.BytesIO(back)).pixel_array > 0, mask)
            (reference,) = written.ReferencedSeriesSequence[0].ReferencedInstanceSequence
            assert reference.ReferencedSOPInstanceUID == image


def test_what_could_be_fetched_is_answered_and_what_could_not_is_one_line(
    orthanc: Orthanc, phantom_bundle: None, tmp_path: Path, xflow
) -> None:
    study, good, lost = generate_uid(), generate_uid(), generate_uid()
    orthanc.put(phantom_radiograph(study, SOPInstanceUID=good))
    orthanc.put(phantom_radiograph(study, SOPInstanceUID=lost))

    def lose_one(handler: Handler) -> bool:
        if handler.path.endswith(f"/instances/{lost}"):
            handler.answer(500)
            return True
        return False

    out = tmp_path / "out"
    with served(passing_on(orthanc, lose_one)) as gate:
        ended = xflow("segment", "--dicomweb", gate.url, "--study", study, *ASK, "-o", out, "--json")
    assert ended.status == 3
    assert ended.one_line
    assert ended.err.startswith(f"xflow: {lost}: The PACS at")
    assert "failed (500) while fetching the image" in ended.err
    assert (out / good / "opacity" / "mask.png").is_file()
    assert not (out / lost).exists()
    results = json.loads(ended.out.splitlines()[-1])["results"]
    assert {result["image"]: result["status"] for result in results} == {good: "present", lost: "failed"}


def test_results_that_a_pacs_refuses_are_all_on_disk(
    orthanc: Orthanc, phantom_bundle: None, tmp_path: Path, xflow
) -> None:
    study, image = generate_uid(), generate_uid()
    orthanc.put(phantom_radiograph(study, SOPInstanceUID=image))
    out = tmp_path / "out"
    with served(passing_on(orthanc, stores([(409, failed(0x0122)), (500, b"")]))) as gate:
        asked = ("--study", study, *ASK, "--store", "--json", "-o", out)
        ended = xflow("segment", "--dicomweb", gate.url, *asked)
    assert ended.status == 4
    assert ended.one_line
    assert f"{out / image / 'seg.dcm'} (it does not take this class of object, code 0122)" in ended.err
    assert "stored: none" in ended.err
    (result,) = json.loads(ended.out.splitlines()[-1])["results"]
    assert result["status"] == "present"
    assert result["dicom"]["stored"] is False
    files = sorted(file.name for file in (out / image).rglob("*") if file.is_file())
    assert files == ["mask.png", "overlay.png", "pr.dcm", "seg.dcm", "sr.dcm", "trace.json"]
