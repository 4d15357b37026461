# %% [markdown]
# # 13. Images as sequences
#
# **Lecture topic:** vision transformers; patches, filters, attention rollout; ViT against CNN.
#
# A transformer takes a sequence of vectors. An image is not one, until it is cut into pieces.
#
# ## The equation
#
# An image becomes a sequence by cutting it into patches of $P \times P$ pixels. An image of $H \times W$ pixels with
# $C$ channels gives $N = HW / P^2$ tokens of $P^2 C$ numbers each. One linear map takes them to width $D$
# (Dosovitskiy et al. 2021):
#
# $$z_0 = [x_\text{class};\; x_1 E;\; x_2 E;\; \dots;\; x_N E] + E_\text{pos}$$
# $$z'_l = \text{MSA}(\text{LN}(z_{l-1})) + z_{l-1}, \qquad z_l = \text{MLP}(\text{LN}(z'_l)) + z'_l$$
#
# The rest is the encoder of lesson 11. There is no mask. The class token's last vector gives the answer.

# %%
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import weft
from weft import lessons
from weft.data.samples import sample
from weft.figures.charts.curves import curve_figure
from weft.inspection.analysis.filters import patch_filters, position_similarity
from weft.inspection.analysis.rollout import rollout
from weft.lessons.learning import learn
from weft.models.vision import VisionTransformer
from weft.parts.embeddings import PatchEmbedding, patchify

# %% [markdown]
# ## The part of Weft that is the equation

# %%
lessons.source(patchify)

# %%
lessons.source(VisionTransformer.forward)

# %% [markdown]
# ## Patches
#
# The data are drawn here: six shapes of any color, size, angle and place. Only the outline tells the class. So the
# best possible accuracy is 100 %, and nobody can win by color.

# %%
data = sample("shapes", size=lessons.by_budget(400, 8000))
side = 32
images = {
    name: torch.tensor(part.pixels).permute(0, 3, 1, 2) / 255
    for name, part in (("train", data.train), ("held", data.validation))
}
labels = {name: torch.tensor(part.labels) for name, part in (("train", data.train), ("held", data.validation))}
print(images["train"].shape, "classes:", ", ".join(data.classes))

patches = patchify(images["train"][:1], 4)
print("one image as a sequence:", tuple(patches.shape), "= 1 x N x P P C")


def draw_patches(image: Tensor, patch: int) -> Figure:
    """An image, and the same image as its patches in reading order."""
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    whole, row = figure.subplots(1, 2)
    whole.imshow(image.permute(1, 2, 0))
    whole.set_title("the image")
    cells = patchify(image[None], patch)[0].unflatten(-1, (3, patch, patch))
    n = side // patch
    canvas = torch.ones(3, n * (patch + 1), n * (patch + 1))
    for number, cell in enumerate(cells):
        y, x = (number // n) * (patch + 1), (number % n) * (patch + 1)
        canvas[:, y : y + patch, x : x + patch] = cell
    row.imshow(canvas.permute(1, 2, 0))
    row.set_title(f"{len(cells)} tokens")
    for axes in (whole, row):
        axes.axis("off")
    return figure


lessons.show(draw_patches(images["train"][0], 4), "An image, and the same image as a sequence of 64 patches.")

# %% [markdown]
# ## A patch times a matrix is a convolution
#
# The map from patches to tokens is the same as a $P \times P$ convolution with stride $P$. Here are both.

# %%
part = PatchEmbedding(4, 3, 64)
with torch.no_grad():
    tokens, grid = part(images["train"][:2])
strided = F.conv2d(images["train"][:2], part.linear.weight.view(64, 3, 4, 4), part.linear.bias, stride=4).detach()
print("largest difference:", float((tokens - strided.flatten(2).transpose(1, 2)).abs().max()), "grid:", grid)

# %% [markdown]
# ## The whole image is in reach after one layer
#
# We ask for the gradient of one output token with respect to all pixels. One layer of attention reaches every pixel.
# One layer of 3 x 3 convolution over the grid of patches reaches the nine patches around it.

# %%
spec = weft.preset("vit").replace(
    image=side, patch=4, width=64, layers=3, classes=len(data.classes), **{"mixer.heads": 4}
)


def reach(model: nn.Module, token: int) -> Tensor:
    """Which pixels a token of the last layer depends on."""
    image = images["train"][:1].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(image).hidden[0, token].square().sum(), image)
    return slope[0].abs().sum(0)


start = {"initialization": {"scheme": "fan-in"}}
one_attention = weft.build(spec.replace(layers=1, pool="mean", **start))
one_convolution = weft.build(spec.replace(layers=1, pool="mean", mixer=({"kind": "grid-convolution"},), **start))
seen = {"attention": reach(one_attention, 27), "convolution 3 x 3": reach(one_convolution, 27)}
share = {name: float((slope > 0).float().mean()) for name, slope in seen.items()}
print("share of the pixels in reach:", {name: round(value, 3) for name, value in share.items()})

# %% [markdown]
# ## Train one


# %%
def train(model: nn.Module, count: int, steps: int, rows: int = 32) -> float:
    """Accuracy on the held-out images after learning from the first `count` images."""
    random = torch.Generator().manual_seed(0)

    def loss(_: int) -> Tensor:
        chosen = torch.randint(0, count, (rows,), generator=random)
        return F.cross_entropy(logits_of(model, images["train"][chosen]), labels["train"][chosen])

    learn(model, loss, steps, optimizer="adamw", rate=1e-3)
    return accuracy(model)


def logits_of(model: nn.Module, pictures: Tensor) -> Tensor:
    out = model(pictures - 0.3)
    return out if isinstance(out, Tensor) else out.logits


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    pairs = zip(images["held"].split(200), labels["held"].split(200), strict=True)
    return sum(int((logits_of(model, some).argmax(-1) == right).sum()) for some, right in pairs) / len(labels["held"])


vit = weft.build(spec)
reached = train(vit, len(labels["train"]), lessons.by_budget(150, 4000))
print(f"accuracy on held-out images: {reached:.3f}; chance is {1 / len(data.classes):.3f}")

# %% [markdown]
# ## What it looks at: rollout
#
# Average the heads of each layer, add the identity for the residual connection, multiply the layers (Abnar and
# Zuidema 2020):
#
# $$R = \tilde A_L \cdots \tilde A_1, \qquad \tilde A_l = \tfrac12 \operatorname{mean}_h A_{lh} + \tfrac12 I$$
#
# The row of the class token says from which patches the answer is mixed.

# %%
lessons.source(rollout)


# %%
def draw_rollout(model: nn.Module, count: int = 5) -> Figure:
    """Images, and the class token's row of the rollout over them."""
    figure = Figure(figsize=(2 * count, 4.2), layout="constrained")
    top, below = figure.subplots(2, count)
    for number in range(count):
        image = images["held"][number : number + 1]
        with weft.watch(model) as seen, torch.no_grad():
            said = logits_of(model, image).argmax(-1)
        looked = rollout(seen)[0, 1:].view(side // 4, side // 4)
        top[number].imshow(image[0].permute(1, 2, 0))
        top[number].set_title(data.classes[int(labels["held"][number])])
        below[number].imshow(looked.repeat_interleave(4, 0).repeat_interleave(4, 1), cmap="magma", vmin=0)
        below[number].set_title(f"says {data.classes[int(said)]}", fontsize=9)
    for axes in (*top, *below):
        axes.axis("off")
    return figure


lessons.show(draw_rollout(vit), "Held-out images, and from which patches the class token's answer is mixed.")

# %% [markdown]
# ## Filters and positions
#
# The principal components of the patch filters (left) become edges and colors with enough training. The learned
# position of a patch (right: that of row 3, column 3) becomes similar to those of its row and column. Nobody told the
# model that the image has rows and columns.


# %%
def draw_filters(model: nn.Module, count: int = 12) -> Figure:
    """The first principal components of the filters, and how similar one position is to all others."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(2, 1))[0]
    for axes, picture in zip(left.subplots(3, count // 3).flat, patch_filters(model, count).images, strict=True):
        axes.imshow((picture / picture.abs().max() / 2 + 0.5).permute(1, 2, 0))
        axes.axis("off")
    axes = right.subplots()
    axes.imshow(position_similarity(model).of_cell(3, 3), cmap="viridis")
    axes.set_title("position (3, 3)")
    return figure


lessons.show(
    draw_filters(vit),
    "Principal components of the patch filters; similarity of all positions to that of row 3, column 3.",
)

# %% [markdown]
# ## ViT against CNN as data grows
#
# A convolution *knows* two things before it sees an image: near pixels belong together, and a shape is the same
# wherever it is. A ViT must learn both. With few images the CNN should win. Whether, and where, more images close the
# gap is what the curve shows. Both learn for the same number of steps, on the first 100, 200, ... of the images.


# %%
def cnn(width: int = 32) -> nn.Module:
    """Three convolutions with pooling between them: as plain as they come."""
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(2 * width, len(data.classes))),
    )


sizes = lessons.by_budget((100, 400), (100, 300, 1000, 3000, 8000))
steps = lessons.by_budget(60, 3000)
curves: dict[str, list[tuple[float, float]]] = {"CNN": [], "ViT": []}
for count in sizes:
    torch.manual_seed(0)
    curves["CNN"].append((count, train(cnn(), count, steps)))
    curves["ViT"].append((count, train(weft.build(spec), count, steps)))
for name, curve in curves.items():
    print(name, {int(count): round(value, 3) for count, value in curve})
lessons.show(
    curve_figure(curves, "Accuracy on held-out images", "images to learn from", "accuracy", "higher", log_x=True),
    "Accuracy of a small CNN and a small ViT against the number of images that they learned from.",
)

# %% [markdown]
# ## Change something
#
# Larger patches make fewer tokens: attention costs $N^2$. Set `patch` to 2, 8 or 16 and see what happens to the
# length, to the parameters, and to the accuracy.

# %%
patch = 8  # change me

other = weft.build(spec.replace(patch=patch))
print(f"{(side // patch) ** 2} tokens, {sum(p.numel() for p in other.parameters()):,} parameters")
print(f"accuracy: {train(other, len(labels['train']), lessons.by_budget(40, 3000)):.3f}")

# %% [markdown]
# ## Questions
#
# **13.1** How many tokens does the first block of ViT-B/16 see for an image of 224 x 224 pixels? Do not forget the
# one that is no patch.

# %%
lessons.check("13.1", ...)

# %% [markdown]
# **13.2** How many numbers does one patch of ViT-B/16 have, before the linear map? (Its width is 768. Is that by
# chance?)

# %%
lessons.check("13.2", ...)

# %% [markdown]
# **13.3** Halve the patch size. By what factor does the number of entries of one attention matrix grow, without the
# class token?

# %%
lessons.check("13.3", ...)

# %% [markdown]
# ## Claim

# %%
apart = float((tokens - strided.flatten(2).mT).abs().max())
lessons.claim("a patch times a matrix is a strided convolution", apart < 1e-5, f"largest difference {apart:.1e}")
lessons.claim(
    "one layer of attention reaches the whole image, one of 3 x 3 convolution less than a fifth",
    share["attention"] == 1.0 and share["convolution 3 x 3"] < 0.2,
    ", ".join(f"{name} {value:.1%}" for name, value in share.items()),
)

# %%
few, many = ({name: curve[place][1] for name, curve in curves.items()} for place in (0, -1))
measured = "; ".join(f"{name} {few[name]:.3f} -> {many[name]:.3f}" for name in curves)
lessons.claim(f"with {sizes[0]} images the CNN is ahead", few["CNN"] > few["ViT"] + 0.03, measured)
lessons.claim(
    "both gain from more images",
    many["ViT"] > few["ViT"] and many["CNN"] > few["CNN"],
    measured,
)
