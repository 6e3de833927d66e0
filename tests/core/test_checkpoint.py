from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLForConditionalGeneration

from tests.core.doubles import EOS, MASK, byte_tokenizer, random_inputs, save_tiny, tiny_model
from wamdiff2_core.chat import ChatRequest
from wamdiff2_core.config import DecodeConfig, ImagePolicy
from wamdiff2_core.decode import Generator
from wamdiff2_core.errors import UserError
from wamdiff2_core.model.checkpoint import load_checkpoint, read_model_config, save_checkpoint
from wamdiff2_core.serving_record import ServingRecord

IDS = {"mask_token_id": MASK, "eos_token_id": EOS}
RECORD = ServingRecord(block_sizes=(4,), images=ImagePolicy((64, 32), 2048, 2048), **IDS)


def edit_json(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def as_wam_diff2(folder: Path) -> None:
    """Rename a stock folder's model types to the authors' names, written the way their transformers wrote them."""
    path = folder / "config.json"
    data = json.loads(path.read_text())
    data["model_type"] = data["vision_config"]["model_type"] = "wam_diff2"
    data["text_config"]["model_type"] = "wam_diff2_text"
    rope = data["text_config"].pop("rope_parameters")
    data["text_config"]["rope_theta"] = rope.pop("rope_theta")
    data["text_config"]["rope_scaling"] = rope
    data["architectures"] = ["WAMDiff2ForConditionalGeneration"]
    data["auto_map"] = {"AutoModel": "modeling_wam_diff2.WAMDiff2Model"}
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard_size", ["5GB", "60KB"])
@pytest.mark.parametrize("names", ["qwen3_vl", "wam_diff2"])
def test_folders_of_both_names_tied_or_not_single_or_sharded_load(tmp_path, tied, shard_size, names):
    model = tiny_model(1, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    byte_tokenizer().save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists() == (shard_size == "5GB")
    if names == "wam_diff2":
        as_wam_diff2(tmp_path)
    checkpoint = load_checkpoint(tmp_path, **IDS)
    loaded = checkpoint.model.state_dict()
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(value, loaded[name]) for name, value in model.state_dict().items())
    head, embedding = checkpoint.model.lm_head.weight, checkpoint.model.model.language_model.embed_tokens.weight
    assert (head is embedding) == tied
    config = DecodeConfig(4, 4, max_new_tokens=8)
    inputs = checkpoint.chat.encode(ChatRequest("hello"))
    answer = Generator(checkpoint).generate([inputs], config)[0]
    assert answer.text == checkpoint.chat.decode(answer.token_ids)


def test_a_tied_head_stored_twice_loads(tmp_path):
    save_tiny(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights["model.language_model.embed_tokens.weight"].clone()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    load_checkpoint(tmp_path, **IDS)


def test_both_attention_implementations_decode_alike(tmp_path):
    save_tiny(tmp_path, seed=2)
    inputs = random_inputs(1, 14, ((2, 4),))
    answers = [
        Generator(load_checkpoint(tmp_path, attn_implementation=attn, **IDS)).generate(
            [inputs], DecodeConfig(8, 8, "low_confidence_dynamic", 0.2, max_new_tokens=24)
        )[0]
        for attn in ("sdpa", "eager")
    ]
    assert answers[0].raw_ids == answers[1].raw_ids
    with pytest.raises(UserError, match="attn_implementation"):
        load_checkpoint(tmp_path, attn_implementation="flash", **IDS)


def test_save_and_load_keep_weights_record_and_hash(tmp_path):
    model = tiny_model(3).to(torch.bfloat16)
    save_checkpoint(model, byte_tokenizer(), RECORD, tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.record == RECORD
    assert (checkpoint.mask_token_id, checkpoint.eos_token_id, checkpoint.images) == (MASK, EOS, RECORD.images)
    assert checkpoint.model.dtype == torch.float32
    assert load_checkpoint(tmp_path, dtype="bfloat16").model.dtype == torch.bfloat16
    assert torch.equal(checkpoint.model.lm_head.weight, model.lm_head.weight.float())
    assert len(checkpoint.hash) == 12
    Qwen3VLForConditionalGeneration.from_pretrained(tmp_path)  # stock transformers loads it too

    hashes = {checkpoint.hash, load_checkpoint(tmp_path).hash}
    assert len(hashes) == 1
    edit_json(tmp_path / "wamdiff2.json", notes="other")
    hashes.add(load_checkpoint(tmp_path).hash)
    save_file(load_file(tmp_path / "model.safetensors") | {"lm_head.weight": torch.zeros(272, 64)},
              tmp_path / "model.safetensors", {"format": "pt"})
    hashes.add(load_checkpoint(tmp_path).hash)
    assert len(hashes) == 3


def test_ids_come_from_the_record_else_the_caller_else_qwen(tmp_path):
    save_tiny(tmp_path)
    with pytest.raises(UserError, match="mask_token_id"):
        load_checkpoint(tmp_path)  # Qwen's 151671 is beyond this vocabulary
    assert load_checkpoint(tmp_path, mask_token_id=7, eos_token_id=8).mask_token_id == 7
    RECORD.save(tmp_path)
    assert load_checkpoint(tmp_path, mask_token_id=MASK).mask_token_id == MASK
    for contradiction in ({"mask_token_id": 7}, {"eos_token_id": 7}, {"images": ImagePolicy()}):
        with pytest.raises(UserError, match=next(iter(contradiction))):
            load_checkpoint(tmp_path, **contradiction)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-VL-2B-Instruct", "/nowhere"])
def test_a_missing_folder_is_the_users_error_and_nothing_is_downloaded(no_network, name):
    with pytest.raises(UserError, match="checkpoint: expected a checkpoint folder"):
        load_checkpoint(name)


def test_loading_asks_no_network(no_network, tmp_path):
    save_tiny(tmp_path)
    load_checkpoint(tmp_path, **IDS)


def test_a_folder_without_tokenizer_loads_only_when_none_is_required(tmp_path):
    save_tiny(tmp_path, tokenizer=False)
    with pytest.raises(UserError, match="tokenizer"):
        load_checkpoint(tmp_path, **IDS)
    checkpoint = load_checkpoint(tmp_path, require_tokenizer=False, **IDS)
    assert checkpoint.tokenizer is None
    with pytest.raises(UserError, match="tokenizer"):
        checkpoint.chat.encode(ChatRequest("hello"))
    answer = Generator(checkpoint).generate([random_inputs(0, 5)], DecodeConfig(4, max_new_tokens=4))[0]
    assert answer.text == ""


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def change_type(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="llama")


def drop_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def drop_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def drop_key(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.language_model.layers.1.self_attn.q_norm.weight")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def add_key(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors") | {"model.extra.weight": torch.zeros(1)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def change_shape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors") | {"model.language_model.norm.weight": torch.zeros(3)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def break_record(folder: Path) -> None:
    (folder / "wamdiff2.json").write_text('{"block_size": 4}')


@pytest.mark.parametrize(
    "damage",
    [break_config, change_type, drop_config, drop_weights, cut_weights, drop_key, add_key, change_shape, break_record],
)
def test_a_damaged_folder_is_the_users_error(tmp_path, damage):
    save_tiny(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError):
        load_checkpoint(tmp_path, **IDS)


def test_a_missing_shard_is_the_users_error(tmp_path):
    tiny_model().save_pretrained(tmp_path, max_shard_size="60KB")
    next(tmp_path.glob("model-00002-*")).unlink()
    with pytest.raises(UserError, match="model-00002"):
        load_checkpoint(tmp_path, require_tokenizer=False, **IDS)


def real_config(text: dict, vision: dict, tied: bool) -> dict:
    """The released configurations, under the authors' names."""
    return {
        "model_type": "wam_diff2", "architectures": ["WAMDiff2ForConditionalGeneration"], "tie_word_embeddings": tied,
        "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
        "text_config": {
            "model_type": "wam_diff2_text", "attention_bias": False, "bos_token_id": 151643, "eos_token_id": 151645,
            "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 262144, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6, "rope_theta": 5000000, "tie_word_embeddings": tied, "vocab_size": 151936,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        } | text,
        "vision_config": {
            "model_type": "wam_diff2", "hidden_act": "gelu_pytorch_tanh", "in_channels": 3, "num_heads": 16,
            "num_position_embeddings": 2304, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
        } | vision,
    }


REAL_2B = real_config(
    {"hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_hidden_layers": 28},
    {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 2048,
     "deepstack_visual_indexes": [5, 11, 17]}, True,
)
REAL_8B = real_config(
    {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_hidden_layers": 36},
    {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096,
     "deepstack_visual_indexes": [8, 16, 24]}, False,
)


def keys_of_qwen3_vl(config: dict) -> set[str]:
    """Every key of a Qwen3-VL checkpoint, written out."""
    visual, text = "model.visual.", "model.language_model."
    keys = {visual + "pos_embed.weight", text + "embed_tokens.weight", text + "norm.weight", "lm_head.weight"}
    linears = [visual + "patch_embed.proj"]
    mergers = [visual + "merger."] + [
        f"{visual}deepstack_merger_list.{i}." for i in range(len(config["vision_config"]["deepstack_visual_indexes"]))
    ]
    linears += [merger + part for merger in mergers for part in ("norm", "linear_fc1", "linear_fc2")]
    for i in range(config["vision_config"]["depth"]):
        parts = ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2")
        linears += [f"{visual}blocks.{i}.{part}" for part in parts]
    keys |= {linear + end for linear in linears for end in (".weight", ".bias")}
    for i in range(config["text_config"]["num_hidden_layers"]):
        attention = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
        parts = ["input_layernorm", "post_attention_layernorm", *(f"self_attn.{part}" for part in attention)]
        parts += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
        keys |= {f"{text}layers.{i}.{part}.weight" for part in parts}
    return keys


@pytest.mark.parametrize(
    ("data", "parameters"), [(REAL_2B, 2_127_532_032), (REAL_8B, 8_767_123_696)], ids=["2B", "8B"]
)
def test_the_real_configurations_build_with_exactly_the_stock_keys(tmp_path, data, parameters):
    (tmp_path / "config.json").write_text(json.dumps(data))
    config = read_model_config(tmp_path)
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(config)
    assert set(model.state_dict()) == keys_of_qwen3_vl(data)
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    rope = config.get_text_config().rope_parameters
    assert (rope["rope_theta"], rope["mrope_section"]) == (5000000, [24, 20, 20])


@pytest.mark.parametrize("device", ["foo", "cuda:99"])
def test_a_device_that_is_not_there_is_told_before_anything_is_read(tmp_path: Path, device: str) -> None:
    with pytest.raises(UserError, match="device: expected a device of this machine"):
        load_checkpoint(tmp_path / "nowhere", device=device)
