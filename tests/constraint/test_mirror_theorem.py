"""The four statements on mirror symmetric losses, on smooth nets in float64: gradient, invariance, Hessian, decay."""

from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor, nn

from symlab.constraint.mirror import Mirror, MirrorSymmetry, exchange_mirror, rescaling_mirror
from symlab.constraint.mirror_check import Function, function_of_parameters, random_point
from symlab.constraint.mirror_of_model import negated_swap, rotation_mirror, sign_flip, swap
from symlab.symmetry.groups import Group
from symlab.symmetry.infer import infer_symmetry
from symlab.symmetry.weight_symmetry import WeightSymmetry
from tests import reference_mirror as reference
from tests.constraint.nets import as_point, batch, flat, mlp, of_vector, shapes_of

Case = tuple[Function, Mirror, dict[str, tuple[int, ...]]]
X, Y = batch()


def of_net(activation: nn.Module, make: Callable[..., Mirror], *units: int) -> Case:
    model = mlp(activation)
    function = function_of_parameters(model, nn.functional.mse_loss, X, Y)
    return function, make(infer_symmetry(model, X), "0.weight:0", *units), shapes_of(model)


def of_product() -> Case:
    shapes = {"U": (3, 4), "W": (4, 2)}
    direction = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    return lambda p: (X @ p["U"] @ p["W"] - Y).square().mean(), rotation_mirror(shapes, "U", "W", direction), shapes


def of_elementwise(mirror: Callable[..., Mirror]) -> Case:
    shapes = {"u": (3, 2), "w": (3, 2)}
    return lambda p: (X @ (p["u"] * p["w"]) - Y).square().mean(), mirror(shapes, "u", "w", (1, 0)), shapes


def of_any_loss() -> Case:
    """l(theta) + l(R theta) has the mirror R, whatever l is."""
    shapes = {"a": (3, 2), "b": (4,)}
    weights = torch.randn(10, 10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mirror = MirrorSymmetry(torch.linalg.qr(weights[:, :3])[0], shapes)
    own = lambda p: (weights @ flat(p)).cos().sum()  # noqa: E731
    return lambda p: own(p) + own(mirror.reflect(p)), mirror, shapes


CASES: dict[str, Case] = {
    "equal neurons, softplus": of_net(nn.Softplus(), swap, 0, 2),
    "equal neurons, tanh": of_net(nn.Tanh(), swap, 1, 3),
    "opposite neurons, tanh": of_net(nn.Tanh(), negated_swap, 1, 3),
    "no neuron, tanh": of_net(nn.Tanh(), sign_flip, 1),
    "low rank": of_product(),
    "zero weight": of_elementwise(rescaling_mirror),
    "equal factors": of_elementwise(exchange_mirror),
    "any loss": of_any_loss(),
}
Loss = Callable[[Tensor], Tensor]
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def columns_of(mirror: Mirror, shapes: dict[str, tuple[int, ...]]) -> Tensor:
    """O [P, k] on all tensors `shapes`, in their order."""
    rows = iter(mirror.dense().split([torch.Size(mirror.shapes[n]).numel() for n in mirror.shapes]))
    parts = dict(zip(mirror.shapes, rows, strict=True))
    k = mirror.dense().shape[1]
    return torch.cat(
        [parts.get(n, torch.zeros(torch.Size(shape).numel(), k, dtype=torch.float64)) for n, shape in shapes.items()]
    )


def hessian(loss: Loss, theta: Tensor) -> Tensor:
    return torch.autograd.functional.hessian(loss, theta)


def decayed(loss: Loss, decay: float) -> Loss:
    return lambda theta: loss(theta) + decay * theta.square().sum()


def start(case: Case, seed: int = 0) -> dict[str, Tensor]:
    _, mirror, shapes = case
    return mirror.on(random_point(shapes, torch.Generator().manual_seed(seed)))


@each_case
def test_the_gradient_has_no_part_across_the_set(case: Case) -> None:
    """O^T g = 0 on the set, by autograd and by central differences; off the set it is not."""
    function, mirror, shapes = case
    O = columns_of(mirror, shapes)  # noqa: E741
    for shift, zero in ((0.0, True), (0.3, False)):
        theta = flat(start(case)) + shift * O.sum(1)
        gradient = torch.func.grad(of_vector(function, shapes))(theta)
        assert gradient.norm() > 1e-2
        assert ((O.mT @ gradient).norm() < 1e-13) == zero
        assert (flat(mirror.off(as_point(gradient, shapes))).norm() < 1e-13) == zero
        by_hand = reference.gradient(of_vector(function, shapes), theta)
        torch.testing.assert_close(by_hand, gradient, rtol=1e-5, atol=1e-8)


@each_case
def test_the_hessian_has_no_cross_terms(case: Case) -> None:
    """O^T H (I - O O^T) = 0 on the set, and not off it."""
    function, mirror, shapes = case
    O = columns_of(mirror, shapes)  # noqa: E741
    P = len(O)
    for shift, zero in ((0.0, True), (0.3, False)):
        H = hessian(of_vector(function, shapes), flat(start(case)) + shift * O.sum(1))
        cross = O.mT @ H @ (torch.eye(P, dtype=torch.float64) - O @ O.mT)
        assert H.norm() > 1e-2
        assert (cross.norm() < 1e-12 * H.norm()) == zero


@each_case
def test_sgd_stays_on_the_set(case: Case) -> None:
    """Momentum, weight decay and gradient steps: the distance stays that of rounding, while the weights move."""
    function, mirror, _ = case
    begin = start(case)
    point = {name: x.clone().requires_grad_() for name, x in begin.items()}
    optimizer = torch.optim.SGD(point.values(), lr=0.02, momentum=0.9, weight_decay=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        function(point).backward()
        optimizer.step()
    moved = flat(point).detach() - flat(begin)
    assert moved.norm() > 0.1
    assert float(mirror.distance({n: x.detach() for n, x in point.items()})) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [5, 9, 16])
def test_duplicated_neurons_stay_equal_bit_for_bit(dtype: torch.dtype, width: int) -> None:
    """Equal weights in and out stay equal to the last bit under SGD with momentum and decay, over noisy batches.

    Each neuron is a scalar computation here, so that both have the same order of summation by construction. (A BLAS
    product sums columns at the edge of its tiles in another order: then the two differ by rounding, see below.)
    """
    generator = torch.Generator().manual_seed(width)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype)  # noqa: E731
    w, b, v = draw(width, 7), draw(width), draw(width, 3)
    i, j = 1, width - 1
    for x in (w, b, v):
        x[j] = x[i]
    units = [[w[k].clone(), b[k].clone(), v[k].clone()] for k in range(width)]
    for tensor in (t for unit in units for t in unit):
        tensor.requires_grad_()
    optimizer = torch.optim.SGD([t for unit in units for t in unit], lr=0.05, momentum=0.9, weight_decay=0.01)
    before = [t.detach().clone() for t in units[i]]
    for _ in range(60):
        x, y = draw(11, 7), draw(11, 3)
        out = sum((x @ w_k + b_k).tanh()[:, None] * v_k for w_k, b_k, v_k in units)
        optimizer.zero_grad()
        (out - y).square().mean().backward()
        optimizer.step()
    for first, second, old in zip(units[i], units[j], before, strict=True):
        assert torch.equal(first, second)
        assert not torch.equal(first, old)
    assert not torch.equal(units[0][0], units[i][0])


def test_duplicated_neurons_of_a_linear_layer_stay_equal_to_rounding() -> None:
    torch.manual_seed(0)
    model = mlp(nn.Tanh(), inputs=7, hidden=9, outputs=3)
    twins = swap(infer_symmetry(model, torch.randn(4, 7).double()), "0.weight:0", 0, 8)
    model.load_state_dict(twins.on({n: p.detach() for n, p in model.named_parameters()}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for _ in range(100):
        x, y = torch.randn(11, 7).double(), torch.randn(11, 3).double()
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    assert float(twins.distance({n: p.detach() for n, p in model.named_parameters()})) < 1e-13


@pytest.mark.parametrize(("x", "y"), [(1.0, 0.7), (2.0, -0.4)])
def test_the_threshold_of_one_weight(x: float, y: float) -> None:
    """(u w x - y)^2 + decay (u^2 + w^2): zero is a minimum, near by and over all, exactly from decay = |x y| on."""
    shapes = {"u": (), "w": ()}
    O = rescaling_mirror(shapes, "u", "w").dense()  # noqa: E741
    for factor, favoured in ((0.98, False), (1.02, True)):
        decay = factor * abs(x * y)
        loss = decayed(lambda t: (t[0] * t[1] * x - y) ** 2, decay)
        H = O.mT @ hessian(loss, torch.zeros(2, dtype=torch.float64)) @ O
        assert bool((torch.linalg.eigvalsh(H) > 0).all()) == favoured
        sign = numpy.sign(x * y)  # at the minimum |u| = |w|: u = a, w = sign a
        best = reference.lowest_on_grid(
            lambda a, d=decay, s=sign: (s * a * a * x - y) ** 2 + 2 * d * a * a, -2, 2, 4001
        )
        assert (best == 0) == favoured


def test_a_set_that_is_favoured_near_by_first_and_over_all_later() -> None:
    """(u v w - 1)^2 + decay (u^2 + v^2 + w^2): zero is a minimum for each decay > 0, the lowest from 2^(-4/3) on.

    At the minimum of given p = u v w all three have the size p^(1/3), which leaves (p - 1)^2 + 3 decay p^(2/3); that is
    below its value 1 at p = 0 iff 3 decay < max 2 p^(1/3) - p^(4/3) = 3 / 2 * 2^(-1/3), at p = 1 / 2.
    """
    threshold = 2 ** (-4 / 3)
    shapes = {"theta": (3,)}
    O = torch.eye(3, dtype=torch.float64)[:, :2]  # noqa: E741  (u, v) -> (-u, -v)
    for decay in (0.01, 0.98 * threshold, 1.02 * threshold):
        loss = decayed(lambda t: (t.prod() - 1) ** 2, decay)
        at_zero = torch.zeros(3, dtype=torch.float64)
        assert float(loss(MirrorSymmetry(O, shapes).reflect({"theta": at_zero + 0.3})["theta"])) == pytest.approx(
            float(loss(at_zero + 0.3))
        )
        assert (torch.linalg.eigvalsh(O.mT @ hessian(loss, at_zero) @ O) > 0).all()
        best = reference.lowest_on_grid(lambda a, d=decay: (a**3 - 1) ** 2 + 3 * d * a * a, -2, 2, 4001)
        assert (best == 0) == (decay > threshold)


@pytest.mark.parametrize(("factor", "favoured"), [(0.95, False), (1.05, True)])
def test_the_threshold_of_a_product_of_matrices(factor: float, favoured: bool) -> None:
    """||U W - Y||_F^2 + decay (||U||^2 + ||W||^2) keeps max(s - decay, 0) of each singular value s of Y.

    A product without weights along n is favoured near by iff decay > the largest singular value of what is left of Y,
    and over all (every start ends there) iff the singular value that would be learnt is smaller than decay.
    """
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))[0] for _ in range(2))
    values = torch.tensor([2.0, 1.0, 0.3], dtype=torch.float64)
    Y = left @ values.diag() @ right.mT
    decay = factor * 1.0  # the second singular value: below it, the product has rank 2
    shapes = {"U": (3, 2), "W": (2, 3)}
    n = torch.tensor([0.0, 1.0])
    mirror = rotation_mirror(shapes, "U", "W", n)
    loss = decayed(of_vector(lambda p: (p["U"] @ p["W"] - Y).square().sum(), shapes), decay)
    size = (values[0] - decay).sqrt()  # the best point on the set: the first singular value alone, shrunk
    first = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    on = flat({"U": size * left[:, :1] @ first, "W": size * first.mT @ right[:, :1].mT})
    assert torch.func.grad(loss)(on).norm() < 1e-12
    O = mirror.dense()  # noqa: E741
    curvatures = torch.linalg.eigvalsh(O.mT @ hessian(loss, on) @ O)  # one is zero: rotations of n towards the first
    assert (curvatures - 2 * (decay - 1)).abs().min() < 1e-12
    assert bool(curvatures[0] > -1e-12) == favoured
    theta = flat(random_point(shapes, generator))
    for _ in range(1000):
        theta = theta - 0.1 * torch.func.grad(loss)(theta)
    final = as_point(theta, shapes)
    found = torch.linalg.svdvals(final["U"] @ final["W"])[:2]
    torch.testing.assert_close(found, (values[:2] - decay).clamp(min=0), rtol=0, atol=1e-6)
    assert bool(found[1] < 1e-6) == favoured


def test_the_threshold_of_two_equal_neurons() -> None:
    """A tanh net on the set of a swap: with decay above - lambda_min(O^T H O) / 2 a small difference dies out.

    Below it the difference grows. The point on the set is one that training there has reached, for each decay anew.
    """
    function, mirror, shapes = of_net(nn.Tanh(), swap, 0, 2)
    O = columns_of(mirror, shapes)  # noqa: E741
    plain = of_vector(function, shapes)
    outcomes = []
    for decay in (0.003, 0.06, 0.1):
        loss = decayed(plain, decay)
        slope = torch.func.grad(loss)
        theta = flat(start((function, mirror, shapes), seed=4))
        for _ in range(300):
            theta = theta - 0.3 * slope(theta)
        lowest = torch.linalg.eigvalsh(O.mT @ hessian(plain, theta) @ O)[0]
        moved = theta + 1e-4 * torch.linalg.eigh(O.mT @ hessian(loss, theta) @ O)[1][:, 0] @ O.mT
        for _ in range(100):
            moved = moved - 0.3 * slope(moved)
        grew = float(mirror.distance(as_point(moved, shapes))) > 1e-4
        assert grew == bool(lowest + 2 * decay < 0)
        outcomes.append(grew)
    assert outcomes[0] and not outcomes[-1]  # noqa: PT018  the decays lie on both sides


def test_an_axis_that_one_tensor_has_twice() -> None:
    """A recurrent net: on the set of a swap, where g W g = W, the gradient has no part across it and SGD stays."""
    shapes = {"W": (3, 3), "V": (3, 2), "out": (1, 3)}
    axes = {"W": ("h", "h"), "V": ("h", "in"), "out": ("out", "h")}
    mirror = swap(WeightSymmetry(axes, shapes, {"h": Group.PERMUTATION}), "h", 0, 2)

    def function(p: dict[str, Tensor]) -> Tensor:
        state = torch.zeros(len(X), 3, dtype=torch.float64)
        for k in range(3):
            state = (state @ p["W"].mT + X[:, [k, 0]] @ p["V"].mT).tanh()
        return (state @ p["out"].mT - Y[:, :1]).square().mean()

    case = (function, mirror, shapes)
    test_the_gradient_has_no_part_across_the_set(case)
    test_sgd_stays_on_the_set(case)
    on = start(case)
    assert torch.equal(on["W"][0, 1], on["W"][2, 1])
    assert torch.equal(on["W"][0, 2], on["W"][2, 0])
    assert not torch.equal(on["W"][0, 0], on["W"][0, 2])
