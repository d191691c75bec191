"""A Lightning script that knows nothing of zrun. `PACKAGE OUT STEPS`; HURT=rank:step:seconds, EVAL_PAUSE, SAVE_PAUSE as
for hf.py.
"""

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

L: Any = importlib.import_module(sys.argv[1])
callbacks: Any = importlib.import_module(f"{sys.argv[1]}.callbacks")
RANK = int(os.environ["RANK"])


class Model(L.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: Any, _: int) -> Any:
        rank, step, seconds = (float(part) for part in os.environ.get("HURT", "-1:0:0").split(":"))
        mark = Path(sys.argv[2]) / "hurt"
        if rank == RANK and self.global_step + 1 == step and not mark.exists():
            mark.write_text("")
            time.sleep(seconds)
        time.sleep(0.02)
        return self.layer(batch).square().mean()

    def validation_step(self, batch: Any, _: int) -> None:
        time.sleep(float(os.environ.get("EVAL_PAUSE", "0")))
        self.log("val", self.layer(batch).mean())

    def on_save_checkpoint(self, _: Any) -> None:
        time.sleep(float(os.environ.get("SAVE_PAUSE", "0")))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    out = Path(sys.argv[2])
    out.mkdir(exist_ok=True)
    data: Any = [torch.rand(8) for _ in range(256)]
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=int(sys.argv[3]), default_root_dir=out, logger=False,
        enable_progress_bar=False, val_check_interval=10, limit_val_batches=2,
        callbacks=[callbacks.ModelCheckpoint(dirpath=out, save_last=True, every_n_train_steps=10)],
    )  # fmt: skip
    loader: Any = torch.utils.data.DataLoader(data, batch_size=4)
    trainer.fit(Model(), loader, torch.utils.data.DataLoader(data[:8], batch_size=2), ckpt_path="last")
    print(f"done at {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
