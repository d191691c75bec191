"""Trainer with data that draws and a model that drops out. `OUT [key=value of TrainingArguments …]`."""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
from watched import OURS, PAUSE_S, maybe_die, record, say_weights


class Masked(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.arange(index, index + 8) % 32
        return {"input_ids": torch.where(torch.rand(8) < 0.3, torch.zeros_like(ids), ids), "labels": ids}


class Watched(Trainer):  # type: ignore[misc]
    def training_step(self, *given: Any, **named: Any) -> Any:
        out, step = Path(self.args.output_dir), self.state.global_step + 1
        maybe_die(out, step)
        time.sleep(PAUSE_S)
        loss = super().training_step(*given, **named)
        record(out, step, loss)
        return loss


def main() -> None:
    options: dict[str, Any] = {}
    for word in sys.argv[2:]:
        key, _, value = word.partition("=")
        options[key] = int(value) if value.isdigit() else value not in {"false", "False"} and value
    args = TrainingArguments(
        output_dir=sys.argv[1], report_to="none", use_cpu=True, per_device_train_batch_size=2, logging_steps=4,
        save_steps=5, disable_tqdm=True, **options,
    )  # fmt: skip
    callbacks: list[Any] = []
    if OURS:
        from zrun.integrations.hf import ZrunCallback

        callbacks.append(ZrunCallback())
    Path(args.output_dir).mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=64, n_layer=2, n_head=2))
    trainer = Watched(model=model, args=args, train_dataset=Masked(), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=None if OURS else get_last_checkpoint(args.output_dir))
    say_weights(model)


if __name__ == "__main__":
    main()
