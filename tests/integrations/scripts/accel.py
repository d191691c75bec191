"""An Accelerate script that knows nothing of zrun. `OUT STEPS`; HURT=rank:step:seconds, EVAL_PAUSE, SAVE_PAUSE (s)."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

RANK = int(os.environ["RANK"])


class Count:
    """Saved and restored by Accelerate."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        if RANK == 0:
            time.sleep(float(os.environ.get("SAVE_PAUSE", "0")))
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def evaluate(model: Any, loader: Any) -> None:
    model.eval()
    with torch.no_grad():
        for batch in loader:
            model(batch)
    if RANK == 0:
        time.sleep(float(os.environ.get("EVAL_PAUSE", "0")))


def main() -> None:
    out, steps = Path(sys.argv[1]), int(sys.argv[2])
    hurt = [float(part) for part in os.environ.get("HURT", "-1:0:0").split(":")]
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model: Any = torch.nn.Linear(8, 1)
    optimizer: Any = torch.optim.AdamW(model.parameters())
    data: Any = [torch.rand(8) for _ in range(64)]
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=2))
    count = Count()
    accelerator.register_for_checkpointing(count)
    if (out / "state").exists():
        accelerator.load_state(str(out / "state"))
    while count.step < steps:
        model.train()
        for batch in loader:
            mark = out / "hurt"
            if hurt[0] == RANK and count.step + 1 == hurt[1] and not mark.exists():
                out.mkdir(exist_ok=True)
                mark.write_text("")
                time.sleep(hurt[2])
            time.sleep(0.02)
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                count.step += 1
                print(f"step {count.step}", flush=True)
                if count.step % 10 == 0:
                    evaluate(model, loader)
                    accelerator.save_state(str(out / "state"))
                    model.train()
                if count.step >= steps:
                    break
    print(f"done at {count.step}", flush=True)


if __name__ == "__main__":
    main()
