"""Finding chest studies in a real PACS: what is listed, and what never is."""

from __future__ import annotations

import json

import pytest
from pacs.conftest import IDENTITY, radiograph
from pacs.servers import Handler, Orthanc, served
from pydicom.uid import CTImageStorage, generate_uid

from xflow_core.domain.errors import CallError
from xflow_core.pacs.service import DicomWeb
from xflow_core.pacs.studies import StudyQuery, find_studies


def found(orthanc: Orthanc, *, limit: int = 100, any_part: bool = False, **query: object) -> list[str]:
    studies, _ = find_studies(DicomWeb(orthanc.url), StudyQuery(**query), limit=limit, any_part=any_part)
    return [study.study_uid for study in studies]


def test_a_study_is_listed_by_uid_date_modalities_and_counts_without_its_patient(orthanc: Orthanc, xflow) -> None:
    study, series = generate_uid(), generate_uid()
    orthanc.put(radiograph(study, SeriesInstanceUID=series))
    orthanc.put(radiograph(study, SeriesInstanceUID=series))
    orthanc.put(radiograph(study, Modality="CR"))
    orthanc.put(radiograph(study, Modality="PR"))
    ended = xflow("pacs", "find", "--dicomweb", orthanc.url)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "# study_uid\tdate\tmodalities\tseries\timages",
        f"{study}\t20260105\tCR,DX\t2\t3",
    ]
    assert not any(word in ended.out for word in IDENTITY)


def test_the_patient_is_shown_only_when_asked_for(orthanc: Orthanc, xflow) -> None:
    orthanc.put(radiograph(generate_uid()))
    plain = xflow("pacs", "find", "--dicomweb", orthanc.url, "--json")
    assert not any(word in plain.out for word in IDENTITY)
    shown = json.loads(xflow("pacs", "find", "--dicomweb", orthanc.url, "--json", "--show-patient").out)
    assert shown["studies"][0]["patient_id"] == "PID-90210"
    assert shown["studies"][0]["patient_name"] == "Quartz^Amethyst"


def test_only_radiographs_that_may_show_a_chest_are_listed(orthanc: Orthanc) -> None:
    named, unnamed, thorax, hand, computed = (generate_uid() for _ in range(5))
    orthanc.put(radiograph(named))
    orthanc.put(radiograph(unnamed, BodyPartExamined=None))
    orthanc.put(radiograph(thorax, BodyPartExamined="THORAX AP"))
    orthanc.put(radiograph(hand, BodyPartExamined="HAND"))
    orthanc.put(radiograph(computed, Modality="CT", SOPClassUID=CTImageStorage))
    assert set(found(orthanc)) == {named, unnamed, thorax}
    assert set(found(orthanc, any_part=True)) == {named, unnamed, thorax, hand}


def test_a_search_is_narrowed_by_patient_date_accession_number_study_and_modality(orthanc: Orthanc) -> None:
    old, new = generate_uid(), generate_uid()
    orthanc.put(radiograph(old, StudyDate="20190228", Modality="CR"))
    orthanc.put(radiograph(new, PatientID="PID-2", AccessionNumber="ACC-2"))
    assert found(orthanc) == [new, old], "the newest first"
    assert found(orthanc, patient_id="PID-2") == [new]
    assert found(orthanc, patient_id="PID-9*") == [old]
    assert found(orthanc, patient_id="P?D-2") == [new]
    assert found(orthanc, accession_number="ACC-4711") == [old]
    assert found(orthanc, study_date="20190228") == [old]
    assert found(orthanc, study_date="20190301-") == [new]
    assert found(orthanc, study_date="-20190228") == [old]
    assert found(orthanc, study_date="20190101-20261231") == [new, old]
    assert found(orthanc, study_uid=old) == [old]
    assert found(orthanc, modalities=("CR",)) == [old]


def test_a_long_list_is_asked_for_page_by_page_and_cut_at_the_limit(
    orthanc: Orthanc, monkeypatch: pytest.MonkeyPatch, xflow
) -> None:
    monkeypatch.setattr("xflow_core.pacs.studies._PAGE", 2)
    uids = {generate_uid() for _ in range(5)}
    for number, study in enumerate(uids):
        orthanc.put(radiograph(study, PatientID=f"PID-{number}"))
    assert set(found(orthanc)) == uids
    ended = xflow("pacs", "find", "--dicomweb", orthanc.url, "--limit", 3)
    assert len([line for line in ended.out.splitlines() if not line.startswith("#")]) == 3
    assert "# there are more" in ended.out


def test_a_service_that_knows_no_pages_and_no_filters_is_asked_twice_a_modality_and_not_for_ever() -> None:
    def element(vr: str, value: object) -> dict:
        return {"vr": vr, "Value": [value]}

    studies = [{"0020000D": element("UI", f"1.2.{number}")} for number in range(3)]
    series = [{"00080060": element("CS", "DX"), "00200000": element("UI", "1"), "00180015": element("CS", "CHEST")}]

    def repeat_itself(handler: Handler) -> None:
        answer = series if "/series" in handler.path else studies
        handler.answer(200, json.dumps(answer).encode(), "application/dicom+json")

    with served(repeat_itself) as server:
        found, more = find_studies(DicomWeb(server.url), StudyQuery(), limit=100)
        assert [study.study_uid for study in found] == ["1.2.2", "1.2.1", "1.2.0"]
        assert not more
        assert {study.images for study in found} == {None}, "it does not tell how many"
        assert len([path for path in server.seen if "/series" not in path]) == 4


def test_nothing_found_is_no_error(orthanc: Orthanc, xflow) -> None:
    ended = xflow("pacs", "find", "--dicomweb", orthanc.url)
    assert (ended.status, ended.err, ended.out) == (0, "", "# no study matches\n")


@pytest.mark.parametrize(
    "date", ["", "-", "2026", "20260230", "2026-01-05", "20260105-20260101", "20260101-20260102-", "today"]
)
def test_what_is_no_date_is_refused_before_anything_is_asked(date: str, xflow) -> None:
    ended = xflow("pacs", "find", "--dicomweb", "http://127.0.0.1:1/dicom-web", f"--date={date}")
    assert ended.status == 2
    assert ended.one_line
    assert "YYYYMMDD" in ended.err


@pytest.mark.parametrize(
    "wrong", [{"study_uid": "../1.2"}, {"study_uid": "1..2"}, {"study_uid": "1." * 40 + "1"}, {"modalities": ("CT",)}]
)
def test_a_query_that_makes_no_sense_is_refused(wrong: dict) -> None:
    with pytest.raises(CallError):
        StudyQuery(**wrong)


def test_a_query_hides_the_patient_from_logs() -> None:
    assert "PID-1" not in repr(StudyQuery(patient_id="PID-1", accession_number="PID-1"))
