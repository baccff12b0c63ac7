"""constrain and collapse: the start, the parts, every way a model is handled, and what is refused."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from symlab.constraint.constrain import balanced_split, collapse, constrain, constrained, unit_split
from symlab.constraint.decay import parameter_groups
from symlab.constraint.factored import Projector, Split
from symlab.constraint.mirror import MirrorSymmetry
from symlab.constraint.projectors.elementwise import Elementwise
from symlab.constraint.projectors.equal_neurons import EqualNeurons
from symlab.constraint.projectors.groups import Groups
from symlab.constraint.projectors.low_rank import LowRank
from symlab.protocols.stack import Stack

KINDS: dict[str, Callable[[], Projector]] = {
    "elementwise": Elementwise,
    "filters": Groups,
    "inputs": lambda: Groups(1),
    "kernels": lambda: Groups((0, 1)),
    "low_rank": LowRank,
    "equal_neurons": EqualNeurons,
    "equal_whole_neurons": lambda: EqualNeurons(whole=True),
}


def convolutional(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)]
    return nn.Sequential(*layers).to(dtype)


def images(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(5, 2, 4, 4, dtype=dtype, generator=torch.Generator().manual_seed(1))


def layout(model: nn.Module) -> list[tuple[str, torch.Size]]:
    return [(name, value.shape) for name, value in model.named_parameters()]


@pytest.mark.parametrize("split", [unit_split, balanced_split])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_start_is_the_models_function(kind: Callable[[], Projector], split: Split) -> None:
    plain = convolutional()
    model = copy.deepcopy(plain)
    assert constrain(model, kind(), split=split) is model
    assert torch.allclose(model(images()), plain(images()), rtol=0, atol=1e-13)


def test_the_elementwise_start_is_bitwise_and_its_parts_are_theta_and_one() -> None:
    plain = convolutional(torch.float32)
    model = constrain(copy.deepcopy(plain), Elementwise())
    assert torch.equal(model(images(torch.float32)), plain(images(torch.float32)))
    found = list(constrained(model))
    assert [each.name for each in found] == ["0.weight", "4.weight"]
    for each, theta in zip(found, (plain[0].weight, plain[4].weight), strict=True):
        assert torch.equal(each.parts[0], theta)
        assert torch.equal(each.parts[1], torch.ones_like(theta))


def test_the_balanced_parts_have_equal_size_and_one_carries_the_sign() -> None:
    theta = torch.tensor([[-4.0, 9.0, 0.0]])
    layer = nn.Linear(3, 1)
    layer.weight = nn.Parameter(theta)
    u, w = next(constrained(constrain(layer, Elementwise(), split=balanced_split))).parts
    assert torch.equal(u, torch.tensor([[-2.0, 3.0, 0.0]]))
    assert torch.equal(w, torch.tensor([[2.0, 3.0, 0.0]]))


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("elementwise", (72 + 72, 192 + 192)),
        ("filters", (72 + 4, 192 + 3)),
        ("inputs", (72 + 2, 192 + 64)),
        ("kernels", (72 + 8, 192 + 192)),
        ("low_rank", (4 * 4 + 18 * 4, 3 * 3 + 64 * 3)),
        ("equal_neurons", (72 + 72 + 18, 192 + 192 + 64)),
        ("equal_whole_neurons", (72 + 4 + 18, 192 + 3 + 64)),
    ],
)
def test_how_many_numbers_are_stored(kind: str, sizes: tuple[int, int]) -> None:
    model = constrain(convolutional(), KINDS[kind]())
    assert tuple(sum(p.numel() for p in each.parts) for each in constrained(model)) == sizes


def test_a_smaller_rank_starts_from_the_best_approximation() -> None:
    model = convolutional()
    theta = model[4].weight.detach().clone()
    constrain(model, LowRank(2), where="4.weight")
    left, s, right = torch.linalg.svd(theta, full_matrices=False)
    assert torch.allclose(model[4].weight, left[:, :2] * s[:2] @ right[:2], atol=1e-13)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_collapse_without_threshold_is_the_same_function_of_the_old_form(kind: Callable[[], Projector]) -> None:
    plain = convolutional()
    model = constrain(copy.deepcopy(plain), kind())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    flat = collapse(model, 0.0)
    assert layout(flat) == layout(plain)
    assert [type(m) for m in flat.modules()] == [type(m) for m in plain.modules()]
    assert not any(parametrize.is_parametrized(m) for m in flat.modules())
    assert torch.allclose(flat(images()), model(images()), rtol=0, atol=1e-12)
    assert len(list(constrained(model))) == 2  # untouched
    plain.load_state_dict(flat.state_dict(), strict=True)


def test_collapse_cuts_entries_groups_singular_values_and_differences() -> None:
    theta = torch.tensor([[3.0, 0.1], [0.2, 0.1], [3.0, 0.3]], dtype=torch.float64)

    def flat(kind: Projector, threshold: float) -> Tensor:
        layer = nn.Linear(2, 3, bias=False, dtype=torch.float64)
        layer.weight = nn.Parameter(theta.clone())
        return collapse(constrain(layer, kind), threshold).weight.detach()

    assert flat(Elementwise(), 0.1).tolist() == [[3.0, 0.0], [0.2, 0.0], [3.0, 0.3]]
    assert flat(Groups(0), 0.3).tolist() == [[3.0, 0.1], [0.0, 0.0], [3.0, 0.3]]
    assert flat(Groups(1), 0.4).tolist() == [[3.0, 0.0], [0.2, 0.0], [3.0, 0.0]]
    s = torch.linalg.svdvals(theta)
    assert torch.linalg.matrix_rank(flat(LowRank(), float(s[1]) * 1.01)) == 1
    assert torch.linalg.matrix_rank(flat(LowRank(), float(s[1]) * 0.99)) == 2
    rows = flat(EqualNeurons(whole=True), 1.1)  # distances from the mean: .94, 1.87, .94
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[1])
    rows = flat(EqualNeurons(), 0.07)
    assert float(rows[0, 1]) == float(rows[1, 1]) != float(rows[2, 1])


def test_a_copy_and_its_collapse_leave_the_original_alone() -> None:
    model = constrain(convolutional(), Elementwise())
    twin = copy.deepcopy(model)
    before = model(images())
    collapse(twin, 0.0)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert torch.equal(model(images()), before)
    assert not twin(images()).any()


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_state_goes_into_a_model_constrained_alike(kind: Callable[[], Projector]) -> None:
    model = constrain(convolutional(), kind())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    other = constrain(convolutional(), kind(), split=balanced_split)
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(other(images()), model(images()))
    assert model.to(torch.float32)(images(torch.float32)).dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_stacked_nets_compute_what_each_net_does(kind: Callable[[], Projector]) -> None:
    nets = [constrain(convolutional(), kind()) for _ in range(3)]
    for k, net in enumerate(nets):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(0.1 * k * torch.randn_like(p))
        net.eval()
    stack = Stack(nets)
    together = stack.outputs(images(), shared=True)
    for k, net in enumerate(nets):
        assert torch.allclose(together[k], net(images()), atol=1e-12)
        assert torch.allclose(stack.net(k)(images()), net(images()), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_first_and_second_derivatives(kind: Callable[[], Projector]) -> None:
    torch.manual_seed(0)
    layer = constrain(nn.Linear(3, 4, bias=False, dtype=torch.float64), kind())
    names = [name for name, _ in layer.named_parameters()]
    x = torch.randn(2, 3, dtype=torch.float64)

    def output(*parts: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, parts, strict=True)), (x,)).square()

    parts = tuple(p.detach().clone().requires_grad_() for p in layer.parameters())
    assert torch.autograd.gradcheck(output, parts)
    assert torch.autograd.gradgradcheck(output, parts)


def test_a_chosen_frozen_weight_stays_frozen_and_none_is_by_default() -> None:
    model = convolutional()
    model[0].weight.requires_grad_(False)
    constrain(model, Elementwise())
    assert [each.name for each in constrained(model)] == ["4.weight"]
    constrain(model, Elementwise(), where="0.weight")
    assert not any(p.requires_grad for p in next(constrained(model)).parts)
    flat = collapse(model)
    assert layout(flat) == layout(convolutional())
    assert [p.requires_grad for p in flat.parameters()] == [False, True, True, True, True, True]


def test_weights_are_chosen_by_pattern_rule_and_list() -> None:
    def names(where: object) -> list[str]:
        return [each.name for each in constrained(constrain(convolutional(), Elementwise(), where=where))]  # type: ignore[arg-type]

    assert names("*.bias") == ["0.bias", "1.bias", "4.bias"]
    assert names(["4.*", "0.weight"]) == ["0.weight", "4.weight", "4.bias"]
    assert names(lambda name, p: p.ndim == 4) == ["0.weight"]


def test_embeddings_and_transposed_convolutions() -> None:
    for module, x in ((nn.Embedding(7, 3), torch.arange(7)), (nn.ConvTranspose2d(3, 2, 2), torch.randn(1, 3, 4, 4))):
        before = module(x)
        constrain(module, Groups(0))
        assert torch.equal(module(x), before)
        module(x).sum().backward()
        assert all(p.grad is not None for p in module.parameters())


def test_two_constrained_tensors_of_one_module_come_back_in_order() -> None:
    attention = nn.MultiheadAttention(4, 2)
    before = layout(attention)
    x = torch.randn(3, 2, 4)
    expected = attention(x, x, x)[0]
    constrain(attention, Elementwise(), where="*")
    assert torch.equal(attention(x, x, x)[0], expected)
    assert layout(collapse(attention, 0.0)) == before


def test_another_parametrization_in_the_module_stays() -> None:
    layer = nn.Linear(3, 2)
    parametrize.register_parametrization(layer, "bias", nn.Tanh(), unsafe=True)
    constrain(layer, Elementwise(), where="weight")
    flat = collapse(layer, 0.0)
    x = torch.randn(4, 3)
    assert torch.equal(flat(x), layer(x))
    assert parametrize.is_parametrized(flat, "bias")
    assert not parametrize.is_parametrized(flat, "weight")


def test_parametrized_factors_collapse_and_have_no_decay_of_their_own() -> None:
    plain = convolutional()
    model = constrain(copy.deepcopy(plain), Elementwise(), where="4.weight")
    parametrize.register_parametrization(model[4].parametrizations.weight, "original0", nn.Tanh())
    assert not torch.equal(model(images()), plain(images()))
    flat = collapse(model, 0.0)
    assert layout(flat) == layout(plain)
    assert torch.allclose(flat(images()), model(images()), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"parts of 4\.weight are parametrized again"):
        parameter_groups(model, decay=0.1)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    model[1].weight = model[0].weight
    return model


def once_constrained() -> nn.Module:
    return constrain(nn.Sequential(nn.Linear(3, 2)), Elementwise())


def filled(value: float) -> nn.Module:
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, value)
    return layer


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (tied, {}, r"0.weight and 1.weight are one tensor"),
        (once_constrained, {}, r"0.weight is parametrized already, by Product"),
        (once_constrained, {"where": "0.weight"}, "parametrized already"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), {}, "already, by _WeightNorm"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), {}, "complex64: only real"),
        (lambda: nn.Sequential(nn.LazyLinear(2)), {"where": "*weight"}, "is not initialised"),
        (lambda: nn.LSTM(2, 2), {}, "weight_ih_l0: recurrent layers"),
        (lambda: filled(float("nan")), {"projector": LowRank()}, "weight has values that are not finite"),
        (lambda: filled(float("inf")), {}, "weight has values that are not finite"),
        (lambda: nn.Linear(2, 2, device="meta"), {}, "weight has no values yet"),
        (lambda: nn.Embedding(0, 2), {"where": "weight"}, "weight has no entries"),
        (lambda: nn.Embedding(0, 2), {}, "no weight is chosen"),
        (lambda: nn.Linear(2, 2), {"where": "wieght"}, r"name like .wieght.; near it: weight"),
        (lambda: nn.BatchNorm1d(2), {}, "no weight is chosen"),
        (lambda: filled(0.0), {"split": balanced_split}, "weight: both factors are zero"),
        (lambda: nn.Linear(2, 2), {"split": lambda size: -size.sqrt() / 0}, "not finite"),
        (lambda: nn.Linear(2, 2), {"projector": Groups(2)}, r"weight: axes \[2\] do not fit"),
        (lambda: nn.Linear(2, 2), {"projector": LowRank(3)}, "rank 3 is above 2"),
        (lambda: nn.Linear(2, 1), {"projector": EqualNeurons()}, "two rows or more"),
        (lambda: nn.Linear(2, 2), {"projector": torch.eye(3)}, r"needs \[4, 4\]"),
        (lambda: nn.Linear(2, 2), {"projector": lambda t: 0.5 * t}, r"P\(P x\) = P x is off by"),
        (lambda: nn.Linear(2, 2), {"projector": lambda t: t.relu()}, r"is off by"),
        (lambda: nn.Linear(2, 2), {"projector": lambda t: t.sum(0)}, "must keep shape"),
        (lambda: nn.Linear(1, 2), {"projector": torch.tensor([[1.0, 1.0], [0.0, 0.0]])}, "symmetric"),
    ],
)
def test_what_is_refused(build: Callable[[], nn.Module], arguments: dict, message: str) -> None:
    model = build()
    names = list(model.state_dict())
    with pytest.raises(ValueError, match=message):
        constrain(model, **{"projector": Elementwise(), **arguments})
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("wrong", [None, "low_rank", Elementwise])
def test_what_is_no_projector_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"projector must be such as Elementwise\(\)"):
        constrain(nn.Linear(2, 2), wrong)


def test_power_steps_of_another_parametrization_are_not_taken() -> None:
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)), nn.Linear(3, 3))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="already, by _SpectralNorm"):
        constrain(model, Elementwise())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    constrain(model, Elementwise(), where="1.weight")
    assert [each.name for each in constrained(model)] == ["1.weight"]
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items() if name[0] == "0")


def test_values_of_the_projectors_and_of_collapse_are_checked() -> None:
    with pytest.raises(ValueError, match="whole number"):
        LowRank(1.5)
    with pytest.raises(ValueError, match="axes"):
        Groups(())
    with pytest.raises(ValueError, match="axes"):
        Groups((0, 0))
    with pytest.raises(ValueError, match="rank must be at least 1"):
        LowRank(0)
    with pytest.raises(ValueError, match="no weight of this model is constrained"):
        collapse(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="threshold must be at least 0, got nan"):
        collapse(once_constrained(), float("nan"))
    model = once_constrained()
    parametrize.register_parametrization(model[0], "weight", nn.Tanh())
    with pytest.raises(ValueError, match="another parametrization on top"):
        collapse(model)


def test_a_projector_of_ones_own_as_function_and_as_matrix() -> None:
    direction = torch.tensor([1.0, -2.0, 2.0, 0.0], dtype=torch.float64) / 3
    matrix = torch.outer(direction, direction)
    layer = nn.Linear(2, 2, bias=False, dtype=torch.float64)
    theta = layer.weight.detach().clone()
    ways = (matrix, lambda t: (matrix @ t.flatten()).view_as(t))
    for way in ways:
        model = constrain(copy.deepcopy(layer), way)
        u, w, v = next(constrained(model)).parts
        assert torch.allclose(model.weight, theta, atol=1e-14)
        assert torch.allclose(u * w + v, theta, atol=1e-14)
        with torch.no_grad():
            u.add_(torch.randn_like(u))
            v.add_(torch.randn_like(v))
        expected = matrix @ (u * w).flatten() + v.flatten() - matrix @ v.flatten()
        assert torch.allclose(model.weight.flatten(), expected, atol=1e-14)
        assert (
            abs((direction @ collapse(model, 1e9).weight.detach().flatten()).item()) < 1e-14
        )  # on the set P theta = 0


def test_what_a_mirror_moves_is_a_projector() -> None:
    O = torch.linalg.qr(torch.randn(6, 2, dtype=torch.float64)).Q  # noqa: E741
    mirror = MirrorSymmetry(O, {"weight": (2, 3)})
    layer = nn.Linear(3, 2, bias=False, dtype=torch.float64)
    constrain(layer, lambda theta: mirror.off({"weight": theta})["weight"])
    assert float(mirror.distance({"weight": layer.weight}).detach()) > 0.01
    flat = collapse(layer, 1e9)
    assert float(mirror.distance({"weight": flat.weight}).detach()) < 1e-14
    expected = mirror.on({"weight": layer.weight})["weight"]
    assert torch.allclose(flat.weight, expected, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_compiled(kind: Callable[[], Projector]) -> None:
    model = constrain(convolutional(torch.float32), kind())
    x = images(torch.float32)
    torch.compiler.reset()
    fast = torch.compile(model, fullgraph=True)
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    assert torch.allclose(fast(x), model(x), atol=1e-5)
    fast(x).square().sum().backward()
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(p.grad, gradient, rtol=1e-3, atol=1e-4)


def test_a_projector_says_what_it_is() -> None:
    assert [repr(kind) for kind in (Elementwise(), Groups((0, 1)), LowRank(3), EqualNeurons())] == [
        "Elementwise()",
        "Groups(axes=(0, 1))",
        "LowRank(rank=3)",
        "EqualNeurons(whole=False)",
    ]
