"""`generate` of Hugging Face's Marian with random weights."""

from decoding_sides.setting import END, PAD, START, Decode, Setting, padded_batches


def build(setting: Setting) -> Decode:
    import torch
    from training_sides.devices import allow_tf32, torch_device
    from training_sides.marian import make_model

    allow_tf32()
    model = make_model(setting.dimensions, len(setting.vocabulary)).eval()
    model.to(torch_device(), getattr(torch, setting.dtype))
    rows = setting.rows

    def decode(chosen: list[int], batch_size: int) -> None:
        for batch in padded_batches(rows, chosen, batch_size):
            sources = torch.tensor(batch, device=torch_device())
            outputs = model.generate(
                input_ids=sources,
                attention_mask=(sources != PAD).long(),
                num_beams=setting.num_beams,
                do_sample=False,
                min_new_tokens=setting.length,
                max_new_tokens=setting.length,
                pad_token_id=PAD,
                decoder_start_token_id=START,
                eos_token_id=END,
                use_cache=True,
            )
            assert outputs.shape[1] == setting.length + 1

    return decode
