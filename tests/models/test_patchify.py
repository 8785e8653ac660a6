"""Patches against transformers' image processor (PIL backend)."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from gllm.models.patchify import Patchifier, PixelNorm
from tests.models.vision_oracle import SHAPE


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def reference(pictures: list[np.ndarray], **options) -> tuple[torch.Tensor, list[tuple[int, int, int]]]:
    processor = Qwen2VLImageProcessorPil(do_resize=False, **options)
    found = processor([Image.fromarray(p) for p in pictures], return_tensors="pt")
    return found["pixel_values"], [tuple(grid) for grid in found["image_grid_thw"].tolist()]


def test_patches_and_grids_equal_transformers_for_images_of_mixed_sizes():
    pictures = [picture(56, 84), picture(28, 28, 1), picture(140, 56, 2)]
    expected, grids = reference(pictures)
    patches, found = Patchifier(SHAPE)([torch.from_numpy(p) for p in pictures])
    assert found == grids
    torch.testing.assert_close(patches, expected, atol=1e-5, rtol=0)


def test_mean_std_and_rescale_are_those_of_the_checkpoint():
    norm = PixelNorm(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), rescale=1 / 127.5)
    expected, _ = reference(
        [picture(56, 56)], image_mean=norm.mean, image_std=norm.std, rescale_factor=norm.rescale
    )
    patches, _ = Patchifier(SHAPE, norm)([torch.from_numpy(picture(56, 56))])
    torch.testing.assert_close(patches, expected, atol=1e-5, rtol=0)


def test_two_frames_of_a_video_are_the_two_frames_of_its_patches():
    first, second = picture(56, 84, 1), picture(56, 84, 2)
    frames = torch.from_numpy(np.stack([first, second]))
    patches, grids = Patchifier(SHAPE)([frames])
    assert grids == [(1, 4, 6)]
    by_frame = patches.view(24, 3, 2, 196)
    for index, frame in enumerate((first, second)):
        expected = reference([frame])[0].view(24, 3, 2, 196)[:, :, 0]
        torch.testing.assert_close(by_frame[:, :, index], expected, atol=1e-5, rtol=0)


def test_a_video_with_an_odd_number_of_frames_repeats_the_last():
    frames = torch.from_numpy(np.stack([picture(28, 28, i) for i in range(3)]))
    patches, grids = Patchifier(SHAPE)([frames])
    assert grids == [(2, 2, 2)]
    padded, _ = Patchifier(SHAPE)([torch.cat((frames, frames[-1:]))])
    assert torch.equal(patches, padded)


def test_one_frame_of_a_video_is_an_image():
    frame = torch.from_numpy(picture(56, 56))
    image, video = Patchifier(SHAPE)([frame])[0], Patchifier(SHAPE)([frame.unsqueeze(0)])[0]
    assert torch.equal(image, video)


def test_bf16_patches_are_the_rounded_fp32_ones():
    image = torch.from_numpy(picture(56, 56))
    wide, narrow = Patchifier(SHAPE)([image])[0], Patchifier(SHAPE)([image], torch.bfloat16)[0]
    assert torch.equal(narrow, wide.bfloat16())


def test_a_picture_that_is_not_a_whole_number_of_blocks_is_refused():
    with pytest.raises(ValueError, match="42x56 pixels"):
        Patchifier(SHAPE)([torch.zeros(42, 56, 3, dtype=torch.uint8)])
