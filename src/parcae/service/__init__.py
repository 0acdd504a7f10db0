"""The live scheduler: messages in, commands out, over the same cluster state as the simulator."""
