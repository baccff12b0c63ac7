"""The law of the entries, and the identity that a skip adds."""

import pytest
import torch

from symlab.models.random_matrix import random_matrix


def draw(seed, **keys):
    return random_matrix((2, 200), 400, torch.Generator().manual_seed(seed), **keys)


def test_entries_are_uniform():
    state = torch.get_rng_state()
    (weight,) = draw(0).parameters()
    assert (weight.dtype, tuple(weight.shape)) == (torch.float32, (400, 400))
    entries = weight.detach().double().flatten() * 20  # in (-1, 1)
    assert float(entries.abs().max()) == pytest.approx(1, abs=1e-4)
    assert float(entries.mean()) == pytest.approx(0, abs=0.005)
    assert float(entries.var()) == pytest.approx(1 / 3, abs=0.004)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_skip_adds_the_identity():
    x = torch.randn(3, 2, 200)
    plain, skip = draw(1), draw(1, skip=True)
    torch.testing.assert_close(plain.linear.weight, skip.linear.weight, rtol=0, atol=0)
    torch.testing.assert_close(skip(x), x.flatten(1) + plain(x))
    torch.testing.assert_close(plain(x), x.flatten(1) @ plain.linear.weight.T)
    assert not torch.equal(draw(2).linear.weight, plain.linear.weight)


def test_it_must_be_square():
    with pytest.raises(ValueError, match="as many inputs as outputs, the data have 6 and 5"):
        random_matrix((6,), 5, torch.Generator())
