"""What a person may type is run here at toy size: every command and every Python block of the README and the docs,
and the command in the header of every experiment. (docs/sweeps.md has its own test, beside the scripts.)"""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from symlab.cli import main
from tests.cli_lab import close_handlers
from tests.jobs.variant_runs import write_sweep

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("getting-started", "concepts", "extending", "configuration", "curvature")),
    "docs/curvature_dynamics.md",
    "docs/networks.md",
    "docs/comparison.md",
    "docs/convergence.md",
    "docs/skip_training.md",
    "docs/skip_connections.md",
    "docs/training.md",
    "docs/constraint.md",
    "docs/constraint_experiments.md",
]
EXPERIMENTS = sorted((ROOT / "conf" / "experiment").glob("*.yaml"))
SMALL = {
    "train": ["epochs=2", "data.num_train=60", "data.num_test=20"],
    "benchmark": ["data.num_train=60", "data.num_test=20", "repeats=2", "threads=1"],
    "benchmark_training": [
        *("data.num_train=40", "data.num_test=10", "batch_size=8", "workers=0", "threads=1"),
        *("steps=1", "untimed=0", "data_steps=1", "repeats=2"),
    ],
    "symmetry": ["data.num_train=60", "data.num_test=20"],
    "convergence": [
        *("data.num_train=4", "data.num_test=10", "steps=3", "measures=2", "scales=[1.0]", "seeds=[0]", "draws=1"),
        *("draw_scales=[1.0]", "controls=false", "products=4", "threads=1", "expected=null"),
        *(f"~plots.{name}" for name in ("regularity", "terms", "sharpness", "scales", "growth")),  # in tests/plots
    ],
    "sharpness": [
        *("data.num_train=20", "data.num_test=10", "steps=2", "every=1", "products=3", "tolerance=0.5", "seeds=[0]"),
        *("threads=1", "expected=null"),
    ],
    "factor_momentum": [
        *("data.num_train=60", "data.num_test=20", "threads=1", "models=3"),
        *("steps=4", "every=2", "report=[2,4]", "expected=null"),
    ],
    "local_curvature": [
        *("data.num_train=60", "data.num_test=20", "model.hidden=[3]", "steps=2", "seeds=[0,1]", "threads=1"),
    ],
    "curvature": [
        *(
            "data.num_train=20",
            "data.num_test=10",
            "models=4",
            "smallest=2",
            "singles=2",
            "steps=[0,1]",
            "expected=null",
        ),
        "quantities=[covariance]",  # tests/jobs computes the others, draws the figures and checks what is expected
        *("~plot@plots.matrix_panels", "~plot@plots.spectrum", "~plot@plots.reduced_matrix"),
    ],
    "benchmark_curvature": ["data.num_train=20", "repeats=2", "counts=[]", "steps=1", "loop_models=1", "threads=1"],
    "plot": [],
    "compare": [
        *("data.num_train=60", "data.num_test=20", "steps=2", "report_steps=[]", "seeds=[0,1]", "expected=null"),
        *("trials=2", "rounds=1", "tuning_seeds=[1000]", "workers=0", "threads=1", "timing_repeats=1", "targets=[10]"),
        *(f"~plots.{name}" for name in ("steps", "seconds", "tuning", "profile", "cost")),  # drawn in tests/jobs
    ],
    "profile": [],
    "variants": [],
    "constraint": ["seeds=[0,1]", "threads=1", "expected=null"],
    "singular_values": [
        *("fast=singular_values", "data.num_train=60", "data.num_test=20", "threads=1"),
        *("~plots.evolution", "~plots.loss"),  # drawn in tests/jobs
    ],
}
RESCALING = [
    *(
        "protocol.rows=40",
        "protocol.columns=10",
        "protocol.nonzero=2",
        "protocol.time=2",
        "protocol.batch_sizes=[8,32]",
    ),
    "protocol.lasso_updates=100",
]
SMALLER = {  # further keys of lines that name what is large; a mark that ends in \n is at the end of the line
    "symlab constraint\n": RESCALING,
    "experiment=rescaling\n": [*RESCALING, "~plots.risk", "~plots.rate", "~plots.batch", "~plots.lasso"],
    "experiment=rescaling_mlp": [
        *("data.num_train=60", "data.num_test=20", "protocol.time=1.2", "model.hidden=[4]"),
        *("~plots.lone", "~plots.accuracy", "~plots.rate", "~plots.batch"),
    ],
    "experiment=lasso_1d": [
        *(
            "protocol.updates=500",
            "protocol.starts=2",
            "protocol.points=5",
            "protocol.xs=[0.5,1]",
            "protocol.ys=[0.5,1]",
        ),
        *("~plots.solution", "~plots.transition"),
    ],
    "experiment=rotation\n": [
        *("protocol.size=3", "protocol.lrs=[0.1]", "protocol.decays=[0.0,0.3]", "protocol.noises=[0.0,0.4]"),
        *("protocol.time=2", "~plots.noise", "~plots.noise_lines", "~plots.decay_lines", "~plots.history"),
    ],
    "experiment=rotation_net": [
        *("protocol.size=3", "protocol.rows=8", "protocol.lrs=[0.02]", "protocol.batches=[4]"),
        *("protocol.decays=[0.0,0.3]", "protocol.noises=[0.0,1.0]", "protocol.time=1"),
        *("~plots.batch", "~plots.batch_line", "~plots.decay_lines"),
    ],
    "experiment=rotation_attention": [
        *("protocol.size=3", "protocol.keys=3", "protocol.lrs=[0.3]", "protocol.batches=[16]"),
        *("protocol.decays=[0.0,0.1]", "protocol.time=3", "~plots.batch", "~plots.decay_lines"),
    ],
    "experiment=collapse": [
        *("protocol.steps=3", "protocol.sigmas=[0.1]", "protocol.decays=[0.0,0.02]", "protocol.width=8"),
        *("protocol.batch_size=8", "protocol.records=1", "data.num_train=60", "data.num_test=20"),
        *(
            f"~plots.{name}"
            for name in ("head_dimension", "feature_dimension", "head_rank", "feature_probe", "history")
        ),
    ],
    "experiment=permutation\n": [
        *("protocol.steps=3", "protocol.decays=[0,0.01,0.1]", "protocol.lrs=[0.1]", "protocol.sigmas=[0.5]"),
        *("model.hidden=[4]", "data.num_train=20", "data.num_test=10", "protocol.batch=2", "seeds=[0]"),
        *(f"~plots.{name}" for name in ("distinct", "merged", "activations", "accuracy")),
    ],
    "experiment=permutation_resnet": [
        *("protocol.steps=2", "protocol.decays=[0,0.01,0.1]", "protocol.sigmas=[0.5]", "model.width=1"),
        *("data.num_train=20", "data.num_test=10", "protocol.batch=4", "seeds=[0]"),
        *(f"~plots.{name}" for name in ("distinct", "merged", "activations", "accuracy")),
    ],
    "experiment=dcs_resnet": [
        *("data=digits", "data.num_train=32", "data.num_test=16", "model.width=2", "protocol.epochs=1"),
        *("protocol.batch_size=16", "protocol.evaluations=1", "protocol.timed_steps=1", "protocol.amp=null"),
        *("seeds=[0]", "~plots.loss", "~plots.accuracy"),
    ],
    "experiment=spred_lasso\n": [
        *("protocol.rows=10", "protocol.columns=60", "protocol.alpha=1e-3", "protocol.steps=5", "seeds=[0]"),
        *("protocol.control_steps=5", "protocol.path_points=3", "protocol.drawn=2", "protocol.path_ratio=5"),
        *("~plots.gaps", "~plots.zeros"),
    ],
    "experiment=spred_lasso_sizes": [
        *("protocol.rows=10", "protocol.columns=[20,40]", "protocol.repeats=1", "protocol.alpha_ratios=[5]"),
        *("seeds=[0]", "~plots.times"),
    ],
    "experiment=spred_lasso_real": [
        *("protocol.genes=40", "protocol.samples=10", "protocol.causal=2", "protocol.points=3", "protocol.ratio=5"),
        *("protocol.drawn=2", "seeds=[0]", "~plots.gaps", "~plots.zeros", "~plots.breast_cancer"),
    ],
    "experiment=plasticity": [
        *("protocol.tasks=3", "protocol.epochs=1", "protocol.early=1", "protocol.late=1", "protocol.hidden=8"),
        *("protocol.decays=[0.001]", "data.num_train=100", "data.num_test=50"),
        *(f"~plots.{name}" for name in ("online", "dead", "norm", "strong_accuracy", "strong_rank")),
    ],
    "benchmark_constraint": ["data.size=8", "model.width=4"],
    "neurips2023_fig1": ["data.input_size=20", "data.output_size=20"],
    "neurips2023_fig2_mnist": ["data=digits", "data.size=28"],
    "singular_values_resnet18": [
        *("data.size=8", "models.conv.width=2", "models.avgpool_conv.width=2", "trials=1", "~plots.histogram"),
    ],
    "preact_resnet": ["model.width=4"],
    "experiment=resnet_": ["model.width=4", "batch_size=20"],
    "benchmark_preact": ["data.size=8"],
    "benchmark_training_resnet18": ["data.rows=60", "model.width=4"],
    "benchmark_all_mlp": ["model.hidden=[8,8]", "data.input_size=20"],
    "benchmark_all_resnet18": ["data.size=8", "model.width=4"],
    "benchmark_curvature_resnet18": ["data.size=8", "model.width=4"],
    "_teachers": ["data_seeds=[0,1]"],
    "compare experiment=icml2025": ["optimizers=[adam,symo]"],
    "compare resume": ["workers=0"],
    "experiment=beyond": ["batch_size=20", "optimizers=[adam,symo]"],
    "experiment=beyond_resnet": ["model.width=4", "optimizers=[adam,symo]"],
    "experiment=fashion_resnet": ["model.width=4", "batch_size=20"],
    "neurips2023_cifar10 ": ["data=cifar10_synthetic", "model.width=4", "batch_size=20"],
    "neurips2023_cifar100 ": ["data=cifar100_synthetic", "model.width=4", "batch_size=20"],
    "neurips2023_imagenet ": [
        *(
            "data=imagenet_synthetic",
            "data.size=32",
            "data.resize=36",
            "data.workers=0",
            "model.width=4",
            "batch_size=20",
        ),
    ],
}
OWN_JOBS = ("count-weights",)  # an example of what a reader may write
FORMS = (
    "JOB",
    "KEY",
    "heavy_ball",
    "first_setting",
    "/data/",
    "-sc",
    "...",
    "VALUE",
)  # forms, and what needs own files
EXTRAS = {"data=digits": "sklearn", "shampoo": "pytorch_optimizer", "benchmark": "pytorch_optimizer"}
EXTRAS |= dict.fromkeys(
    (
        "neurips2023_fig2_mnist",
        "resnet_digits",
        "benchmark_preact",
        "benchmark_all_resnet18",
        "benchmark_curvature_resnet18",
        "local_curvature_digits",
        "experiment=lasso_1d",
        "experiment=rescaling",
        "experiment=collapse",
        "experiment=spred",
        "experiment=permutation",
        "experiment=plasticity",
        "experiment=dcs_resnet",
        "symlab constraint",
    ),
    "sklearn",
)


def typed(text):
    """`symlab ...` in shell blocks, indented blocks and tables; `&&` chains in parts."""
    found = re.findall(r"`(symlab [^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    for line in text.splitlines():
        line = line.strip().replace(".venv/bin/symlab", "symlab").partition("  #")[0]
        parts = [part.strip() for part in line.split(" && ")]
        found += [part for part in parts if (part.startswith("symlab ") and "=" in part) or part == "symlab train"]
    return list(dict.fromkeys(found))


COMMANDS = [
    (page, line) for page in PAGES if (ROOT / page).exists() for line in typed((ROOT / page).read_text("utf-8"))
]
COMMANDS += [(path.name, path.read_text("utf-8").splitlines()[2].removeprefix("# ")) for path in EXPERIMENTS]
COMMANDS = list({line: (page, line) for page, line in COMMANDS}.values())  # what stands twice is run once


def words_of(line, runs):
    """The line's words with few seeds, small batches, and a directory that is there for the one that stands for any."""
    words = shlex.split(line)[1:]
    seeds = "seed=0" if any(re.match(r"model.shortcut=.*,", word) for word in words) else "seed=0,1"
    words = [re.sub(r"^seed=0,1\b.*", seeds, word) for word in words]
    words = [re.sub(r"^(optimizer.lr=[\d.]+),.*", r"\1", word) for word in words]
    if words[:1] == ["variants"]:
        words = [re.sub(r"^runs=.*", f"runs={runs['variants']}", word) for word in words]
    words = [re.sub(r"^batch_size=.*", "batch_size=20", word) for word in words]
    words = [re.sub(r"^warmup_steps=.*", "warmup_steps=1", word) for word in words]
    words = [re.sub(r"^(seeds|trials)=\d+$", r"\1=3", word) for word in words]
    words = [re.sub(r"^runs=runs/(compare|constraint)/\*$", lambda m: f"runs={runs[m[1]]}", word) for word in words]
    for job, run in runs.items():
        words = [re.sub(rf"runs/{job}/(DIRECTORY|\d{{4}}-\d\d-\d\d_.*)", str(run), word) for word in words]
    return words


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with one finished run of train and one of compare, and these runs by job; trials of two variants."""
    folder = tmp_path_factory.mktemp("typed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "optimizer=gd", *SMALL["train"]]) == 0
        close_handlers()
        assert main(["compare", "optimizers=[gd,adam]", *SMALL["compare"]]) == 0
        close_handlers()
        assert main(["constraint", *RESCALING, *SMALL["constraint"]]) == 0
        close_handlers()
    found = {}
    for job in ("train", "compare", "constraint"):
        (run,) = (folder / "runs" / job).iterdir()
        found[job] = run.relative_to(folder)
    write_sweep(folder / "trials", seeds=2, rates=(0.1,), epochs=2)
    found["variants"] = Path("trials")
    return folder, found


def test_there_are_commands_of_every_job():
    jobs = {path.stem for path in (ROOT / "conf").glob("*.yaml")} - {"base"}
    assert jobs <= {line.split()[1].replace("-", "_") for _, line in COMMANDS}
    assert jobs == set(SMALL)
    assert all(line.startswith("symlab ") for _, line in COMMANDS)


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{page}: {line}" for page, line in COMMANDS])
def test_command(page, line, folder, monkeypatch, capsys):
    for mark, module in EXTRAS.items():
        if mark in line and importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    if "fashion_mnist" in line and not Path("/usr/share/datasets/fashion-mnist").is_dir():
        pytest.skip("Fashion-MNIST is not installed (Debian package dataset-fashion-mnist)")
    folder, runs = folder
    words = words_of(line, runs)
    job = next((word for word in words if not word.startswith("-")), None)
    if job in OWN_JOBS or any(word in FORMS for word in words) or any(mark in line for mark in FORMS):
        pytest.skip("an example of a form, not a command")
    if "-m" in words and any(word.startswith("resume=") for word in words):
        pytest.skip("resuming a sweep is tested in test_cli_resume.py")
    shows_only = any(word in ("--help", "--cfg", "--version", "-sc") for word in words)
    small = [] if shows_only or any(word.startswith("resume=") for word in words) else SMALL[job.replace("-", "_")]
    small = small + [key for mark, keys in SMALLER.items() if mark in f"{line}\n" and small for key in keys]
    if any(word.startswith("data=") for word in words):
        small = [key for key in small if not key.startswith("data=")]
    monkeypatch.chdir(folder)
    try:
        code = main([*words, *small])
    finally:
        close_handlers()
    captured = capsys.readouterr()
    assert code == 0, captured.err


BLOCKS = [
    (page, number, block)
    for page in (
        "README.md",
        *(f"docs/{name}.md" for name in ("getting-started", "concepts", "networks", "constraint")),
    )
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.M | re.S))
]


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=[f"{page} {number}" for page, number, _ in BLOCKS])
def test_python_block(page, number, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, f"{page} block {number}", "exec"), {"__name__": "block"})


def test_readme_says_what_concepts_say():
    """Numbers in the concepts page that the code can count."""
    text = (ROOT / "docs" / "concepts.md").read_text("utf-8")
    assert "print(symmetry.num_factors)  # 81" in text
    import torch

    from symlab.symmetry import infer_symmetry

    net = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Tanh(), torch.nn.Linear(5, 5))
    symmetry = infer_symmetry(net, torch.randn(2, 5))
    assert symmetry.num_factors == 81
    assert sum(block.copies for block in symmetry.blocks) == 16
