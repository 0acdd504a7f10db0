"""The hand-made policies of Decima's world."""
