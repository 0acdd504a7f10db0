"""The compiled hand-made policies of the world of rigid jobs."""
