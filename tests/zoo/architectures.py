"""The architectures of `transformers` at tiny size: which export, compile and agree.

    python tests/zoo/architectures.py [--only NAME ...] [--on TARGET] [--keep FILE] [--write]

builds every model of ARCHITECTURES with random weights, exports it, compiles it for the CPU (or
`--on` another target) and compares all results with PyTorch's. `--keep` goes on with an earlier run
whose rows stand in that file; what agrees there is not run again. `--write` writes
docs/architectures.md. `--open` leaves batch and length to the call: one program, compared at
several sizes. `--train` compares a loss and the gradients of all parameters, by the joint graph
that `girih.joint_graph` makes of the export, without `--only` for those of TRAINED. With
either, `--write` writes the page's part about it, of the models that were run.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architectures.md"
TOLERANCE = {"float32": 1e-4, "bfloat16": 6e-2}
SECONDS = 600  # for one model
LONGEST = 64  # what sizes that data decide are at most, where the export says nothing of them


class Architecture(NamedTuple):
    """A model: its type, the class that builds it, what it reads, and what makes it tiny (in
    `config`; ... leaves out a field of SMALL).
    """

    name: str
    inputs: str = "tokens"
    config: dict[str, Any] = {}  # noqa: RUF012 - rows are read only
    model: str = "AutoModel"
    type: str = ""  # the model_type where the name is another
    dtype: str = "float32"


class Row(NamedTuple):
    """What became of one architecture."""

    exports: bool = False
    compiles: bool = False
    error: float = float("nan")
    note: str = ""
    seconds: float = 0.0


SMALL: dict[str, Any] = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64,
    "head_dim": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_model": 32,
    "ffn_dim": 64, "image_size": 32, "patch_size": 8, "num_channels": 3, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "num_experts": 4,
    "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "use_cache": False,
    "max_source_positions": 64, "max_target_positions": 64, "moe_intermediate_size": 32,
    "embedding_size": 32, "word_embed_proj_dim": 32, "num_decoder_layers": 2, "num_layers": 2,
}  # fmt: skip
"""What makes a configuration tiny, where it has such a field."""

CAUSAL, SEQUENCES = "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
TEXT_TOWER = {**{k: SMALL[k] for k in ("vocab_size", "hidden_size", "num_hidden_layers",
                                       "num_attention_heads", "intermediate_size")},
              "max_position_embeddings": 16, "projection_dim": 24, "eos_token_id": 2}  # fmt: skip
IMAGE_TOWER = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8, "projection_dim": 24,
}  # fmt: skip
TOWERS = {"text_config": TEXT_TOWER, "vision_config": IMAGE_TOWER, "projection_dim": 24}
NO_SIZES = {"hidden_size": ..., "num_hidden_layers": ..., "num_attention_heads": ...}
STAGES = {**NO_SIZES, "num_layers": ..., "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
WAVES = {
    "conv_dim": (16, 16), "conv_stride": (4, 2), "conv_kernel": (8, 4),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, "vocab_size": 20, "mask_time_length": 2,
}  # fmt: skip

ARCHITECTURES: tuple[Architecture, ...] = (
    # Encoders of text.
    *(Architecture(name) for name in (
        "bert", "roberta", "electra", "deberta", "deberta-v2", "xlm-roberta",
        "mpnet", "camembert", "ernie", "esm", "nomic_bert", "rembert", "roformer", "megatron-bert",
        "mobilebert", "squeezebert", "convbert", "data2vec-text", "luke",
        "nystromformer", "fnet", "canine", "longformer", "big_bird",
    )),
    Architecture("xlnet", config={"max_position_embeddings": ..., "d_inner": 64, "d_head": 8}),
    Architecture("funnel", model="FunnelModel",
                 config={"num_hidden_layers": ..., "block_sizes": [1, 1], "block_repeats": [1, 1],
                         "d_inner": 64, "d_head": 8}),
    Architecture("distilbert", config={"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 64}),
    Architecture("albert"),
    Architecture("modernbert", config={"global_attn_every_n_layers": 2, "local_attention": 8}),
    Architecture("flaubert", config={"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": 99}),
    Architecture("xlm", config={"emb_dim": 32, "n_layers": 2, "n_heads": 4, "n_words": 99}),
    Architecture("layoutlm", "layout"),
    Architecture("bert for classification", type="bert",
                 model="AutoModelForSequenceClassification"),
    Architecture("bert in bfloat16", type="bert", dtype="bfloat16"),
    # Decoders of text.
    *(Architecture(name, model=CAUSAL) for name in (
        "gpt2", "gpt_neox", "opt", "bloom", "llama", "mistral", "mixtral", "qwen2", "qwen3",
        "qwen2_moe", "qwen3_moe", "gemma", "gemma2", "phi", "phi3", "stablelm",
        "starcoder2", "olmo", "olmo2", "cohere", "cohere2", "granite", "smollm3", "glm", "glm4",
        "gpt_bigcode", "nemotron", "exaone4", "biogpt", "granitemoe", "olmoe", "helium",
        "persimmon", "xglm", "mpt", "openai-gpt", "gpt_oss", "phimoe", "ministral", "ernie4_5",
    )),
    Architecture("falcon", config={"head_dim": ...}, model=CAUSAL),
    Architecture("deepseek_v3", model=CAUSAL,
                 config={"head_dim": ..., "num_key_value_heads": 4, "q_lora_rank": 16,
                         "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
                         "v_head_dim": 8, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
                         "first_k_dense_replace": 1}),
    Architecture("gpt_neo", model=CAUSAL,
                 config={"attention_types": [[["global", "local"], 1]], "window_size": 8}),
    Architecture("gptj", config={"rotary_dim": 4}, model=CAUSAL),
    Architecture("codegen", config={"rotary_dim": 4}, model=CAUSAL),
    Architecture("gemma3", type="gemma3_text", model=CAUSAL),
    Architecture("llama in bfloat16", type="llama", model=CAUSAL, dtype="bfloat16"),
    Architecture("gpt2 in bfloat16", type="gpt2", model=CAUSAL, dtype="bfloat16"),
    # Recurrent and state space models.
    Architecture("mamba", model=CAUSAL, config={"state_size": 4, "time_step_rank": 4}),
    Architecture("mamba2", model=CAUSAL,
                 config={"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2,
                         "chunk_size": 4}),
    Architecture("falcon_mamba", model=CAUSAL, config={"state_size": 4, "time_step_rank": 4}),
    Architecture("rwkv", model=CAUSAL,
                 config={"attention_hidden_size": 32, "context_length": 64}),
    Architecture("recurrent_gemma", model=CAUSAL,
                 config={"lru_width": 32, "attention_window_size": 8, "num_hidden_layers": 3}),
    # Encoder and decoder.
    Architecture("t5", "pairs", {"d_kv": 8, "d_ff": 64, "num_heads": 4}, SEQUENCES),
    Architecture("mt5", "pairs", {"d_kv": 8, "d_ff": 64, "num_heads": 4}, SEQUENCES),
    Architecture("umt5", "pairs", {"d_kv": 8, "d_ff": 64, "num_heads": 4}, SEQUENCES),
    Architecture("longt5", "pairs", {"d_kv": 8, "d_ff": 64, "num_heads": 4, "local_radius": 3},
                 SEQUENCES),
    Architecture("switch_transformers", "pairs",
                 {"d_kv": 8, "d_ff": 64, "num_heads": 4, "num_sparse_encoder_layers": 1,
                  "num_sparse_decoder_layers": 1}, SEQUENCES),
    *(Architecture(name, "pairs", model=SEQUENCES) for name in (
        "bart", "mbart", "pegasus", "marian", "blenderbot", "m2m_100", "plbart",
    )),
    Architecture("prophetnet", "pairs", {"num_hidden_layers": ..., "num_encoder_layers": 1,
                                         "num_decoder_layers": 1}, SEQUENCES),
    Architecture("fsmt", "pairs", {"src_vocab_size": 99, "tgt_vocab_size": 99}, SEQUENCES),
    Architecture("led", "pairs", {"attention_window": 4, "max_encoder_position_embeddings": 64,
                                  "max_decoder_position_embeddings": 64}, SEQUENCES),
    # Pictures.
    *(Architecture(name, "image") for name in (
        "vit", "deit", "dinov2", "vit_msn",
    )),
    Architecture("vit_mae", "image and noise"),
    Architecture("yolos", "image", {"image_size": [32, 32], "num_detection_tokens": 4},
                 "AutoModelForObjectDetection"),
    Architecture("dinov2_with_registers", "image"),
    Architecture("ijepa", "image"),
    Architecture("beit", "image", model="AutoModelForImageClassification"),
    Architecture("data2vec-vision", "image"),
    Architecture("swin", "image", {**NO_SIZES, "embed_dim": 16, "depths": [2, 2],
                                   "num_heads": [2, 4], "window_size": 2, "patch_size": 4}),
    Architecture("swinv2", "image", {**NO_SIZES, "embed_dim": 16, "depths": [2, 2],
                                   "num_heads": [2, 4], "window_size": 2, "patch_size": 4}),
    Architecture("convnext", "image", {**STAGES, "image_size": 64}),
    Architecture("convnextv2", "image", {**STAGES, "image_size": 64}),
    Architecture("resnet", "image", {**STAGES, "embedding_size": 8}),
    Architecture("regnet", "image", {**STAGES, "embedding_size": 8, "groups_width": 4}),
    Architecture("bit", "image", {**STAGES, "embedding_size": 8, "num_groups": 2}),
    Architecture("mobilenet_v1", "image"),
    Architecture("mobilenet_v2", "image", model="AutoModelForImageClassification"),
    Architecture("efficientnet", "image", {"width_coefficient": 0.25, "depth_coefficient": 0.2,
                                           "hidden_dim": 320}),
    Architecture("mobilevit", "image", {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes":
                                        [8, 8, 16, 24, 32, 32, 32], "patch_size": 2,
                                        "image_size": 64}),
    Architecture("mobilevitv2", "image", {"width_multiplier": 0.25, "patch_size": 2,
                                          "image_size": 64}),
    Architecture("segformer", "image", {**STAGES, "num_attention_heads": [1, 2, 2, 4],
                                        "decoder_hidden_size": 16},
                 "AutoModelForSemanticSegmentation"),
    Architecture("poolformer", "image", STAGES),
    Architecture("pvt", "image", {**STAGES, "num_attention_heads": [1, 2, 2, 4],
                                  "patch_sizes": [4, 2, 2, 2]}),
    Architecture("cvt", "image"),
    Architecture("levit", "image", {"hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 3, 4],
                                    "depths": [1, 1, 1], "key_dim": [8, 8, 8], "image_size": 64,
                                    "patch_size": 16}),
    Architecture("focalnet", "image", {"embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2],
                                       "focal_windows": [3, 3], "hidden_sizes": [16, 32],
                                       "patch_size": 4}),
    Architecture("dpt", "image", {"num_hidden_layers": 4, "is_hybrid": False,
                                  "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8,
                                  "backbone_out_indices": [0, 1, 2, 3]}),
    Architecture("vitdet", "image", {"num_hidden_layers": 2, "pretrain_image_size": 32}),
    Architecture("hiera", "image", {**NO_SIZES, "embed_dim": 8, "depths": [1, 1, 1, 1],
                                    "num_heads": [1, 1, 2, 2], "image_size": [64, 64],
                                    "patch_size": [7, 7]}),
    Architecture("detr", "image", {"use_timm_backbone": False, "use_pretrained_backbone": False,
                                   "backbone": None, "num_queries": 6, "backbone_config": {
                                       "model_type": "resnet", "hidden_sizes": [8, 8, 16, 16],
                                       "depths": [1, 1, 1, 1], "embedding_size": 8,
                                       "out_features": ["stage4"]}}, "AutoModelForObjectDetection"),
    Architecture("upernet", "image", {"backbone": None, "use_pretrained_backbone": False,
                                      "hidden_size": 16, "pool_scales": [1, 2],
                                      "auxiliary_in_channels": 16, "auxiliary_channels": 8,
                                      "backbone_config": {
                                          "model_type": "convnext", "hidden_sizes": [8, 16, 16, 32],
                                          "depths": [1, 1, 1, 1], "out_features":
                                          ["stage1", "stage2", "stage3", "stage4"]}},
                 "AutoModelForSemanticSegmentation"),
    # Pictures and text.
    Architecture("clip", "both", TOWERS),
    Architecture("siglip", "both", TOWERS),
    Architecture("altclip", "both", TOWERS),
    Architecture("chinese_clip", "both", TOWERS),
    Architecture("clipseg", "both", {**TOWERS, "reduce_dim": 8, "extract_layers": [1]}),
    Architecture("groupvit", "image", {"num_hidden_layers": 3, "depths": [1, 1, 1],
                                       "num_group_tokens": [8, 4, 0],
                                       "num_output_groups": [8, 4, 0]},
                 "GroupViTVisionModel", "groupvit_vision_model"),
    Architecture("blip", "both", TOWERS),
    Architecture("owlvit", "queries", {**TOWERS, "projection_dim": 32},
                 "AutoModelForZeroShotObjectDetection"),
    Architecture("vilt", "both"),
    Architecture("llava", "text of llava", {
        "text_config": {"model_type": "llama", **{k: v for k, v in SMALL.items() if k in (
            "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "intermediate_size", "max_position_embeddings")}},
        "vision_config": {"model_type": "clip_vision_model", **IMAGE_TOWER},
        "image_token_index": 90, "vision_feature_layer": -1}, "AutoModelForImageTextToText"),
    # Sound.
    Architecture("whisper", "spectrum pairs", {"num_mel_bins": 8, "max_source_positions": 16,
                                               "max_target_positions": 32,
                                               "suppress_tokens": None,
                                               "begin_suppress_tokens": None},
                 "AutoModelForSpeechSeq2Seq"),
    Architecture("wav2vec2", "wave", WAVES, "AutoModelForCTC"),
    Architecture("hubert", "wave", WAVES, "AutoModelForCTC"),
    Architecture("wavlm", "wave", WAVES),
    Architecture("unispeech", "wave", WAVES),
    Architecture("unispeech-sat", "wave", WAVES),
    Architecture("data2vec-audio", "wave", WAVES),
    Architecture("sew", "wave", {**WAVES, "squeeze_factor": 2}),
    Architecture("wav2vec2-conformer", "wave", WAVES),
    Architecture("wav2vec2-bert", "spectrum", {"feature_projection_input_dim": 8,
                                               "conv_depthwise_kernel_size": 3}),
    Architecture("speech_to_text", "spectrum pairs",
                 {"input_feat_per_channel": 8, "conv_channels": 16, "num_conv_layers": 2,
                  "max_source_positions": 64}, "AutoModelForSpeechSeq2Seq"),
    Architecture("audio-spectrogram-transformer", "spectrum",
                 {"num_mel_bins": 16, "max_length": 24, "patch_size": 4, "frequency_stride": 4,
                  "time_stride": 4}),
    Architecture("encodec", "mono wave", {"num_filters": 4, "upsampling_ratios": [4, 2],
                                          "hidden_size": 16, "codebook_size": 16,
                                          "codebook_dim": 16}),
    Architecture("clap", "spectrum of clap", {"hidden_size": 32, "num_mel_bins": 16,
                                              "spec_size": 64, "num_hidden_layers": ...,
                                              "patch_embeds_hidden_size": 8, "depths": [1, 1],
                                              "num_attention_heads": [2, 2], "window_size": 4,
                                              "patch_size": 4, "patch_stride": [4, 4]},
                 "ClapAudioModel", "clap_audio_model"),
    Architecture("vits", "tokens", {"num_hidden_layers": 1, "upsample_rates": [4, 4],
                                    "flow_size": 16, "spectrogram_bins": 9,
                                    "upsample_kernel_sizes": [8, 8], "resblock_kernel_sizes": [3],
                                    "upsample_initial_channel": 16, "wavenet_dilation_rate": 1,
                                    "resblock_dilation_sizes": [[1, 2]], "ffn_dim": 32,
                                    "hidden_size": 16, "num_attention_heads": 2,
                                    "prior_encoder_num_flows": 1, "noise_scale": 0.0,
                                    "noise_scale_duration": 0.0}),
    # Video, series and points.
    Architecture("videomae", "video", {"num_frames": 2, "tubelet_size": 2}),
    Architecture("timesformer", "video", {"num_frames": 2}),
    Architecture("vivit", "video", {"num_frames": 4, "tubelet_size": [2, 8, 8]}),
    Architecture("patchtst", "series", {"num_input_channels": 3, "context_length": 32,
                                        "patch_length": 4, "patch_stride": 4,
                                        "prediction_length": 4}),
    Architecture("patchtsmixer", "series", {"num_input_channels": 3, "context_length": 32,
                                            "patch_length": 4, "patch_stride": 4,
                                            "prediction_length": 4}),
    Architecture("decision_transformer", "states", {"state_dim": 5, "act_dim": 3}),
    Architecture("superpoint", "image", {"encoder_hidden_sizes": [8, 8, 16, 16],
                                         "decoder_hidden_size": 16, "keypoint_decoder_dim": 65,
                                         "descriptor_decoder_dim": 16},
                 "AutoModelForKeypointDetection"),
)  # fmt: skip


def build(entry: Architecture) -> tuple[Any, dict[str, Any]]:
    """The model in eval mode with random weights, and the keywords of one call."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    kind = CONFIG_MAPPING[entry.type or entry.name]
    plain = kind()
    small = {key: value for key, value in SMALL.items() if hasattr(plain, key)}
    fields = {**small, **entry.config}
    config = kind(**{key: value for key, value in fields.items() if value is not ...})
    kind = getattr(transformers, entry.model)
    make = kind.from_config if entry.model.startswith("Auto") else kind
    model = make(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point() or parameter.numel() < 2:
                continue
            if not bool((parameter.abs() < 1e3).all()):  # memory that nothing initialised
                parameter.normal_(0, 0.02)
            elif bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(torch.randn_like(parameter) * 0.1)  # biases and scales
    for part in (model.config, *vars(model.config).values()):
        if hasattr(part, "use_cache"):
            part.use_cache = False
    inputs = INPUTS[entry.inputs](torch, model.config)
    if entry.dtype != "float32":
        dtype = getattr(torch, entry.dtype)
        model = model.to(dtype)
        inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    return model, inputs


def _tokens(torch: Any, config: Any) -> dict[str, Any]:
    ids = torch.randint(3, 89, (2, 12))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def _pairs(torch: Any, config: Any) -> dict[str, Any]:
    return {**_tokens(torch, config), "decoder_input_ids": torch.randint(3, 89, (2, 6))}


def _layout(torch: Any, config: Any) -> dict[str, Any]:
    corners = torch.randint(0, 30, (2, 12, 2))
    return {**_tokens(torch, config), "bbox": torch.cat([corners, corners + 20], -1)}


def _image(torch: Any, config: Any, *lead: int) -> dict[str, Any]:
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", 32) or 32
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return {"pixel_values": torch.randn(*(lead or (2,)), 3, height, width)}


def _both(torch: Any, config: Any) -> dict[str, Any]:
    return {**_tokens(torch, config), **_image(torch, config)}


def _queries(torch: Any, config: Any) -> dict[str, Any]:
    tokens = {key: torch.cat([value, value]) for key, value in _tokens(torch, config).items()}
    return {**tokens, **_image(torch, config)}


def _llava(torch: Any, config: Any) -> dict[str, Any]:
    ids = torch.randint(3, 89, (1, 24))
    ids[:, 2:18] = config.image_token_id
    return {"input_ids": ids, **_image(torch, config, 1)}


def _wave(torch: Any, config: Any) -> dict[str, Any]:
    return {"input_values": torch.randn(2, 400)}


def _spectrum(torch: Any, config: Any) -> dict[str, Any]:
    bins = getattr(config, "num_mel_bins", None) or config.feature_projection_input_dim
    if getattr(config, "max_length", None) and hasattr(config, "frequency_stride"):
        return {"input_values": torch.randn(2, config.max_length, bins)}
    return {"input_features": torch.randn(2, 24, bins)}


def _spectrum_pairs(torch: Any, config: Any) -> dict[str, Any]:
    if hasattr(config, "num_mel_bins"):
        features = torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)
    else:
        features = torch.randn(2, 24, config.input_feat_per_channel)
    return {"input_features": features, "decoder_input_ids": torch.randint(3, 89, (2, 6))}


INPUTS: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "tokens": _tokens,
    "pairs": _pairs,
    "layout": _layout,
    "image": _image,
    "image and noise": lambda torch, config: {
        **_image(torch, config),
        "noise": torch.rand(2, (config.image_size // config.patch_size) ** 2),
    },
    "both": _both,
    "queries": _queries,
    "text of llava": _llava,
    "wave": _wave,
    "mono wave": lambda torch, config: {"input_values": torch.randn(1, 1, 160)},
    "spectrum": _spectrum,
    "spectrum pairs": _spectrum_pairs,
    "spectrum of clap": lambda torch, config: {
        "input_features": torch.randn(1, 1, 100, config.num_mel_bins),
        "is_longer": torch.tensor([[False]]),
    },
    "video": lambda torch, config: _image(torch, config, 1, config.num_frames),
    "series": lambda torch, config: {"past_values": torch.randn(2, 32, 3)},
    "states": lambda torch, config: {
        "states": torch.randn(1, 4, 5),
        "actions": torch.randn(1, 4, 3),
        "rewards": torch.randn(1, 4, 1),
        "returns_to_go": torch.randn(1, 4, 1),
        "timesteps": torch.arange(4)[None],
        "attention_mask": torch.ones(1, 4, dtype=torch.long),
    },
}
"""The inputs of one call, by what a model reads."""


def check(entry: Architecture, engine: str = "cpu") -> Row:
    """Build, export, compile, run and compare one architecture. engine: a target, or
    "interpreter"."""
    started = time.perf_counter()
    warnings.simplefilter("ignore")
    import torch
    from torch.utils import _pytree

    model, inputs = build(entry)
    with torch.no_grad():
        expected = _pytree.tree_leaves(model(**copy.deepcopy(inputs)))
        try:
            exported = torch.export.export(model, (), dict(inputs), strict=False)
        except Exception as error:
            return Row(note=f"torch.export: {_first_line(error)}")
    wanted = [leaf.detach() for leaf in expected if isinstance(leaf, torch.Tensor)]
    import girih
    from girih.frontends.torch.exported import array_of
    from girih.hlo.trees import Tree

    try:
        if engine != "interpreter":
            options = girih.Options(cache="off")
            module = girih.import_model(exported)
            limits = {name: (1, LONGEST) for name, x in module.symbols.items() if x.last is None}
            program = girih.compile(module, target=engine, options=options, sizes=limits)
            found = program(**{key: array_of(value) for key, value in inputs.items()})
        else:
            module = girih.import_model(exported)
            assert module.signature is not None
            flat = [array_of(leaf) for leaf in module.signature.flatten((), inputs)]
            found = girih.interpret(module, flat)
    except Exception as error:
        return Row(True, note=f"{type(error).__name__}: {_first_line(error)}")
    leaves = Tree.of(found).flatten(found)
    seconds = time.perf_counter() - started
    try:
        return Row(True, True, difference(leaves, [array_of(x) for x in wanted]), "", seconds)
    except AssertionError as error:
        return Row(True, True, float("inf"), _first_line(error), seconds)


OPEN_SIZES = ((3, 7), (1, 12), (2, 5))  # batch, length
OPEN, TRAIN = "## With open batch and length", "## A training step"
TEXTS = {
    OPEN: "One program for all sizes, exported with `Dim.AUTO`, at batch and length of"
    f" {', '.join(map(str, OPEN_SIZES))}; a sample, by\n"
    "`tests/zoo/architectures.py --open --write`. What `torch.export` makes fixed itself is left"
    " out.",
    TRAIN: "The mean square of what results differ from a ramp as loss, and the gradients of all"
    " parameters, by the joint graph\nof forward and backward that `girih.joint_graph` makes of the"
    " export: `tests/zoo/architectures.py --train --write`.\nThe error is the largest of loss and"
    " gradients: of a gradient as a share of its largest value,\nor of a hundredth of the largest"
    " of all gradients where that is more (some are zeros but for roundings).",
}
"""What stands below the titles of the page's further parts."""


def check_open(entry: Architecture, engine: str = "cpu") -> Row:
    """The same by one program whose batch, and length of tokens, calls decide."""
    started = time.perf_counter()
    warnings.simplefilter("ignore")
    import torch
    from torch.utils import _pytree

    model, inputs = build(entry)
    auto = torch.export.Dim.AUTO
    batch = next(iter(inputs.values())).shape[0]
    lengths = {k: {1: auto} if _is_sequence(torch, v) else {} for k, v in inputs.items()}
    dims = {k: {0: auto, **lengths[k]} if v.shape[0] == batch else None for k, v in inputs.items()}
    try:
        with torch.no_grad():
            exported = torch.export.export(
                model, (), dict(inputs), dynamic_shapes=dims, strict=False
            )
    except Exception as error:
        return Row(note=f"torch.export: {_first_line(error)}")
    import girih
    from girih.frontends.torch.exported import array_of
    from girih.hlo.stated_sizes import dims_of_arguments
    from girih.hlo.symbols import symbols_of
    from girih.hlo.trees import Tree

    worst = 0.0
    try:
        module = girih.import_model(exported)
        if not module.symbols:
            return Row(note="the model fixes all sizes")
        options = girih.Options(cache="off")
        limits = {name: (1, 16) for name, said in module.symbols.items() if said.last is None}
        program = girih.compile(module, target=engine, options=options, sizes=limits)
        opened = {place for place, dim in dims_of_arguments(module).items() if symbols_of(dim)}
        for count, length in OPEN_SIZES:  # a length that the model fixes itself stays
            cut = {k: v[:, :length] if f"{k}.1" in opened else v for k, v in inputs.items()}
            given = {k: torch.cat([v, v])[:count].clone() for k, v in cut.items()}
            with torch.no_grad():
                expected = _pytree.tree_leaves(model(**copy.deepcopy(given)))
            wanted = [array_of(leaf) for leaf in expected if isinstance(leaf, torch.Tensor)]
            found = program(**{key: array_of(value) for key, value in given.items()})
            worst = max(worst, difference(Tree.of(found).flatten(found), wanted))
    except AssertionError as error:
        return Row(True, True, float("inf"), _first_line(error))
    except Exception as error:
        return Row(True, note=f"{type(error).__name__}: {_first_line(error)}")
    return Row(True, True, worst, ", ".join(module.symbols), time.perf_counter() - started)


TRAINED = (
    "bert", "roberta", "electra", "deberta-v2", "distilbert", "albert", "modernbert", "mpnet",
    "convbert", "gpt2", "gpt_neox", "opt", "bloom", "llama", "mistral", "qwen3", "gemma2", "phi",
    "falcon", "mixtral", "mamba2", "recurrent_gemma", "t5", "bart", "vit", "convnext", "resnet",
    "segformer", "detr", "clip", "wav2vec2", "whisper", "videomae", "patchtst",
)  # fmt: skip


def check_train(entry: Architecture, engine: str = "cpu") -> Row:
    """The same of a loss, how far every result is from a ramp, and its gradients."""
    warnings.simplefilter("ignore")
    import torch
    from torch.utils import _pytree

    model, inputs = build(entry)

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, **inputs: Any) -> Any:
            leaves = _pytree.tree_leaves(self.model(**inputs))
            results = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
            return sum((x.float() - ramp(x)).square().mean() for x in results)

    def ramp(x: Any) -> Any:  # of what is normalised, a mean square itself hardly has gradients
        return torch.linspace(-1, 1, x.numel()).reshape(x.shape)

    step = Loss()
    loss = step(**copy.deepcopy(inputs))
    loss.backward()
    slopes = {name: p.grad for name, p in step.named_parameters() if p.grad is not None}
    try:
        exported = torch.export.export(step, (), dict(inputs), strict=False)
    except Exception as error:
        return Row(note=f"torch.export: {_first_line(error)}")
    import girih
    from girih.frontends.torch.exported import array_of

    started = time.perf_counter()
    try:
        joint = girih.joint_graph(exported)
        program = girih.compile(joint, target=engine, options=girih.Options(cache="off"))
        seconds = time.perf_counter() - started
        found, gradients = program(**{key: array_of(value) for key, value in inputs.items()})
    except Exception as error:
        return Row(True, note=f"{type(error).__name__}: {_first_line(error)}")
    if extra := sorted(gradients.keys() - slopes.keys()):
        return Row(True, True, float("inf"), f"a gradient of {extra[0]}", seconds)
    wanted = {name: array_of(slope) for name, slope in slopes.items()}
    largest = max(float(np.abs(slope).max()) for slope in wanted.values())
    worst = difference([found], [array_of(loss.detach())], varied=False)
    for name, slope in wanted.items():
        if name not in gradients or gradients[name].shape != slope.shape:
            return Row(True, True, float("inf"), f"no gradient of {name}, or another", seconds)
        # Some are zero but for roundings: a bias in front of a softmax, say.
        scale = max(float(np.abs(slope).max()), 1e-2 * largest)
        worst = max(worst, float(np.abs(gradients[name] - slope).max()) / scale)
    return Row(True, True, worst, "", seconds)


def _is_sequence(torch: Any, value: Any) -> bool:
    return value.ndim >= 2 and value.dtype == torch.int64


def difference(found: list[Any], wanted: list[Any], varied: bool = True) -> float:
    """The largest difference of any result, as a share of that result's largest value. varied: some
    result must have different values, or nothing would be compared."""
    assert len(found) >= len(wanted), f"{len(found)} results, expected {len(wanted)}"
    finite = [x[np.isfinite(x.astype(np.float64))].astype(np.float64) for x in wanted]
    assert not varied or any(x.size and np.ptp(x) > 0 for x in finite), "nothing to compare"
    worst = 0.0
    for ours, theirs in zip(map(np.asarray, found), wanted, strict=False):
        assert ours.shape == theirs.shape, f"{ours.shape} is not {theirs.shape}"
        assert ours.dtype == theirs.dtype, f"{ours.dtype} is not {theirs.dtype}"
        ours, theirs = (x.astype(np.float64) for x in (ours, theirs))
        finite = np.isfinite(theirs) & (np.abs(theirs) < 1e30)
        assert np.array_equal(ours[~finite] > 0, theirs[~finite] > 0), "infinities differ"
        scale = np.abs(theirs[finite]).max(initial=0.0) or 1.0
        worst = max(worst, float(np.abs(ours - theirs)[finite].max(initial=0.0)) / scale)
        assert not np.isnan(ours[finite]).any(), "nan in the result"
    return worst


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().split("\n") if line.strip()]
    return " ".join(lines[:2])[:300] if lines else type(error).__name__


def apart(entry: Architecture, engine: str, checked: Callable[..., Row]) -> Row:
    """`check`, or another like it, in a process of its own, which may die."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def work() -> None:
        try:
            theirs.send(checked(entry, engine))
        except BaseException as error:
            theirs.send(Row(note=f"model: {type(error).__name__}: {_first_line(error)}"))

    child = context.Process(target=work)
    child.start()
    theirs.close()
    try:
        row = ours.recv() if ours.poll(SECONDS) else Row(True, note=f"longer than {SECONDS} s")
    except EOFError:
        row = Row(True, note="the process died")
    child.kill()
    child.join()
    return row


def agrees(entry: Architecture, row: Row) -> bool:
    return row.compiles and row.error <= TOLERANCE[entry.dtype]


def page(rows: dict[str, Row]) -> str:
    """docs/architectures.md."""
    exporting = [e for e in ARCHITECTURES if rows[e.name].exports]
    good = sum(agrees(entry, rows[entry.name]) for entry in exporting)
    lines = [
        "# Architectures of transformers",
        "",
        "Every architecture at tiny size with random weights: exported by `torch.export`, compiled",
        "for the CPU and compared with PyTorch. Generated by `tests/zoo/architectures.py --write`.",
        "",
        f"{len(ARCHITECTURES)} models, {len(exporting)} of them can be exported, {good} of these"
        " compile and agree.",
        "The error is the largest difference as a share of the result's largest value; it is at"
        f" most {TOLERANCE['float32']:.0e} in float32, {TOLERANCE['bfloat16']:.0e} in bfloat16.",
        "vits draws random numbers: it is compared with its noise scales at 0.",
        "",
        "| model | exports | compiles | agrees | error | note |",
        "|---|---|---|---|---|---|",
    ]
    for entry in ARCHITECTURES:
        row = rows[entry.name]
        said = ["yes" if flag else "no" for flag in (row.exports, row.compiles, agrees(entry, row))]
        if not row.exports:
            said[1:] = ["", ""]
        error = f"{row.error:.0e}" if row.compiles else ""
        note = re.sub(r"\S*site-packages/", "", row.note).replace("|", "\\|")[:200]
        lines.append(f"| {entry.name} | {' | '.join(said)} | {error} | {note} |")
    return "\n".join(lines) + "\n"


def part(title: str, text: str, rows: dict[str, Row]) -> str:
    """A further part of docs/architectures.md: what became of the models that export."""
    lines = ["", title, "", *text.splitlines(), ""]
    lines += ["| model | compiles | agrees | error | note |", "|---|---|---|---|---|"]
    for entry in ARCHITECTURES:
        row = rows.get(entry.name)
        if row is None or not row.exports:
            continue
        said = ("yes" if flag else "no" for flag in (row.compiles, agrees(entry, row)))
        error = f"{row.error:.0e}" if row.compiles else ""
        note = "" if agrees(entry, row) else re.sub(r"\S*site-packages/", "", row.note)
        note = note.replace("|", "\\|")[:200]
        lines.append(f"| {entry.name} | {' | '.join(said)} | {error} | {note} |")
    return "\n".join(lines) + "\n"


def written(title: str, rows: dict[str, Row]) -> str:
    """The page with the part of that title replaced; "" is the first, of all architectures."""
    before, *parts = re.split(r"(?=\n## )", PAGE.read_text())
    known = {part.splitlines()[1]: part for part in parts}
    if not title:
        before = page(rows) if all(e.name in rows for e in ARCHITECTURES) else before
    else:
        known[title] = part(title, TEXTS[title], rows)
    return before + "".join(known[title] for title in TEXTS if title in known)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of architectures")
    parser.add_argument("--on", default="cpu", help="a target, ptx-sim, or interpreter")
    parser.add_argument("--keep", type=Path, help="a JSON file of rows, read and written")
    parser.add_argument("--write", action="store_true", help="write docs/architectures.md")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--open", action="store_true", help="leave batch and length to the call")
    kinds.add_argument("--train", action="store_true", help="a loss and its gradients")
    arguments = parser.parse_args()
    import torch
    import transformers  # noqa: F401 - once, before the processes of the models begin

    torch.set_num_threads(1)
    rows: dict[str, Row] = {}
    if arguments.keep and arguments.keep.exists():
        rows = {name: Row(*row) for name, row in json.loads(arguments.keep.read_text()).items()}
    checked = check_open if arguments.open else check_train if arguments.train else check
    chosen = arguments.only or (TRAINED if arguments.train else [e.name for e in ARCHITECTURES])
    for entry in ARCHITECTURES:
        if entry.name not in chosen or (entry.name in rows and agrees(entry, rows[entry.name])):
            continue
        row = rows[entry.name] = apart(entry, arguments.on, checked)
        if arguments.keep:
            arguments.keep.write_text(json.dumps(rows))
        verdict = "agrees" if agrees(entry, row) else "DIFFERS" if row.compiles else "fails"
        verdict = verdict if row.exports else "no export"
        print(f"{entry.name:32} {verdict:10} {row.error:8.1e} {row.seconds:6.1f} s  {row.note}",
              flush=True)  # fmt: skip
    if arguments.write:
        PAGE.write_text(written(OPEN if arguments.open else TRAIN if arguments.train else "", rows))
    wrong = sum(row.exports and not agrees(e, row) for e in ARCHITECTURES
                if (row := rows.get(e.name)))  # fmt: skip
    print(f"{len(rows)} models, {sum(r.exports for r in rows.values())} export, {wrong} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
