"""The hidden folder `.race` of a run whose size is not decided yet: its entrants, and a folder for each of them.

The decision is one write: plan.json with the record of the race. Before it, a run that goes on races again, by the
plans in `.race/entrants.json`; after it, what is left to do can be done any number of times: the winner's model and
options go into spec.json, its files into the run's folder, and `.race` away.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.checkpoints.run_folder import RunFolder
from weft.foundation.errors import WeftError
from weft.foundation.files.atomic_files import write_text
from weft.foundation.files.json_text import parse_json
from weft.foundation.spec import Tree
from weft.training.planning.plan import TrainingPlan
from weft.training.planning.planned_training import PlannedTraining

RACE, ENTRANTS = ".race", "entrants.json"
REMEDY = "begin again with another --out"
MOVED = ("metrics.jsonl", "model.safetensors", "training")  # of the winner


@dataclass(frozen=True)
class RaceFolder:
    """The race of a run, as the first process writes it."""

    run: RunFolder

    @property
    def path(self) -> Path:
        return self.run.path / RACE

    def of(self, name: str) -> Path:
        """The folder of an entrant."""
        return self.path / name

    def write_entrants(self, entrants: Sequence[PlannedTraining]) -> None:
        """What a race that is killed begins again with."""
        self.remove()
        self.path.mkdir(parents=True)
        write_text(self.path / ENTRANTS, json.dumps([planned.to_tree() for planned in entrants]) + "\n")

    def read_entrants(self) -> list[Tree]:
        """The entrants of a race that is not over; none where there is no such race."""
        file = self.path / ENTRANTS
        if not file.is_file():
            return []
        try:
            found: list[Tree] = parse_json(file.read_bytes())
            if None in [PlannedTraining.from_tree(tree).entrant for tree in found]:
                raise ValueError("a plan has no entrant")
            return found
        except (ValueError, TypeError, KeyError, AttributeError, WeftError) as error:
            raise WeftError(f"{file} is broken ({str(error)[:120]}), so its race cannot go on: {REMEDY}") from None

    def empty(self) -> None:
        """Remove what entrants have written."""
        for folder in self.path.iterdir():
            if folder.is_dir():
                shutil.rmtree(folder)

    def remove(self) -> None:
        """Remove the race; of an earlier one that was killed too."""
        if self.path.exists():
            shutil.rmtree(self.path)

    def complete(self) -> list[Tree]:
        """Do what is left to do after a decision; gives the entrants of a race that is not decided."""
        entrants = self.read_entrants()
        race = TrainingPlan.from_tree(self.run.read_plan()).race if entrants else None
        if race is not None:
            if race.winner >= len(entrants):
                raise WeftError(f"plan.json and {self.path / ENTRANTS} are not of one race: {REMEDY}")
            self._adopt(PlannedTraining.from_tree(entrants[race.winner]))
        if race is not None or not entrants:
            self.remove()
            return []
        return entrants

    def _adopt(self, winner: PlannedTraining) -> None:
        assert winner.entrant is not None
        spec = self.run.read_spec()
        trees = {"model": winner.spec.to_tree(), "training": winner.options.to_tree()}
        self.run.write_spec(spec.replace(**trees))
        for name in MOVED:
            source = self.of(winner.entrant.name) / name
            if source.exists():
                os.replace(source, self.run.path / name)
