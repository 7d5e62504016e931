"""Other people's searches, to compare with ours. One file each, named after its strategy."""
