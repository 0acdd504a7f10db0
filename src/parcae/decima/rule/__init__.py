"""The tuned rule of Decima's world."""
