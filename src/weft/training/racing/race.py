"""A race of sizes: the most promising ones train for a share of the time, and their held-out losses decide.

Each entrant is the ordinary training of its own full plan, so its first steps are those of the training that it would
be: the winner goes on from where it is. At the end of a rung the entrants are compared by the losses to be expected at
their ends (`standing`), all on the same held-out tokens (`race_data`), and the better half goes on; an entrant that is
clearly ahead ends the race early. Entrants take turns, several in a rung, so that a machine which becomes slower meets
all of them.

Of several processes all take part in every step, and the first one decides. Where processes hold parts of the model
there is no race: such models are large, and several at once would not fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from weft.foundation.spec import Tree
from weft.tasks.task import Split
from weft.training.guards import TrainingError
from weft.training.loop import Loop
from weft.training.loop_setup import LoopSetup
from weft.training.planning.planned_training import PlannedTraining
from weft.training.racing.race_data import held_back
from weft.training.racing.race_folder import RaceFolder
from weft.training.racing.race_record import RaceEntrant, RacePoint, RaceRecord
from weft.training.racing.rungs import LOOK_SHARE, LOOKS, MOST_SHARE, RUNGS, survivors
from weft.training.racing.standing import Curve, standing
from weft.training.reporting import Reporter

EVALUATIONS = 1.05  # seconds of a training per second of its steps


@dataclass
class Runner:
    """An entrant on its way, and the data it is `judged` on; `error` if its training failed."""

    planned: PlannedTraining
    loop: Loop
    judged: Split
    points: list[RacePoint] = field(default_factory=list)
    extrapolated: float | None = None
    uncertain: float | None = None
    error: TrainingError | None = None

    @property
    def entrant(self) -> RaceEntrant:
        """As it is on record."""
        assert self.planned.entrant is not None
        points = [point.to_tree() for point in self.points]
        return self.planned.entrant.replace(points=points, extrapolated=self.extrapolated, uncertain=self.uncertain)

    def curve(self, seconds: float) -> Curve:
        """Its losses, and the tokens that it will have read if it is given so many seconds more."""
        assert self.planned.entrant is not None
        plan, loop = self.planned.plan, self.loop
        steps = loop.step + max(0.0, seconds - loop.pace.costs(plan).final) / (EVALUATIONS * max(loop.pace.step, 1e-9))
        steps = steps if plan.most_steps is None else min(steps, max(loop.step, plan.most_steps))
        points = [(point.tokens, point.loss) for point in self.points]
        return Curve(points, steps * plan.batch, self.planned.entrant.expected)


class Race:
    """Trains entrants by turns until one is left; they come in the order in which the formula ranks them."""

    def __init__(
        self, setup: LoopSetup, folder: RaceFolder, entrants: Sequence[PlannedTraining], started: float
    ) -> None:
        self.setup, self.folder, self.started = setup, folder, started
        if setup.distribution.leads:
            folder.empty()
        self.runners = [self._enter(planned) for planned in entrants]
        plans = [planned.plan for planned in entrants]
        self.size = max(plan.batch for plan in plans)
        self.most = max(1, int(LOOK_SHARE * min(plan.evaluate_tokens for plan in plans)))
        self.budget, self.scale = plans[0].budget, 0.0

    def _enter(self, planned: PlannedTraining) -> Runner:
        assert planned.entrant is not None
        folder = self.setup.distribution.open_folder(self.folder.of(planned.entrant.name))
        if self.setup.distribution.leads:
            folder.path.mkdir()
        loop = self.setup.loop(planned, folder, self.setup.build(planned.spec), Reporter())
        return Runner(planned, loop, held_back(loop.train) if planned.plan.held_back_until else loop.validation)

    def run(self) -> PlannedTraining:
        """The winner by its plan, with the race on record; its training state is in its folder."""
        clock, leaders = self.setup.clock, self.setup.distribution.leaders
        began, racing, done = clock(), self.runners, 0.0
        shares = RUNGS[len(racing)]
        for rung, share in enumerate(shares):
            self.setup.reporter.on_stage(f"racing {', '.join(runner.entrant.name for runner in racing)}")
            late = False
            for look in range(1, LOOKS + 1):
                racing = self._advance(racing, done + (share - done) * look / LOOKS)
                late = leaders(clock() - began) > MOST_SHARE * self.budget
                if late:
                    break
            racing, done = self._better_part(racing, rung, late or share == shares[-1]), share
            if len(racing) == 1:
                break
        return self._decided(racing[0], leaders(clock() - began))

    def _advance(self, racing: Sequence[Runner], share: float) -> list[Runner]:
        """Each trains on until this share of its steps, and its loss is taken; gives those whose training works."""
        for runner in racing:
            loop, plan = runner.loop, runner.planned.plan
            self.setup.distribution.turn_to(loop.spread_module)
            with self.setup.threads(plan):
                try:
                    loop.run(until=max(1, math.ceil(share * plan.steps)))
                except TrainingError as error:  # by a norm that all processes have
                    runner.error = error
                    continue
                if loop.stop_reason == "interrupt":
                    raise KeyboardInterrupt
                loss = loop.loss_on(runner.judged, self.size, self.most)
            if math.isfinite(loss):
                seconds, tokens = round(loop.seconds, 3), loop.step * plan.batch
                runner.points.append(RacePoint(seconds=seconds, tokens=tokens, loss=loss))
            else:
                runner.error = TrainingError(
                    f"step {loop.step}: the held-out loss is {loss}: try a lower learning rate"
                )
        working = [runner for runner in racing if runner.error is None]
        if not working:
            failed = racing[0].error
            assert failed is not None
            raise failed
        return working

    def _better_part(self, racing: Sequence[Runner], rung: int, last: bool) -> list[Runner]:
        """Those that go on after a rung, as the first process finds; one after the last rung, or if it is clear."""
        found = self.setup.distribution.agree(f"race {rung}", lambda: self._standing(racing))
        for runner, loss, error in zip(racing, found["losses"], found["errors"], strict=True):
            runner.extrapolated, runner.uncertain = loss, error
        self.scale = found["scale"]
        count = 1 if last or found["clear"] else survivors(len(racing))
        return [racing[number] for number in sorted(found["order"][:count])]

    def _standing(self, racing: Sequence[Runner]) -> Tree:
        left = self.budget - (self.setup.clock() - self.started)
        unique = max(1, self.setup.prepared.train.tokens)
        return asdict(standing([runner.curve(left) for runner in racing], unique))

    def _decided(self, winner: Runner, seconds: float) -> PlannedTraining:
        """Write the winner's state, and give its plan the record."""
        plan, loop = winner.planned.plan, winner.loop
        self.setup.distribution.turn_to(loop.spread_module)
        with self.setup.threads(plan):
            loop.checkpoint()
        record = RaceRecord(
            entrants=tuple(runner.entrant for runner in self.runners),
            winner=self.runners.index(winner),
            seconds=round(seconds, 3),
            scale=self.scale,
        )
        before = self.setup.distribution.leaders(self.setup.clock() - self.started - loop.seconds)
        self.setup.reporter.on_race(record.describe())
        return winner.planned.with_plan(plan.replace(race=record.to_tree(), before=max(0.0, before)))
