import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import to_numpy

from keras_transformer.backend import matmul as matmul_module
from keras_transformer.backend.matmul import matmul

RNG = np.random.default_rng(61)
KERNEL = RNG.normal(size=(5, 7)).astype("float32")
ON_TORCH = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="the others multiply as they do"
)


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (0, 5), (2, 3, 5), (1, 1, 5)])
def test_equals_numpy(shape):
    x = RNG.normal(size=shape).astype("float32")
    found = to_numpy(matmul(ops.convert_to_tensor(x), ops.convert_to_tensor(KERNEL)))
    assert found.shape == (*shape[:-1], 7)
    np.testing.assert_allclose(found, x.astype("float64") @ KERNEL, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 5), (1, 5), (2, 3, 5)])
def test_a_bias_is_added(shape):
    x, bias = (RNG.normal(size=size).astype("float32") for size in (shape, 7))
    found = to_numpy(matmul(*map(ops.convert_to_tensor, (x, KERNEL, bias))))
    np.testing.assert_allclose(found, x.astype("float64") @ KERNEL + bias, atol=1e-5)


CPUINFO = """
processor       : 0
vendor_id       : {vendor}
cpu family      : {family}
flags           : fpu sse2 avx2 {flags}
"""


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("vendor", "family", "flags", "is_slow"),
    [
        ("AuthenticAMD", 23, "", True),
        ("AuthenticAMD", 25, "", True),
        ("AuthenticAMD", 25, "avx512f", False),
        ("AuthenticAMD", 26, "avx512f", True),
        ("GenuineIntel", 6, "avx512f", False),
    ],
)
def test_processors_on_which_onednn_is_faster(tmp_path, vendor, family, flags, is_slow):
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO.format(vendor=vendor, family=family, flags=flags))
    assert matmul_module._is_mkl_slow(str(path)) == is_slow


@pytest.mark.once("torch")
def test_an_unknown_processor(tmp_path):
    assert not matmul_module._is_mkl_slow(str(tmp_path / "none"))


@ON_TORCH
class TestOneDNN:
    """PyTorch's own product takes two to three times as long on processors of AMD."""

    @pytest.fixture(autouse=True)
    def processor(self, monkeypatch):
        monkeypatch.setattr(matmul_module, "_is_mkl_slow", lambda: True)

    def tensors(self, rows=3, dtype="float32"):
        x = ops.convert_to_tensor(RNG.normal(size=(rows, 5)), dtype)
        kernel = ops.convert_to_tensor(KERNEL, dtype)
        return x.requires_grad_(), kernel.requires_grad_()

    def is_used(self, *arguments):
        """The reshaping of the result comes last; what multiplied, before it."""
        last = matmul(*arguments).grad_fn
        return "MatMul" in str((last, last.next_functions))

    def test_gradients(self):
        x, kernel = self.tensors()
        weights = ops.convert_to_tensor(RNG.normal(size=(3, 7)), "float32")
        (matmul(x, kernel) * weights).sum().backward()
        double = [to_numpy(value).astype("float64") for value in (x, kernel, weights)]
        np.testing.assert_allclose(x.grad, double[2] @ double[1].T, atol=1e-5)
        np.testing.assert_allclose(kernel.grad, double[0].T @ double[2], atol=1e-5)

    def test_gradients_with_a_bias(self):
        x, kernel = self.tensors()
        bias = ops.convert_to_tensor(RNG.normal(size=7), "float32").requires_grad_()
        assert self.is_used(x, kernel, bias)
        weights = ops.convert_to_tensor(RNG.normal(size=(3, 7)), "float32")
        (matmul(x, kernel, bias) ** 2 * weights).sum().backward()
        double = [to_numpy(v).astype("float64") for v in (x, kernel, bias, weights)]
        of_output = 2 * (double[0] @ double[1] + double[2]) * double[3]
        np.testing.assert_allclose(x.grad, of_output @ double[1].T, atol=1e-4)
        np.testing.assert_allclose(kernel.grad, double[0].T @ of_output, atol=1e-4)
        np.testing.assert_allclose(bias.grad, of_output.sum(0), atol=1e-4)

    def test_gradients_of_gradients(self):
        import torch

        def second(multiply):
            y = multiply(x, kernel)
            (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
            return torch.autograd.grad((first**2).sum(), (x, kernel))

        x, kernel = self.tensors()
        for found, expected in zip(second(matmul), second(torch.matmul), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)

    def test_function_transforms(self):
        import torch

        x, kernel = self.tensors()
        x, kernel = x.detach(), kernel.detach()
        found = torch.func.grad(lambda k: matmul(x, k).sum())(kernel)
        np.testing.assert_allclose(found, x.sum(0)[:, None].expand(5, 7), atol=1e-5)
        many = torch.stack([x, 2 * x])
        found = torch.func.vmap(lambda rows: matmul(rows, kernel))(many)
        np.testing.assert_allclose(found, many @ kernel, atol=1e-5)
        kernels = torch.stack([kernel, 3 * kernel], dim=2)
        found = torch.func.vmap(lambda own: matmul(x, own), in_dims=2)(kernels)
        np.testing.assert_allclose(found, [x @ kernel, 3 * x @ kernel], atol=1e-4)
        bias = ops.convert_to_tensor(RNG.normal(size=(7, 2)), "float32")
        found = torch.func.vmap(lambda b: matmul(x, kernel, b), in_dims=1)(bias)
        np.testing.assert_allclose(
            found, [x @ kernel + bias[:, 0], x @ kernel + bias[:, 1]], atol=1e-5
        )
        found = torch.func.vmap(lambda k: matmul(x, k, bias[:, 0]), in_dims=2)(kernels)
        np.testing.assert_allclose(found[1], 3 * x @ kernel + bias[:, 0], atol=1e-4)

    def test_what_it_is_for(self, monkeypatch):
        import torch

        assert self.is_used(*self.tensors())
        assert not self.is_used(*self.tensors(rows=1))
        assert not self.is_used(*self.tensors(dtype="float64"))
        assert not self.is_used(*self.tensors(dtype="bfloat16"))
        with torch.autocast("cpu"):
            assert not self.is_used(*self.tensors())
        with monkeypatch.context() as patch:
            patch.setattr(torch.backends.mkldnn, "enabled", False)
            assert not self.is_used(*self.tensors())
        assert torch.backends.mkldnn.enabled
        with monkeypatch.context() as patch:
            patch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
            assert not self.is_used(*self.tensors())
        monkeypatch.setattr(matmul_module, "_is_mkl_slow", lambda: False)
        assert not self.is_used(*self.tensors())

    @pytest.mark.parametrize("error", [AttributeError, TypeError, RuntimeError])
    def test_it_is_not_needed(self, monkeypatch, error):
        """As if PyTorch had renamed the operation or changed its arguments."""

        def fail(*arguments):
            raise error

        assert matmul_module._has_linear()
        monkeypatch.setattr(matmul_module, "_linear", fail)
        has_linear = matmul_module._has_linear.__wrapped__
        monkeypatch.setattr(matmul_module, "_has_linear", has_linear)
        x, kernel = self.tensors()
        assert not self.is_used(x, kernel)
        found = to_numpy(matmul(x, kernel))
        np.testing.assert_allclose(found, to_numpy(x) @ KERNEL, atol=1e-5)

    def test_compiled_and_exported(self):
        import torch

        class Model(torch.nn.Module):
            def forward(self, x, kernel):
                return matmul(x, kernel)

        x, kernel = (value.detach() for value in self.tensors())
        exported = torch.export.export(Model(), (x, kernel))
        assert "mkldnn" not in str(exported.graph)
        compiled = torch.compile(Model(), backend="eager", fullgraph=True)
        for function in (compiled, exported.module()):
            np.testing.assert_allclose(function(x, kernel), x @ kernel, atol=1e-5)

    def test_compiled_alone(self):
        """As after the limit of recompilations, when the callers are not compiled."""
        import torch

        graphs = []

        def backend(module, inputs):
            graphs.append(str(module.graph))
            return module

        x, kernel = (value.detach() for value in self.tensors())
        compiled = torch.compile(matmul_module._linear, backend=backend)
        np.testing.assert_allclose(compiled(x, kernel, None), x @ kernel, atol=1e-5)
        assert len(graphs) == 1
        assert "mkldnn" not in graphs[0]
