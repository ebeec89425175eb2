"""Coded data-parallel training of PyTorch modules.

It needs the package torch (``pip install 'codedla[torch]'``). Parameters travel as one vector,
workers compute the loss and its gradient by autograd on their parts of the data, and the master
steps with any optimizer of torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.engine.round import Pool
from codedla.errors import UsageError
from codedla.iterative.gradient import CodedGradient

try:
    import torch
except ImportError as error:
    raise UsageError(
        "training PyTorch modules needs the package torch; it is not installed; pip install "
        "'codedla[torch]'"
    ) from error

__all__ = ["CodedModule", "check_module", "torch"]

_REDUCTIONS = ("mean", "sum")


class CodedModule:
    """A module whose gradients come, coded, from workers.

    Parameters
    ----------
    module : torch.nn.Module
        Stays the caller's; its parameters are sent with every round. Its result for a row must not
        depend on other rows or on chance: no batch normalization or dropout in training mode.
    loss : callable
        ``loss(module(*inputs), target)``, for instance ``torch.nn.functional.cross_entropy``.
    data : DataLoader, or tuple of tensors or arrays
        The inputs and, last, the target, with equally many rows. Of a loader the whole data set is
        taken, at once, and its batch size gives the number of batches.
    pool : Pool
    batches : int, optional
        Into how many batches the data are cut; 1 by default, or as the loader says.
    reduction : {"mean", "sum"}, optional
        What the loss returns; its attribute ``reduction`` if it has one, else "mean".
    **options
        As of :class:`codedla.CodedGradient`: ``scheme``, ``stragglers``, ``robust``, ...

    Attributes
    ----------
    gradient : CodedGradient
        With what happened: rounds, stragglers, bytes, the last report.

    Raises
    ------
    UsageError
        A module or data that this is not possible with, or as by CodedGradient.

    Examples
    --------
    >>> import codedla, torch
    >>> net = torch.nn.Linear(3, 1)
    >>> X, y = torch.ones(8, 3), torch.ones(8, 1)
    >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    >>> with (
    ...     codedla.SerialPool(4) as pool,
    ...     codedla.CodedModule(net, torch.nn.MSELoss(), (X, y), pool=pool, batches=2) as coded,
    ... ):
    ...     for epoch in range(20):
    ...         for batch in coded.shuffled():
    ...             loss = coded.backward(batch)
    ...             optimizer.step()
    >>> loss < 1e-3
    True
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Callable[..., Any],
        data: Any,
        *,
        pool: Pool,
        batches: int | None = None,
        reduction: str | None = None,
        **options: Any,
    ) -> None:
        check_module(module)
        reduction = reduction or getattr(loss, "reduction", "mean")
        if reduction not in _REDUCTIONS:
            raise UsageError(
                f"a loss is the mean or the sum over its rows; got reduction={reduction!r}; use "
                "'mean' or 'sum'"
            )
        if isinstance(data, torch.utils.data.DataLoader):
            batches = batches or max(1, len(data))
            data = _whole(data)
        arrays = tuple(
            each.detach().cpu().numpy() if isinstance(each, torch.Tensor) else np.asarray(each)
            for each in data
        )
        if len(arrays) < 2:
            raise UsageError(
                f"data are inputs and a target; got {len(arrays)} arrays; pass a tuple (X, y)"
            )
        self.module, self.batches = module, 1 if batches is None else int(batches)
        self.gradient = CodedGradient(
            _Backward(module, loss, reduction == "mean"), arrays, pool=pool, **options
        )
        if not 1 <= self.batches <= arrays[0].shape[0]:
            self.gradient.close()
            raise UsageError(
                f"there are 1 to {arrays[0].shape[0]} batches, no more than rows; got "
                f"{self.batches}; give fewer"
            )

    def backward(self, batch: int | None = None) -> float:
        """Leave the gradient of the mean loss in every parameter's ``grad``.

        Parameters
        ----------
        batch : int, optional
            Which of the batches; all data without.

        Returns
        -------
        float
            The mean loss over the rows.

        Raises
        ------
        NotDecodable, VerificationFailed, WorkerError, PoolClosed
            As by :class:`codedla.CodedGradient`.
        """
        which = None if batch is None else (batch, self.batches)
        loss, slope = self.gradient(_flat(self.module), batch=which)
        rows = max(1, self.gradient.rows(which))
        at = 0
        for parameter in _trained(self.module):
            piece = slope[at : at + parameter.numel()] / rows
            at += parameter.numel()
            parameter.grad = torch.from_numpy(piece).reshape(parameter.shape).to(parameter)
        return loss / rows

    def shuffled(self, seed: int | None = None) -> Iterator[int]:
        """Yield every batch once, in random order (of torch's generator, or seeded)."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        yield from torch.randperm(self.batches, generator=generator).tolist()

    def close(self) -> None:
        """Free the workers' data; idempotent."""
        self.gradient.close()

    def __enter__(self) -> CodedModule:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Backward:
    """What workers call: sums over rows, of a module of their own."""

    def __init__(self, module: torch.nn.Module, loss: Callable[..., Any], mean: bool) -> None:
        self.module, self.loss, self.mean = module, loss, mean

    def __call__(self, theta: NDArray[np.float64], *arrays: Any) -> tuple[float, Any]:
        """Return the loss and its gradient by all parameters, flat."""
        parameters = _trained(self.module)
        at = 0
        with torch.no_grad():
            for parameter in parameters:
                piece = torch.tensor(theta[at : at + parameter.numel()])
                parameter.copy_(piece.reshape(parameter.shape))
                at += parameter.numel()
        # Copies: a module may work in place, and the rows are needed again.
        *inputs, target = (torch.tensor(array) for array in arrays)
        loss = self.loss(self.module(*inputs), target)
        slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
        scale = len(target) if self.mean else 1
        flat = [
            np.zeros(parameter.numel()) if slope is None else slope.double().numpy().ravel()
            for slope, parameter in zip(slopes, parameters, strict=True)
        ]
        return scale * float(loss.detach()), scale * np.concatenate(flat)

    def __getstate__(self) -> dict[str, Any]:
        # Workers compute on their CPU, and need no gradients of the caller's.
        import copy

        module = copy.deepcopy(self.module).cpu()
        module.zero_grad(set_to_none=True)
        return {"module": module, "loss": self.loss, "mean": self.mean}


def _trained(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _flat(module: torch.nn.Module) -> NDArray[np.float64]:
    pieces = [p.detach().cpu().double().numpy().ravel() for p in _trained(module)]
    return np.concatenate(pieces)


def check_module(module: Any) -> None:
    """Raise UsageError unless the module's gradients are sums over rows."""
    if not isinstance(module, torch.nn.Module) or not _trained(module):
        raise UsageError(
            f"module must be a torch.nn.Module with parameters to be trained; got "
            f"{type(module).__name__}; pass one"
        )
    if any(parameter.is_complex() for parameter in _trained(module)):
        raise UsageError("parameters must be real; got complex ones; use pairs of real ones")
    kinds = (torch.nn.modules.batchnorm._NormBase, torch.nn.modules.dropout._DropoutNd)
    for name, part in module.named_modules():
        chance = isinstance(part, kinds[1]) and part.p == 0
        if isinstance(part, kinds) and part.training and not chance:
            raise UsageError(
                "a row's result must not depend on other rows or on chance, which workers do not "
                f"share; got {type(part).__name__} {name!r} in training mode; call its eval(), or "
                "use LayerNorm or weight decay"
            )


def _whole(loader: Any) -> tuple[Any, ...]:
    """Return the whole data set of a loader as tensors."""
    dataset = loader.dataset
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            "a loader's data set must have a length, to be cut into parts; got "
            f"{type(dataset).__name__}; load it into tensors"
        )
    collated = loader.collate_fn([dataset[place] for place in range(len(dataset))])
    if not isinstance(collated, list | tuple):
        raise UsageError(
            f"a loader must give inputs and a target; got {type(collated).__name__}; use a "
            "TensorDataset"
        )
    return tuple(collated)
