"""The world of rigid jobs: DeepRM, A2cScheduler, the set network, logs of batch clusters."""
