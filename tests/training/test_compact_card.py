"""The compact bundle's model card is made from its manifest, and says how to make it again."""

from __future__ import annotations

from pathlib import Path

from training.compact.card import card
from xflow_core.bundles.manifest import find_bundle

PAGE = Path(__file__).parents[2] / "docs" / "compact.md"


def test_the_page_is_what_the_shipped_bundle_says() -> None:
    assert PAGE.read_text() == card(find_bundle("compact"))


def test_every_network_has_its_command_with_seed_and_steps() -> None:
    bundle = find_bundle("compact")
    commands = [line for line in card(bundle).splitlines() if line.startswith("python -m training compact")]
    training = bundle.training
    for name in ("survey", "segmenter"):
        runs = [line for line in commands if f" {name} " in line]
        assert len(runs) == len(set(runs)) == len(training[name]["runs"])
    assert any(" revision " in line and f"--steps {training['revision']['steps']}" in line for line in commands)
    assert all("--seed" in line for line in commands if "--steps" in line)
