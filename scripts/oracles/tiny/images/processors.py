"""transformers' processors of texts with images, in the sizes of tiny models, with Pillow and without torchvision."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import transformers
from PIL import Image

from scripts.oracles.tiny.images.model import MEAN, STD


def idefics3(tokenizer: Any) -> Any:
    """SmolVLM and Idefics3."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    image_processor = Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, image_mean=MEAN, image_std=STD
    )
    return transformers.Idefics3Processor(image_processor, tokenizer, image_seq_len=4)


def gemma3(tokenizer: Any) -> Any:
    """Gemma 3."""
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    names = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
    for name, token in names.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    image_processor = Gemma3ImageProcessorPil(size={"height": 32, "width": 32}, image_mean=MEAN, image_std=STD)
    return transformers.Gemma3Processor(image_processor, tokenizer, image_seq_length=4)


def qwen(tokenizer: Any, kind: str) -> Any:
    """A kind of Qwen-VL."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    limits = {"shortest_edge": 64, "longest_edge": 900}
    image_processor = Qwen2VLImageProcessorPil(size=limits, patch_size=4, merge_size=2, image_mean=MEAN, image_std=STD)
    base = getattr(transformers, kind)
    # It wants a processor of videos, which needs torchvision.
    made = type(kind, (base,), {"check_argument_for_proper_class": lambda *_: None})
    return made(image_processor, tokenizer, video_processor=None)


def _without_torchvision() -> Any:
    """Stand-ins for modules of torchvision, which some modules import; a processor with Pillow does not call them."""
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
    names += ("torchvision.transforms.v2.functional",)
    return patch.dict(sys.modules, {name: MagicMock() for name in names})


def pixtral(tokenizer: Any) -> Any:
    """Pixtral and Mistral 3."""
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    with _without_torchvision():
        from transformers.models.pixtral.processing_pixtral import PixtralProcessor

    image_processor = PixtralImageProcessorPil(size={"longest_edge": 48}, patch_size=4, image_mean=MEAN, image_std=STD)
    return PixtralProcessor(image_processor, tokenizer, patch_size=4, spatial_merge_size=2)


def gemma4(tokenizer: Any) -> Any:
    """Gemma 4."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    names = {"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>", "audio_token": "<|audio|>"}
    names |= {"boa_token": "<|audio>", "eoa_token": "<audio|>"}
    for name, token in names.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    tokenizer.pad_token = "<|endoftext|>"
    image_processor = Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70)
    parts = {"check_argument_for_proper_class": lambda *_: None}
    made = type("Gemma4Processor", (transformers.Gemma4Processor,), parts)
    return made(None, image_processor, tokenizer, None)


class _Tiles:
    """LFM2-VL's processor of images, whose sizes and tiles are transformers', with Pillow in the place of torchvision."""

    def __init__(self) -> None:
        with _without_torchvision():
            theirs: Any = import_module("transformers.models.lfm2_vl.image_processing_lfm2_vl")
        self.theirs, self.made = theirs, theirs.Lfm2VlImageProcessor.__new__(theirs.Lfm2VlImageProcessor)
        self.use_thumbnail, self.tile_size, self.encoder_patch_size, self.downsample_factor = True, 24, 4, 2

    def fetch_images(self, images: Any) -> Any:
        return images

    def __call__(self, images: Any, **_: Any) -> dict[str, Any]:
        import torch

        sizes = {"downsample_factor": 2, "min_tiles": 2, "max_tiles": 10, "use_thumbnail": True, "resample": None}
        sizes |= {"min_image_tokens": 4, "max_image_tokens": 12, "encoder_patch_size": 4, "tile_size": 24}
        made: dict[str, Any] = {name: [] for name in ("image_rows", "image_cols", "image_sizes")}
        patches, masks, shapes = [], [], []
        for image in (p for row in images for p in row):
            pixels = torch.tensor(np.asarray(image)).permute(2, 0, 1)[None]
            with patch.object(self.theirs.TorchvisionBackend, "resize", _resized):
                found, rows, columns, size = self.made.resize_and_split(pixels, max_pixels_tolerance=2.0, **sizes)
            for name, value in zip(made, (rows, columns, size), strict=True):
                made[name] += value
            for tile in found[0]:
                normal = (tile[None].float() / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[
                    :, None, None
                ]
                shapes.append([tile.shape[-2] // 4, tile.shape[-1] // 4])
                padded, mask = self.theirs.pad_along_first_dim(self.theirs.convert_image_to_patches(normal, 4), 48)
                patches.append(padded[0].double())
                masks.append(mask)
        made |= {"pixel_values": torch.stack(patches), "pixel_attention_mask": torch.stack(masks)}
        return {**made, "spatial_shapes": torch.tensor(shapes)}


def _resized(self: Any, images: Any, size: Any, **_: Any) -> Any:
    import torch

    image = Image.fromarray(images[0].permute(1, 2, 0).numpy()).resize((size.width, size.height), Image.BILINEAR)
    return torch.tensor(np.asarray(image)).permute(2, 0, 1)[None]


def lfm2(tokenizer: Any) -> Any:
    """LFM2-VL."""
    with _without_torchvision():
        from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
    made = type("Lfm2VlProcessor", (Lfm2VlProcessor,), {"check_argument_for_proper_class": lambda *_: None})
    return made(_Tiles(), tokenizer)
