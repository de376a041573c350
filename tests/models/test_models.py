"""Every model: exact sizes, the two-part contract, and the function transforms the engine relies on."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from consilience.errors import UserError
from consilience.models import (
    MLP,
    MODELS,
    VGG11,
    VGG16,
    CifarCNN,
    Classifier,
    FaghCNN,
    FashionCNN,
    FemnistCNN,
    LeNet5,
    Logistic,
    MnistCNN,
    ModelSpec,
    PflCNN,
    PyTorchCNN,
    ResNet50Cifar,
    SimpleCNN,
)
from consilience.models.spec import hidden_layers, projection_layers

GREY = (1, 28, 28)
COLOUR = (3, 32, 32)
TINY_IMAGENET = (3, 64, 64)

COUNTS = [
    (MLP(), GREY, 10, 199_210),
    (Logistic(), GREY, 10, 7_850),
    (Logistic(), GREY, 26, 20_410),
    (CifarCNN(), COLOUR, 10, 356_810),
    (FemnistCNN(), GREY, 62, 6_603_710),
    (MnistCNN(), GREY, 10, 21_840),
    (MnistCNN(dropout=False), GREY, 10, 21_840),
    (FashionCNN(), GREY, 10, 1_199_882),
    (PyTorchCNN(), GREY, 10, 431_080),
    (SimpleCNN(), COLOUR, 10, 92_626),
    (SimpleCNN(projection=False), COLOUR, 10, 62_006),
    (LeNet5(), COLOUR, 10, 62_006),
    (LeNet5(), GREY, 10, 61_706),
    (FaghCNN(), GREY, 10, 1_475_338),
    (PflCNN(), COLOUR, 10, 1_626_442),
    (ResNet50Cifar(), COLOUR, 10, 28_223_818),
    (ResNet50Cifar(), COLOUR, 100, 28_246_948),
    (ResNet50Cifar(), TINY_IMAGENET, 200, 28_272_648),
    (VGG11(), COLOUR, 10, 9_231_114),
    (VGG11(), COLOUR, 100, 9_277_284),
    (VGG11(), TINY_IMAGENET, 200, 9_328_584),
    (VGG11(batch_norm=False), COLOUR, 10, 9_225_610),
    (VGG11(batch_norm=False, bias=False), COLOUR, 10, 9_222_848),
    (VGG11(batch_norm=False, bias=False), COLOUR, 100, 9_268_928),
    (VGG11(batch_norm=False, bias=False), TINY_IMAGENET, 200, 9_320_128),
    (VGG11(batch_norm=False, classifier="nib"), COLOUR, 10, 9_750_922),
    (VGG11(batch_norm=False, projection=True), COLOUR, 10, 9_617_034),
    (VGG16(), COLOUR, 10, 14_728_266),
    (VGG16(batch_norm=False), COLOUR, 10, 14_719_818),
]

SMALL = [
    (MLP(), GREY),
    (MLP(hidden=()), (7,)),
    (Logistic(), GREY),
    (CifarCNN(), COLOUR),
    (FemnistCNN(), GREY),
    (MnistCNN(), GREY),
    (FashionCNN(), GREY),
    (PyTorchCNN(), GREY),
    (SimpleCNN(), COLOUR),
    (SimpleCNN(projection=False), COLOUR),
    (LeNet5(), COLOUR),
    (LeNet5(), GREY),
    (FaghCNN(), GREY),
    (PflCNN(), COLOUR),
]
LARGE = [
    (VGG11(classifier="nib", projection=True), TINY_IMAGENET),
    (VGG16(bias=False), COLOUR),
    (ResNet50Cifar(), (3, 16, 16)),
]

# The smallest square image each architecture can take; below it, something would shrink to nothing.
SMALLEST = [
    (CifarCNN(), 8),
    (FemnistCNN(), 4),
    (MnistCNN(), 16),
    (FashionCNN(), 6),
    (PyTorchCNN(), 16),
    (SimpleCNN(), 16),
    (LeNet5(), 12),
    (FaghCNN(), 8),
    (PflCNN(), 6),
    (VGG11(), 32),
]

# One letter a layer of the body: what parameter counts cannot see.
LETTERS = {
    nn.Conv2d: "C",
    nn.BatchNorm2d: "B",
    nn.ReLU: "R",
    nn.MaxPool2d: "P",
    nn.AdaptiveAvgPool2d: "A",
    nn.Dropout: "d",
    nn.Dropout2d: "D",
    nn.Flatten: "_",
    nn.Linear: "L",
}
ORDERS = [
    (MLP(), "_LRLR"),
    (CifarCNN(), "CRPCRPCRP_LR"),
    (FemnistCNN(), "CRPCRP_LR"),
    (MnistCNN(), "CPRCDPR_LRd"),
    (MnistCNN(dropout=False), "CPRCPR_LR"),
    (FashionCNN(), "CRCP_LR"),
    (PyTorchCNN(), "CRPCRP_LR"),
    (SimpleCNN(), "CRPCRP_LRLRLRL"),
    (SimpleCNN(projection=False), "CRPCRP_LRLR"),
    (LeNet5(), "CRPCRP_LRLR"),
    (FaghCNN(), "CBRPCBRP_LdL"),
    (PflCNN(), "CRCRPd_LRd"),
    (VGG11(), "CBRPCBRPCBRCBRPCBRCBRPCBRCBRPA_"),
    (VGG11(batch_norm=False, classifier="nib"), "CRPCRPCRCRPCRCRPCRCRPA_dLRdLR"),
    (VGG11(batch_norm=False, projection=True), "CRPCRPCRCRPCRCRPCRCRPA_LRL"),
]


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def label(value: object) -> str | None:
    return f"{value.name}" if isinstance(value, ModelSpec) else None


@pytest.mark.parametrize(("spec", "shape", "classes", "expected"), COUNTS, ids=label)
def test_trainable_parameters(spec, shape, classes, expected):
    with torch.device("meta"):
        assert size(spec.build(shape, classes)) == expected


def test_sizes_of_parts():
    with torch.device("meta"):
        resnet = ResNet50Cifar().build(COLOUR, 10)
        backbone = size(resnet.body) - sum(size(layer) for layer in projection_layers(2048))
        assert backbone == 23_500_352
        for spec, convolutions in ((VGG11(), 9_220_480), (VGG16(), 14_714_688)):
            layers = spec.build(COLOUR, 10).body.modules()
            assert sum(size(layer) for layer in layers if isinstance(layer, nn.Conv2d)) == convolutions


@pytest.mark.parametrize(("spec", "expected"), ORDERS, ids=label)
def test_order_of_layers(spec, expected):
    with torch.device("meta"):
        body = spec.build(COLOUR, 10).body
    assert "".join(LETTERS[type(layer)] for layer in body) == expected


def test_resnet_shrinks_eightfold():
    with torch.device("meta"):
        layers = ResNet50Cifar().build(COLOUR, 10).body
        pooling = next(i for i, layer in enumerate(layers) if isinstance(layer, nn.AdaptiveAvgPool2d))
        assert layers[:pooling](torch.empty(1, *COLOUR)).shape == (1, 2048, 4, 4)


def test_every_model_is_counted_and_run():
    of_images = set(MODELS) - {"window-lm"}  # which has tests of its own
    assert {spec.name for spec, *_ in COUNTS} == {spec.name for spec, _ in SMALL + LARGE} == of_images


@pytest.mark.parametrize("name", MODELS)
def test_registry(name):
    spec = MODELS[name]
    assert spec.name == name
    assert spec() == spec()
    assert spec.__dataclass_params__.frozen
    # A dataclass without a docstring gets its signature as one.
    assert not spec.__doc__.startswith(spec.__name__ + "(")
    assert spec.__doc__.splitlines()[0].endswith(").")
    assert all(field.default is not dataclasses.MISSING for field in dataclasses.fields(spec))


@pytest.mark.parametrize(("spec", "shape"), SMALL + LARGE, ids=label)
def test_contract(spec, shape):
    classes = 5
    model = spec.build(shape, classes).eval()
    assert isinstance(model, Classifier)

    layers = [module for module in model.modules() if list(module.parameters(recurse=False))]
    assert {type(layer) for layer in layers} <= {nn.Linear, nn.Conv2d, nn.BatchNorm2d}
    assert layers[-1] is model.head
    assert model.head.out_features == classes
    assert not any(getattr(module, "inplace", False) for module in model.modules())

    for batch in (1, 3):
        x = torch.randn(batch, *shape)
        before = x.clone()
        with torch.no_grad():
            logits, features = model(x), model.features(x)
        assert logits.shape == (batch, classes)
        assert features.shape == (batch, model.head.in_features)
        assert logits.isfinite().all()
        assert torch.equal(x, before)
        torch.testing.assert_close(model.head(features), logits)


@pytest.mark.parametrize(("spec", "shape"), SMALL, ids=label)
def test_one_training_step_of_one_sample(spec, shape):
    model = spec.build(shape, 5).train()
    model(torch.randn(1, *shape)).logsumexp(1).sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters()
    )


@pytest.mark.parametrize(("spec", "shape"), SMALL, ids=label)
def test_vmap_over_stacked_parameters(spec, shape):
    models = [spec.build(shape, 5).eval() for _ in range(2)]
    parameters, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")
    x = torch.randn(2, 3, *shape)

    def forward(parameters, buffers, x):
        return functional_call(skeleton, (parameters, buffers), (x,))

    with torch.no_grad():
        batched = vmap(forward)(parameters, buffers, x)
        one_by_one = torch.stack([model(inputs) for model, inputs in zip(models, x, strict=True)])
    torch.testing.assert_close(batched, one_by_one, atol=1e-5, rtol=1e-4)


def test_functional_gradient_equals_backward():
    model = MnistCNN(dropout=False).build(GREY, 10).double()
    x, y = torch.randn(4, *GREY, dtype=torch.float64), torch.tensor([0, 3, 3, 9])

    def loss(parameters):
        return nn.functional.cross_entropy(functional_call(model, parameters, (x,)), y)

    functional = grad(loss)({name: value.detach() for name, value in model.named_parameters()})
    nn.functional.cross_entropy(model(x), y).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(functional[name], parameter.grad)


@pytest.mark.parametrize(("dropout", "equal"), [(True, False), (False, True)])
def test_dropout_option(dropout, equal):
    model = MnistCNN(dropout=dropout).build(GREY, 10).train()
    x = torch.randn(8, *GREY)
    assert torch.equal(model(x), model(x)) is equal


def test_projection_is_the_feature_space():
    assert SimpleCNN().build(COLOUR, 10).features(torch.randn(2, *COLOUR)).shape == (2, 256)
    assert SimpleCNN(projection=False).build(COLOUR, 10).features(torch.randn(2, *COLOUR)).shape == (2, 84)


def test_no_bias_anywhere():
    with torch.device("meta"):
        model = VGG11(batch_norm=False, bias=False, classifier="nib", projection=True).build(COLOUR, 10)
    assert all(name.endswith("weight") for name, _ in model.named_parameters())


@pytest.mark.parametrize("name", ["mlp", "mnist-cnn", "fagh-cnn"])
def test_initial_weights_come_from_the_callers_seed(name):
    def weights(seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return torch.cat([value.flatten() for value in MODELS[name]().build(GREY, 10).parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


@pytest.mark.parametrize(("spec", "side"), SMALLEST, ids=label)
def test_smallest_image(spec, side):
    model = spec.build((2, side, side + 9), 4).eval()
    assert model(torch.randn(1, 2, side, side + 9)).shape == (1, 4)
    with pytest.raises(UserError, match=f"{spec.name} needs images of at least {side}x{side}, got") as error:
        spec.build((2, side + 9, side - 1), 4)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(784,), (28, 28), (1, 0, 28), (2, 1, 28, 28)])
@pytest.mark.parametrize("name", sorted(set(MODELS) - {"mlp", "logistic", "window-lm"}))
def test_only_images(name, shape):
    with pytest.raises(UserError, match=r"needs images of shape \(channels, height, width\), got"):
        MODELS[name]().build(shape, 10)


def test_hidden_widths():
    with pytest.raises(UserError, match=r"at least 1, got \(200, 0\)"):
        MLP(hidden=(200, 0))
    assert [layer.in_features for layer in hidden_layers(5, (4, 3)) if isinstance(layer, nn.Linear)] == [5, 4]
