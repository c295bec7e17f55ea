"""Runs over the wire: the same answers as in process, each step at once, edits replayed, cancelled, forgotten."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from phantom import LUNG_BOXES, SIZE, phantom_engine
from service.phantom_server import GatedParts, Served, engine_of, picture, serving

from xflow_core.domain.errors import (
    InstructionError,
    RadiographRefused,
    ServiceError,
    UnsupportedFinding,
    ValueRefused,
)
from xflow_core.domain.instruction import parse_instruction
from xflow_core.domain.trace import BoxesStep, LesionBox, Mask, MaskStep, PresenceStep, Step, StopStep, Trace, Verdict
from xflow_core.policies.protocols import GuardReport
from xflow_core.radiograph.encoded import EncodedRadiograph
from xflow_core.service.images import read_upload
from xflow_core.service.protocol import ArrayImage, ImageCheck, ServerLimits
from xflow_core.workflow.session import answer

TEXT = "Segment the opacity"


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def in_process(image: ArrayImage, text: str = TEXT, **options: int) -> Trace:
    engine, _ = phantom_engine()
    radiograph, _ = read_upload(image.to_bytes())
    return answer(engine, engine.admit(radiograph), parse_instruction(text)[0], **options)


def test_a_served_answer_is_the_trace_that_the_workflow_makes_in_process(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    run = client.run(image, TEXT)
    steps = list(run)
    expected = in_process(picture())
    assert run.trace == expected
    assert run.trace.id == expected.id
    assert tuple(steps) == expected.steps
    assert run.trace.seconds["total"] > 0
    assert client.run(image, TEXT, stages=1, seed=5).finish() == (in_process(picture(), stages=1, seed=5),)


def test_an_absent_finding_is_an_answer_of_three_steps(served: Served) -> None:
    client = served.client()
    (trace,) = client.run(client.upload(picture([])), TEXT).finish()
    assert [step.kind for step in trace.steps] == ["lungs", "presence", "result"]
    assert trace.result.status == "absent"


def test_a_step_arrives_while_the_next_one_is_still_being_made(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    served.parts.closed = True
    run = client.run(image, TEXT)
    kinds = [next(run).kind for _ in range(6)]
    assert kinds == ["lungs", "presence", "boxes", "mask", "mask", "mask"]
    assert served.parts.at_the_gate.acquire(timeout=30), "the first click is asked for, and not yet made"
    served.parts.closed = False
    served.parts.gate.release()
    assert run.finish() == (in_process(picture()),)


def test_two_findings_in_one_sentence_are_two_answers(served: Served) -> None:
    client = served.client()
    text = "Segment the opacity and the effusion"
    traces = client.run(client.upload(picture()), text).finish()
    assert [trace.instruction.finding for trace in traces] == ["opacity", "effusion"]
    assert all(trace.result.status == "present" for trace in traces)


def test_one_image_is_encoded_once_whatever_and_whoever_asks(served: Served) -> None:
    clients = [served.client() for _ in range(4)]
    images = [client.upload(picture()) for client in clients]
    for client, image in zip(clients, images, strict=True):
        trace = client.run(image, TEXT).finish()[0]
        client.replace(image, trace, 2, trace.steps[2]).finish()
    assert served.parts.calls["encode"] == 1
    activity = clients[0].capabilities().activity
    assert (activity.encoder_passes, activity.images, activity.runs_done) == (1, 1, 8)


def test_replacing_a_decision_computes_only_what_follows_it(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    trace = client.run(image, TEXT).finish()[0]
    before = served.parts.calls.copy()
    boxes = trace.last(BoxesStep)
    edited = client.replace(image, trace, 2, BoxesStep(boxes=boxes.boxes[:1])).finish()[0]
    assert served.parts.calls - before == {"segment": 3, "masks": 3, "revise": 3}
    assert edited.steps[:2] == trace.steps[:2]
    assert edited.steps[2].origin == "user"
    assert (edited.branch_of.trace, edited.branch_of.step) == (trace.id, 2)


def test_stage_two_goes_on_from_a_mask_that_the_user_edited(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    trace = client.run(image, TEXT).finish()[0]
    served.parts.wanted_clicks = 4
    before = served.parts.calls.copy()
    drawn = np.zeros(SIZE, bool)
    drawn[80:120, 40:80] = True
    edited = client.continue_from(image, trace, 0, drawn).finish()[0]
    assert served.parts.calls - before == {"segment": 2, "masks": 2, "revise": 3}, "the other components keep theirs"
    masks = [step for step in edited.steps if isinstance(step, MaskStep) and step.component == 0]
    first = next(k for k, step in enumerate(masks) if step.origin == "user")
    assert (masks[first].mask.array == drawn).all()
    assert len(masks[first:]) == 3, "two clicks of the policy's followed"
    kept = client.continue_from(image, trace, 0, drawn, revise=False).finish()[0]
    assert kept.steps[-2] == StopStep(component=0, reason="user", origin="user")
    assert kept.result.area_px == np.count_nonzero(drawn | _last_mask(trace, 1) | _last_mask(trace, 2))


def _last_mask(trace: Trace, component: int) -> np.ndarray:
    masks = [step for step in trace.steps if isinstance(step, MaskStep) and step.component == component]
    return masks[-1].mask.array


def test_a_trace_cut_off_anywhere_goes_on_exactly_also_on_another_server(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    whole = client.run(image, TEXT).finish()[0]
    with serving() as other:
        there = other.client()
        for k in (0, 1, 3, 7, len(whole.steps)):
            cut = replace(whole, steps=whole.steps[:k], result=None)
            assert there.resume(image, Trace.from_json(json.loads(json.dumps(cut.to_json())))).finish() == (whole,)


def test_an_edit_that_cannot_stand_is_refused_before_anything_is_computed(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    trace = client.run(image, TEXT).finish()[0]
    before = served.parts.calls.copy()
    wrong = [
        lambda: client.replace(image, trace, 99, trace.steps[0]),
        lambda: client.replace(image, trace, 3, trace.steps[0]),
        lambda: client.replace(image, trace, 1, PresenceStep(verdicts=(Verdict("heart", True),))),
        lambda: client.replace(
            image, trace, 2, BoxesStep(boxes=(LesionBox(0, "effusion", LUNG_BOXES["left lung"], "left lung"),))
        ),
        lambda: client.continue_from(image, trace, 9, np.ones(SIZE, bool)),
        lambda: client.continue_from(image, trace, 0, np.ones((5, 5), bool)),
        lambda: client.resume(image, replace(trace, steps=trace.steps[1:], result=None)),
        lambda: client.resume(image, replace(trace, bundle=replace(trace.bundle, version="2"))),
    ]
    for ask in wrong:
        with pytest.raises(ValueRefused):
            ask()
    assert served.parts.calls == before


def test_cancelling_takes_effect_before_the_next_step_and_what_was_made_goes_on(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    served.parts.closed = True
    run = client.run(image, TEXT)
    for _ in range(6):
        next(run)
    assert served.parts.at_the_gate.acquire(timeout=30)
    run.cancel()
    served.parts.gate.release()
    rest = list(run)
    assert len(rest) <= 1, "the step that was being made, and no other"
    assert run.cancelled
    assert run.trace.result is None
    served.parts.closed = False
    assert client.resume(image, run.trace).finish() == (in_process(picture()),)


def test_a_waiting_run_is_cancelled_at_once(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    served.parts.closed = True
    first = client.run(image, TEXT)
    for _ in range(6):
        next(first)
    assert served.parts.at_the_gate.acquire(timeout=30)
    second = client.run(image, TEXT)
    second.cancel()
    assert list(second) == []
    assert second.cancelled
    assert second.ahead == 1
    served.parts.closed = False
    served.parts.gate.release()
    assert len(first.finish()) == 1


def test_a_client_that_goes_away_cancels_its_run(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    served.parts.closed = True
    run = client.run(image, TEXT)
    next(run)
    assert served.parts.at_the_gate.acquire(timeout=30)
    run.close()
    ends_before_its_next_step(served)


def test_a_run_that_is_closed_while_a_thread_waits_for_its_next_step_ends_at_once(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    for close in (lambda run: run.close(), lambda run: client.close()):
        served.parts.closed = True
        run = client.run(image, TEXT)
        steps: list[Step] = []
        thread = threading.Thread(target=lambda run=run, steps=steps: steps.extend(run))
        thread.start()
        assert served.parts.at_the_gate.acquire(timeout=30)
        until(lambda steps=steps: len(steps) == 6)
        start = time.monotonic()
        close(run)
        thread.join(30)
        assert time.monotonic() - start < 0.5
        assert [step.kind for step in steps] == ["lungs", "presence", "boxes", "mask", "mask", "mask"]
        assert run.trace.steps == tuple(steps)
        ends_before_its_next_step(served)
        served.parts.calls.clear()


def ends_before_its_next_step(served: Served) -> None:
    """The one run, which is at its first click, is cancelled, and makes no other."""
    ((run,),) = served.service.worker._runs.values()
    until(run.cancelled.is_set)
    served.parts.closed = False
    served.parts.gate.release()
    until(lambda: not served.service.worker.waiting)
    assert served.parts.calls["revise"] == 1


def test_clients_take_turns_a_long_queue_of_one_does_not_hold_up_another(served: Served) -> None:
    greedy, modest = served.client(), served.client()
    image = greedy.upload(picture())
    served.parts.closed = True
    queue = [greedy.run(image, TEXT) for _ in range(5)]
    assert served.parts.at_the_gate.acquire(timeout=30)
    other = modest.upload(picture([(0.25, 0.5, 12)]))
    alone = modest.run(other, TEXT)
    threads = [threading.Thread(target=run.finish) for run in (*queue, alone)]
    for thread in threads:
        thread.start()
    served.parts.closed = False
    served.parts.gate.release()
    for thread in threads:
        thread.join(60)
    # The order in which the models were asked, not that in which threads of the test woke up.
    asked = served.parts.asked
    last = len(asked) - 1 - asked[::-1].index(other.sha256)
    assert asked[:last].count(image.sha256) < asked.count(image.sha256) / 2


def test_fifty_clients_at_once_get_the_trace_that_one_gets_alone(served: Served) -> None:
    pictures = [picture(), picture([(0.25, 0.5, 12)]), picture([])]
    expected = [in_process(one) for one in pictures]

    def ask(k: int) -> bool:
        client = served.client()
        return client.run(client.upload(pictures[k % 3]), TEXT).finish() == (expected[k % 3],)

    with ThreadPoolExecutor(50) as pool:
        assert all(pool.map(ask, range(50)))
    assert served.parts.calls["encode"] == 3


def test_a_failed_model_ends_its_own_run_alone_and_is_never_an_absence() -> None:
    class Breaks(GatedParts):
        def judge(self, image, instruction, regions, lungs, *, seed):  # type: ignore[no-untyped-def]
            if instruction.finding == "effusion":
                raise MemoryError("no room")
            return super().judge(image, instruction, regions, lungs, seed=seed)

    parts = Breaks()
    with serving(engine_of(parts), parts) as served:
        client = served.client()
        image = client.upload(picture())
        good, bad = client.run(image, "Segment the opacity and the effusion").finish()
        assert good.steps == in_process(picture()).steps
        assert (bad.result.status, bad.result.present) == ("failed", None)
        assert "no room" in bad.result.message
        assert client.run(image, TEXT).finish() == (in_process(picture()),)


def test_a_refused_radiograph_is_an_answer_in_the_guards_words_and_can_be_accepted(served: Served) -> None:
    client = served.client()
    blank = client.upload(ArrayImage(np.full((200, 240), 7, np.uint16), dense_is_bright=True))
    (trace,) = client.run(blank, TEXT).finish()
    assert trace.result.status == "refused"
    assert trace.result.message == "It is blank: all pixels are alike."
    assert trace.steps == ()
    accepted = client.run(blank, TEXT, accept_image=True).finish()[0]
    assert accepted.steps
    assert "Run against the guards: It is blank: all pixels are alike." in accepted.image.warnings
    with pytest.raises(ValueRefused, match="refused"):
        client.resume(blank, trace)


def test_a_colour_picture_is_refused_at_reading_unless_its_sender_accepts_it(served: Served) -> None:
    import io

    from PIL import Image as Pillow

    buffer = io.BytesIO()
    Pillow.fromarray(np.random.default_rng(0).integers(0, 255, (200, 240, 3), np.uint8)).save(buffer, "PNG")
    client = served.client()
    with pytest.raises(RadiographRefused, match="colour"):
        client.upload(buffer.getvalue())
    image = client.upload(buffer.getvalue(), accept_image=True)
    assert client.run(image, TEXT).finish()[0].result.status == "refused"
    assert client.run(image, TEXT, accept_image=True).finish()[0].result.status in ("present", "absent")


class GuardedParts(GatedParts):
    """The phantom's parts with a guard, which looks at what the models look at; ``verdict`` is what it finds."""

    verdict = GuardReport(warnings=("It may be a lateral view.",))

    def inspect(self, image: EncodedRadiograph) -> GuardReport:
        self.calls["guard"] += 1
        self._bright(image)
        if self.verdict is None:
            raise MemoryError("no room")
        return self.verdict


@pytest.fixture
def guarded() -> Iterator[Served]:
    parts = GuardedParts()
    with serving(replace(engine_of(parts), guard=parts), parts) as server:
        yield server


def test_a_check_says_what_a_run_will_say_and_the_run_encodes_nothing_again(guarded: Served) -> None:
    client = guarded.client()
    image = client.upload(picture())
    check = client.check(image)
    assert check.refused is None
    assert check.warnings[-1] == "It may be a lateral view."
    assert guarded.parts.calls == {"guard": 1, "encode": 1}
    (trace,) = client.run(image, TEXT).finish()
    assert trace.image.warnings == check.warnings
    assert client.check(image, bundle="phantom") == check
    assert (guarded.parts.calls["guard"], guarded.parts.calls["encode"]) == (1, 1)
    assert client.capabilities().activity.encoder_passes == 1


def test_a_check_of_a_refused_image_says_the_runs_own_words(guarded: Served) -> None:
    guarded.parts.verdict = GuardReport(("It is no frontal chest radiograph.",), ("It may be rotated.",))
    client = guarded.client()
    image = client.upload(picture())
    check = client.check(image)
    assert (check.refused, check.warnings[-1]) == ("It is no frontal chest radiograph.", "It may be rotated.")
    (trace,) = client.run(image, TEXT).finish()
    assert (trace.result.status, trace.result.message) == ("refused", check.refused)
    assert client.run(image, TEXT, accept_image=True).finish()[0].image.warnings == (
        *check.warnings,
        f"Run against the guards: {check.refused}",
    )


def test_a_check_that_cannot_be_made_is_said_and_leaves_the_server_well(guarded: Served) -> None:
    client = guarded.client()
    image = client.upload(picture())
    with pytest.raises(ServiceError) as unknown:
        client.check(image, bundle="a b/c?d")
    assert unknown.value.kind == "unknown_bundle"
    guarded.parts.verdict = None
    with pytest.raises(ServiceError, match="guard failed: MemoryError"):
        client.check(image)
    guarded.parts.verdict = GuardReport()
    assert client.check(image).refused is None
    client.forget(image)
    assert client.check(image).refused is None, "the image was sent again"


def test_a_check_waits_for_a_step_of_another_clients_run_and_not_for_its_end(guarded: Served) -> None:
    client, other = guarded.client(), guarded.client()
    image = client.upload(picture())
    guarded.parts.closed = True
    run = client.run(image, TEXT)
    assert guarded.parts.at_the_gate.acquire(timeout=30)
    checks: list[ImageCheck] = []
    thread = threading.Thread(target=lambda: checks.append(other.check(other.upload(picture([])))))
    thread.start()
    until(lambda: guarded.service.worker.waiting == 2)
    assert not checks, "one thread computes, and it is at a click"
    guarded.parts.gate.release()
    thread.join(30)
    assert len(checks) == 1
    assert run.trace is None or run.trace.result is None
    guarded.parts.closed = False
    guarded.parts.gate.release(100)
    assert run.finish()[0].result.status == "present"


def test_an_instruction_that_is_not_understood_is_said_in_the_command_lines_words(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    for text in ("Segment the pneumothorax", "hello", ""):
        with pytest.raises(InstructionError) as expected:
            parse_instruction(text)
        with pytest.raises(InstructionError) as served_words:
            client.run(image, text)
        assert str(served_words.value) == " ".join(str(expected.value).split())
    with pytest.raises(UnsupportedFinding, match=r"'phantom' cannot answer edema; it answers opacity"):
        client.run(image, "Segment the edema")


def test_a_forgotten_image_is_unknown_and_the_client_sends_it_again(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    assert client.forget(image)
    assert not client.forget(image)
    with pytest.raises(ServiceError) as problem:
        client._json("GET", f"/images/{image.sha256}")
    assert problem.value.kind == "unknown_image"
    assert client.run(image, TEXT).finish() == (in_process(picture()),)


def test_what_is_forgotten_in_the_middle_of_a_run_counts_until_the_run_ends(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    held = client.capabilities().activity.image_bytes
    served.parts.closed = True
    run = client.run(image, TEXT)
    assert served.parts.at_the_gate.acquire(timeout=30)
    assert client.forget(image)
    activity = client.capabilities().activity
    assert (activity.images, activity.image_bytes >= held) == (0, True)
    served.parts.closed = False
    served.parts.gate.release()
    assert run.finish() == (in_process(picture()),)
    assert client.capabilities().activity.image_bytes == 0


def test_the_least_recently_used_image_makes_room(served: Served) -> None:
    bare = picture().values.nbytes * 5 // 4
    with serving(limits=ServerLimits(cached_bytes=int(2.8 * bare))) as small:
        client = small.client()
        first, second = client.upload(picture()), client.upload(picture([]))
        client.run(first, TEXT).finish()
        third = client.upload(picture([(0.25, 0.5, 12)]))
        activity = client.capabilities().activity
        assert activity.image_bytes <= 2.8 * bare
        client._json("GET", f"/images/{third.sha256}")
        with pytest.raises(ServiceError, match="upload it first"):
            client._json("GET", f"/images/{second.sha256}")
        assert client.run(second, TEXT).finish()[0].result.status == "absent"


def test_idle_models_leave_the_memory_and_come_back() -> None:
    loads: list[str] = []
    with serving(idle_seconds=0.3, loads=loads) as served:
        client = served.client()
        image = client.upload(picture())
        first = client.run(image, TEXT).finish()
        until(lambda: not client.capabilities().bundles[0].loaded)
        assert client.run(image, TEXT).finish() == first
        assert len(loads) == 2
        assert client.capabilities().activity.encoder_passes == 2, "what was encoded went with the models"
    with serving(loads=loads) as served:
        client = served.client()
        image = client.upload(picture())
        client.run(image, TEXT).finish()
        client.unload()
        until(lambda: not client.capabilities().bundles[0].loaded)
        assert client.run(image, TEXT).finish() == first


def test_a_mask_of_the_users_may_be_anywhere_and_travels_whole(served: Served) -> None:
    client = served.client()
    image = client.upload(picture())
    trace = client.run(image, TEXT, stages=1).finish()[0]
    drawn = np.random.default_rng(3).random(SIZE) > 0.5
    k = next(k for k, step in enumerate(trace.steps) if isinstance(step, MaskStep))
    edited = client.replace(image, trace, k, MaskStep(component=0, turn=0, mask=Mask.of(drawn))).finish()[0]
    assert (edited.steps[k].mask.array == drawn).all()


def test_the_polarity_of_an_array_is_stated_and_used(served: Served) -> None:
    client = served.client()
    upright = picture()
    low, high = upright.values.min(), upright.values.max()
    inverse = ArrayImage(high - upright.values + low, dense_is_bright=False)
    (trace,) = client.run(client.upload(inverse), TEXT).finish()
    assert trace.image.photometric == "MONOCHROME1"
    assert trace.steps == in_process(upright).steps
