"""Lightning with data that draws and a model that drops out. `OUT STEPS [WORKERS]`."""

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from watched import OURS, PAUSE_S, Noisy, loss_of, maybe_die, network, record, say_weights

OUT = Path(sys.argv[1])
L: Any = importlib.import_module("lightning.pytorch")  # with and without it the type checker says the same


class Model(L.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def training_step(self, batch: Any, _: int) -> Any:
        step = self.global_step + 1
        maybe_die(OUT, step)
        time.sleep(PAUSE_S)
        loss = loss_of(self.network, batch)
        record(OUT, step, loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer: Any = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main() -> None:
    OUT.mkdir(exist_ok=True)
    L.seed_everything(1, verbose=False)
    checkpoints = L.callbacks.ModelCheckpoint(dirpath=OUT, save_last=not OURS, save_top_k=-1, every_n_train_steps=5)
    callbacks: list[Any] = [checkpoints]
    if OURS:
        from zrun.integrations.lightning import ZrunCallback

        callbacks.append(ZrunCallback())
    model = Model()
    trainer = L.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp", max_steps=int(sys.argv[2]), default_root_dir=OUT,
        logger=False, enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
    )  # fmt: skip
    workers = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    loader: Any = torch.utils.data.DataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=workers)
    trainer.fit(model, loader, ckpt_path=None if OURS else "last")
    say_weights(model)


if __name__ == "__main__":
    main()
