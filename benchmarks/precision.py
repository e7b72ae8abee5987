"""What rounding the factors of matrix products does to Deep DAPP: why it trains in tf32 on a GPU,
and not in bf16.

    python benchmarks/precision.py [--steps 40]

A tensor core multiplies numbers of a few bits and adds in float32. Here that is done on a CPU: in
every matrix of Deep DAPP but the one row of the rate, forwards and backwards, both factors are
rounded to the nearest number of the format (tf32 and float16 have 11 bits, bf16 has 8), and a
batch's log-likelihood and gradient are compared with those of the same weights in float64. The
weights are those of the default model at its first step and after some of training on the embedded
late departures. Allowed are .0001 of the log-likelihood and .002 of the gradient, as by `gpu.py`,
which measures what the kernels of a device do.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch
from records import Record, options
from torch import Tensor, nn

SEQUENCES, NODES = 64, 4
VALUE, GRADIENT = 1e-4, 2e-3  # differences that are allowed, relative
Format = Callable[[Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    options(parser)
    given = parser.parse_args()
    import fourpoint as fp
    from fourpoint.models import DeepDAPP

    torch.set_num_threads(1)
    record = Record(
        "precision",
        "Deep DAPP's log-likelihood and gradient with the factors of matrix products rounded.",
        given.quick,
    )
    data = fp.load("nyc_delays")
    train, dev = data.part("train"), data.part("dev")
    for steps in (1, 10 if given.quick else given.steps):
        model = DeepDAPP(train.marks)
        fp.fit(
            model,
            train,
            dev,
            steps=steps,
            epochs=0,
            validate_every=steps,
            baselines=False,
            progress=False,
        )
        batch, exact = (
            train.batch(range(min(SEQUENCES, len(train)))),
            slopes(copy.deepcopy(model).double(), train, None),
        )
        for name, rounding in FORMATS.items():
            value, gradient = slopes(copy.deepcopy(model), train, rounding)
            errors = (
                abs(float(value / exact[0]) - 1),
                float((gradient - exact[1]).norm() / exact[1].norm()),
            )
            kept = "yes" if errors[0] <= VALUE and errors[1] <= GRADIENT else "no"
            part = (
                f"after {steps} step{'s' if steps > 1 else ''}, {int(batch.lengths.sum()):,} events"
            )
            record.row(
                part,
                name,
                **{
                    "log-likelihood, relative": errors[0],
                    "gradient, relative": errors[1],
                    "allowed": kept,
                },
            )
            print(
                (
                    f"{part}: {name:8} log-likelihood {errors[0]:.2g}, gradient {errors[1]:.2g}, "
                    f"allowed: {kept}"
                ),
                flush=True,
            )
            if name == "tf32":
                record.bar(
                    f"Deep DAPP {part}: gradient with factors in tf32, relative difference",
                    errors[1],
                    most=GRADIENT,
                )
    print(f"wrote {record.write(given.results)}")


def slopes(model: Any, data: Any, rounding: Format | None) -> tuple[Tensor, Tensor]:
    """The sampled log-likelihood of the first sequences of ``data``, and its gradient in all
    weights, in float64.
    """
    from fourpoint.inference.likelihood import sampled_log_likelihood

    for part in model.modules() if rounding else ():
        if isinstance(part, nn.Linear) and part.out_features > 1:
            part.forward = _rounded(part, rounding)
    model.eval()
    batch = data.batch(range(min(SEQUENCES, len(data))))
    value = sampled_log_likelihood(model, batch, NODES, torch.Generator().manual_seed(0)).sum()
    value.backward()
    return value.detach().double(), torch.cat(
        [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
    )


def _rounded(part: nn.Linear, rounding: Format) -> Callable[[Tensor], Tensor]:
    return lambda x: (
        Product.apply(x, part.weight, rounding) + (0.0 if part.bias is None else part.bias)
    )


class Product(torch.autograd.Function):
    """x W' and its gradients, with the factors of all three products rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, rounding: Format) -> Tensor:
        ctx.rounding = rounding
        ctx.save_for_backward(rounding(x), rounding(weight))
        return rounding(x) @ rounding(weight).T

    @staticmethod
    def backward(ctx: Any, of_y: Tensor) -> tuple[Tensor, Tensor, None]:
        (x, weight), g = ctx.saved_tensors, ctx.rounding(of_y)
        return g @ weight, g.flatten(0, -2).T @ x.flatten(0, -2), None


def tf32(x: Tensor) -> Tensor:
    """The nearest number with 10 bits after the first."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


FORMATS: dict[str, Format] = {
    "float32": lambda x: x,
    "tf32": tf32,
    "float16": lambda x: x.half().float(),
    "bf16": lambda x: x.bfloat16().float(),
}


if __name__ == "__main__":
    main()
