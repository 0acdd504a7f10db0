"""What is known of a cluster that packs rigid jobs: one state, steps of time or exact events, one view for policies."""
