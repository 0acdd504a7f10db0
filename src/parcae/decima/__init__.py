"""What only Decima's world of executors needs: its policies, their learning, its readers."""
