from small_resnet import ResNet18, save_outcome, train_dataloader_cfg

from mm_runner.runner import Runner

runner = Runner(
    model=ResNet18(),
    work_dir='./work_dir',
    train_dataloader=train_dataloader_cfg,
    optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.001, momentum=0.9)),
    train_cfg=dict(by_epoch=True, max_epochs=3),
    cfg=dict(compile=True)
)
runner.train()
save_outcome(runner)
