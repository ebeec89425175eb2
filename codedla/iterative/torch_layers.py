r"""PyTorch modules made of linear layers, as networks for projective derivative codes.

The gradient of a linear layer is :math:`H^T \Delta`, what it was given times the errors that come
back to it, and autograd tells both without forming the product. What lies between the layers may be
anything without trained parameters.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codedla.errors import UsageError
from codedla.iterative.torch_bridge import check_module, torch

__all__ = ["LinearLayers"]

Array = NDArray[Any]


class LinearLayers:
    """A module with the face of :class:`codedla.iterative.mlp.MLP`; its own copy of it.

    Parameters
    ----------
    module : torch.nn.Module
        Takes a matrix of rows and returns scores of classes (rows, classes). All parameters that
        are trained belong to :class:`torch.nn.Linear` layers; a layer may be called several times,
        and on several vectors of a row.
    inputs : int
        Numbers in a row.
    dtype : numpy.dtype
        float32 or float64: it is computed in this.

    Attributes
    ----------
    classes : int
    n_parameters : int
    layers_shapes : list of (int, int, bool)
        Inputs and outputs of every trained layer, and whether it has a bias.

    Raises
    ------
    UsageError
        A module that this is not possible with.
    """

    def __init__(self, module: torch.nn.Module, inputs: int, dtype: Any) -> None:
        check_module(module)
        self._caller: torch.nn.Module | None = module
        self._module = copy.deepcopy(module).cpu()
        self._module = self._module.to(getattr(torch, np.dtype(dtype).name))
        self._module.zero_grad(set_to_none=True)
        self._names = _layers(self._module)
        self._linear = [self._module.get_submodule(name) for name in self._names]
        self.layers_shapes = [
            (int(layer.in_features), int(layer.out_features), layer.bias is not None)
            for layer in self._linear
        ]
        self.n_parameters = sum(
            (rows + bias) * columns for rows, columns, bias in self.layers_shapes
        )
        self._start: Array = self._flat(dtype)
        # Parameters come with every call: those of the copy take no room, here and on their way.
        for layer in self._linear:
            layer.to("meta")
        self.classes = self._try(inputs, np.dtype(dtype))

    def start(self, seed: int, dtype: Any) -> Array:
        """Return the parameters that the module had (n_parameters,); the seed has no meaning."""
        return self._start.astype(dtype)

    def _flat(self, dtype: Any) -> Array:
        pieces = []
        for layer in self._linear:
            pieces.append(layer.weight.detach().numpy().T.ravel())
            if layer.bias is not None:
                pieces.append(layer.bias.detach().numpy())
        return np.concatenate(pieces).astype(dtype)

    def backward_factors(self, theta: Array, X: Array, y: Array) -> tuple[float, list[Any]]:
        """Return the summed cross-entropy, and of every layer what it was given and its errors."""
        seen: list[list[tuple[Any, Any]]] = [[] for _ in self._linear]

        def watch(calls: list[tuple[Any, Any]]) -> Any:
            def hook(_: Any, given: Any, named: Any, result: Any) -> Any:
                calls.append(((given or (named["input"],))[0].detach(), result))
                # A copy goes on: the next step may work in place, and the errors are wanted here.
                return result.clone()

            return hook

        handles = [
            layer.register_forward_hook(watch(calls), with_kwargs=True)
            for layer, calls in zip(self._linear, seen, strict=True)
        ]
        try:
            scores = self._scores(theta, X, trained=True)
        finally:
            for handle in handles:
                handle.remove()
        loss = torch.nn.functional.cross_entropy(
            scores, torch.tensor(np.ascontiguousarray(y)), reduction="sum"
        )
        results = [result for calls in seen for _, result in calls]
        errors = iter(torch.autograd.grad(loss, results, allow_unused=True))
        factors = []
        for calls, (rows, columns, _) in zip(seen, self.layers_shapes, strict=True):
            H, Delta = [np.zeros((0, rows), theta.dtype)], [np.zeros((0, columns), theta.dtype)]
            for given, _ in calls:
                delta = next(errors)
                if delta is not None:
                    H.append(given.reshape(-1, rows).numpy())
                    Delta.append(delta.reshape(-1, columns).numpy())
            # The sum of products of several calls is one product of all their rows.
            factors.append((np.concatenate(H), np.concatenate(Delta)))
        return float(loss.detach()), factors

    def predict(self, theta: Array, X: Array) -> NDArray[np.int64]:
        """Return the likeliest class of every row, (rows,)."""
        with torch.no_grad():
            return self._scores(theta, X, trained=False).argmax(1).numpy()

    def keep(self, theta: Array) -> None:
        """Write parameters into the caller's module."""
        if self._caller is None:
            return
        own = dict(self._caller.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, value in self._named(theta, trained=False).items():
                own[name].copy_(value)

    def _named(self, theta: Array, *, trained: bool) -> dict[str, Any]:
        """Return the parameters of trained layers as tensors, by their names in the module."""
        named, at = {}, 0
        flat = torch.tensor(np.ascontiguousarray(theta))
        for name, (rows, columns, bias) in zip(self._names, self.layers_shapes, strict=True):
            prefix = f"{name}." if name else ""
            weights = flat[at : at + rows * columns].reshape(rows, columns).T
            at += rows * columns
            named[f"{prefix}weight"] = weights.requires_grad_(trained)
            if bias:
                named[f"{prefix}bias"] = flat[at : at + columns].requires_grad_(trained)
                at += columns
        return named

    def _scores(self, theta: Array, X: Array, *, trained: bool) -> Any:
        parameters = self._named(theta, trained=trained)
        rows = torch.tensor(np.ascontiguousarray(X, dtype=theta.dtype))
        return torch.func.functional_call(self._module, parameters, (rows,))

    def _try(self, inputs: int, dtype: Any) -> int:
        """Return the number of classes, if gradients are what the layers' factors say.

        Raises
        ------
        UsageError
        """
        rng = np.random.default_rng(0)
        X, theta = rng.standard_normal((3, inputs)).astype(dtype), self.start(0, dtype)
        try:
            scores = self._scores(theta, X, trained=False)
        except Exception as error:
            raise UsageError(
                f"a module must take matrices of {inputs} columns, as X has; it raised "
                f"{type(error).__name__}: {error}; give it data that fit"
            ) from error
        if not isinstance(scores, torch.Tensor) or scores.ndim != 2 or len(scores) != 3:
            raise UsageError(
                "a module must return a matrix of scores, a row for each row of X; got "
                f"{getattr(scores, 'shape', type(scores).__name__)} for 3 rows; flatten them"
            )
        y = np.zeros(3, np.int64)
        _, factors = self.backward_factors(theta, X, y)
        named = self._named(theta, trained=True)
        loss = torch.nn.functional.cross_entropy(
            torch.func.functional_call(self._module, named, (torch.tensor(X),)),
            torch.tensor(y),
            reduction="sum",
        )
        slopes = iter(torch.autograd.grad(loss, list(named.values()), allow_unused=True))
        for name, (H, Delta), (*_, bias) in zip(
            self._names, factors, self.layers_shapes, strict=True
        ):
            pairs = [((H.T @ Delta).T, next(slopes))]
            if bias:
                pairs.append((Delta.sum(axis=0), next(slopes)))
            for product, slope in pairs:
                right = np.zeros_like(product) if slope is None else slope.numpy()
                if not np.allclose(product, right, rtol=1e-3, atol=1e-3 * np.abs(right).max()):
                    raise UsageError(
                        "a linear layer's weights may be used by calling the layer only; got "
                        f"{name!r}, which is also used otherwise; call it, or freeze it"
                    )
        return int(scores.shape[1])

    def __getstate__(self) -> dict[str, Any]:
        # A worker needs neither the caller's module nor where training began.
        return {**self.__dict__, "_caller": None, "_start": self._start[:0]}


def _layers(module: torch.nn.Module) -> list[str]:
    """Return the names of the linear layers that are trained.

    Raises
    ------
    UsageError
        Other parameters are trained as well.
    """
    names, covered = [], []
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.Linear):
            own = list(part.parameters(recurse=False))
            if own and all(parameter.requires_grad for parameter in own):
                names.append(name)
                covered += [id(parameter) for parameter in own]
    others = [
        name
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and id(parameter) not in covered
    ]
    if others or len(set(covered)) < len(covered):
        raise UsageError(
            "parameters that are trained must be weights and biases of torch.nn.Linear layers, "
            f"each of one layer, none frozen alone; got {', '.join(others) or 'shared ones'}; "
            "freeze them, or use CodedModule"
        )
    return names
