"""A state that no disk has room for, in almost no memory: one number seen as very many."""

import torch
from torch import nn

from zrun.worker import Session

model = nn.Linear(4, 4)
model.register_buffer("huge", torch.zeros(1).expand(10**15))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Session(model=model, optimizer=optimizer) as run:
    for step in run.steps(total=3):
        print("trained", step, flush=True)
