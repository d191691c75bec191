"""A HF Trainer script that knows nothing of zrun: a tiny random GPT-2. `OUT [key=value of TrainingArguments …]`.

HURT=rank:step:seconds makes a rank sleep in a data collator, once; EVAL_PAUSE and SAVE_PAUSE (s) make those slow.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

RANK = int(os.environ["RANK"])


class Told(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, length: int, pause: float = 0.0) -> None:
        self.length, self.pause = length, pause

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.pause)
        ids = torch.arange(index, index + 8) % 32
        return {"input_ids": ids, "labels": ids}


class Hurt(TrainerCallback):  # type: ignore[misc]
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        rank, step, seconds = (float(part) for part in os.environ.get("HURT", "-1:0:0").split(":"))
        mark = Path(args.output_dir) / "hurt"
        if rank == RANK and state.global_step + 1 == step and not mark.exists():
            mark.write_text("")
            time.sleep(seconds)


class Slow(GPT2LMHeadModel):  # type: ignore[misc]
    def save_pretrained(self, *given: Any, **named: Any) -> Any:
        time.sleep(float(os.environ.get("SAVE_PAUSE", "0")))
        return super().save_pretrained(*given, **named)


def main() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {}
    for word in sys.argv[2:]:
        key, _, value = word.partition("=")
        options[key] = int(value) if value.isdigit() else value
    args = TrainingArguments(
        output_dir=sys.argv[1], report_to="none", use_cpu=True, per_device_train_batch_size=2, logging_steps=5,
        disable_tqdm=True, **options,
    )  # fmt: skip
    model = Slow(GPT2Config(vocab_size=32, n_positions=16, n_embd=64, n_layer=2, n_head=2))
    trainer = Trainer(
        model=model, args=args, train_dataset=Told(256, 0.01), callbacks=[Hurt()],
        eval_dataset=Told(8, float(os.environ.get("EVAL_PAUSE", "0"))),
    )  # fmt: skip
    Path(args.output_dir).mkdir(exist_ok=True)
    result = trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir))
    print(f"done at {result.global_step}", flush=True)
    if os.environ.get("PREDICT"):
        trainer.predict(Told(8, float(os.environ["PREDICT"])))


if __name__ == "__main__":
    main()
