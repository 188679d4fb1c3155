"""The closed loop: `probe`.

Steps 1 to 3 (assumptions, tree, features) give readings, step 4 the models that reproduce every
answer so far, step 5 tests them. A mismatch is shrunk and becomes one more answer to reproduce; two
models left are told apart by searching, with the fast engine, an input on which they differ, and
asking the box. The claim at the end is no larger than what was tested.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from bitmma import BITS_VERSION, isa
from bitmma.clfp import assumptions
from bitmma.clfp.assumptions import NoFunction, example
from bitmma.clfp.box import BlackBox, Box, BoxError, Codes, Dots
from bitmma.clfp.equivalence import canonical, kind, reasons
from bitmma.clfp.evidence import Evidence, predict, predict_calls
from bitmma.clfp.features import ALIGNMENT, PROBES, Bench
from bitmma.clfp.inputs import Sample, aimed, coverage, neutral, outliers, same, sparse
from bitmma.clfp.journal import Journal
from bitmma.clfp.numbers import spread
from bitmma.clfp.report import Report, Turn
from bitmma.clfp.separating import separating
from bitmma.clfp.shrink import shrink
from bitmma.clfp.space import EFFORTS, Space
from bitmma.clfp.sum_features import SUM_PROBES
from bitmma.clfp.tree import Node, binary, read_tree, text
from bitmma.models import FDPA, FMA, FTZMulAdd, Model, SumTree
from bitmma.unit import Instruction

__all__ = ["Progress", "probe"]

_TURNS = 24
#: With a model found, other starts are followed if less than one answer in so many is wrong.
_NEAR = 50
#: Where no model fits but some nearly do: how often more is asked, and from how many to go on.
_CLOSER, _NEAREST = 3, 2
#: The space is not widened once so many models have been tried.
_EVALUATED = 150_000
_RIVALS = 64
#: Products of models compared with each other in one search, at the most, and how many searches;
#: and in a search for what tells the nearest from those beside them.
_SEARCHED, _BESIDE = 1 << 25, 1 << 23
_SEARCHES = 24
#: A million outputs are of rows and columns drawn for them; of more, each call's rows also meet the
#: columns of other calls, so many in all.
_FRESH, _MEETINGS = 1_000_000, 64
#: Models of a few of the machine's own operations: by default compared on more outputs, for they
#: cost little, and so many times as many.
_QUICK, _TIMES = (FMA, FTZMulAdd), 2
#: How many values of the general model a published family is compared with.
_OUTSIDERS = 16
#: Dot products traced for coverage, and products of all of them.
_TRACED, _TRACED_PRODUCTS = 256, 1 << 14
#: Outputs of one round of the differential test, and products of all of them.
_CHUNK, _CHUNK_PRODUCTS = 1 << 20, 1 << 25


@dataclass(frozen=True)
class Progress:
    """Where a probe is.

    Attributes:
        step: "assumptions", "tree", "features", "models", "loop", "differential test".
        done, total: of that step; total 0 where it is not known.
        text: what is being done.
    """

    step: str
    done: int
    total: int
    text: str


def probe(
    box: BlackBox | Instruction,
    *,
    inputs: int | None = None,
    seed: int = 0,
    limit: float = 60.0,
    progress: Callable[[Progress], object] | None = None,
    checkpoint: str | Path | None = None,
) -> Report:
    """Find the arithmetic of a matrix unit, or of any function that multiplies and accumulates.

    Args:
        box: an instruction (whose name and model are not looked at), or a `BlackBox`.
        inputs: outputs to be compared with the model at the end; fewer make every step smaller,
            for slow boxes. By default 32,000,000 of an instruction (64,000,000 where the model
            found is FMA or FTZ-MulAdd), 4,000,000 of a box that takes batches, else 1,000,000.
        seed: of the random inputs.
        limit: seconds that one call of the box may take.
        progress: called with a `Progress` now and then.
        checkpoint: a file that keeps the box's answers: after an interrupt the same call goes on
            where it was. It is not deleted: a finished probe is repeated from it. The first, the
            last and an eighth of its answers, 32 at most, are asked of the box again, for it may be
            another one by now.

    Returns:
        A `Report`, whatever the box does: one that raises, hangs or returns no D ends as "invalid",
        with the reason and what was found until then.

    Raises:
        TypeError, ValueError: a wrong argument, or a checkpoint that is of another probe or
            another function, or corrupted.

    Source: Xie et al., arXiv 2511.10909v2, section 3 (closed-loop feature probing).
    """
    spec = BlackBox.of(box)
    times = _TIMES if inputs is None and isinstance(box, Instruction) else 1
    if inputs is None:
        inputs = (
            32_000_000 if isinstance(box, Instruction) else 4_000_000 if spec.batched else 1_000_000
        )
    for name, value, low in (("inputs", inputs, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {value!r}")
        if value < low:
            raise ValueError(f"{name} must be {low} or more, not {value}")
    if not limit > 0:
        raise ValueError(f"limit must be more than 0 seconds, not {limit!r}")
    if not isinstance(checkpoint, str | os.PathLike | None):
        raise TypeError(f"checkpoint must be a path or None, not {checkpoint!r}")
    shape = {x: getattr(spec, x) for x in ("name", *"mnkabcd", "scale", "block")}
    about = {**shape, "inputs": inputs, "seed": seed, "bitmma_probe": 2}
    with contextlib.ExitStack() as stack:
        journal = None if checkpoint is None else Journal(checkpoint, about)
        if journal is not None:
            stack.callback(journal.close)
        asked = Box(spec, limit, journal)
        stack.callback(asked.close)
        report = Report(shape, seed=seed, bits_version=BITS_VERSION)
        start = perf_counter()
        run = _Run(asked, report, inputs, times, seed, progress or (lambda _: None))
        try:
            run.all_steps()
        except NoFunction as found:
            report.status, report.reason = "invalid", found.reason
            report.counterexamples = found.evidence
        except BoxError as error:
            report.status, report.reason = "invalid", str(error)
        if report.status == "invalid":
            report.model, report.candidates = None, []
        report.history.append(Turn("end", f"{report.status}: {report.reason}"))
        seconds = perf_counter() - start
        report.cost = {
            "calls": asked.calls, "dots": asked.dots, "box_seconds": asked.seconds,
            "engine_seconds": asked.engine_seconds,
            "python_seconds": seconds - asked.seconds - asked.engine_seconds,
        }  # fmt: skip
    return report


class _Run:
    """One probe under way."""

    def __init__(
        self,
        box: Box,
        report: Report,
        inputs: int,
        times: int,
        seed: int,
        progress: Callable[[Progress], object],
    ) -> None:
        self.box, self.report, self.inputs, self.seed = box, report, inputs, seed
        self.times = times  # as many inputs for quick models
        self.progress = progress
        self.evidence = Evidence(box)
        self.space: Space
        self.stages: Iterator[tuple[str, list[Model]]]
        self.drawn = 0  # seeds used
        self.best: Model | None = None  # the nearest so far
        self.good: list[Model] = []  # what the last search found

    def note(self, step: str, what: str) -> None:
        self.report.history.append(Turn(step, what))
        self.progress(Progress(step, 0, 0, what))

    def all_steps(self) -> None:
        with self.box.during("assumptions"):
            self.note("assumptions", assumptions.check(self.box, self.inputs, self.seed))
        with self.box.during("tree"):
            reading = read_tree(self.box)
        self.report.tree, self.report.tree_note = reading.tree, reading.note
        shown = reading.note if reading.tree is None else text(reading.tree, self.box.k)
        cost = f"{reading.measured} pairs in {reading.calls} calls, {reading.binades} binades"
        self.note("tree", f"{shown} ({cost})")
        bench = Bench(self.box, reading.tree)
        plain = isinstance(reading.tree, Node) and binary(reading.tree)
        probes = [*(SUM_PROBES if plain else []), *PROBES]
        for i, ask in enumerate(probes):
            self.progress(Progress("features", i, len(probes), ask.name))
            found = ask(bench)
            if not plain or ask.name not in ALIGNMENT:
                self.report.features.append(found)
        self.evidence.add(Dots.join(bench.asked), np.concatenate(bench.answers))
        self.note("features", f"{len(probes)} probes, {self.evidence.count} dot products")
        with self.box.during("random dot products"):
            self.learn(aimed(self.box, neutral(self.box), self.share(1500), self.fresh()))
            self.learn(outliers(self.box, self.share(200), self.fresh()))
            self.learn(sparse(self.box, neutral(self.box), self.share(400), self.fresh()))
            self.learn(separating(self.box, [neutral(self.box)], self.share(1500), self.fresh()))
        self.space = Space(self.box, reading.tree, bench.facts)
        self.stages = self.space.stages()
        self.loop()

    def share(self, count: int) -> int:
        """So many, or fewer where few inputs were asked for."""
        return max(50, min(count, self.inputs // 50))

    def fresh(self) -> int:
        self.drawn += 1
        return 1000 * self.seed + self.drawn

    def learn(self, x: Dots) -> Codes:
        d = self.box.dot(x)
        self.evidence.add(x, d)
        return d

    # --- the loop ---------------------------------------------------------------------------------

    def loop(self) -> None:
        models: list[Model] = []
        for _ in range(_TURNS):
            models = [m for m in models if self.evidence.fits(m)]
            if not models:
                models = self.search()
            if not models:
                return self.unexplained()
            models = self.separate(models)
            if models:
                self.challenge(models[0])
                models = [m for m in models if self.evidence.fits(m)]
            if models and self.agrees(models[0]):
                models = [m for m in models if self.evidence.fits(m)]
                return self.conclude(models)
        self.note("loop", f"no end after {_TURNS} turns")
        return self.unexplained()

    def search(self) -> list[Model]:
        """Step 4: models that reproduce every answer; the space widens until there are some."""
        nearest = [] if self.best is None else [self.best]
        until_now = list(dict.fromkeys([*nearest, *self.good]))  # what was right
        for found in self.nearer(until_now, 1) if until_now else []:
            if self.evidence.fits(found):
                self.note("models", f"{found!r} reproduces all {self.evidence.count} answers")
                self.best = found
                return [found]
        for name, starts in self.stages:
            if self.evidence.evaluated > _EVALUATED:
                self.note("models", f"{self.evidence.evaluated} models were tried; it ends here")
                return []
            self.note("models", f"{name}: {len(starts)} starts")
            ends = self.nearer(starts)
            good = [m for m in ends if self.evidence.fits(m)]
            for m in ends:
                wrong = self.evidence.wrong(m)
                if self.best is None or wrong < self.evidence.wrong(self.best):
                    self.best = m
                self.note("models", f"{m!r}: {wrong} of {self.evidence.count} answers wrong")
            if good:
                self.best, self.good = good[0], good
                return good
        return []

    def nearer(self, starts: Sequence[Model], first: int = 0) -> list[Model]:
        """Where searches end, with more answers that tell the nearest apart if no model fits."""
        ends = self.explored(starts, first)
        for turn in range(_CLOSER):
            asked = self.beside(ends, turn)
            if asked is None or self.evidence.evaluated > _EVALUATED:
                break
            self.learn(asked)
            self.note("models", f"{asked.count} dot products made for telling the nearest apart")
            ends = self.explored(sorted(ends, key=self.evidence.wrong)[:_NEAREST], 1)
        return ends

    def explored(self, starts: Sequence[Model], first: int = 0) -> list[Model]:
        """Where searches from these starts end, each with no more effort than is needed."""
        ends = dict.fromkeys(starts)
        for effort, most in list(enumerate(EFFORTS.values()))[first:]:
            starts = sorted(ends, key=self.evidence.wrong)[:most]
            if effort and starts and isinstance(starts[0], SumTree):  # trees have many neighbours
                share = self.evidence.count // _NEAR
                starts = [x for x in starts if self.evidence.wrong(x) < share] or starts
            ends, fitting = {}, set[type[Model]]()
            for start in starts:
                if type(start) in fitting and type(start) not in (FDPA, SumTree):
                    continue  # `closure` varies their few parameters
                near = self.evidence.wrong(start) * _NEAR < self.evidence.count
                if near or not fitting:
                    end = self.space.descend(start, self.evidence, effort)
                    ends[end] = None
                    if self.evidence.fits(end):
                        fitting.add(type(end))
            if fitting:
                break
        return list(ends)

    def beside(self, ends: Sequence[Model], turn: int) -> Dots | None:
        """Where no model fits but one nearly does: dot products that tell it from those next to it.

        Where parameters hide each other few answers depend on any of them, and a search sees no
        way on. With more answers that do it does.
        """
        nearest = sorted(ends, key=self.evidence.wrong)[:_NEAREST]
        wrong = self.evidence.wrong(nearest[0]) if nearest else 0
        if not 0 < wrong * _NEAR < 2 * self.evidence.count:
            return None
        models = [*nearest, *self.space.beside(nearest[0])]
        size = max(50, min(3000, _BESIDE // (len(models) * self.box.k)))
        return self.disagreement(models, size, turn)

    def separate(self, models: list[Model]) -> list[Model]:
        """All that agree so far and lie next to each other, told apart as far as can be."""
        rivals = self.closure(models)
        size, complete = 2000, True
        for turn in range(_SEARCHES):
            if len(rivals) == 1 and complete:
                break
            asked = self.disagreement(rivals, size, turn) if len(rivals) > 1 else None
            if asked is None and not complete:
                rivals, complete = self.closure(rivals), True
            elif asked is None:
                size *= 3
                if size * len(rivals) * self.box.k > _SEARCHED:
                    break
            else:
                self.keep_inputs(asked, self.learn(asked))
                left = [m for m in rivals if self.evidence.fits(m)]
                self.note(
                    "loop",
                    f"{asked.count} dot products on which {len(rivals)} models differ: "
                    f"{len(left)} of them left",
                )
                if not left:
                    return []
                rivals, complete = left, False
        return rivals

    def challenge(self, model: Model) -> None:
        """Ask where a family, or an exact sum, differs from what is like it, but none of its kind.

        These are too many to be told apart from it each; what tells some of them from it tells
        others, which the box may be.
        """
        kinds = {kind(x, self.box): x for x in self.space.outsiders(model, self.evidence)}
        kinds.pop(kind(model, self.box), None)
        others = spread(list(kinds.values()), _OUTSIDERS)
        if not others:
            return
        size = max(400, min(6000, _BESIDE // (len(others) * self.box.k)))
        tries = Dots.join([
            separating(self.box, [model, *others], size, self.fresh()),
            *(separating(self.box, [model, x], size // 4, self.fresh()) for x in others),
        ])  # fmt: skip
        asked = self.telling([model, *others], tries)
        if asked is not None:
            self.keep_inputs(asked, self.learn(asked))
            told = (
                f"{asked.count} dot products on which it differs from {len(others)} others like it"
            )
            self.note("loop", f"{model!r}: {told}")

    def closure(self, models: list[Model]) -> list[Model]:
        """These and the first's neighbours that reproduce every answer, one of each kind."""
        found: dict[Model, Model] = {}
        for m in [*models, *self.space.rivals(models[0], self.evidence)]:
            found.setdefault(kind(m, self.box), m)
        return list(found.values())[:_RIVALS]

    def disagreement(self, rivals: list[Model], size: int, turn: int) -> Dots | None:
        """Dot products that tell rivals from the first, a few each: random bits, which cost least,
        or else made for it and drawn around the models.
        """
        aim = rivals[turn % len(rivals)]
        found = self.telling(rivals, aimed(self.box, aim, 4 * size, self.fresh(), "bits"))
        return found or self.telling(rivals, Dots.join([
            separating(self.box, rivals, size, self.fresh()),
            separating(self.box, [rivals[0], aim], size // 4, self.fresh()),
            aimed(self.box, aim, size // 2, self.fresh()),
            sparse(self.box, aim, size // 2, self.fresh()),
        ]))  # fmt: skip

    def telling(self, rivals: list[Model], tries: Dots) -> Dots | None:
        """Of these the ones on which rivals differ from the first."""
        first = rivals[0]
        base = predict(self.box, first, tries)
        found: list[Dots] = []
        for other in rivals[1:]:
            guess = predict(self.box, other, tries)
            nan = "quiet" in (first.nan, other.nan)
            places = np.flatnonzero(~same(self.box.formats[3], base, guess, nan=nan))
            if len(places):
                found.append(tries[places[:: max(1, len(places) // 8)][:8]])
        return Dots.join(found) if found else None

    def keep_inputs(self, x: Dots, d: Codes) -> None:
        """Discriminating inputs are kept for the suite."""
        room = 200 - len(self.report.inputs)
        self.report.inputs += [
            example(x, i, d[i], d[i], "told models apart") for i in range(min(room, x.count))
        ]

    # --- the differential test --------------------------------------------------------------------

    def agrees(self, model: Model) -> bool:
        """Step 5: bit against bit on all inputs; what differs is learnt."""
        inputs = self.inputs * (self.times if isinstance(model, _QUICK) else 1)
        with self.box.during("differential test"):
            tested = drawn = 0
            per_call = self.box.spec.m * self.box.spec.n
            r = min(self.box.spec.m, self.box.spec.n)
            cost = self.box.k * (4 if isinstance(model, SumTree) else 1)  # each node is traced
            sample = Sample(max(24, min(_TRACED, _TRACED_PRODUCTS // cost)))
            meetings = max(1, min(_MEETINGS, inputs // _FRESH))
            size, most = 4096, max(4096, min(_CHUNK, _CHUNK_PRODUCTS // self.box.k))
            while tested < inputs:
                fresh = min(size, -(-(inputs - tested) // meetings))
                count = max(r, fresh * r // per_call)
                x = aimed(self.box, model, count - count // 8, self.fresh())
                x = Dots.join([x, outliers(self.box, count // 8, self.fresh())])
                x = Dots.join([x, separating(self.box, [model], count // 4, self.fresh())])
                calls = self.box.tiles(x)
                for met in calls.meetings(meetings):
                    want = predict_calls(self.box, model, met)
                    for part, d in self.box.answers(met):
                        equal = same(self.box.formats[3], d, want[part], nan=model.nan == "quiet")
                        tested += d.size
                        if equal.all():
                            continue
                        wrong = np.argwhere(~equal)
                        places = self.box.pick(met[part], wrong[:64])
                        self.refuted(model, places, d[tuple(wrong[:64].T)])
                        self.note(
                            "differential test",
                            f"{model!r}: {len(wrong)} of the last {d.size} outputs differ",
                        )
                        return False
                    self.progress(Progress("differential test", tested, inputs, "bit against bit"))
                drawn += x.count
                sample.add(x)
                size = min(16 * size, most)
        self.note("differential test", f"{model!r}: {tested} outputs, no difference")
        self.report.tested = tested
        self.report.coverage = coverage(self.box, model, sample.picked)
        sure = 0.05 ** (1 / drawn)
        self.report.confidence = (
            f"agrees on {tested:,} outputs, {drawn:,} of them drawn independently: on inputs like "
            f"these the model is right at least {100 * sure:.{_digits(1 - sure)}f}% of the time, "
            "with 95% confidence"
        )
        return True

    def refuted(self, model: Model, x: Dots, d: Codes) -> None:
        """A mismatch: is the box a function? Then shrink it, and learn both."""
        again = self.box.dot(x)
        moved = np.flatnonzero(~same(self.box.formats[3], again, d))
        if len(moved):
            i = int(moved[0])
            # Either the same again would change, or the place matters.
            assumptions.ask_again(self.box, x, again)
            raise NoFunction(
                "the same dot product gives different bits in different calls or places",
                [example(x, i, d[i], again[i], "the same dot product, asked again")],
            )
        assumptions.ask_again(self.box, x[:8], again[:8])
        self.evidence.add(x, again)

        def differ(y: Dots) -> Codes:
            got, want = self.box.dot(y), predict(self.box, model, y)
            wrong: Codes = ~same(self.box.formats[3], got, want, nan=model.nan == "quiet")
            return wrong

        small = shrink(self.box, x[:1], differ)
        got, want = self.box.dot(small), predict(self.box, model, small)
        found = example(small, 0, got[0], want[0], repr(model))
        self.report.counterexamples.append(found)
        self.note("loop", "minimal counterexample:" + self.report.shown(found))
        self.evidence.add(small, got)

    # --- the end ----------------------------------------------------------------------------------

    def unexplained(self) -> None:
        best = self.best
        self.report.status = "unexplained"
        self.report.reason = "no model of the space reproduces every answer"
        if best is not None:
            wrong = self.evidence.wrong(best)
            self.report.reason += (
                f"; the nearest, {best!r}, gets {wrong} of {self.evidence.count} wrong"
            )
            if wrong and not self.report.counterexamples:
                got = predict(self.box, best, self.evidence.dots)
                bad = np.flatnonzero(~same(self.box.formats[3], got, self.evidence.answers))
                if len(bad):
                    x, d = self.evidence.dots[bad[:1]], self.evidence.answers[bad[:1]]
                    with self.box.during("shrinking"):
                        self.refuted(best, x, d)
        self.report.counterexamples = self.report.counterexamples[-8:]

    def conclude(self, models: list[Model]) -> None:
        models = [self.published(m) for m in models]
        best = models[0]
        self.report.model, self.report.candidates = best, models
        self.report.equivalent = reasons(best, self.box)
        self.report.counterexamples = []
        if len(models) == 1:
            self.report.status = "verified"
            self.report.reason = f"{best!r} agrees with the box on {self.report.tested:,} outputs"
            return
        self.report.status = "ambiguous"
        fields = sorted(
            {
                f
                for m in models[1:]
                for f in vars(best)
                if type(m) is type(best) and getattr(m, f) != getattr(best, f)
            }
        )
        self.report.reason = (
            f"{len(models)} models agree with the box on everything asked, and no input was found "
            f"on which they differ; they differ in {', '.join(fields) or 'their family'}"
        )

    def published(self, model: Model) -> Model:
        """The catalogue's way to say the same, where it has one."""
        same_for_all = canonical(model, self.box)[0]
        for other in _catalogue_models():
            if type(other) is type(model) and canonical(other, self.box)[0] == same_for_all:
                return other
        return model


@functools.cache
def _catalogue_models() -> list[Model]:
    return list(dict.fromkeys(entry.model for entry in isa.catalogue()))


def _digits(share: float) -> int:
    """Decimals of a percentage that show what is missing to 100."""
    return max(0, int(np.ceil(-np.log10(share))) - 2) + 1
