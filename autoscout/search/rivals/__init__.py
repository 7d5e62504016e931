"""Other people's searches, to be measured beside ours. One file each, named like its strategy."""
