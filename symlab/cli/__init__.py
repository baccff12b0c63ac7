"""The command line: argv -> Hydra -> one call. The only importer of hydra and omegaconf."""

from symlab.cli.command import main

__all__ = ["main"]
