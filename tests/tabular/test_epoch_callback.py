"""Inside Lightning: the callback tells the dataset its epoch, and every row of every epoch is trained on once."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from tabular_cases import CONFIG, UNEVEN, real_ids, write_shards

from headrace.lightning import EpochCallback
from headrace.tabular.dataset import PipelineIterableDataset


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = {}

    def training_step(self, batch):
        self.seen.setdefault(self.current_epoch, []).extend(real_ids([batch]))
        return self.layer(batch["label"].float()[:, None]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings(
    "ignore:.*LeafSpec.* is deprecated:FutureWarning"
)  # lightning 2.6 in newer torch
@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__`")  # true there, and exact
@pytest.mark.filterwarnings("ignore:GPU available but not used")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
def test_lightning_trains_on_every_row_once_in_each_epoch(tmp_path):
    write_shards(tmp_path)
    dataset = PipelineIterableDataset(
        CONFIG, tmp_path, shuffle_shards=True, batch_size=8, num_workers=2
    )
    loader = dataset.data_loader(method="fork", persistent_workers=True)
    model = Model()
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[EpochCallback(dataset)],
    )
    trainer.fit(model, loader)
    orders = list(model.seen.values())

    assert [list(range(sum(UNEVEN)))] * 3 == [sorted(order) for order in orders]
    assert 3 == len(set(map(tuple, orders)))
