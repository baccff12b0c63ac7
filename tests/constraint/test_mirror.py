"""Each kind of mirror against a dense reflection from independent code, and its rules at random points."""

import itertools

import pytest
import torch
from torch import nn

from symlab.constraint.mirror import Mirror, MirrorSymmetry, exchange_mirror, rescaling_mirror
from symlab.constraint.mirror_check import (
    check_mirror,
    function_of_parameters,
    mirror_error,
    random_point,
)
from symlab.constraint.mirror_of_model import (
    along,
    mirrors_of,
    negated_swap,
    random_mirror,
    rotation_mirror,
    sign_flip,
    swap,
    unit_weights,
)
from symlab.symmetry.groups import Group
from symlab.symmetry.infer import infer_symmetry
from symlab.symmetry.layout import Composite
from symlab.symmetry.weight_symmetry import WeightSymmetry
from tests import reference_mirror as reference
from tests.constraint.nets import as_point, batch, flat, mlp, shapes_of

SHAPES = {"W1": (4, 3), "b1": (4,), "W2": (2, 4), "b2": (2,)}
AXES = {"W1": ("h", "in"), "b1": ("h",), "W2": ("out", "h"), "b2": ("out",)}


def net(group: Group) -> WeightSymmetry:
    return WeightSymmetry(AXES, SHAPES, {"h": group})


def columns(P: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(P, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))[0]


def flattened_conv() -> WeightSymmetry:
    """A kernel with channels c, and a matrix whose columns are a flattened image of them beside two more inputs."""
    axes = {"conv": ("c", "in"), "fc": ("out", Composite((("c", "pixel"), ("extra",))))}
    return WeightSymmetry(
        axes, {"conv": (3, 2), "fc": (2, 8)}, {"c": Group.PERMUTATION}, {"c": 3, "pixel": 2, "extra": 2}
    )


def recurrent(group: Group) -> WeightSymmetry:
    axes = {"W": ("h", "h"), "V": ("h", "in")}
    return WeightSymmetry(axes, {"W": (4, 4), "V": (4, 2)}, {"h": group})


DIRECTION = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
PAIR = {"u": (2, 3), "w": (2, 3), "v": (5,)}
MIRRORS: dict[str, Mirror] = {
    "dense": MirrorSymmetry(columns(26, 5), SHAPES),
    "one vector": MirrorSymmetry(columns(6, 1)[:, 0]),
    "swap": swap(net(Group.PERMUTATION), "h", 1, 3),
    "negated swap": negated_swap(net(Group.SIGNED_PERMUTATION), "h", 0, 2),
    "flip": sign_flip(net(Group.SIGNED_PERMUTATION), "h", 2),
    "along": along(net(Group.ORTHOGONAL), "h", DIRECTION),
    "rotation": rotation_mirror({"U": (3, 4), "W": (4, 2)}, "U", "W", DIRECTION),
    "rescaling": rescaling_mirror(PAIR, "u", "w"),
    "rescaling of a group": rescaling_mirror(PAIR, "u", "v"),
    "rescaling of an entry": rescaling_mirror(PAIR, "u", "w", (1, 2)),
    "exchange": exchange_mirror(PAIR, "u", "w"),
    "negative exchange of an entry": exchange_mirror(PAIR, "u", "w", (0, 1), negative=True),
    "flattened convolution": swap(flattened_conv(), "c", 0, 2),
    "recurrent swap": swap(recurrent(Group.PERMUTATION), "h", 0, 3),
    "recurrent flip": sign_flip(recurrent(Group.SIGNED_PERMUTATION), "h", 1),
    "recurrent rotation": along(recurrent(Group.ORTHOGONAL), "h", DIRECTION),
}


@pytest.mark.parametrize("mirror", MIRRORS.values(), ids=MIRRORS)
def test_rules_of_a_reflection(mirror: Mirror) -> None:
    """R is linear, symmetric and its own inverse; on + off = theta; distances; batches; what it leaves alone."""
    generator = torch.Generator().manual_seed(3)
    a, b = random_point(mirror.shapes, generator), random_point(mirror.shapes, generator)
    image = mirror.reflect(a)
    torch.testing.assert_close(flat(mirror.reflect(image)), flat(a))
    assert torch.dot(flat(b), flat(image)) == pytest.approx(torch.dot(flat(mirror.reflect(b)), flat(a)).item())
    on, off = mirror.on(a), mirror.off(a)
    torch.testing.assert_close(flat(on) + flat(off), flat(a))
    torch.testing.assert_close(flat(mirror.reflect(on)), flat(on))
    torch.testing.assert_close(flat(mirror.reflect(off)), -flat(off))
    assert mirror.distance(a) == pytest.approx(flat(off).norm().item())
    assert mirror.distance(a) > 0.01
    assert mirror.distance(on) < 1e-12
    both = {name: torch.stack([a[name], b[name]])[:, None] for name in a}  # [2, 1, *shape]
    torch.testing.assert_close(mirror.reflect(both)[next(iter(a))][1, 0], mirror.reflect(b)[next(iter(a))])
    assert mirror.distance(both).shape == (2, 1)
    torch.testing.assert_close(mirror.distance(both)[1, 0], mirror.distance(b))
    more = mirror.reflect({**a, "other": torch.ones(2)})
    assert torch.equal(more["other"], torch.ones(2))
    assert torch.equal(mirror.off({**a, "other": torch.ones(2)})["other"], torch.zeros(2))


@pytest.mark.parametrize("mirror", MIRRORS.values(), ids=MIRRORS)
def test_dense_columns_reflect_alike(mirror: Mirror) -> None:
    O = mirror.dense()  # noqa: E741
    a = random_point(mirror.shapes, torch.Generator().manual_seed(5))
    torch.testing.assert_close(reference.reflection(O) @ flat(a), flat(mirror.reflect(a)))
    torch.testing.assert_close(O.mT @ O, torch.eye(O.shape[1], dtype=torch.float64))
    half = {name: x.bfloat16() for name, x in a.items()}
    assert flat(mirror.reflect(half)).dtype == torch.bfloat16
    torch.testing.assert_close(flat(mirror.reflect(half)).double(), flat(mirror.reflect(a)), rtol=0.02, atol=0.1)


def same_span(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.allclose(first @ first.mT, second @ second.mT)


def test_spans_against_hand_made_columns() -> None:
    places = [reference.mlp_positions(3, 4, 2, unit) for unit in range(4)]
    found = MIRRORS["swap"].dense()  # the swap leaves b2 alone, which comes last
    assert same_span(found, reference.swap_columns(places[1], places[3], 26)[:-2])
    flip = torch.eye(26, dtype=torch.float64)[:, places[2]]
    assert same_span(MIRRORS["flip"].dense(), flip[:-2])
    n = DIRECTION / DIRECTION.norm()
    assert same_span(MIRRORS["rotation"].dense(), reference.kron_rotation_columns(n, 3, 2))
    assert MIRRORS["rescaling"].dense().shape == (12, 12)
    assert MIRRORS["rescaling of an entry"].dense().shape == (12, 2)
    assert MIRRORS["exchange"].dense().shape == (12, 6)
    assert same_span(MirrorSymmetry(columns(6, 2)).dense(), columns(6, 2))


def test_an_axis_of_two_dimensions() -> None:
    """g W g against the products; its O is spanned by n (x) m and m (x) n: 2 (n - 1) dimensions, and those of V."""
    point = random_point({"W": (4, 4), "V": (4, 2)}, torch.Generator().manual_seed(0))
    n = DIRECTION / DIRECTION.norm()
    g = torch.eye(4, dtype=torch.float64) - 2 * torch.outer(n, n)
    found = MIRRORS["recurrent rotation"].reflect(point)
    torch.testing.assert_close(found["W"], g @ point["W"] @ g)
    torch.testing.assert_close(found["V"], g @ point["V"])
    assert MIRRORS["recurrent rotation"].dense().shape == (24, 2 * 3 + 2)


def test_a_swap_moves_a_flattened_image_with_its_channels() -> None:
    point = random_point({"conv": (3, 2), "fc": (2, 8)}, torch.Generator().manual_seed(0))
    found = MIRRORS["flattened convolution"].reflect(point)
    assert torch.equal(found["conv"], point["conv"][[2, 1, 0]])
    assert torch.equal(found["fc"], point["fc"][:, [4, 5, 2, 3, 0, 1, 6, 7]])


def test_the_exchanges_and_the_rescaling_of_a_product() -> None:
    """Their reflections make one another, and the set of the rescaling is where those of the exchanges meet."""
    point = random_point(PAIR, torch.Generator().manual_seed(0))
    plus, minus = exchange_mirror(PAIR, "u", "w"), exchange_mirror(PAIR, "u", "w", negative=True)
    both = minus.reflect(plus.reflect(point))
    assert torch.equal(flat(both), flat(rescaling_mirror(PAIR, "u", "w").reflect(point)))
    meeting = minus.on(plus.on(point))
    assert float(rescaling_mirror(PAIR, "u", "w").distance(meeting)) < 1e-15


@pytest.mark.parametrize(("activation", "count"), [(nn.Softplus(), 6), (nn.Tanh(), 6 + 6 + 4)])
def test_all_mirrors_of_a_model_leave_its_loss(activation: nn.Module, count: int) -> None:
    model = mlp(activation)
    symmetry = infer_symmetry(model, batch()[0])
    function = function_of_parameters(model, nn.functional.mse_loss, *batch())
    found = list(mirrors_of(symmetry, "0.weight:0"))
    assert len(found) == count
    assert len({tuple(flat(m.reflect(dict(model.named_parameters()))).tolist()) for m in found}) == count
    for mirror in found:
        assert check_mirror(function, mirror, shapes_of(model)) < 1e-12


def test_random_mirrors_of_a_linear_net_and_a_conv_net() -> None:
    conv = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )
    images = torch.randn(5, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    linear = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    generator = torch.Generator().manual_seed(0)
    for model, x in ((conv, images), (linear, batch()[0].float())):
        symmetry = infer_symmetry(model, x, orthogonal=True)
        function = function_of_parameters(model, nn.functional.mse_loss, x, torch.ones(len(x), 2))
        for axis, _ in itertools.product(symmetry.groups, range(6)):
            mirror = random_mirror(symmetry, axis, generator)
            assert check_mirror(function, mirror, shapes_of(model)) < 1e-11


def test_losses_without_the_symmetry_are_named() -> None:
    model = mlp(nn.Softplus())
    function = function_of_parameters(model, nn.functional.mse_loss, *batch())
    claimed = infer_symmetry(model, batch()[0]).with_groups({"0.weight:0": Group.SIGNED_PERMUTATION})
    flip = sign_flip(claimed, "0.weight:0", 1)
    assert mirror_error(function, flip, shapes_of(model)) > 1e-3
    with pytest.raises(ValueError, match=r"sign flip of 0\.weight:0 1"):
        check_mirror(function, flip, shapes_of(model))
    pair = {"u": (3,), "w": (3,)}
    nan = mirror_error(lambda p: (p["u"] / 0).sum(), rescaling_mirror(pair, "u", "w"), pair)
    assert nan == float("inf")
    relu = lambda p: (p["w"] * (p["u"] * 2).relu()).sum()  # noqa: E731
    assert mirror_error(relu, rescaling_mirror(pair, "u", "w"), pair) > 0.1  # ReLU: rho > 0 only
    assert mirror_error(lambda p: (p["w"] * p["u"]).sum(), rescaling_mirror(pair, "u", "w"), pair) < 1e-15


def test_unit_weights_give_the_distance_to_every_swap() -> None:
    for symmetry, axis in ((net(Group.PERMUTATION), "h"), (flattened_conv(), "c")):
        point = random_point(symmetry.shapes, torch.Generator().manual_seed(0))
        rows = unit_weights(symmetry, axis, point)
        for i, j in itertools.combinations(range(len(rows)), 2):
            expected = swap(symmetry, axis, i, j).distance(point)
            torch.testing.assert_close((rows[i] - rows[j]).norm() / 2**0.5, expected)
        batched = {name: torch.stack([x, 2 * x]) for name, x in point.items()}
        torch.testing.assert_close(unit_weights(symmetry, axis, batched)[1], 2 * rows)


def test_reflecting_the_right_units_bit_for_bit() -> None:
    point = {name: x.float() for name, x in random_point(SHAPES, torch.Generator().manual_seed(0)).items()}
    found = MIRRORS["swap"].reflect(point)
    assert torch.equal(found["W1"], point["W1"][[0, 3, 2, 1]])
    assert torch.equal(found["W2"], point["W2"][:, [0, 3, 2, 1]])
    assert "b2" not in MIRRORS["swap"].shapes


def test_wrong_arguments() -> None:
    S, B, free = net(Group.PERMUTATION), net(Group.SIGNED_PERMUTATION), net(Group.TRIVIAL)
    point = as_point(torch.ones(26), SHAPES)
    single = WeightSymmetry({"w": ("h", "in")}, {"w": (1, 3)}, {"h": Group.PERMUTATION})
    nan = torch.full((4,), float("nan"))
    for call, word in [
        (lambda: MirrorSymmetry(torch.ones(4, 2)), "orthonormal, off by 4"),
        (lambda: MirrorSymmetry(columns(4, 2) * float("nan")), "orthonormal"),
        (lambda: MirrorSymmetry(torch.ones(2, 4)), "1 <= k <= P"),
        (lambda: MirrorSymmetry(torch.tensor([1, 0])), "must be real floating .* got torch.int64"),
        (lambda: MirrorSymmetry(columns(4, 2), {"a": (5,)}), "4 rows"),
        (lambda: swap(S, "h", 1, 1), "two different"),
        (lambda: swap(S, "h", 0, 4), "units 0 to 3"),
        (lambda: swap(S, "in", 0, 1), "'in' is not one with a group"),
        (lambda: swap(free, "h", 0, 1), "not one with a group"),
        (lambda: sign_flip(S, "h", 0), "under permutation; this needs"),
        (lambda: along(B, "h", DIRECTION), "this needs orthogonal"),
        (lambda: along(net(Group.ORTHOGONAL), "h", nan), "finite"),
        (lambda: along(net(Group.ORTHOGONAL), "h", torch.zeros(4)), "not zero"),
        (lambda: mirrors_of(net(Group.ORTHOGONAL), "h"), "permutation"),
        (lambda: random_mirror(single, "h", torch.Generator()), "'h' is not one with a group"),
        (lambda: rescaling_mirror(PAIR, "u", "x"), "'x'"),
        (lambda: rescaling_mirror(PAIR, "u", "w", (2, 0)), "no entry"),
        (lambda: rescaling_mirror(PAIR, "u", "v", (0,)), "no entry"),
        (lambda: exchange_mirror(PAIR, "u", "v"), "shapes differ"),
        (lambda: rotation_mirror(PAIR, "u", "u", DIRECTION), "two tensors"),
        (lambda: rotation_mirror(PAIR, "u", "w", DIRECTION, dims=(2, 0)), "no dimension 2"),
        (lambda: rotation_mirror({"u": (3, 4), "w": (5, 2)}, "u", "w", DIRECTION), "size"),
        (lambda: MIRRORS["swap"].reflect({"W1": point["W1"]}), "lacks"),
        (lambda: MIRRORS["swap"].distance({**point, "b1": torch.ones(5)}), r"b1 must be \[4\], got \[5\]"),
        (lambda: unit_weights(recurrent(Group.PERMUTATION), "h", point | {"W": torch.ones(4, 4)}), "twice in W"),
        (lambda: mirror_error(lambda p: p["u"], MIRRORS["exchange"], PAIR, draws=0), "draws"),
        (lambda: check_mirror(lambda p: p["u"], MIRRORS["exchange"], PAIR, rtol=float("nan")), "rtol"),
    ]:
        with pytest.raises(ValueError, match=word):
            call()
