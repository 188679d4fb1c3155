"""All that the box has answered so far, and how many of the answers a model gets wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from bitmma import engine
from bitmma.clfp.box import Box, Codes, Dots
from bitmma.clfp.inputs import same
from bitmma.models import Model

__all__ = ["Evidence", "predict", "predict_calls"]


def predict(box: Box, model: Model, x: Dots) -> Codes:
    """What the model makes of dot products: codes (N,)."""
    return engine.dpa(
        model, x.a, x.b, x.c, scale_a=x.scale_a, scale_b=x.scale_b, **box.engine_arguments()
    )


def predict_calls(box: Box, model: Model, x: Dots) -> Codes:
    """The same of whole calls, as `Box.tiles` makes them: codes (calls, m, n)."""
    return engine.mma(
        model, x.a, x.b, x.c, scale_a=x.scale_a, scale_b=x.scale_b, **box.engine_arguments()
    )


class Evidence:
    """Dot products with the box's answers; every candidate has to reproduce them all."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self._dots: list[Dots] = []
        self._answers: list[Codes] = []
        self._scores: dict[Model, int] = {}

    def add(self, x: Dots, d: Codes) -> None:
        if x.count:
            self._dots, self._answers = [Dots.join([*self._dots, x])], [
                np.concatenate([*self._answers, d])
            ]
            self._scores.clear()

    @property
    def dots(self) -> Dots:
        return self._dots[0]

    @property
    def answers(self) -> Codes:
        return self._answers[0]

    def wrong(self, model: Model) -> int:
        """How many answers the model does not give; all of them where it cannot be asked."""
        if model not in self._scores:
            try:
                got = predict(self.box, model, self.dots)
            except ValueError:  # scales of another size, a K that is not the tree's
                self._scores[model] = self.dots.count
                return self.dots.count
            right = same(self.box.formats[3], got, self.answers, nan=model.nan == "quiet")
            self._scores[model] = int(self.dots.count - right.sum())
        return self._scores[model]

    def refuted(self, models: list[Any]) -> list[Any]:
        return [model for model in models if self.wrong(model)]
