"""Back to the plain model, with the weights that were trained without symmetry."""

from torch import nn
from torch.nn.utils import parametrize

from symlab.constraint.distinct_decay import Divided
from symlab.constraint.remove_symmetry import Shift
from symlab.symmetry.parametrized import own_class, parametrizations_of, parametrized_weights


def restore_symmetry(model: nn.Module) -> nn.Module:
    """theta = phi + theta_0 (or phi / d) as plain weights: undo `remove_symmetry` and `distinct_decay`, in place.

    Outputs stay what they are, to the bit; the names of the state_dict are those of the model before, and parameters
    are the same objects. Weights that an optimizer knows are now theta: build a new one to train on. Copies made by
    copy.deepcopy keep theirs. Where some weights of a module had no shift, `named_parameters` may list them first.

    Raises ValueError for a model without a shift or divisor, and where another parametrization was put on top of one:
    remove that first.
    """
    places = [
        (module, key)
        for module in reversed(list(model.modules()))  # a parametrization within another one comes first
        for key, own in parametrized_weights(module).items()
        if any(isinstance(one, Shift | Divided) for one in parametrizations_of(own))
    ]
    if not places:
        raise ValueError(f"no weight of {type(model).__name__} has a shift or a divisor: nothing to restore")
    for module, key in places:
        if len(parametrizations_of(parametrized_weights(module)[key])) > 1:
            kind = type(module).__name__
            raise ValueError(f"weight {key} of a {kind} has a parametrization on top of the shift: remove that first")
    applied: set[int] = set()
    for module, key in places:
        (mine,) = parametrizations_of(parametrized_weights(module)[key])
        own_class(module)
        # a tied weight has one parametrization in several places: the first removal makes the parameter theta
        parametrize.remove_parametrizations(module, key, leave_parametrized=id(mine) not in applied)
        applied.add(id(mine))
    return model
