"""Autocast, the loss scale and the memory layout: what they change, and what they must not."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from symlab.jobs.train import Repeats
from symlab.rundir import BadInput, RunDir
from symlab.training.best import Best
from symlab.training.checkpoint import capture, restore
from symlab.training.evaluate import evaluate
from symlab.training.execution import PLAIN, Execution
from symlab.training.fit import Training
from symlab.training.loss_scale import FLOOR, LossScale
from symlab.training.losses import auto, cross_entropy
from symlab.training.update import DivergedError, update
from tests.jobs.test_train import SignalAt, assert_same_runs, no_plot
from tests.training.problems import OPTIMIZERS, assert_same_state, regression, run_job, small_net

DATA = regression()
X, Y = DATA.train_inputs.float(), DATA.train_targets.float()
BF16 = Execution(torch.bfloat16)


def net(**options):
    return small_net((4,), 3, torch.Generator().manual_seed(0), **options).train()


def rounded(tensor):
    return tensor.to(torch.bfloat16).float()


def test_the_gradient_in_bfloat16_is_that_of_the_rounded_factors():
    """y = bf16(bf16(x) . bf16(w)); the loss in float32; its gradient in y rounded to bf16, then one product."""
    model = nn.Linear(4, 3, bias=False)
    start = model.weight.detach().clone()
    value = update(model, torch.optim.SGD(model.parameters(), lr=1.0), auto, X, Y, 0, BF16)
    outputs = torch.tensor([[float(sum(rounded(x) * rounded(w))) for w in start] for x in X])  # [B, 3]
    errors = rounded(outputs) - Y
    assert value == pytest.approx(float(errors.square().sum()) / (2 * len(X)), rel=2e-3)
    expected = rounded(errors / len(X)).T @ rounded(X)  # [3, 4]
    found = start - model.weight.detach()
    assert found.numpy() == pytest.approx(expected.numpy(), rel=0.02, abs=2e-3)
    exact = ((X @ start.T - Y) / len(X)).T @ X
    assert not torch.allclose(found, exact, rtol=1e-6)  # it is not the float32 gradient
    assert model.weight.dtype == torch.float32


def test_evaluation_uses_the_precision_of_the_updates():
    model = net()
    plain = evaluate(model, X, Y, auto, batch_size=3)
    lowered = evaluate(model, X, Y, auto, batch_size=3, how=BF16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = float(auto(model(X), Y))
    assert lowered.loss == pytest.approx(expected, rel=1e-6)
    assert lowered.loss != pytest.approx(plain.loss, rel=1e-6)


def test_what_the_optimizer_observes_is_evaluated_in_the_weights_own_dtype():
    seen = []

    class Curious(torch.optim.SGD):
        def observe(self, loss, inputs, targets):
            seen.append(float(loss(model(inputs), targets).detach()))

    model = net()
    before = float(auto(model(X), Y).detach())
    value = update(model, Curious(model.parameters(), lr=0.1), auto, X, Y, 0, BF16)
    assert seen == [before]
    assert value != before


# ---- the loss scale


def scaled_steps(how, steps=4, name="adam", hook=None):
    """State after some updates of the net with dropout and batch norm, and the losses."""
    torch.manual_seed(3)
    model = net(batch_norm=True, dropout=0.3)
    if hook is not None:
        model[0].weight.register_hook(hook)
    optimizer = OPTIMIZERS[name](model, X)
    losses = [update(model, optimizer, auto, X, Y, step, how) for step in range(steps)]
    return {
        "model": copy.deepcopy(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "losses": losses,
        "random": torch.get_rng_state(),
    }


@pytest.mark.parametrize("name", ["adam", "sgd", "symo"])
def test_a_power_of_two_changes_no_bit_in_float32(name):
    assert_same_state(
        scaled_steps(Execution(scale=LossScale()), name=name, steps=4), scaled_steps(PLAIN, name=name, steps=4)
    )


def overflowing(limit):
    """As float16 would: entries above the limit are infinite."""
    return lambda gradient: torch.where(gradient.abs() > limit, math.inf, gradient)


def test_a_batch_that_overflows_is_repeated_and_nothing_else_shows():
    """Weights, statistics, buffers, dropout masks and losses are those of a run without overflow, bit for bit."""
    scale = LossScale()
    found = scaled_steps(Execution(scale=scale), hook=overflowing(1000.0))
    assert_same_state(found, scaled_steps(PLAIN))
    assert scale.repeats > 3
    assert scale.value == 2.0 ** (16 - scale.repeats)
    assert scale.good_updates == 4  # all updates after the repeats of the first one


def test_gradients_that_overflow_at_every_scale_are_divergence_and_change_nothing():
    torch.manual_seed(3)
    model = net(batch_norm=True, dropout=0.3)
    model[0].weight.register_hook(overflowing(0.0))
    optimizer, how = OPTIMIZERS["adam"](model, X), Execution(scale=LossScale())
    before = {"model": copy.deepcopy(model.state_dict()), "random": torch.get_rng_state()}
    with pytest.raises(
        DivergedError, match=r"step 5: the gradients overflow in fp16 at every loss scale down to 1;.*bf16"
    ):
        update(model, optimizer, auto, X, Y, 5, how)
    assert_same_state(before, {"model": model.state_dict(), "random": torch.get_rng_state()})
    assert optimizer.state_dict()["state"] == {}
    assert (how.scale.value, how.scale.repeats) == (FLOOR, 16)


def test_a_loss_that_is_not_finite_is_divergence_at_once():
    how = Execution(scale=LossScale())
    model = net()
    with pytest.raises(DivergedError, match="the loss of the batch is nan"):
        update(model, OPTIMIZERS["gd"](model, X), auto, X * math.nan, Y, 0, how)
    assert how.scale.repeats == 0


def test_the_scale_lifts_gradients_that_float16_loses():
    """A factor of 1e-7 puts the output's gradient below float16's smallest number, 6e-8, unless it is scaled first."""

    def faint(outputs, targets):
        return 1e-7 * auto(outputs, targets)

    found = {}
    for name, how in {
        "float32": PLAIN,
        "lost": Execution(torch.float16),
        "scaled": Execution(torch.float16, LossScale()),
    }.items():
        model = nn.Linear(4, 3)
        with torch.no_grad():
            model.weight.fill_(0.25)
            model.bias.zero_()
        update(model, torch.optim.SGD(model.parameters(), lr=1.0), faint, X, Y, 0, how)
        found[name] = model.weight.grad
    assert found["scaled"].numpy() == pytest.approx(found["float32"].numpy(), rel=0.01, abs=1e-9)
    assert not torch.allclose(found["lost"], found["float32"], rtol=0.01, atol=1e-9)


def test_the_scale_doubles_after_two_thousand_good_updates_up_to_its_limit():
    scale = LossScale(value=2.0**23)
    values = []
    for _ in range(6000):
        scale.count()
        values.append(scale.value)
    assert values[1998:2000] == [2.0**23, 2.0**24]
    assert values[-1] == 2.0**24
    scale.lower()
    assert (scale.value, scale.good_updates, scale.repeats) == (2.0**23, 0, 1)


def test_the_scale_travels_in_checkpoints():
    def training(how):
        model = net()
        return Training(model, OPTIMIZERS["adam"](model, X), how), Best("test_loss")

    saved = capture(*training(Execution(scale=LossScale(2.0**9, 17, 7))), seed=0, steps_per_epoch=2)
    how = Execution(scale=LossScale())
    restore(saved, *training(how), seed=0, steps_per_epoch=2)
    assert how.scale == LossScale(2.0**9, 17, 7)
    with pytest.raises(BadInput, match="checkpoint has a loss_scale, this run the contrary"):
        restore(saved, *training(PLAIN), seed=0, steps_per_epoch=2)


def test_repeats_are_said_once_with_the_new_scale(caplog):
    scale = LossScale()
    said = Repeats(scale)
    with caplog.at_level("INFO", logger="symlab"):
        said.look(1)
        scale.lower()
        scale.lower()
        said.look(2)
        said.look(3)
    assert [record.getMessage() for record in caplog.records] == [
        "step 2: fp16 gradients overflowed, the batch was repeated with loss scale 16384 (2 repeats in all)"
    ]


# ---- the job


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"amp": "half"}, "amp must be bf16, fp16 or null, got 'half'"),
        ({"amp": "bf16"}, "amp=bf16 lowers float32 to bf16; use dtype=float32, got torch.float64"),
        ({"amp": "fp16", "dtype": "float32"}, "amp=fp16 needs a CUDA device: .* use amp=bf16"),
    ],
)
def test_precisions_that_cannot_work_are_refused(tmp_path, changes, message):
    with pytest.raises(BadInput, match=message):
        run_job(RunDir.create(tmp_path), **changes)


def test_a_run_in_bfloat16_resumes_exactly_and_differs_from_float32(tmp_path):
    settings = {"dtype": "float32", "plot": no_plot, "model": partial(small_net, dropout=0.4, batch_norm=True)}
    settings |= {"batch_size": 4, "epochs": 2}
    straight, stopped, plain = (RunDir.create(tmp_path) for _ in range(3))
    run_job(straight, amp="bf16", **settings)
    assert run_job(stopped, amp="bf16", loss=SignalAt(2), **settings).exit_code == 143
    run_job(stopped, amp="bf16", **settings)
    assert_same_runs(stopped, straight)
    run_job(plain, **settings)
    assert plain.read_rows()[-1]["test_loss"] != straight.read_rows()[-1]["test_loss"]
    weights = straight.load_checkpoint("last")["model"]
    assert weights["0.weight"].dtype == torch.float32


def small_convolutions(classes=3):
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3),
        nn.Flatten(),
        nn.Linear(80, classes),
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.double().train()


@pytest.mark.parametrize("name", ["sgd", "adam", "muon", "symo"])
def test_channels_last_is_the_same_run_to_rounding(name):
    images = torch.randn(6, 3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.arange(6) % 3
    strides, states = {False: [], True: []}, []
    for channels_last in (False, True):
        model = small_convolutions()
        model.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
        how = Execution(channels_last=channels_last)
        model[3].register_forward_pre_hook(
            lambda module, inputs, seen=strides[channels_last]: seen.append(inputs[0].stride())
        )
        optimizer = OPTIMIZERS[name](model, images)
        for step in range(3):
            update(model, optimizer, cross_entropy, images, labels, step, how)
        states.append(model.state_dict())
        assert model[0].weight.is_contiguous(memory_format=torch.channels_last) == channels_last
    assert strides[False][-1] != strides[True][-1]  # the layout went through the net
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-6, atol=1e-8)  # SymO takes roots of small eigenvalues


def test_images_of_one_channel_get_the_strides_of_channels_last_too():
    """contiguous() would leave them, and a net whose weights are computed would then run in the other layout."""
    seen = []
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.LazyLinear(3))
    images, labels = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2])
    model(images)
    parametrize.register_parametrization(model[0], "weight", Twice())
    model.to(memory_format=torch.channels_last)
    model[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].stride()))
    model[1].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].stride()))
    Execution(channels_last=True).outputs_and_loss(model, cross_entropy, images, labels)
    assert seen == [(64, 1, 8, 1), (144, 1, 24, 4)]


class Twice(nn.Module):
    def forward(self, x):
        return x * 2
