"""The compiled hand-made policies of Decima's world."""
