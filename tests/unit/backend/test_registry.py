"""Discovery, stage by stage, and the choice of a backend; one that is broken never hides the others."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend import registry
from embgrad.errors import BackendError
from embgrad.testing.reference import ReferenceBackend, ReferenceModel
from tests.unit.refusals import refused


class FakeEntryPoint:
    """An entry point that loads an object, or raises it."""

    def __init__(
        self, name: str, loads: Any = None, value: str = "", distribution: str | None = "some-package"
    ) -> None:
        self.name = name
        self.value = value or f"package_of_{name}:Backend"
        self.dist = SimpleNamespace(name=distribution, version="1.2") if distribution else None
        self._loads = loads

    def load(self) -> Any:
        if isinstance(self._loads, Exception):
            raise self._loads
        return self._loads


def backend(name: str, owned: type | None = None, package: str = "numpy", **members: Any) -> type:
    """Return a backend class that owns the instances of a type."""
    shape = {
        "name": name,
        "package": package,
        "extra": name,
        "supports": frozenset({"word"}),
        "owns": lambda self, part: owned is not None and isinstance(part, owned),
        "versions": lambda self: {},
        "points": lambda self, *arguments: [],
        "run": lambda self, *arguments: None,
        "paths": lambda self, model: [],
    }
    return type(f"{name.title()}Backend", (), {**shape, **members})


class Model:
    pass


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the list of entry points that the registry discovers."""
    points: list[Any] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: list(points) if group == registry.GROUP else [])
    embgrad.backend.refresh_backends()
    yield points
    monkeypatch.undo()
    embgrad.backend.refresh_backends()


def test_two_entry_points_of_one_name_are_neither() -> None:
    points = [
        FakeEntryPoint("a", value="one:A", distribution="first"),
        FakeEntryPoint("a", value="other:A", distribution=None),
        FakeEntryPoint("b"),
    ]
    unique, clashes = registry.drop_duplicates(points)
    assert [point.name for point in unique] == ["b"]
    assert clashes == {
        "a": "two distributions provide it, first 1.2 (one:A) and an unknown distribution (other:A): uninstall one"
    }


@pytest.mark.parametrize("error", [ImportError("no such thing"), SyntaxError("bad"), RuntimeError("at import")])
def test_a_backend_that_cannot_be_loaded(error: Exception) -> None:
    loaded, broken = registry.load([FakeEntryPoint("a", error), FakeEntryPoint("b", backend("b"))])
    assert list(loaded) == ["b"]
    assert broken["a"] == f"some-package 1.2 (package_of_a:Backend) raised {type(error).__name__}: {error}"


def test_a_backend_without_every_member() -> None:
    complete = backend("a")()
    misshapen = SimpleNamespace(name="b", owns=print)
    good, bad = registry.check({"a": complete, "b": misshapen, "c": complete})
    assert list(good) == ["a"]
    assert bad == {
        "b": "SimpleNamespace lacks 'package', 'extra', 'supports', 'versions', 'points', 'run', 'paths'; see "
        "embgrad.backend.Backend",
        "c": "it is registered as 'c' and calls itself 'a'",
    }


def test_the_installed_reference() -> None:
    assert isinstance(embgrad.backend.list_backends()["reference"], ReferenceBackend)


def test_backends_are_cached_until_refreshed(installed: list[Any]) -> None:
    assert embgrad.backend.list_backends() == {}
    installed.append(FakeEntryPoint("a", backend("a")))
    assert embgrad.backend.list_backends() == {}
    embgrad.backend.refresh_backends()
    embgrad.backend.list_backends().clear()  # a copy
    assert list(embgrad.backend.list_backends()) == ["a"]


def test_a_backend_by_name(installed: list[Any]) -> None:
    installed += [FakeEntryPoint("a", backend("a")), FakeEntryPoint("broken", RuntimeError("at import"))]
    assert registry.backend_named("a").name == "a"
    with refused(BackendError, "'broken' cannot be used: some-package 1.2 ", "RuntimeError: at import"):
        registry.backend_named("broken")
    with refused(BackendError, "no backend 'brokn': expected one of 'a', 'broken'. Did you mean 'brok"):
        registry.backend_named("brokn")
    with pytest.raises(BackendError, match="the framework is None: expected the name of a backend, one of 'a'"):
        registry.backend_named(None)


@pytest.mark.parametrize(("extra", "hint"), [("a", r"'embgrad\[a\]'"), (None, "no_such_framework")])
def test_a_backend_whose_framework_is_missing(installed: list[Any], extra: str | None, hint: str) -> None:
    installed.append(FakeEntryPoint("a", backend("a", package="no_such_framework", extra=extra)))
    message = rf"'a' needs the package 'no_such_framework', which is not installed: pip install {hint}\n"
    with pytest.raises(BackendError, match=message):
        registry.backend_named("a")


def test_an_empty_folder_is_not_installed(installed: list[Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty_folder").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.append(FakeEntryPoint("a", backend("a", package="empty_folder")))
    with pytest.raises(BackendError, match="'empty_folder', which is not installed"):
        registry.backend_named("a")


def test_nothing_is_registered(installed: list[Any]) -> None:
    for call in (lambda: registry.backend_named("torch"), lambda: registry.backend_for(Model())):
        with pytest.raises(BackendError, match="No backend is registered at all: install embgrad itself"):
            call()


def test_the_owner_is_chosen(installed: list[Any]) -> None:
    installed += [FakeEntryPoint("a", backend("a", Model)), FakeEntryPoint("b", backend("b", dict))]
    assert registry.backend_for(Model()).name == "a"
    assert registry.backend_for([Model(), Model()]).name == "a"
    assert registry.backend_for({}).name == "b"


def test_what_calls_a_model_is_callable(installed: list[Any]) -> None:
    installed.append(FakeEntryPoint("a", backend("a", Model)))
    with pytest.raises(embgrad.EmbgradError, match="call is 3"):
        registry.bind(Model(), 3)  # type: ignore[arg-type]


def test_the_owner_of_a_class_is_asked_first_again(installed: list[Any]) -> None:
    asked: list[str] = []

    def owning(name: str) -> Any:
        return lambda self, part: asked.append(name) or (name == "b" and isinstance(part, Model))  # type: ignore[func-returns-value]

    installed += [FakeEntryPoint(name, backend(name, owns=owning(name))) for name in ("a", "b")]
    for _ in range(2):
        assert registry.backend_for(Model()).name == "b"
    assert asked == ["a", "b", "b"]


def test_ownership_is_decided_for_each_model(installed: list[Any]) -> None:
    owns = {"owns": lambda self, part: isinstance(part, dict) and "weights" in part}
    installed += [FakeEntryPoint("a", backend("a", **owns)), FakeEntryPoint("b", backend("b", Model))]
    for _ in range(2):
        assert registry.backend_for({"weights": 1}).name == "a"
        with pytest.raises(BackendError, match=r"no installed backend takes a model of type builtins\.dict"):
            registry.backend_for({})


def test_two_claimants(installed: list[Any]) -> None:
    installed += [FakeEntryPoint(name, backend(name, Model)) for name in ("a", "b")]
    with refused(BackendError, "'a', 'b' all claim a model of type ", "Model: expected only one to. Uninstall"):
        registry.backend_for(Model())


def test_broken_backends_do_not_hide_the_others(installed: list[Any]) -> None:
    def raises(self: Any, part: object) -> bool:
        raise RuntimeError("cannot tell")

    installed += [
        FakeEntryPoint("broken", RuntimeError("at import")),
        FakeEntryPoint("unsure", backend("unsure", owns=raises)),
        FakeEntryPoint("a", backend("a", Model)),
    ]
    assert registry.backend_for(Model()).name == "a"
    with refused(
        BackendError,
        "Backends: 'a'",
        "broken: some-package",
        "unsure: its owns() raised RuntimeError: cannot tell",
    ):
        registry.backend_for({})


@pytest.mark.parametrize("model", [None, "bert-base-uncased", 3, {"model": 1}, np.zeros(3), object(), print])
def test_anything_but_a_model_is_refused(model: Any) -> None:
    with pytest.raises(BackendError) as caught:
        embgrad.gradients(model, [[1]], embgrad.Sum())
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    for fragment in (f"takes a model of type {kind}", "expected a model of one of the frameworks", "torch.nn.Module"):
        assert fragment in str(caught.value)


def of_package(package: str, name: str = "Model") -> Any:
    """Return an object whose class comes from a package."""
    base = type("Base", (), {"__module__": f"{package}.deep.inside"})
    return type(name, (base,), {"__module__": "__main__"})()


@pytest.mark.parametrize(
    ("model", "installed_too", "message"),
    [
        *(
            (
                of_package(package),
                "reference",
                f"type __main__.Model: it looks like {what}, install the extra '{extra}': pip install 'embgrad[{extra}]'",
            )
            for package, what, extra in (
                ("torch", "a PyTorch module", "torch"),
                ("tensorflow", "a TensorFlow model", "tensorflow"),
                ("keras", "a Keras model", "tensorflow"),
                ("tf_keras", "a Keras 2 model", "tensorflow"),
                ("mxnet", "a Gluon block", "mxnet"),
                ("flax", "a Flax module", "jax"),
                ("equinox", "an Equinox module", "jax"),
                ("jax", "a JAX function", "jax"),
            )
        ),
        (of_package("haiku"), "reference", "looks like a Haiku module, for which embgrad has no backend; see"),
        (
            of_package("torch", "Tensor"),
            "torch",
            "same package as a PyTorch module, but is not one; the backend 'torch' expects a model, not a tensor",
        ),
        (
            [of_package("torch"), of_package("keras")],
            "torch",
            "its parts are 'a PyTorch module', 'a Keras model'; expected parts of one framework",
        ),
        (
            [of_package("flax"), of_package("torch")],
            "torch",
            "its parts are 'a Flax module', 'a PyTorch module'; expected parts of one framework",
        ),
    ],
)
def test_models_without_a_backend(installed: list[Any], model: Any, installed_too: str, message: str) -> None:
    installed.append(FakeEntryPoint(installed_too, backend(installed_too)))
    with refused(BackendError, message):
        registry.backend_for(model)


def keras_model(name: str) -> Any:
    """Return an object whose class has the bases of a Keras 3 model on a backend of Keras."""
    layer = type("TheLayer", (), {"__module__": f"keras.src.backend.{name}.layer"})
    keras = type("Layer", (layer,), {"__module__": "keras.src.layers.layer"})
    return type("Mine", (keras,), {"__module__": "__main__"})()


@pytest.mark.parametrize("name", ["numpy", "openvino"])
def test_a_keras_model_on_a_backend_of_keras_without_gradients(installed: list[Any], name: str) -> None:
    installed.append(FakeEntryPoint("tensorflow", backend("tensorflow")))
    message = (
        rf"takes a model of type __main__.Mine: it is a Keras model on Keras's own backend '{name}', which embgrad does not "
        r"support\. Set KERAS_BACKEND to 'tensorflow', 'torch' or 'jax' before keras is imported, and load the model there\n"
    )
    for model in (keras_model(name), [keras_model("jax"), keras_model(name)]):
        with pytest.raises(BackendError, match=message.replace("a model of type __main__.Mine", "a model .*")):
            registry.backend_for(model)


@pytest.mark.parametrize("name", ["tensorflow", "torch", "jax"])
def test_a_keras_model_whose_backend_of_embgrad_is_missing(installed: list[Any], name: str) -> None:
    installed.append(FakeEntryPoint("reference", backend("reference")))
    with refused(BackendError, f"looks like a Keras model on {name}, install the extra '{name}': pip install 'emb"):
        registry.backend_for(keras_model(name))


def test_an_optimizer_of_keras_is_no_model(installed: list[Any]) -> None:
    installed.append(FakeEntryPoint("tensorflow", backend("tensorflow")))
    base = type("JaxOptimizer", (), {"__module__": "keras.src.backend.jax.optimizer"})
    with refused(BackendError, "from the same package as a Keras model, but is not one"):
        registry.backend_for(type("Adam", (base,), {"__module__": "keras.src.optimizers.adam"})())


def of_class(module: str, name: str, **members: Any) -> Any:
    """Return an object of a class whose base has this module and name."""
    base = type(name, (), {"__module__": module, "__qualname__": name, **members})
    return type("Mine", (base,), {"__module__": "__main__"})()


AS_TREE = "call=lambda parameters, inputs: function(parameters, inputs)"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            of_class("flax.linen.module", "Module"),
            "it is a Flax Linen module, which holds no weights. Pass (module, variables) with call=lambda parts, inputs: "
            "parts[0].apply(parts[1], inputs), where inputs are the ids, or the batch's dict if it is one",
        ),
        (
            of_class("flax.nnx.graph", "GraphDef"),
            "an nnx.GraphDef, a module without its variables. Pass the module, nnx.merge(graphdef, state)",
        ),
        (
            type("PjitFunction", (), {"__module__": "jaxlib._jax", "__wrapped__": print})(),
            "it is a function under jit, which holds no weights. Pass the module that it calls, or its parameters with "
            f"{AS_TREE}",
        ),
    ],
    ids=["linen", "graphdef", "jitted"],
)
def test_what_is_a_model_in_jax_only_with_more_beside_it(installed: list[Any], model: Any, message: str) -> None:
    installed.append(FakeEntryPoint("jax", backend("jax")))
    with refused(BackendError, message):
        registry.backend_for(model)


def test_a_function_is_no_model() -> None:
    with refused(
        BackendError,
        "takes a model of type builtins.function: expected a model of one of the frameworks",
        "in place of a function that builds a model, pass what it returns, and in place of a function of JAX its parameters, "
        f"with {AS_TREE}",
    ):
        registry.backend_for(of_class)


def test_a_function_that_torch_compile_made_is_no_model() -> None:
    def function() -> None:
        pass

    function._torchdynamo_orig_callable = of_class  # type: ignore[attr-defined]
    with refused(
        BackendError,
        "in place of a function that torch.compile made, pass the torch.nn.Module whose weights it uses, compiled or not, and "
        "the function as call=...",
    ):
        registry.backend_for(function)


def test_a_backend_may_own_objects_that_are_a_model_only_together(installed: list[Any]) -> None:
    beside = {"owns_part": lambda self, part: isinstance(part, dict) or callable(part)}
    installed += [FakeEntryPoint("a", backend("a", Model, **beside)), FakeEntryPoint("b", backend("b", set))]
    assert registry.backend_for((len, {})).name == "a"
    assert registry.backend_for(Model()).name == "a"
    assert registry.backend_for([set(), set()]).name == "b"
    for alone in ({}, len, (set(), {})):
        assert not registry.is_model(alone)
        with pytest.raises(BackendError, match="no installed backend takes a model"):
            registry.backend_for(alone)


def test_the_part_that_is_no_model_is_named(installed: list[Any]) -> None:
    installed.append(FakeEntryPoint("torch", backend("torch", Model)))
    with refused(BackendError, "the part of type Tensor is from the same package as a PyTorch module, but is"):
        registry.backend_for([Model(), of_package("torch", "Tensor")])
    with refused(BackendError, "; in place of a name, pass the model that from_pretrained(...)"):
        registry.backend_for([Model(), "head"])


def test_parts_that_are_not_all_models() -> None:
    model = ReferenceModel(lambda model, input_ids: None, {})
    with refused(BackendError, "takes a model of parts of the types ", "ReferenceModel, builtins.str"):
        registry.backend_for([model, "head"])
    with refused(BackendError, "the model is the class Model: expected an instance; write Model("):
        registry.backend_for([model, Model])
    with pytest.raises(BackendError, match="an empty sequence of parts: expected at least one part"):
        registry.backend_for([])
