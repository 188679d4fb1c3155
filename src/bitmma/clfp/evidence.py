"""All that the box has answered so far, and how many of the answers a model gets wrong."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import numpy as np

from bitmma import engine
from bitmma.clfp.box import Box, Codes, Dots
from bitmma.clfp.inputs import same
from bitmma.models import Model

__all__ = ["Evidence", "predict", "predict_calls"]


def predict(box: Box, model: Model, x: Dots) -> Codes:
    """What the model makes of dot products: codes (N,)."""
    return _evaluated(engine.dpa, box, model, x)


def predict_calls(box: Box, model: Model, x: Dots) -> Codes:
    """The same of whole calls, as `Box.tiles` makes them: codes (calls, m, n)."""
    return _evaluated(engine.mma, box, model, x)


def _evaluated(run: Callable[..., Codes], box: Box, model: Model, x: Dots) -> Codes:
    start = perf_counter()
    scales = {"scale_a": x.scale_a, "scale_b": x.scale_b}
    try:
        return run(model, x.a, x.b, x.c, **scales, **box.engine_arguments())
    finally:
        box.engine_seconds += perf_counter() - start


#: Rows that are tried first: most wrong models fail on these.
_FIRST = 256
#: Before them so many rows that models failed on which were nearly right: less than one in so many.
_HARD, _NEARLY = 96, 20


class Evidence:
    """Dot products with the box's answers; every candidate has to reproduce them all.

    Attributes:
        answers: the box's, codes (N,). evaluated: how many models were asked for theirs.
    """

    def __init__(self, box: Box) -> None:
        self.box = box
        self._dots: Dots | None = None
        self.answers: Codes = np.empty(0, box.formats[3].code_dtype)
        self._scores: dict[Model, int] = {}
        self.evaluated = 0
        self._hard: Codes = np.empty(0, np.int64)  # rows, the latest first
        self._hard_dots: Dots | None = None

    @property
    def dots(self) -> Dots:
        assert self._dots is not None, "nothing was asked yet"
        return self._dots

    @property
    def count(self) -> int:
        return len(self.answers)

    def add(self, x: Dots, d: Codes) -> None:
        """More answers, shuffled in: the first rows are a sample of all."""
        if not x.count:
            return
        joined = x if self._dots is None else Dots.join([self._dots, x])
        order = np.random.default_rng(joined.count).permutation(joined.count)
        self._dots, self.answers = joined[order], np.concatenate([self.answers, d])[order]
        self._scores.clear()
        self._hard = np.argsort(order)[self._hard]

    def wrong(self, model: Model, limit: int | None = None) -> int:
        """How many answers the model does not give; all of them where it cannot be asked.

        With a ``limit``, some number above it where there are clearly more wrong ones.
        """
        if model in self._scores:
            return self._scores[model]
        self.evaluated += 1
        if limit is not None and self._hard_dots is not None:
            hard = self._differ(model, self._hard_dots, self.answers[self._hard])
            if (count := int(hard.sum())) > limit:
                return count
        first = self._differ(model, self.dots[:_FIRST], self.answers[:_FIRST])
        if limit is not None and self.count > _FIRST:
            # Twice the share that the limit is, and three standard deviations.
            share, count = limit * _FIRST / self.count, int(first.sum())
            if count > (2 * share + 3 * share**0.5 if limit else 0):
                return max(limit + 1, count)
        rest = self._differ(model, self.dots[_FIRST:], self.answers[_FIRST:])
        rows = np.flatnonzero(np.concatenate([first, rest]))
        self._scores[model] = len(rows)
        if 0 < len(rows) * _NEARLY < self.count:
            self._learn_hard(rows)
        return len(rows)

    def fits(self, model: Model) -> bool:
        """Whether the model reproduces every answer."""
        return self.wrong(model, 0) == 0

    def _learn_hard(self, rows: Codes) -> None:
        """What tells the nearly right from the right is asked first from now on."""
        new = rows[~np.isin(rows, self._hard)][: _HARD // 2]
        if len(new):
            self._hard = np.concatenate([new, self._hard])[:_HARD]
            self._hard_dots = self.dots[self._hard]

    def _differ(self, model: Model, x: Dots, want: Codes) -> Codes:
        """Which of some answers the model does not give."""
        if not len(want):
            return np.zeros(0, bool)
        try:
            got = predict(self.box, model, x)
        except ValueError:  # scales of another size, a K that is not the tree's
            return np.ones(len(want), bool)
        wrong: Codes = ~same(self.box.formats[3], got, want, nan=model.nan == "quiet")
        return wrong
