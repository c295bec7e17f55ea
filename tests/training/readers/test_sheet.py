"""The reader's page in a real browser, without a network."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import pytest
from browser import Page, chromium

from training.evaluation.readers.design import Key
from training.evaluation.readers.rankings import read_rankings
from xflow_core.domain.errors import CallError


def ranks_of(page: Page) -> str:
    return page.js("[...'ABC'].map((l) => document.querySelector(`[name=rank-${l}]:checked`)?.value ?? '-').join(' ')")


def text(page: Page, identity: str) -> str:
    return page.js(f"document.getElementById('{identity}').textContent")


def saved(page: Page, folder: Path) -> Path:
    page.downloads_to(folder)
    page.click("#save")
    end = time.monotonic() + 30
    while not (found := list(folder.glob("*.csv"))):
        assert time.monotonic() < end, "nothing was saved"
        time.sleep(0.05)
    return found[0]


@pytest.mark.timeout(300)
def test_a_reader_ranks_with_the_keyboard_stops_and_goes_on_later(study: Path, tmp_path: Path) -> None:
    folder = study / "reader-1"
    with chromium(tmp_path / "profile") as page:
        page.open(folder / "sheet.html")
        assert text(page, "count") == "0 of 6 done"
        assert text(page, "question").startswith("Case 1: Segment the effusion in the")
        page.wait("[...document.images].every((i) => i.complete && i.naturalWidth === 100)")
        assert page.js("document.images.length") == 7, "the radiograph, and each mask over it"

        page.press("2", "1")
        assert ranks_of(page) == "2 1 -"
        page.press("Enter")
        assert text(page, "message") == "Rank C first; equal ranks are a tie."
        page.press("1", "Enter")
        assert text(page, "question").startswith("Case 2")
        page.press("3", "b", "3", "1", "a", "1", "PageDown")
        assert text(page, "count") == "2 of 6 done"
        page.press("1", "Backspace")
        assert ranks_of(page) == "- - -"
        page.press("h", "z")
        assert page.js("getComputedStyle(document.querySelector('.mask')).visibility") == "hidden"
        assert page.js("document.body.className") == "hidden zoomed"
        page.reload()
        assert text(page, "question").startswith("Case 3"), "a reload loses nothing"
    with chromium(tmp_path / "profile") as page:
        page.open(folder / "sheet.html")
        assert text(page, "count") == "2 of 6 done", "nor does the end of the browser"
        page.press("PageUp")
        assert ranks_of(page) == "1 3 1"
        page.click("#comment")
        page.press("a", "1", ",", '"')
        assert ranks_of(page) == "1 3 1", "keys in the comment rank nothing"
        page.press("Tab")
        page.click("#cases button:nth-child(3)")
        for _ in range(4):
            page.click("#B1")
            page.click("#A2")
            page.click("#C3")
            page.click("#next")
        assert text(page, "message") == "All cases are done. Save your answers."
        answers = saved(page, tmp_path / "saved")
        assert not page.problems
        outside = [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))]
        assert not outside
    lines = list(csv.DictReader(answers.open(encoding="utf-8")))
    assert [[line[letter] for letter in "ABC"] for line in lines] == [list("211"), list("131"), *[list("213")] * 4]
    assert lines[1]["comment"] == 'a1,"'
    rankings = read_rankings(Key.read(study / "key.json"), [answers], allow_incomplete=True)
    assert (rankings.ranks[0].sum(axis=1) == 6).all()


@pytest.mark.timeout(300)
def test_answers_saved_on_one_machine_go_on_on_another(study: Path, tmp_path: Path) -> None:
    sheet = study / "reader-2" / "sheet.csv"
    lines = list(csv.DictReader(sheet.open(encoding="utf-8")))
    lines[0] |= {"A": "1", "B": "2", "C": "2", "comment": 'says "so",\nI think'}
    own, other = tmp_path / "own.csv", tmp_path / "other.csv"
    for path, changed in ((own, {}), (other, {"reader": "reader-1"})):
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(lines[0]))
            writer.writeheader()
            writer.writerows({**line, **changed} for line in lines)
    with chromium(tmp_path / "profile") as page:
        page.open(study / "reader-2" / "sheet.html")
        page.choose_file("#load", other)
        page.wait("document.getElementById('message').textContent.includes('another reader')")
        assert text(page, "count") == "0 of 6 done"
        page.choose_file("#load", own)
        page.wait("document.getElementById('count').textContent === '1 of 6 done'")
        assert ranks_of(page) == "1 2 2"
        assert page.js("document.getElementById('comment').value") == 'says "so", I think'.replace(", ", ",")
        again = saved(page, tmp_path / "saved")
    with pytest.raises(CallError, match="5 cases are not ranked"):
        read_rankings(Key.read(study / "key.json"), [again])
