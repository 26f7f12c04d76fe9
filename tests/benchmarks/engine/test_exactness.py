"""The engine's exactness: what counts as a near tie where two replies part."""

import pytest
import torch

from benchmarks.engine.exactness import margin_error


def test_the_error_of_a_margin_is_taken_where_tokens_are_likely_and_where_replies_part() -> None:
    truth = torch.tensor([[9.0, 8.0, 0.0, 0.0], [0.0, 1.0, 9.0, 2.0]])
    served = truth.clone()
    assert margin_error(truth, served, (0, 2)) == 0.0
    served[0, 3] += 5.0  # neither likely there nor asked about
    assert margin_error(truth, served, (0, 2)) == 0.0
    served[1, 0] += 0.25  # unlikely, but where the replies part
    assert margin_error(truth, served, (0, 2)) == pytest.approx(0.25)
    served[0, 1] -= 0.5  # the second likeliest elsewhere
    assert margin_error(truth, served, (0, 2)) == pytest.approx(0.5)
