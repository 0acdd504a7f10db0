"""The studies of the Decima paper, one function each; `catalog` lists them."""
