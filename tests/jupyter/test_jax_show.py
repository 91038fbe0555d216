"""A function of JAX in the notebook: `%graph loss --like parameters,x` and `gdlab.show(loss, like=(parameters, x))`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from shells import run_for_text


def loss(parameters: Any, x: Any) -> Any:
    for layer in parameters["layers"]:
        x = x + jnp.tanh(x @ layer["up"] + layer["bias"]) @ layer["down"]
    return (x**2).mean()


@pytest.fixture
def shell(shell: InteractiveShell) -> InteractiveShell:
    rng = np.random.default_rng(0)
    layer = {"up": (4, 6), "bias": (6,), "down": (6, 4)}
    layers = [{n: rng.normal(size=s).astype(np.float32) for n, s in layer.items()} for _ in range(2)]
    shell.push({"loss": loss, "parameters": {"layers": layers}, "x": np.ones((3, 4), np.float32), "number": 3})
    return shell


def test_a_function_opens_by_the_paths_of_its_parameters_and_trains(shell: InteractiveShell) -> None:
    text, outputs = run_for_text(shell, "%graph loss --like parameters,x --train --device cpu")
    assert "loss_graph = the study of loss" in text and len(outputs) == 1
    study = shell.user_ns["loss_graph"]
    assert {"layers.0", "layers.1"} <= set(study.doc.data["stages"][0]["groups"]["label"]["words"])
    study.session.set_input("x", shell.user_ns["x"])
    study.step()
    wanted = float(loss(shell.user_ns["parameters"], shell.user_ns["x"]))
    assert study.train and study.session.read_loss() == pytest.approx(wanted, rel=1e-5)
    text, outputs = run_for_text(shell, "import gdlab; gdlab.show(loss, like=(parameters, x))")
    assert len(outputs) == 1, text


def test_what_is_no_function_is_said(shell: InteractiveShell) -> None:
    for line, message in (
        ("%graph number --like x", "given number, wanted a PyTorch module of this notebook, or a JAX function"),
        ("%graph loss --like parameters,z", "--like: given z, wanted a variable of this notebook"),
        ("%graph loss --like x", "load_jax: loss: given"),
    ):
        text, outputs = run_for_text(shell, line)
        assert message in text and not outputs, line
