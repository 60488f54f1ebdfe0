"""What a derived table is: which queries it may have, and which of its rows a change of an input concerns. Pure."""
