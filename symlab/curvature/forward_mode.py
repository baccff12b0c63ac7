"""torch.func's forward-mode derivatives, loaded without the warning that torch 2.14 raises about its own code.

The first forward derivative of a process makes torch script its decompositions, which warns that scripting is
deprecated: nothing that a user of symlab could act upon.
"""

import warnings

import torch
from torch.func import jacfwd, jvp

__all__ = ["jacfwd", "jvp"]

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
    jvp(torch.sin, (torch.zeros(()),), (torch.zeros(()),))
