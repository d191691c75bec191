"""Accelerate with data that draws and a model that drops out. `OUT STEPS`."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from watched import OURS, PAUSE_S, Noisy, loss_of, maybe_die, network, record, say_weights

OUT, STEPS = Path(sys.argv[1]), int(sys.argv[2])


def ours(accelerator: Any, loader: Any) -> Iterator[tuple[int, Any]]:
    from zrun.integrations.accelerate import Resumable

    run = Resumable(accelerator, OUT / "states", every=5)
    for batch in run.batches(loader, total=STEPS):
        yield run.step + 1, batch


def by_hand(accelerator: Any, loader: Any) -> Iterator[tuple[int, Any]]:
    """As Accelerate's own guide has it."""
    step = 0
    if (OUT / "state").exists():
        accelerator.load_state(str(OUT / "state"))
        step = int((OUT / "step").read_text())
    while step < STEPS:
        done = step % len(loader)
        loader.set_epoch(step // len(loader))
        for batch in accelerator.skip_first_batches(loader, done) if done else loader:
            step += 1
            yield step, batch
            if step % 5 == 0:
                accelerator.save_state(str(OUT / "state"))
                (OUT / "step").write_text(str(step))
            if step >= STEPS:
                break


def main() -> None:
    OUT.mkdir(exist_ok=True)
    accelerator = Accelerator(cpu=True)
    set_seed(3)
    model: Any = network()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    loader: Any = torch.utils.data.DataLoader(Noisy(), batch_size=2, shuffle=True)
    model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
    for step, batch in (ours if OURS else by_hand)(accelerator, loader):
        maybe_die(OUT, step)
        time.sleep(PAUSE_S)
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        record(OUT, step, loss)
    say_weights(accelerator.unwrap_model(model))


if __name__ == "__main__":
    main()
